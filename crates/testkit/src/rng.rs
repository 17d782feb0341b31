//! Reproducible random choices: all choices of a test derive from one seed, which is printed.
//!
//! Two environment variables control such tests: `RONDE_TEST_SEED` repeats a run, and
//! `RONDE_TEST_EFFORT` multiplies its length.

use std::hash::{BuildHasher, RandomState};

/// A random number generator; the same seed gives the same sequence.
#[derive(Clone, Debug)]
pub struct TestRng(u64);

impl TestRng {
    /// A generator with this seed.
    pub fn of(seed: u64) -> TestRng {
        TestRng(seed)
    }

    /// A separate generator for one part of a test.
    pub fn part(seed: u64, number: usize) -> TestRng {
        let mut rng = TestRng(seed ^ (number as u64).wrapping_mul(0xD134_2543_DE82_EF95));
        rng.roll();
        rng
    }

    /// Any number; the generator is SplitMix64.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not zero.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.roll() % limit as u64) as usize
    }

    /// True once in `times` calls, on average.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of the elements.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Puts a slice into random order.
    pub fn shuffle<T>(&mut self, row: &mut [T]) {
        for last in (1..row.len()).rev() {
            row.swap(last, self.below(last + 1));
        }
    }

    /// `count` random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.roll() as u8).collect()
    }
}

/// The seed of this run: the requested one, or a new one. It is printed, so that a failing run can
/// be repeated.
pub fn seed() -> u64 {
    let requested = std::env::var("RONDE_TEST_SEED").ok();
    let seed = match &requested {
        Some(text) => text.parse().expect("RONDE_TEST_SEED is a whole number"),
        None => RandomState::new().hash_one(std::process::id()),
    };
    eprintln!("RONDE_TEST_SEED={seed} repeats this run");
    seed
}

/// How often to do something that is usually done `count` times.
pub fn effort(count: usize) -> usize {
    let factor = std::env::var("RONDE_TEST_EFFORT").ok();
    count * factor.map_or(1, |text| text.parse().expect("RONDE_TEST_EFFORT is a whole number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_choices_and_other_seeds_differ() {
        let row = |seed| (0..100).map(|_| TestRng::of(seed).roll()).collect::<Vec<_>>();
        assert_eq!(row(7), row(7));
        assert_ne!(row(7), row(8));
        assert_ne!(TestRng::part(7, 0).roll(), TestRng::part(7, 1).roll());
    }

    #[test]
    fn shuffling_keeps_all_elements() {
        let mut row: Vec<usize> = (0..50).collect();
        TestRng::of(3).shuffle(&mut row);
        assert_ne!(row, (0..50).collect::<Vec<_>>());
        row.sort_unstable();
        assert_eq!(row, (0..50).collect::<Vec<_>>());
    }
}
