//! Calibration: which algorithms are tried against each other on a machine, and where to change from
//! one to the other.

use std::cmp::Ordering;

use crate::{Knob, Tuning};

/// Two algorithms to try against each other, on both sides of the threshold between them.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// The threshold.
    pub knob: Knob,
    /// Which way tensors must travel for it to matter.
    pub transport: &'static str,
    /// With fewer ranks there is only one algorithm.
    pub least_ranks: u32,
    /// The sizes to try, as powers of two. Staging memory takes no more than the last in one step.
    sizes: (u32, u32),
    /// Thresholds that must be out of the way.
    aside: &'static [Knob],
}

/// A smaller gain is not worth a change.
const LEAST_GAIN: f64 = 1.02;

/// All of them, in an order in which each may rely on the ones before. What only matters between
/// hosts cannot be tried on one.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        knob: Tuning::ONE_SHOT,
        transport: "auto",
        least_ranks: 2,
        sizes: (9, 16),
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
    /// The sizes to try, in rising order.
    pub fn sizes(&self) -> Vec<u64> {
        (self.sizes.0..=self.sizes.1).map(|power| 1 << power).collect()
    }

    /// Tunings under which all sizes take the one and the other algorithm.
    pub fn sides(&self, tuning: Tuning) -> (Tuning, Tuning) {
        let free = self.aside.iter().fold(tuning, |tuning, knob| tuning.with(knob, 0));
        (free.with(&self.knob, 1 << self.sizes.1), free.with(&self.knob, 0))
    }
}

/// Two algorithms on one size: the seconds of each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// The size.
    pub bytes: u64,
    /// The algorithm for sizes up to the threshold.
    pub below: f64,
    /// The algorithm for sizes above it.
    pub above: f64,
}

/// Where to change from one algorithm to the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossing {
    /// The last size for the first algorithm, in bytes.
    pub threshold: u64,
    /// How much faster the tried sizes are than with the threshold before, on average: 1.05 is 5 %.
    pub gain: f64,
}

/// The threshold that loses least over all trials, which come in rising order of size. One noisy size
/// cannot move it far, because every size counts. Among equals the one nearest to `before` wins.
pub fn crossing(trials: &[Trial], before: u64) -> Option<Crossing> {
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
    // What was there stays if it loses nothing.
    let threshold = match loss(trials, threshold).total_cmp(&old) {
        Ordering::Less => threshold,
        _ => before,
    };
    Some(Crossing { threshold, gain: gain(trials, before, threshold) })
}

/// The crossing of all trials, if it is more than noise: each half of them must also gain by the
/// threshold that the other half alone would choose. Otherwise what was there stays.
pub fn confirmed(halves: [&[Trial]; 2], all: &[Trial], before: u64) -> Option<Crossing> {
    let [one, other] = halves;
    let by_other = gain(one, before, crossing(other, before)?.threshold);
    let by_one = gain(other, before, crossing(one, before)?.threshold);
    let sure = by_other.min(by_one);
    match sure >= LEAST_GAIN {
        true => Some(Crossing { gain: sure, ..crossing(all, before)? }),
        false => Some(Crossing { threshold: before, gain: 1.0 }),
    }
}

/// How much faster the sizes of some trials become with another threshold, on average.
fn gain(trials: &[Trial], before: u64, threshold: u64) -> f64 {
    ((loss(trials, before) - loss(trials, threshold)) / trials.len() as f64).exp()
}

/// What a threshold loses against always taking the faster one, as a sum of logarithms.
fn loss(trials: &[Trial], threshold: u64) -> f64 {
    let loss = |trial: &Trial| {
        let taken = if trial.bytes <= threshold { trial.below } else { trial.above };
        (taken / trial.below.min(trial.above)).ln()
    };
    trials.iter().map(loss).sum()
}

/// The middle of two sizes on a logarithmic scale, on a whole cache line where there is room.
fn between(low: u64, high: u64) -> u64 {
    let middle = (low as f64 * high as f64).sqrt() as u64;
    (middle / 64 * 64).max(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_is_about_a_threshold_and_tries_sizes_on_both_sides_of_it() {
        for experiment in EXPERIMENTS {
            let before = Tuning::default().value(&experiment.knob);
            let sizes = experiment.sizes();
            assert!(sizes[0] < before && before < *sizes.last().unwrap(), "{experiment:?}");
            let (below, above) = experiment.sides(Tuning::default());
            assert!(below.value(&experiment.knob) >= *sizes.last().unwrap());
            assert!(above.value(&experiment.knob) < sizes[0]);
        }
    }

    /// The first algorithm costs 10 + bytes / 100, the second 50 + bytes / 1000: equal at 4444.
    fn trials() -> Vec<Trial> {
        [1024, 2048, 4096, 8192, 16384, 32768]
            .map(|bytes| Trial {
                bytes,
                below: 10.0 + bytes as f64 / 100.0,
                above: 50.0 + bytes as f64 / 1000.0,
            })
            .to_vec()
    }

    #[test]
    fn the_crossing_lies_between_the_sizes_where_the_winner_changes() {
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
    fn what_both_halves_see_is_believed_and_what_only_one_sees_is_not() {
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
    fn a_threshold_that_loses_nothing_stays() {
        let found = crossing(&trials(), 5000).unwrap();
        assert_eq!(found, Crossing { threshold: 5000, gain: 1.0 });
        assert_eq!(crossing(&[], 5000), None);
    }

    #[test]
    fn an_algorithm_that_always_wins_gets_everything_that_was_tried() {
        let always = |below, above| {
            let sizes = [1024, 2048, 4096].map(|bytes| Trial { bytes, below, above });
            crossing(&sizes, 2048).unwrap().threshold
        };
        assert!(always(1.0, 2.0) >= 4096);
        assert!(always(2.0, 1.0) < 1024);
    }
}
