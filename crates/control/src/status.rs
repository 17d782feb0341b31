//! The status of a running job: what its ranks report, and which of them are late.
//!
//! A watcher, which first proves that it holds the job key, asks the driver. The driver asks the
//! ranks of the world over their open connections and leaves out those that have not answered
//! within [`TIME_LIMIT`]. Nothing here reads a clock: the caller measures ages.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Rank;

/// How long ranks have to answer.
pub const TIME_LIMIT: Duration = Duration::from_millis(500);

/// A rank is not late before others have waited this long: ranks are never perfectly in step.
pub const LATE: Duration = Duration::from_secs(1);

/// How many of its waiting tensors a rank names at most.
pub const MOST_WAITING: usize = 8;

/// A watcher's request to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WatcherToDriver {
    /// Asks for the status of the job.
    Ask,
    /// Subscribes to events, starting with the latest ones. No other request may follow.
    Follow,
}

/// The driver's answer to a watcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum DriverToWatcher {
    /// The answer to [`WatcherToDriver::Ask`].
    Status(Status),
    /// An event. The last one says that the job has ended.
    Event {
        /// The event as JSON, like in the event log.
        event: String,
        /// How many events before this one were skipped because the watcher read too slowly.
        missed: u64,
    },
    /// The watcher is incompatible with the driver.
    Refused {
        /// Why, and how to fix it.
        reason: String,
    },
}

/// A snapshot of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// How long the job has been running.
    pub age: Duration,
    /// The epoch of its world; 0 before the first one.
    pub epoch: u64,
    /// Its ranks, in order.
    pub ranks: Vec<RankStatus>,
    /// The last events as JSON, oldest first.
    pub events: Vec<String>,
}

/// A snapshot of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankStatus {
    /// The rank's number in the current world.
    pub rank: Rank,
    /// Name of its host.
    pub host: String,
    /// Slot (local rank) on that host.
    pub slot: u32,
    /// Its process id there, once it runs.
    pub pid: Option<u32>,
    /// Where the rank is in its life cycle.
    pub state: RankState,
    /// What it reports, if it is part of a world and has answered.
    pub report: Option<RankReport>,
}

/// Where a rank is in its life cycle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankState {
    /// Its process has not started yet.
    Starting,
    /// Its process runs but is not part of a world.
    Running,
    /// It is part of the world.
    Joined,
    /// It is part of the world but has not answered.
    Silent,
    /// Its process has ended, as described.
    Ended(String),
}

/// What a rank reports about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankReport {
    /// Tensors completed.
    pub collectives: u64,
    /// Total bytes of those tensors.
    pub bytes: u64,
    /// Tensors that have failed.
    pub failed: u64,
    /// The last tensor completed.
    pub last: Option<TensorStatus>,
    /// Tensors in flight, oldest first, at most [`MOST_WAITING`].
    pub waiting: Vec<TensorStatus>,
    /// How many tensors are in flight.
    pub outstanding: u64,
}

/// One tensor in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorStatus {
    /// Name of the tensor.
    pub name: String,
    /// The operation, for example `allreduce`.
    pub kind: String,
    /// Process set of the operation.
    pub set: u32,
    /// Whether all ranks have submitted it.
    pub released: bool,
    /// Time since it was submitted or, if it is complete, since it completed.
    pub age: Duration,
}

/// A rank that others are waiting for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateRank {
    /// The rank's number in the current world.
    pub rank: Rank,
    /// The tensor it has not submitted.
    pub tensor: String,
    /// The operation on that tensor.
    pub kind: String,
    /// How many ranks are waiting.
    pub waiting: usize,
    /// How long the first of them has been waiting.
    pub age: Duration,
}

impl Status {
    /// The late ranks, each with the tensor that others have waited for longest.
    pub fn late(&self) -> Vec<LateRank> {
        let reports = || self.ranks.iter().filter_map(|one| Some((one.rank, one.report.as_ref()?)));
        let mut late: Vec<LateRank> = Vec::new();
        // The members of process sets other than the world are not known here.
        let is_due =
            |tensor: &&TensorStatus| tensor.set == 0 && !tensor.released && tensor.age >= LATE;
        for (_, report) in reports() {
            for tensor in report.waiting.iter().filter(is_due) {
                let known =
                    |tensors: &[TensorStatus]| tensors.iter().any(|t| t.name == tensor.name);
                let waiting = reports().filter(|(_, report)| known(&report.waiting)).count();
                for (rank, other) in reports() {
                    // It lists only some of its tensors: this one may be among the rest.
                    let unsure = other.outstanding > other.waiting.len() as u64;
                    if known(&other.waiting) || unsure {
                        continue;
                    }
                    let TensorStatus { name, kind, age, .. } = tensor.clone();
                    let found = LateRank { rank, tensor: name, kind, waiting, age };
                    match late.iter_mut().find(|known| known.rank == rank) {
                        Some(known) if known.age >= age => {}
                        Some(known) => *known = found,
                        None => late.push(found),
                    }
                }
            }
        }
        late.sort_by_key(|late| late.rank);
        late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, seconds: u64, set: u32) -> TensorStatus {
        let (kind, age) = ("allreduce".into(), Duration::from_secs(seconds));
        TensorStatus { name: name.into(), kind, set, released: false, age }
    }

    fn report(waiting: &[TensorStatus]) -> RankReport {
        let outstanding = waiting.len() as u64;
        RankReport { waiting: waiting.to_vec(), outstanding, ..RankReport::default() }
    }

    fn status(reports: &[&[TensorStatus]]) -> Status {
        let rank_status = |(rank, waiting): (u32, &&[TensorStatus])| RankStatus {
            rank: Rank(rank),
            host: "a".into(),
            slot: rank,
            pid: Some(7),
            state: RankState::Joined,
            report: Some(report(waiting)),
        };
        Status { ranks: (0..).zip(reports).map(rank_status).collect(), ..Status::default() }
    }

    #[test]
    fn a_rank_that_has_not_submitted_what_others_wait_for_is_late() {
        let late = status(&[&[tensor("g", 5, 0)], &[], &[tensor("g", 3, 0)]]).late();
        let expected = LateRank {
            rank: Rank(1),
            tensor: "g".into(),
            kind: "allreduce".into(),
            waiting: 2,
            age: Duration::from_secs(5),
        };
        assert_eq!(late, [expected]);
    }

    #[test]
    fn short_waits_other_sets_and_running_tensors_make_no_rank_late() {
        let running = TensorStatus { released: true, ..tensor("g", 9, 0) };
        for waiting in [tensor("g", 0, 0), tensor("g@1", 9, 1), running] {
            let waiting = std::slice::from_ref(&waiting);
            assert_eq!(status(&[waiting, &[]]).late(), [], "{waiting:?}");
        }
        let mut many = status(&[&[tensor("g", 9, 0)], &[tensor("h", 1, 0)]]);
        assert_eq!(many.late().len(), 2);
        many.ranks[1].report.as_mut().unwrap().outstanding = 99;
        assert_eq!(many.late().len(), 1, "a tensor that it does not name may be submitted");
    }
}
