//! Finding the fusion threshold while a job runs: which value moves the most bytes per second.
//!
//! Pure: it is told which tensors have been reduced and when, and answers with the threshold to
//! use from now on. [`Meter`](meter::Meter) makes scores out of what it is told, [`Race`](race::Race)
//! decides which value runs next. It costs a few dozen points of some steps each; then the best value
//! stays. `docs/design/0006-autotune.md` says why it is done this way.

mod meter;
mod race;

use std::time::Duration;

use self::meter::Meter;
use self::race::Race;

const MIB: u64 = 1 << 20;
/// The thresholds that are tried, each twice the one before: between two of them no difference has
/// been seen that was larger than the noise.
const LADDER: [u64; 9] =
    [MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB, 64 * MIB, 128 * MIB, 256 * MIB];

/// How autotuning goes about it; the names are those of Horovod's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Samples that are thrown away before the first point.
    pub warmup_samples: u32,
    /// Steps of a sample.
    pub steps_per_sample: u32,
    /// The most points that are measured before it ends.
    pub most_points: usize,
}

/// A search in progress.
#[derive(Debug)]
pub struct Autotune {
    meter: Meter,
    race: Race,
}

/// One measured point, and what follows from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The threshold that was measured.
    pub threshold: u64,
    /// Bytes per microsecond.
    pub score: f64,
    /// What comes now.
    pub next: Next,
}

/// What comes behind a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// The next point is measured at this threshold.
    Try {
        /// The threshold.
        threshold: u64,
    },
    /// The search is over, and this is the best.
    Keep {
        /// The threshold.
        threshold: u64,
        /// Its bytes per microsecond, over all points at it.
        score: f64,
    },
}

impl Autotune {
    /// A search that starts from the threshold in force, and the first threshold to measure.
    pub fn new(options: &Options, threshold: u64) -> (Autotune, u64) {
        let race = Race::new(threshold, &LADDER, options.most_points);
        let first = race.runner();
        let meter = Meter::new(options.warmup_samples, options.steps_per_sample);
        (Autotune { meter, race }, first)
    }

    /// Takes note of a bucket that is done: the tensors' names, their bytes, and the time.
    pub fn on<'a>(
        &mut self,
        tensors: impl Iterator<Item = &'a str>,
        bytes: u64,
        now: Duration,
    ) -> Option<Point> {
        let score = self.meter.on(tensors, bytes, now)?;
        let threshold = self.race.runner();
        self.race.score(score);
        let next = match self.race.winner() {
            Some((threshold, score)) => Next::Keep { threshold, score },
            None => Next::Try { threshold: self.race.runner() },
        };
        Some(Point { threshold, score, next })
    }
}

/// The first line of the log, as Horovod's users read it.
pub const LOG_HEADER: &str = "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,\
                              cache_enabled,cycle_time_ms,tensor_fusion_threshold,score";

/// A line of the log: what is not tuned here stands at what it amounts to, the threshold in MB.
pub fn log_line(threshold: u64, score: f64) -> String {
    format!("0,0,0,1,0,{},{score:.3}", threshold as f64 / MIB as f64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OPTIONS: Options = Options { warmup_samples: 3, steps_per_sample: 10, most_points: 20 };

    /// Numbers between zero and one without a pattern.
    fn noise(state: &mut u64) -> f64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*state >> 33) as f64 / (1u64 << 31) as f64
    }

    /// Trains until the search is over; `seconds` says how long a step takes at a threshold. Gives
    /// the threshold that stays, and all points.
    fn train(start: u64, mut seconds: impl FnMut(u64, u32) -> f64) -> (u64, Vec<Point>) {
        let (mut autotune, mut threshold) = Autotune::new(&OPTIONS, start);
        let (mut now, mut points) = (Duration::ZERO, Vec::new());
        for step in 0..10_000 {
            now += Duration::from_secs_f64(seconds(threshold, step));
            for tensor in ["a", "b", "c"] {
                let Some(point) = autotune.on([tensor].into_iter(), 10 * MIB, now) else {
                    continue;
                };
                points.push(point);
                match point.next {
                    Next::Try { threshold: next } => threshold = next,
                    Next::Keep { threshold, .. } => return (threshold, points),
                }
            }
        }
        panic!("the search does not end");
    }

    proptest! {
        #[test]
        fn noise_and_hiccups_do_not_keep_it_from_a_good_threshold(
            best in 0usize..9,
            slope in 0.02..0.3f64,
            seed in any::<u64>(),
            start in prop::sample::select(&LADDER[..]),
        ) {
            // Each rung away from the best one costs the same share of time.
            let rung = |threshold: u64| (threshold / MIB).ilog2() as f64;
            let honest = |threshold| 0.1 * (1.0 + slope * (rung(threshold) - best as f64).abs());
            let mut state = seed;
            let (found, points) = train(start, |threshold, _| {
                let hiccup = if noise(&mut state) < 0.002 { 10.0 } else { 1.0 };
                honest(threshold) * (0.95 + 0.1 * noise(&mut state)) * hiccup
            });
            prop_assert!(points.len() <= OPTIONS.most_points);
            let loss = honest(found) / honest(LADDER[best]);
            prop_assert!(loss <= 1.12, "{found} instead of {} loses {loss}", LADDER[best]);
        }
    }

    #[test]
    fn where_nothing_matters_the_threshold_in_force_stays() {
        for start in LADDER {
            let mut state = start;
            let (found, _) = train(start, |_, _| 0.1 * (0.995 + 0.01 * noise(&mut state)));
            assert_eq!(found, start);
        }
    }

    #[test]
    fn what_happens_while_it_warms_up_does_not_count() {
        let (_, points) = train(128 * MIB, |_, step| if step < 30 { 50.0 } else { 0.1 });
        assert!(points.iter().all(|point| (point.score - 314.6).abs() < 1.0), "{points:?}");
    }

    #[test]
    fn the_log_has_horovods_columns() {
        assert_eq!(LOG_HEADER.split(',').count(), 7);
        assert_eq!(log_line(64 * MIB, 439.25), "0,0,0,1,0,64,439.250");
        assert_eq!(log_line(MIB / 2, 1.0), "0,0,0,1,0,0.5,1.000");
    }
}
