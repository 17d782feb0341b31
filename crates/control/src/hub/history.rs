//! Measurements over time, at falling resolution: the last hours by the minute, the last weeks by
//! the hour, and the last years by the day, in bounded memory.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::Moment;

/// The resolutions: the seconds of one interval, and how many intervals are kept.
const TIERS: [(u64, usize); 3] = [(60, 360), (3600, 24 * 21), (86_400, 800)];

/// A measured quantity over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    tiers: [VecDeque<Interval>; TIERS.len()],
}

/// What was measured in one interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// When it begins.
    pub start: Moment,
    /// How often it was measured in it.
    pub count: u32,
    /// The mean.
    pub mean: f64,
    /// The smallest value.
    pub least: f64,
    /// The largest value.
    pub most: f64,
}

impl History {
    /// Adds a measurement. One from before the newest interval counts in that.
    pub fn add(&mut self, at: Moment, value: f64) {
        if !value.is_finite() {
            return;
        }
        for ((seconds, most), tier) in TIERS.iter().zip(&mut self.tiers) {
            let start = Moment(at.0 - at.0 % seconds);
            match tier.back_mut().filter(|last| last.start >= start) {
                Some(last) => last.add(value),
                None => {
                    tier.push_back(Interval::of(start, value));
                    if tier.len() > *most {
                        tier.pop_front();
                    }
                }
            }
        }
    }

    /// The intervals since a time, at the finest resolution that goes back so far.
    pub fn since(&self, start: Moment) -> impl Iterator<Item = &Interval> {
        let reaches =
            |tier: &&VecDeque<Interval>| tier.front().is_some_and(|first| first.start <= start);
        // A young history is complete at every resolution.
        let young = self.tiers.iter().zip(TIERS).find(|(tier, (_, most))| tier.len() < *most);
        let found = self.tiers.iter().find(reaches).or(young.map(|(tier, _)| tier));
        let tier = found.unwrap_or(&self.tiers[TIERS.len() - 1]);
        tier.iter().filter(move |interval| interval.start >= start)
    }
}

impl Interval {
    fn of(start: Moment, value: f64) -> Interval {
        Interval { start, count: 1, mean: value, least: value, most: value }
    }

    fn add(&mut self, value: f64) {
        self.count = self.count.saturating_add(1);
        self.mean += (value - self.mean) / f64::from(self.count);
        self.least = self.least.min(value);
        self.most = self.most.max(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A measurement a minute for that many days.
    fn days(count: u64) -> (History, Moment) {
        let mut history = History::default();
        let end = Moment(count * 86_400);
        (0..end.0).step_by(60).for_each(|second| history.add(Moment(second), second as f64));
        (history, end)
    }

    #[test]
    fn recent_times_are_fine_and_old_times_coarse_in_bounded_memory() {
        let (history, end) = days(40);
        let gap = |since: u64| {
            let mut starts = history.since(Moment(end.0 - since)).map(|interval| interval.start);
            let first = starts.next().unwrap();
            starts.next().unwrap().since(first)
        };
        assert_eq!([3600, 86_400 * 7, 86_400 * 30].map(gap), [60, 3600, 86_400]);
        assert!(history.tiers.iter().zip(TIERS).all(|(tier, (_, most))| tier.len() <= most));
    }

    #[test]
    fn an_interval_has_mean_and_range() {
        let mut history = History::default();
        [4.0, 2.0, 9.0, f64::NAN].into_iter().for_each(|value| history.add(Moment(30), value));
        let all: Vec<&Interval> = history.since(Moment(0)).collect();
        assert_eq!(all.len(), 1);
        let Interval { count, mean, least, most, .. } = *all[0];
        assert_eq!((count, mean, least, most), (3, 5.0, 2.0, 9.0));
    }

    #[test]
    fn a_clock_that_is_set_back_loses_nothing() {
        let mut history = History::default();
        history.add(Moment(100_000), 1.0);
        history.add(Moment(10), 3.0);
        let all: Vec<&Interval> = history.since(Moment(0)).collect();
        assert_eq!((all.len(), all[0].mean), (1, 2.0));
    }
}
