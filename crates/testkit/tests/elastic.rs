//! Elastic jobs by the thousand, on a stage: see `ronde_testkit::theatre`.
//!
//! `RONDE_TEST_SEED` makes a run again, `RONDE_TEST_EFFORT` makes it that many times as long.

use std::panic::catch_unwind;

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
    let (mut well, mut faults, mut worlds) = (0, 0, 0);
    let count = effort(2000);
    for _ in 0..count {
        let report = play(seeds.roll());
        well += usize::from(report.code == 0);
        faults += report.faults;
        worlds += report.worlds;
    }
    eprintln!("{count} jobs with {faults} faults formed {worlds} worlds; {well} finished well");
    assert!(well > count / 4, "hardly any job finishes: {well} of {count}");
    assert!(worlds as usize > count, "hardly any world is formed anew: {worlds}");
}
