//! From buckets to scores: a tensor that recurs in every step counts the steps, a sample is a
//! number of steps, and a score is a good sample out of several.

use std::collections::HashMap;
use std::time::Duration;

/// Samples per score. Disturbances only make a job slower, so the second fastest sample counts.
const SAMPLES: usize = 5;
const COUNTS: usize = 1;
/// How many names are counted at most; without recurring names there are no steps to count.
const MOST_NAMES: usize = 100_000;

#[derive(Debug, Default)]
pub(super) struct Meter {
    warmup_left: u32,
    steps: u32,
    /// When the sample began, which is when the last one ended.
    since: Option<Duration>,
    bytes: u64,
    /// The tensor that marks the steps.
    mark: Option<String>,
    /// How often each tensor has occurred in this sample.
    seen: HashMap<String, u32>,
    samples: Vec<f64>,
}

impl Meter {
    pub(super) fn new(warmup: u32, steps: u32) -> Meter {
        Meter { warmup_left: warmup, steps: steps.max(1), ..Meter::default() }
    }

    /// Records a bucket; returns a score in bytes per microsecond when one is complete.
    pub(super) fn on<'a>(
        &mut self,
        tensors: impl Iterator<Item = &'a str>,
        bytes: u64,
        now: Duration,
    ) -> Option<f64> {
        // The first bucket only starts the clock.
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

    /// Whether these tensors complete the steps of a sample. The first tensor to occur `steps`
    /// times becomes the mark of all later samples, so that they consist of whole steps. If the
    /// mark no longer occurs, a tensor that has occurred twice as often replaces it.
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
    fn a_mark_that_no_longer_occurs_is_replaced() {
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
    fn names_that_never_recur_count_no_steps_and_use_bounded_memory() {
        let mut meter = Meter::new(0, 2);
        for index in 0..2 * MOST_NAMES as u64 {
            let name = format!("allreduce.noname.{index}");
            let time = Duration::from_millis(index);
            assert_eq!(meter.on([name.as_str()].into_iter(), 1, time), None);
        }
        assert_eq!(meter.seen.len(), MOST_NAMES);
    }
}
