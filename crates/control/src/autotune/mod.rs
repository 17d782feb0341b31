//! Finds better settings while a job runs: those that move the most bytes per second.
//!
//! Pure: it receives the tensors that have been reduced, with times, and returns the values to use
//! from now on. [`Meter`](meter::Meter) turns buckets into scores; for one parameter after the
//! other, [`Race`](race::Race) decides which value to measure next. The search takes a few dozen
//! measurements of some steps each and then keeps the best values. `docs/design/0006-autotune.md`
//! explains the method.

mod meter;
mod race;

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use self::meter::Meter;
use self::race::Race;
use crate::Tuning;

const MIB: u64 = 1 << 20;

/// A parameter that is tuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// Maximum size of a bucket, in bytes.
    FusionThreshold,
    /// How many connections carry a large tensor, if tensors travel over sockets.
    Connections,
    /// Up to this many bytes, sockets use recursive halving and doubling instead of a ring.
    Halving,
}

impl Parameter {
    /// The parameters that matter if all ranks share memory.
    pub const IN_MEMORY: &[Parameter] = &[Parameter::FusionThreshold];

    /// The parameters that matter if tensors travel over sockets.
    pub const OVER_SOCKETS: &[Parameter] =
        &[Parameter::FusionThreshold, Parameter::Connections, Parameter::Halving];

    /// The values to try besides the current one, far enough apart for a difference to show.
    fn ladder(self) -> Vec<u64> {
        match self {
            Parameter::FusionThreshold => (0..9).map(|power| MIB << power).collect(),
            Parameter::Connections => vec![1, 2, 4, 8],
            Parameter::Halving => vec![MIB / 16, MIB / 4, MIB, 4 * MIB],
        }
    }

    fn slot(self, values: &mut TunedValues) -> &mut u64 {
        match self {
            Parameter::FusionThreshold => &mut values.threshold,
            Parameter::Connections => &mut values.tuning.connections,
            Parameter::Halving => &mut values.tuning.halving,
        }
    }

    fn race(self, mut values: TunedValues, most_points: usize) -> Race {
        Race::new(*self.slot(&mut values), &self.ladder(), most_points)
    }
}

/// The values of everything that can be tuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunedValues {
    /// Maximum size of a bucket, in bytes.
    pub threshold: u64,
    /// The values that choose between algorithms.
    pub tuning: Tuning,
}

impl fmt::Display for TunedValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "buckets of up to {} bytes", self.threshold)?;
        Tuning::TABLE
            .iter()
            .try_for_each(|knob| write!(f, ", {}={}", knob.name, self.tuning.value(knob)))
    }
}

/// Parameters of the search; the numbers are those of Horovod's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AutotuneOptions {
    /// What is tuned: everything that the user has not set.
    pub parameters: Vec<Parameter>,
    /// Samples that are discarded before the first point.
    pub warmup_samples: u32,
    /// Steps per sample.
    pub steps_per_sample: u32,
    /// How many points are measured at most for a parameter.
    pub most_points: usize,
}

/// A search in progress.
#[derive(Debug)]
pub struct Autotune {
    meter: Meter,
    most_points: usize,
    /// The current values, except that of the parameter being tuned.
    values: TunedValues,
    race: Race,
    /// The parameter being tuned, then those to follow.
    parameters: VecDeque<Parameter>,
}

/// A measured point, and what to do next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The settings that were measured.
    pub values: TunedValues,
    /// Bytes per microsecond.
    pub score: f64,
    /// What the search does next.
    pub next: NextStep,
}

/// What follows a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NextStep {
    /// Measure the next point with these values.
    Try(TunedValues),
    /// The search is over: keep these values.
    Keep {
        /// The best values.
        values: TunedValues,
        /// Their mean score in bytes per microsecond.
        score: f64,
    },
}

impl Autotune {
    /// A search that starts with the current values; `None` if there is nothing to tune.
    pub fn new(options: &AutotuneOptions, values: TunedValues) -> Option<Autotune> {
        let AutotuneOptions { warmup_samples, steps_per_sample, most_points, .. } = *options;
        let parameters: VecDeque<Parameter> = options.parameters.iter().copied().collect();
        let race = parameters.front()?.race(values, most_points);
        let meter = Meter::new(warmup_samples, steps_per_sample);
        Some(Autotune { meter, most_points, values, race, parameters })
    }

    /// Records a completed bucket: the names of its tensors, their bytes, and the time.
    pub fn on<'a>(
        &mut self,
        tensors: impl Iterator<Item = &'a str>,
        bytes: u64,
        now: Duration,
    ) -> Option<Point> {
        let score = self.meter.on(tensors, bytes, now)?;
        let values = self.running();
        self.race.score(score);
        Some(Point { values, score, next: self.next() })
    }

    fn running(&self) -> TunedValues {
        let mut values = self.values;
        if let Some(parameter) = self.parameters.front() {
            *parameter.slot(&mut values) = self.race.runner();
        }
        values
    }

    fn next(&mut self) -> NextStep {
        let Some((winner, score)) = self.race.winner() else {
            return NextStep::Try(self.running());
        };
        if let Some(parameter) = self.parameters.pop_front() {
            *parameter.slot(&mut self.values) = winner;
        }
        match self.parameters.front() {
            Some(parameter) => {
                self.race = parameter.race(self.values, self.most_points);
                NextStep::Try(self.running())
            }
            None => NextStep::Keep { values: self.values, score },
        }
    }
}

