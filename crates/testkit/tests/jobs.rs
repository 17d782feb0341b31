//! Jobs by the thousand, on a stage: see `ronde_testkit::theatre`.
//!
//! `RONDE_TEST_SEED` makes a run again, `RONDE_TEST_EFFORT` makes it that many times as long.

use std::panic::catch_unwind;

use ronde_control::event::JobKind;
use ronde_testkit::theatre::{Report, Theatre};
use ronde_testkit::{Dice, effort, seed};

fn play(seed: u64) -> Report {
    catch_unwind(|| Theatre::play(seed)).unwrap_or_else(|_| {
        panic!("the job of seed {seed} broke a rule: see above, and add the seed to `KNOWN`")
    })
}

/// Seeds that have shown a mistake once.
const KNOWN: &[u64] =
    &[6950313568464224604, 13787749107315782816, 16640458215024589462, 2149489117821087160];

#[test]
fn seeds_that_once_failed_hold() {
    KNOWN.iter().for_each(|seed| drop(play(*seed)));
}

#[test]
fn thousands_of_jobs_keep_the_rules_whatever_happens_to_them() {
    let mut seeds = Dice::of(seed());
    let count = effort(2000);
    let mut tally: [Tally; 2] = Default::default();
    for _ in 0..count {
        let report = play(seeds.roll());
        let tally = &mut tally[usize::from(report.kind == JobKind::Elastic)];
        tally.jobs += 1;
        tally.well += usize::from(report.code == 0);
        tally.faults += report.faults;
        tally.worlds += report.worlds as usize;
        tally.events += report.events;
    }
    eprintln!("fixed: {:?}\nelastic: {:?}", tally[0], tally[1]);
    for (kind, tally) in ["fixed", "elastic"].iter().zip(&tally) {
        assert!(tally.jobs > count / 5, "hardly any job is {kind}: {tally:?}");
        assert!(tally.well > tally.jobs / 20, "hardly any {kind} job finishes: {tally:?}");
        assert!(tally.worlds > tally.jobs, "hardly any world is formed anew: {tally:?}");
    }
}

#[derive(Debug, Default)]
struct Tally {
    jobs: usize,
    well: usize,
    faults: usize,
    worlds: usize,
    events: u64,
}
