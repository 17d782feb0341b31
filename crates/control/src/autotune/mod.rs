//! Finding better settings while a job runs: which of them move the most bytes per second.
//!
//! Pure: it is told which tensors have been reduced and when, and answers with the values to use
//! from now on. [`Meter`](meter::Meter) makes scores out of what it is told; one parameter after
//! the other, [`Race`](race::Race) decides which value runs next. It costs a few dozen points of
//! some steps each; then the best values stay. `docs/design/0006-autotune.md` says why it is done this
//! way.

mod meter;
mod race;

use std::collections::VecDeque;
use std::time::Duration;

use self::meter::Meter;
use self::race::Race;
use crate::Tuning;

const MIB: u64 = 1 << 20;

/// Something that is tuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// How many bytes a bucket may hold.
    FusionThreshold,
    /// How many connections a large tensor takes, where tensors travel through sockets.
    Connections,
    /// Up to how many bytes sockets halve and double instead of going round a ring.
    Halving,
}

impl Parameter {
    /// What matters where all ranks share memory.
    pub const IN_MEMORY: &[Parameter] = &[Parameter::FusionThreshold];

    /// What matters where tensors travel through sockets.
    pub const OVER_SOCKETS: &[Parameter] =
        &[Parameter::FusionThreshold, Parameter::Connections, Parameter::Halving];

    /// What is tried, apart from the value in force: values so far apart that a difference could
    /// be seen.
    fn ladder(self) -> Vec<u64> {
        match self {
            Parameter::FusionThreshold => (0..9).map(|power| MIB << power).collect(),
            Parameter::Connections => vec![1, 2, 4, 8],
            Parameter::Halving => vec![MIB / 16, MIB / 4, MIB, 4 * MIB],
        }
    }

    fn slot(self, values: &mut Values) -> &mut u64 {
        match self {
            Parameter::FusionThreshold => &mut values.threshold,
            Parameter::Connections => &mut values.tuning.connections,
            Parameter::Halving => &mut values.tuning.halving,
        }
    }

    fn race(self, mut values: Values, most_points: usize) -> Race {
        Race::new(*self.slot(&mut values), &self.ladder(), most_points)
    }
}

/// All that can be tuned, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Values {
    /// How many bytes a bucket may hold.
    pub threshold: u64,
    /// The numbers that decide between algorithms.
    pub tuning: Tuning,
}

/// How autotuning goes about it; the numbers are those of Horovod's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What is tuned: all that the user has not set.
    pub parameters: Vec<Parameter>,
    /// Samples that are thrown away before the first point.
    pub warmup_samples: u32,
    /// Steps of a sample.
    pub steps_per_sample: u32,
    /// The most points that are measured for a parameter.
    pub most_points: usize,
}

/// A search in progress.
#[derive(Debug)]
pub struct Autotune {
    meter: Meter,
    most_points: usize,
    /// What is in force, but for the parameter that is being tuned.
    values: Values,
    race: Race,
    /// What that race is about, and what comes after it.
    parameters: VecDeque<Parameter>,
}

/// One measured point, and what follows from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// What was measured.
    pub values: Values,
    /// Bytes per microsecond.
    pub score: f64,
    /// What comes now.
    pub next: Next,
}

/// What comes behind a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// The next point is measured with these values.
    Try(Values),
    /// The search is over, and these are the best.
    Keep {
        /// The best values.
        values: Values,
        /// Their bytes per microsecond, over all points at them.
        score: f64,
    },
}

impl Autotune {
    /// A search that starts from the values in force, which run first; none if there is nothing to
    /// look for.
    pub fn new(options: &Options, values: Values) -> Option<Autotune> {
        let Options { warmup_samples, steps_per_sample, most_points, .. } = *options;
        let parameters: VecDeque<Parameter> = options.parameters.iter().copied().collect();
        let race = parameters.front()?.race(values, most_points);
        let meter = Meter::new(warmup_samples, steps_per_sample);
        Some(Autotune { meter, most_points, values, race, parameters })
    }

    /// Takes note of a bucket that is done: the tensors' names, their bytes, and the time.
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

    fn running(&self) -> Values {
        let mut values = self.values;
        if let Some(parameter) = self.parameters.front() {
            *parameter.slot(&mut values) = self.race.runner();
        }
        values
    }

