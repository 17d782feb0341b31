//! Simulates thousands of jobs: see `ronde_testkit::job_simulation`.
//!
//! `RONDE_TEST_SEED` repeats a run, `RONDE_TEST_EFFORT` multiplies its length.

use std::panic::catch_unwind;

use ronde_control::event::JobKind;
use ronde_testkit::job_simulation::{JobSimulation, SimulationReport};
use ronde_testkit::{TestRng, effort, seed};

fn simulate(seed: u64) -> SimulationReport {
    catch_unwind(|| JobSimulation::play(seed)).unwrap_or_else(|_| {
        panic!("the job of seed {seed} broke a rule: see above, and add the seed to `KNOWN`")
    })
}

/// Seeds that have exposed a bug.
const KNOWN: &[u64] =
    &[6950313568464224604, 13787749107315782816, 16640458215024589462, 2149489117821087160];

#[test]
fn seeds_that_once_failed_pass() {
    KNOWN.iter().for_each(|seed| drop(simulate(*seed)));
}

#[test]
fn a_thousand_jobs_keep_the_rules_despite_faults() {
    let mut seeds = TestRng::of(seed());
    let count = effort(1000);
    let mut tally: [Tally; 2] = Default::default();
    for _ in 0..count {
        let report = simulate(seeds.roll());
        let tally = &mut tally[usize::from(report.kind == JobKind::Elastic)];
        tally.jobs += 1;
        tally.succeeded += usize::from(report.code == 0);
        tally.faults += report.faults;
        tally.worlds += report.worlds as usize;
        tally.events += report.events;
    }
    eprintln!("fixed: {:?}\nelastic: {:?}", tally[0], tally[1]);
    for (kind, tally) in ["fixed", "elastic"].iter().zip(&tally) {
        assert!(tally.jobs > count / 5, "hardly any job is {kind}: {tally:?}");
        assert!(tally.succeeded > tally.jobs / 20, "hardly any {kind} job finishes: {tally:?}");
        assert!(tally.worlds > tally.jobs, "hardly any job forms a second world: {tally:?}");
    }
}

#[derive(Debug, Default)]
struct Tally {
    jobs: usize,
    succeeded: usize,
    faults: usize,
    worlds: usize,
    events: u64,
}
