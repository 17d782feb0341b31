//! Grades as letters.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, VariantArray};

/// From best to worst; a smaller one is better.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    Display,
    EnumString,
    VariantArray,
)]
#[expect(missing_docs, reason = "letters")]
pub enum Letter {
    A,
    B,
    C,
    D,
    E,
    F,
}

impl Letter {
    /// All of them, the best first.
    pub const ALL: &[Letter] = Letter::VARIANTS;

    /// The letter of a score from 0 to 1.
    pub fn of(score: f64) -> Letter {
        let fits = |letter: &&Letter| score >= letter.least();
        *Letter::ALL.iter().find(fits).unwrap_or(&Letter::F)
    }

    /// The lowest score with this letter.
    pub fn least(self) -> f64 {
        match self {
            Letter::A => 0.85,
            Letter::B => 0.7,
            Letter::C => 0.5,
            Letter::D => 0.3,
            Letter::E => 0.15,
            Letter::F => 0.0,
        }
    }

    /// The highest score with this letter.
    pub(super) fn best(self) -> f64 {
        match self {
            Letter::A => 1.0,
            _ => self.better().least().next_down(),
        }
    }

    /// The next better one.
    pub(super) fn better(self) -> Letter {
        Letter::ALL[(self as usize).saturating_sub(1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_letter_covers_the_scores_from_its_least_to_its_best() {
        for &letter in Letter::ALL {
            assert_eq!(Letter::of(letter.least()), letter);
            assert_eq!(Letter::of(letter.best()), letter);
        }
        assert!(Letter::A < Letter::F && Letter::A.better() == Letter::A);
    }
}