/// The first line of the log, with Horovod's columns.
pub const LOG_HEADER: &str = "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,\
                              cache_enabled,cycle_time_ms,tensor_fusion_threshold,score";

/// A line of the log. What Ronde does not tune has its effective value; the threshold is in MB.
pub fn log_line(values: &TunedValues, score: f64) -> String {
    format!("0,0,0,1,0,{},{score:.3}", values.threshold as f64 / MIB as f64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn options(parameters: &[Parameter]) -> AutotuneOptions {
        let parameters = parameters.to_vec();
        AutotuneOptions { parameters, warmup_samples: 3, steps_per_sample: 10, most_points: 20 }
    }

    fn values(threshold: u64) -> TunedValues {
        TunedValues { threshold, tuning: Tuning::default() }
    }

    /// Pseudorandom numbers between zero and one.
    fn noise(state: &mut u64) -> f64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*state >> 33) as f64 / (1u64 << 31) as f64
    }

    /// Trains until the search is over; `seconds` is the duration of a step. Returns the values
    /// that are kept, and all points.
    fn train(
        parameters: &[Parameter],
        start: TunedValues,
        mut seconds: impl FnMut(TunedValues, u32) -> f64,
    ) -> (TunedValues, Vec<Point>) {
        let mut autotune = Autotune::new(&options(parameters), start).unwrap();
        let (mut now, mut points, mut current) = (Duration::ZERO, Vec::new(), start);
        for step in 0..10_000 {
            now += Duration::from_secs_f64(seconds(current, step));
            for tensor in ["a", "b", "c"] {
                let Some(point) = autotune.on([tensor].into_iter(), 10 * MIB, now) else {
                    continue;
                };
                assert_eq!(point.values, current, "the measured values are those in use");
                points.push(point);
                match point.next {
                    NextStep::Try(values) => current = values,
                    NextStep::Keep { values, .. } => return (values, points),
                }
            }
        }
        panic!("the search does not end");
    }

    const FUSION: &[Parameter] = Parameter::IN_MEMORY;

    proptest! {
        #[test]
        fn noise_and_hiccups_do_not_prevent_a_good_threshold(
            best in 0usize..9,
            slope in 0.02..0.3f64,
            seed in any::<u64>(),
            start in 0usize..9,
        ) {
            // Each rung away from the best one costs the same fraction of time.
            let ladder = Parameter::FusionThreshold.ladder();
            let rung = |threshold: u64| (threshold / MIB).ilog2() as f64;
            let ideal = |threshold| 0.1 * (1.0 + slope * (rung(threshold) - best as f64).abs());
            let mut state = seed;
            let (found, points) = train(FUSION, values(ladder[start]), |values, _| {
                let hiccup = if noise(&mut state) < 0.002 { 10.0 } else { 1.0 };
                ideal(values.threshold) * (0.95 + 0.1 * noise(&mut state)) * hiccup
            });
            prop_assert!(points.len() <= 20);
            let loss = ideal(found.threshold) / ideal(ladder[best]);
            prop_assert!(loss <= 1.12, "{found:?} instead of {} loses {loss}", ladder[best]);
        }
    }

    #[test]
    fn the_current_values_are_kept_if_nothing_makes_a_difference() {
        let all = Parameter::OVER_SOCKETS;
        for start in Parameter::FusionThreshold.ladder() {
            let mut state = start;
            let steady = |_, _| 0.1 * (0.995 + 0.01 * noise(&mut state));
            let (found, _) = train(all, values(start), steady);
            assert_eq!(found, values(start));
        }
    }

    #[test]
    fn parameters_are_tuned_one_after_the_other() {
        let all = Parameter::OVER_SOCKETS;
        let (found, points) =
            train(all, values(128 * MIB), |TunedValues { threshold, tuning }, _| {
                let right = [threshold == 16 * MIB, tuning.connections == 4, tuning.halving == MIB];
                right
                    .iter()
                    .fold(0.1, |seconds, right| if *right { seconds * 0.8 } else { seconds })
            });
        let tuning = Tuning { connections: 4, halving: MIB, ..Tuning::default() };
        assert_eq!(found, TunedValues { threshold: 16 * MIB, tuning });
        assert_eq!(points.len(), (9 + 5 + 3 + 2) + (4 + 2) + (4 + 2));
    }

    #[test]
    fn warmup_samples_do_not_count() {
        let slow_start = |_, step| if step < 30 { 50.0 } else { 0.1 };
        let (_, points) = train(FUSION, values(128 * MIB), slow_start);
        assert!(points.iter().all(|point| (point.score - 314.6).abs() < 1.0), "{points:?}");
    }

    #[test]
    fn without_parameters_there_is_no_search() {
        assert!(Autotune::new(&options(&[]), values(MIB)).is_none());
    }

    #[test]
    fn the_log_has_horovods_columns() {
        assert_eq!(LOG_HEADER.split(',').count(), 7);
        assert_eq!(log_line(&values(64 * MIB), 439.25), "0,0,0,1,0,64,439.250");
        assert_eq!(log_line(&values(MIB / 2), 1.0), "0,0,0,1,0,0.5,1.000");
    }
}
