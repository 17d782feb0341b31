//! What a running job looks like from outside: what its ranks say of themselves, and who is late.
//!
//! Somebody asks the driver; the driver asks the ranks of the world over the connections they keep, and
//! whoever has not answered within [`PATIENCE`] is left out. Whoever asks proves before that he holds the
//! job's key. Nothing here reads a clock: ages are measured where the clock is.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Rank;

/// How long ranks have to answer.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// For less than this nobody counts as late: ranks are never quite in step.
pub const LATE: Duration = Duration::from_secs(1);

/// The most tensors that a rank names of those that wait.
pub const MOST_WAITING: usize = 8;

/// What somebody who watches a job asks the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WatcherToDriver {
    /// How does it stand?
    Ask,
    /// What happens from now on, and what has happened last? Nothing else is asked after that.
    Follow,
}

/// What the driver answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum DriverToWatcher {
    /// So.
    Status(Status),
    /// Something has happened. The last event is that the job has ended.
    Event {
        /// It as JSON, as in the event log.
        event: String,
        /// How many before it could not be told because the watcher read too slowly.
        missed: u64,
    },
    /// The two do not understand each other.
    Refused {
        /// Why, and what to do.
        reason: String,
    },
}

/// A job at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// How long it runs.
    pub age: Duration,
    /// The number of its world; 0 before the first.
    pub epoch: u64,
    /// Its ranks, in order.
    pub ranks: Vec<Standing>,
    /// The last events as JSON, oldest first.
    pub events: Vec<String>,
}

/// A rank at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// Who.
    pub rank: Rank,
    /// The name of its host.
    pub host: String,
    /// Its place there.
    pub slot: u32,
    /// Its process there, once it runs.
    pub pid: Option<u32>,
    /// How far it has come.
    pub state: State,
    /// What it says of itself, if it is part of a world and has answered.
    pub report: Option<Report>,
}

/// How far a rank has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Its process does not run yet.
    Starting,
    /// Its process runs and is part of no world.
    Running,
    /// It is part of the world.
    Joined,
    /// It is part of the world and has not answered.
    Silent,
    /// Its process has ended, in these words.
    Ended(String),
}

/// What a rank says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Tensors that have arrived.
    pub collectives: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Tensors that have failed.
    pub failed: u64,
    /// The last one that arrived.
    pub last: Option<Tensor>,
    /// Those that are on their way, oldest first, at most [`MOST_WAITING`].
    pub waiting: Vec<Tensor>,
    /// How many are on their way.
    pub outstanding: u64,
}

/// One tensor in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// What is done with it, as in `allreduce`.
    pub kind: String,
    /// The process set.
    pub set: u32,
    /// Whether all ranks were ready for it.
    pub released: bool,
    /// Since when: it was submitted, or it arrived, so long ago.
    pub age: Duration,
}

/// A rank for which others wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Late {
    /// Who.
    pub rank: Rank,
    /// What it has not submitted.
    pub tensor: String,
    /// What is to be done with that.
    pub kind: String,
    /// How many ranks wait.
    pub waiting: usize,
    /// How long the first of them does.
    pub age: Duration,
}

impl Status {
    /// Who is late: for each rank the tensor that others have waited for longest.
    pub fn late(&self) -> Vec<Late> {
        let reports = || self.ranks.iter().filter_map(|one| Some((one.rank, one.report.as_ref()?)));
        let mut late: Vec<Late> = Vec::new();
        // Who belongs to another set than the world is not known here.
        let is_due = |tensor: &&Tensor| tensor.set == 0 && !tensor.released && tensor.age >= LATE;
        for (_, report) in reports() {
            for tensor in report.waiting.iter().filter(is_due) {
                let known = |tensors: &[Tensor]| tensors.iter().any(|t| t.name == tensor.name);
                let waiting = reports().filter(|(_, report)| known(&report.waiting)).count();
                for (rank, other) in reports() {
                    // Of so many it names only some; what is not among them may still be there.
                    let unsure = other.outstanding > other.waiting.len() as u64;
                    if known(&other.waiting) || unsure {
                        continue;
                    }
                    let Tensor { name, kind, age, .. } = tensor.clone();
                    let found = Late { rank, tensor: name, kind, waiting, age };
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

    fn tensor(name: &str, seconds: u64, set: u32) -> Tensor {
        let (kind, age) = ("allreduce".into(), Duration::from_secs(seconds));
        Tensor { name: name.into(), kind, set, released: false, age }
    }

    fn report(waiting: &[Tensor]) -> Report {
        let outstanding = waiting.len() as u64;
        Report { waiting: waiting.to_vec(), outstanding, ..Report::default() }
    }

    fn status(reports: &[&[Tensor]]) -> Status {
        let standing = |(rank, waiting): (u32, &&[Tensor])| Standing {
            rank: Rank(rank),
            host: "a".into(),
            slot: rank,
            pid: Some(7),
            state: State::Joined,
            report: Some(report(waiting)),
        };
        Status { ranks: (0..).zip(reports).map(standing).collect(), ..Status::default() }
    }

    #[test]
    fn who_has_not_submitted_what_others_wait_for_is_late() {
        let late = status(&[&[tensor("g", 5, 0)], &[], &[tensor("g", 3, 0)]]).late();
        let expected = Late {
            rank: Rank(1),
            tensor: "g".into(),
            kind: "allreduce".into(),
            waiting: 2,
            age: Duration::from_secs(5),
        };
        assert_eq!(late, [expected]);
    }

    #[test]
    fn nobody_is_late_for_a_moment_for_other_sets_or_for_what_runs() {
        let running = Tensor { released: true, ..tensor("g", 9, 0) };
        for waiting in [tensor("g", 0, 0), tensor("g@1", 9, 1), running] {
            let waiting = std::slice::from_ref(&waiting);
            assert_eq!(status(&[waiting, &[]]).late(), [], "{waiting:?}");
        }
        let mut many = status(&[&[tensor("g", 9, 0)], &[tensor("h", 1, 0)]]);
        assert_eq!(many.late().len(), 2);
        many.ranks[1].report.as_mut().unwrap().outstanding = 99;
        assert_eq!(many.late().len(), 1, "what it does not name may be there");
    }
}
