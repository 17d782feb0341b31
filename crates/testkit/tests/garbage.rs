//! A bounded run of the fuzz targets: random bytes, and damaged messages.

use std::panic::catch_unwind;

use ronde_testkit::garbage::{FuzzTarget, TARGETS};
use ronde_testkit::{TestRng, effort, seed};

/// Changes, drops, repeats or inserts a few bytes.
fn damage(bytes: &mut Vec<u8>, rng: &mut TestRng) {
    for _ in 0..=rng.below(4) {
        let at = rng.below(bytes.len() + 1);
        let value = rng.pick(&[0, 1, 127, 128, 255, rng.clone().roll() as u8]);
        match rng.below(5) {
            0 => bytes.insert(at, value),
            1 => bytes.truncate(at),
            2 => bytes.extend_from_within(at..),
            _ if at < bytes.len() => bytes[at] = value,
            _ => bytes.extend([255; 9]),
        }
        bytes.truncate(2000);
    }
}

fn run(target: &FuzzTarget, seed: u64) {
    let seeds = (target.seeds)();
    for number in 0..effort(4000) {
        let mut rng = TestRng::part(seed, number);
        let mut bytes = match number.checked_sub(seeds.len()) {
            None => seeds[number].clone(),
            Some(_) if rng.once_in(4) => {
                let length = rng.below(300);
                rng.bytes(length)
            }
            Some(_) => seeds[rng.below(seeds.len())].clone(),
        };
        if number >= seeds.len() {
            damage(&mut bytes, &mut rng);
        }
        let fed = catch_unwind(|| (target.feed)(&bytes));
        assert!(fed.is_ok(), "{} with seed {seed}, input {number}: {bytes:?}", target.name);
    }
}

#[test]
fn no_bytes_make_a_reader_panic_or_accept_a_forgery() {
    let seed = seed();
    TARGETS.iter().for_each(|target| run(target, seed));
}
