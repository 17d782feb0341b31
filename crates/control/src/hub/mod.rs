//! What a hub decides: which grade a node deserves, who owes whom, and which nodes make a cluster.
//!
//! A hub brings together people who lend machines and people who need some. It measures nodes and
//! keeps the results; everything that follows from them is decided here, without I/O or a clock.
//! Every decision carries its reason in words, and command, API and page show the same words.

pub mod cluster;
pub mod grade;
pub mod history;
pub mod ledger;
pub mod map;
pub mod offer;
pub mod probe;

use std::fmt;

use serde::{Deserialize, Serialize};

/// A node: a machine that somebody lends. The number is that of the hub's storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u64);

/// Somebody who lends, borrows or administers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PersonId(pub u64);

/// A point in time by the hub's clock, in seconds since 1970. Clocks of nodes do not matter.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Moment(pub u64);

impl Moment {
    /// The time this many seconds later.
    pub fn after(self, seconds: u64) -> Moment {
        Moment(self.0.saturating_add(seconds))
    }

    /// The seconds since an earlier time; 0 if it is later.
    pub fn since(self, earlier: Moment) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The minute of the day in UTC.
    pub fn minute_of_day(self) -> u16 {
        (self.0 / 60 % (24 * 60)) as u16
    }
}

/// A span of time as people say it: `45 s`, `12 min`, `3.5 h`, `12 days`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub u64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0 as f64;
        match self.0 {
            0..120 => write!(f, "{} s", self.0),
            120..7200 => write!(f, "{:.0} min", seconds / 60.0),
            7200..172_800 => write!(f, "{:.1} h", seconds / 3600.0),
            _ => write!(f, "{:.0} days", seconds / 86400.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_as_people_say_them() {
        let spans = [45, 720, 12_600, 1_036_800].map(|seconds| Span(seconds).to_string());
        assert_eq!(spans, ["45 s", "12 min", "3.5 h", "12 days"]);
    }

    #[test]
    fn time_never_runs_backwards() {
        assert_eq!(Moment(5).since(Moment(9)), 0);
        assert_eq!(Moment(u64::MAX).after(9), Moment(u64::MAX));
        assert_eq!(Moment(86_400 + 3 * 3600 + 60).minute_of_day(), 181);
    }
}
