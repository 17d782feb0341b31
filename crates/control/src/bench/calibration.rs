//! Calibration: which algorithms are compared on a machine, and at which size to switch from one to
//! the other.

use std::cmp::Ordering;

use crate::{Knob, Tuning};

/// Two algorithms to compare, on both sides of the threshold between them.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// The tuning threshold under test.
    pub knob: Knob,
    /// The transport for which it matters.
    pub transport: &'static str,
    /// Minimum number of ranks; with fewer there is only one algorithm.
    pub least_ranks: u32,
    /// The smallest and largest size to try, as powers of two. The largest fits into staging
    /// memory.
    sizes: (u32, u32),
    /// Thresholds to set to zero, so that they do not interfere.
    aside: &'static [Knob],
}

/// A smaller gain does not justify a change.
const LEAST_GAIN: f64 = 1.02;

/// All experiments, ordered so that each may rely on those before it. What matters only between
/// hosts cannot be tried on one host.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        knob: Tuning::ONE_SHOT,
        transport: "auto",
        least_ranks: 2,
        sizes: (9, 16),
        aside: &[Tuning::EXPRESS],
    },
    Experiment {
        knob: Tuning::EXPRESS,
        transport: "auto",
        least_ranks: 2,
        sizes: (9, 15),
        aside: &[],
    },
    Experiment {
        knob: Tuning::FEW_MESSAGES,
        transport: "tcp",
        least_ranks: 2,
        sizes: (10, 18),
        aside: &[],
    },
    Experiment {
        knob: Tuning::HALVING,
        transport: "tcp",
        least_ranks: 3,
        sizes: (14, 22),
        aside: &[Tuning::FEW_MESSAGES],
    },
];

impl Experiment {
    /// The sizes to try, in ascending order.
    pub fn sizes(&self) -> Vec<u64> {
        (self.sizes.0..=self.sizes.1).map(|power| 1 << power).collect()
    }

    /// Tunings that select the first and the second algorithm for all sizes.
    pub fn sides(&self, tuning: Tuning) -> (Tuning, Tuning) {
        let free = self.aside.iter().fold(tuning, |tuning, knob| tuning.with(knob, 0));
        (free.with(&self.knob, 1 << self.sizes.1), free.with(&self.knob, 0))
    }
}

/// The time of both algorithms for one size, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SizeTrial {
    /// Message size in bytes.
    pub bytes: u64,
    /// Time of the algorithm for sizes up to the threshold.
    pub below: f64,
    /// Time of the algorithm for sizes above it.
    pub above: f64,
}

/// The size at which to switch from one algorithm to the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossing {
    /// The largest size for the first algorithm, in bytes.
    pub threshold: u64,
    /// Average speedup of the tried sizes over the previous threshold: 1.05 is 5 %.
    pub gain: f64,
}

/// The threshold that loses least over all trials, which are in ascending order of size. One noisy
/// size cannot move it far, because every size counts. Of equals, the one nearest to `before` wins.
pub fn crossing(trials: &[SizeTrial], before: u64) -> Option<Crossing> {
    let first = trials.first()?;
    let ends = trials.windows(2).map(|pair| between(pair[0].bytes, pair[1].bytes));
    let last = trials.last().map(|trial| trial.bytes);
    let candidates = std::iter::once(first.bytes / 2).chain(ends).chain(last);
    let old = loss(trials, before);
    let distance = |threshold: u64| (threshold.max(1) as f64 / before.max(1) as f64).ln().abs();
    let better = |one: &u64, other: &u64| {
        let by_loss = loss(trials, *one).total_cmp(&loss(trials, *other));
        by_loss.then(distance(*one).total_cmp(&distance(*other)))
    };
    let threshold = candidates.min_by(better)?;
    // Keep the previous threshold if it is as good.
    let threshold = match loss(trials, threshold).total_cmp(&old) {
        Ordering::Less => threshold,
        _ => before,
    };
    Some(Crossing { threshold, gain: gain(trials, before, threshold) })
}

