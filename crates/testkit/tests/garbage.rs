//! A bounded run of what the fuzzer does without end: random bytes, and messages with damage.

use std::panic::catch_unwind;

use ronde_testkit::garbage::{TARGETS, Target};
use ronde_testkit::{Dice, effort, seed};

/// Changes, drops, repeats or inserts a few bytes.
fn damage(bytes: &mut Vec<u8>, dice: &mut Dice) {
    for _ in 0..=dice.below(4) {
        let at = dice.below(bytes.len() + 1);
        let value = dice.pick(&[0, 1, 127, 128, 255, dice.clone().roll() as u8]);
        match dice.below(5) {
            0 => bytes.insert(at, value),
            1 => bytes.truncate(at),
            2 => bytes.extend_from_within(at..),
            _ if at < bytes.len() => bytes[at] = value,
            _ => bytes.extend([255; 9]),
        }
        bytes.truncate(2000);
    }
}

fn run(target: &Target, seed: u64) {
    let seeds = (target.seeds)();
    for number in 0..effort(4000) {
        let mut dice = Dice::part(seed, number);
        let mut bytes = match number.checked_sub(seeds.len()) {
            None => seeds[number].clone(),
            Some(_) if dice.once_in(4) => {
                let length = dice.below(300);
                dice.bytes(length)
            }
            Some(_) => seeds[dice.below(seeds.len())].clone(),
        };
        if number >= seeds.len() {
            damage(&mut bytes, &mut dice);
        }
        let fed = catch_unwind(|| (target.feed)(&bytes));
        assert!(fed.is_ok(), "{} with seed {seed}, input {number}: {bytes:?}", target.name);
    }
}

#[test]
fn no_bytes_make_a_reader_panic_or_believe_a_lie() {
    let seed = seed();
    TARGETS.iter().for_each(|target| run(target, seed));
}
