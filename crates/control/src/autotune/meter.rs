//! From buckets to scores: steps are counted by a tensor that comes again in each of them, a sample is
//! some steps, and a score is a good one of some samples.

use std::collections::HashMap;
use std::time::Duration;

/// Samples of a score. What disturbs a job makes it slower, so the second fastest of them counts.
const SAMPLES: usize = 5;
const COUNTS: usize = 1;
/// Names that are counted; a program that never uses one again has no steps to count.
const MOST_NAMES: usize = 100_000;

#[derive(Debug, Default)]
pub(super) struct Meter {
    warmup_left: u32,
    steps: u32,
    /// When the sample began: with the end of the last one.
    since: Option<Duration>,
    bytes: u64,
    /// The tensor that marks the steps.
    mark: Option<String>,
    /// How often each tensor has come in this sample.
    seen: HashMap<String, u32>,
    samples: Vec<f64>,
}

impl Meter {
    pub(super) fn new(warmup: u32, steps: u32) -> Meter {
        Meter { warmup_left: warmup, steps: steps.max(1), ..Meter::default() }
    }

    /// Takes note of a bucket; gives the score in bytes per microsecond when one is complete.
    pub(super) fn on<'a>(
        &mut self,
        tensors: impl Iterator<Item = &'a str>,
        bytes: u64,
        now: Duration,
    ) -> Option<f64> {
        // The first bucket says only when to start.
        let since = *self.since.get_or_insert(now);
        self.bytes += bytes;
        if !self.completes(tensors) || now <= since {
            return None;
        }
        let sample = self.bytes as f64 / (now - since).as_secs_f64() / 1e6;
        (self.since, self.bytes) = (Some(now), 0);
        self.seen.clear();
        if self.warmup_left > 0 {
            self.warmup_left -= 1;
            return None;
        }
        self.samples.push(sample);
        if self.samples.len() < SAMPLES {
            return None;
        }
        let mut samples = std::mem::take(&mut self.samples);
        samples.sort_by(|a, b| b.total_cmp(a));
        Some(samples[COUNTS])
    }

    /// Whether the steps of a sample are complete with these tensors. The first tensor that has come
    /// as often marks all samples from then on, so that they are whole numbers of steps; if it stays
    /// away, one that has come twice as often takes its place.
    fn completes<'a>(&mut self, tensors: impl Iterator<Item = &'a str>) -> bool {
        let mut completes = false;
        for name in tensors {
            if self.seen.len() >= MOST_NAMES && !self.seen.contains_key(name) {
                continue;
            }
            let count = self.seen.entry(name.to_owned()).or_default();
            *count += 1;
            let is_mark = self.mark.as_deref().is_none_or(|mark| mark == name);
            if *count >= if is_mark { self.steps } else { 2 * self.steps } {
                self.mark = Some(name.to_owned());
                completes = true;
            }
        }
        completes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_the_second_fastest_of_five_samples() {
        let mut meter = Meter::new(1, 2);
        let mut now = 0;
        // One sample to warm up, then five that take from 1 to 5 seconds.
        for (index, seconds) in [9, 5, 1, 4, 2, 3].into_iter().enumerate() {
            for step in 0..2 {
                now += seconds * 500;
                let time = Duration::from_millis(now);
                let first = meter.on(["a", "b"].into_iter(), 1_000_000, time);
                let is_last = index == 5 && step == 1;
                assert_eq!(first.is_some(), is_last, "{index} {step}");
                if let Some(score) = first {
                    assert!((score - 1.0).abs() < 1e-9, "{score}");
                }
            }
        }
    }

    #[test]
    fn a_mark_that_stays_away_is_replaced() {
        let mut meter = Meter::new(0, 1);
        let second = |second: u64| Duration::from_secs(second);
        assert_eq!(meter.on(["old"].into_iter(), 1, second(0)), None);
        for step in 1..=20 {
            meter.on(["old"].into_iter(), 1, second(step));
        }
        let scores = (21..=41).filter_map(|step| meter.on(["new"].into_iter(), 1, second(step)));
        assert_eq!(scores.count(), 4);
    }

    #[test]
    fn names_that_never_come_again_make_no_steps_and_take_no_room() {
        let mut meter = Meter::new(0, 2);
        for index in 0..2 * MOST_NAMES as u64 {
            let name = format!("allreduce.noname.{index}");
            let time = Duration::from_millis(index);
            assert_eq!(meter.on([name.as_str()].into_iter(), 1, time), None);
        }
        assert_eq!(meter.seen.len(), MOST_NAMES);
    }
}