/// The crossing of all trials, if it is more than noise: each half of them must also gain from the
/// threshold that the other half alone would choose. Otherwise the previous threshold is kept.
pub fn confirmed(halves: [&[SizeTrial]; 2], all: &[SizeTrial], before: u64) -> Option<Crossing> {
    let [one, other] = halves;
    let by_other = gain(one, before, crossing(other, before)?.threshold);
    let by_one = gain(other, before, crossing(one, before)?.threshold);
    let sure = by_other.min(by_one);
    match sure >= LEAST_GAIN {
        true => Some(Crossing { gain: sure, ..crossing(all, before)? }),
        false => Some(Crossing { threshold: before, gain: 1.0 }),
    }
}

/// Average speedup of the trials' sizes with another threshold.
fn gain(trials: &[SizeTrial], before: u64, threshold: u64) -> f64 {
    ((loss(trials, before) - loss(trials, threshold)) / trials.len() as f64).exp()
}

/// What a threshold loses compared with always using the faster algorithm, as a sum of logarithms.
fn loss(trials: &[SizeTrial], threshold: u64) -> f64 {
    let loss = |trial: &SizeTrial| {
        let taken = if trial.bytes <= threshold { trial.below } else { trial.above };
        (taken / trial.below.min(trial.above)).ln()
    };
    trials.iter().map(loss).sum()
}

/// The geometric mean of two sizes, rounded down to whole cache lines if it stays above `low`.
fn between(low: u64, high: u64) -> u64 {
    let middle = (low as f64 * high as f64).sqrt() as u64;
    (middle / 64 * 64).max(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_tries_sizes_on_both_sides_of_its_threshold() {
        for experiment in EXPERIMENTS {
            let before = Tuning::default().value(&experiment.knob);
            let sizes = experiment.sizes();
            assert!(sizes[0] < before && before < *sizes.last().unwrap(), "{experiment:?}");
            let (below, above) = experiment.sides(Tuning::default());
            assert!(below.value(&experiment.knob) >= *sizes.last().unwrap());
            assert!(above.value(&experiment.knob) < sizes[0]);
        }
    }

    /// The first algorithm takes 10 + bytes / 100, the second 50 + bytes / 1000: equal at 4444.
    fn trials() -> Vec<SizeTrial> {
        [1024, 2048, 4096, 8192, 16384, 32768]
            .map(|bytes| SizeTrial {
                bytes,
                below: 10.0 + bytes as f64 / 100.0,
                above: 50.0 + bytes as f64 / 1000.0,
            })
            .to_vec()
    }

    #[test]
    fn the_crossing_is_between_the_sizes_where_the_winner_changes() {
        let found = crossing(&trials(), 16384).unwrap();
        assert!((4096..8192).contains(&found.threshold), "{found:?}");
        assert!((1.2..1.5).contains(&found.gain), "{found:?}");
    }

    #[test]
    fn one_noisy_size_does_not_move_the_crossing() {
        let mut noisy = trials();
        noisy[0].below = 60.0;
        noisy[5].above = 350.0;
        let found = crossing(&noisy, 16384).unwrap();
        assert!((4096..8192).contains(&found.threshold), "{found:?}");
    }

    #[test]
    fn a_crossing_counts_only_if_both_halves_confirm_it() {
        let (real, mut noise) = (trials(), trials());
        let found = confirmed([&real, &real], &real, 16384).unwrap();
        assert!((4096..8192).contains(&found.threshold), "{found:?}");
        for trial in &mut noise {
            (trial.below, trial.above) = (trial.above, trial.below);
        }
        let found = confirmed([&real, &noise], &real, 16384).unwrap();
        assert_eq!(found, Crossing { threshold: 16384, gain: 1.0 });
        assert_eq!(confirmed([&[], &real], &real, 16384), None);
    }

    #[test]
    fn a_threshold_that_loses_nothing_is_kept() {
        let found = crossing(&trials(), 5000).unwrap();
        assert_eq!(found, Crossing { threshold: 5000, gain: 1.0 });
        assert_eq!(crossing(&[], 5000), None);
    }

    #[test]
    fn an_algorithm_that_always_wins_gets_all_tried_sizes() {
        let always = |below, above| {
            let sizes = [1024, 2048, 4096].map(|bytes| SizeTrial { bytes, below, above });
            crossing(&sizes, 2048).unwrap().threshold
        };
        assert!(always(1.0, 2.0) >= 4096);
        assert!(always(2.0, 1.0) < 1024);
    }
}
