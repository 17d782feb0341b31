//! Random choices that can be made again: all of a test's come from one seed, which is printed.
//!
//! Two variables of the environment steer such tests: `RONDE_TEST_SEED` makes a run again, and
//! `RONDE_TEST_EFFORT` makes it that many times as long.

use std::hash::{BuildHasher, RandomState};

/// A source of choices; the same seed gives the same ones.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The dice of a seed.
    pub fn of(seed: u64) -> Dice {
        Dice(seed)
    }

    /// Dice of their own for the part of a test with that number.
    pub fn part(seed: u64, number: usize) -> Dice {
        let mut dice = Dice(seed ^ (number as u64).wrapping_mul(0xD134_2543_DE82_EF95));
        dice.roll();
        dice
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

    /// True once in that many times.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Brings a row into any order.
    pub fn shuffle<T>(&mut self, row: &mut [T]) {
        for last in (1..row.len()).rev() {
            row.swap(last, self.below(last + 1));
        }
    }

    /// That many bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.roll() as u8).collect()
    }
}

/// The seed of this run: the one asked for, or a fresh one. It is printed, so that whoever sees the
/// test fail can make the run again.
pub fn seed() -> u64 {
    let asked = std::env::var("RONDE_TEST_SEED").ok();
    let seed = match &asked {
        Some(text) => text.parse().expect("RONDE_TEST_SEED is a whole number"),
        None => RandomState::new().hash_one(std::process::id()),
    };
    eprintln!("RONDE_TEST_SEED={seed} makes this run again");
    seed
}

/// How often to do what is usually done `count` times.
pub fn effort(count: usize) -> usize {
    let factor = std::env::var("RONDE_TEST_EFFORT").ok();
    count * factor.map_or(1, |text| text.parse().expect("RONDE_TEST_EFFORT is a whole number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_choices_again_and_others_give_others() {
        let row = |seed| (0..100).map(|_| Dice::of(seed).roll()).collect::<Vec<_>>();
        assert_eq!(row(7), row(7));
        assert_ne!(row(7), row(8));
        assert_ne!(Dice::part(7, 0).roll(), Dice::part(7, 1).roll());
    }

    #[test]
    fn a_shuffled_row_holds_what_it_held() {
        let mut row: Vec<usize> = (0..50).collect();
        Dice::of(3).shuffle(&mut row);
        assert_ne!(row, (0..50).collect::<Vec<_>>());
        row.sort_unstable();
        assert_eq!(row, (0..50).collect::<Vec<_>>());
    }
}