    fn next(&mut self) -> Next {
        let Some((winner, score)) = self.race.winner() else { return Next::Try(self.running()) };
        if let Some(parameter) = self.parameters.pop_front() {
            *parameter.slot(&mut self.values) = winner;
        }
        match self.parameters.front() {
            Some(parameter) => {
                self.race = parameter.race(self.values, self.most_points);
                Next::Try(self.running())
            }
            None => Next::Keep { values: self.values, score },
        }
    }
}

/// The first line of the log, as Horovod's users read it.
pub const LOG_HEADER: &str = "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,\
                              cache_enabled,cycle_time_ms,tensor_fusion_threshold,score";

/// A line of the log: what is not tuned here stands at what it amounts to, the threshold in MB.
pub fn log_line(values: &Values, score: f64) -> String {
    format!("0,0,0,1,0,{},{score:.3}", values.threshold as f64 / MIB as f64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn options(parameters: &[Parameter]) -> Options {
        let parameters = parameters.to_vec();
        Options { parameters, warmup_samples: 3, steps_per_sample: 10, most_points: 20 }
    }

    fn values(threshold: u64) -> Values {
        Values { threshold, tuning: Tuning::default() }
    }

    /// Numbers between zero and one without a pattern.
    fn noise(state: &mut u64) -> f64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*state >> 33) as f64 / (1u64 << 31) as f64
    }

    /// Trains until the search is over; `seconds` says how long a step takes. Gives the values that
    /// stay, and all points.
    fn train(
        parameters: &[Parameter],
        start: Values,
        mut seconds: impl FnMut(Values, u32) -> f64,
    ) -> (Values, Vec<Point>) {
        let mut autotune = Autotune::new(&options(parameters), start).unwrap();
        let (mut now, mut points, mut current) = (Duration::ZERO, Vec::new(), start);
        for step in 0..10_000 {
            now += Duration::from_secs_f64(seconds(current, step));
            for tensor in ["a", "b", "c"] {
                let Some(point) = autotune.on([tensor].into_iter(), 10 * MIB, now) else {
                    continue;
                };
                assert_eq!(point.values, current, "what was measured is what was in force");
                points.push(point);
                match point.next {
                    Next::Try(values) => current = values,
                    Next::Keep { values, .. } => return (values, points),
                }
            }
        }
        panic!("the search does not end");
    }

    const FUSION: &[Parameter] = Parameter::IN_MEMORY;

    proptest! {
        #[test]
        fn noise_and_hiccups_do_not_keep_it_from_a_good_threshold(
            best in 0usize..9,
            slope in 0.02..0.3f64,
            seed in any::<u64>(),
            start in 0usize..9,
        ) {
            // Each rung away from the best one costs the same share of time.
            let ladder = Parameter::FusionThreshold.ladder();
            let rung = |threshold: u64| (threshold / MIB).ilog2() as f64;
            let honest = |threshold| 0.1 * (1.0 + slope * (rung(threshold) - best as f64).abs());
            let mut state = seed;
            let (found, points) = train(FUSION, values(ladder[start]), |values, _| {
                let hiccup = if noise(&mut state) < 0.002 { 10.0 } else { 1.0 };
                honest(values.threshold) * (0.95 + 0.1 * noise(&mut state)) * hiccup
            });
            prop_assert!(points.len() <= 20);
            let loss = honest(found.threshold) / honest(ladder[best]);
            prop_assert!(loss <= 1.12, "{found:?} instead of {} loses {loss}", ladder[best]);
        }
    }

    #[test]
    fn where_nothing_matters_the_values_in_force_stay() {
        let all = Parameter::OVER_SOCKETS;
        for start in Parameter::FusionThreshold.ladder() {
            let mut state = start;
            let steady = |_, _| 0.1 * (0.995 + 0.01 * noise(&mut state));
            let (found, _) = train(all, values(start), steady);
            assert_eq!(found, values(start));
        }
    }

    #[test]
    fn one_parameter_is_tuned_after_the_other() {
        let all = Parameter::OVER_SOCKETS;
        let (found, points) = train(all, values(128 * MIB), |Values { threshold, tuning }, _| {
            let right = [threshold == 16 * MIB, tuning.connections == 4, tuning.halving == MIB];
            right.iter().fold(0.1, |seconds, right| if *right { seconds * 0.8 } else { seconds })
        });
        let tuning = Tuning { connections: 4, halving: MIB, ..Tuning::default() };
        assert_eq!(found, Values { threshold: 16 * MIB, tuning });
        assert_eq!(points.len(), (9 + 5 + 3 + 2) + (4 + 2) + (4 + 2));
    }

    #[test]
    fn what_happens_while_it_warms_up_does_not_count() {
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
