//! What happens in a job, as one stream that everybody reads: the screen, `ronde status`, and the file
//! of `horovodrun --event-log`.
//!
//! Each [`JobEvent`] has a number, a time and a [`Happening`]. Programs read them as JSON, one flat object
//! per line, whose names are those of the fields below and stay as they are: what is new gets a name of
//! its own. `docs/reference/events.md` is made from the comments in this file. People read the lines that
//! [`Happening::line`] gives. Times are passed in.

#[cfg(test)]
pub(crate) mod examples;
#[cfg(test)]
mod reference;
mod seconds;
mod words;

use std::fmt;

pub use seconds::Seconds;
pub(crate) use words::{many, process, some};

use serde::{Deserialize, Serialize};

use crate::cause::Cause;
use crate::wire::agent::{Condition, Exit};
use crate::{Epoch, Rank, Worker};

/// One event of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEvent {
    /// Its place in the stream: 0 is the first, and there are no gaps.
    pub number: u64,
    /// When it was learned of: seconds since 1970, by the clock of the launcher's host.
    pub time: Seconds,
    /// What happened.
    #[serde(flatten)]
    pub what: Happening,
}

/// What happened in a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Happening {
    /// The job begins; this is always the first event.
    JobStarted {
        /// Ronde's version.
        version: String,
        /// `fixed` if its ranks are the same from beginning to end, `elastic` if they come and go.
        kind: JobKind,
        /// How many ranks it starts with.
        ranks: u32,
        /// Below how many it does not go on.
        min: u32,
        /// Above how many there are none; `null` if there is no such number.
        max: Option<u32>,
        /// The program and its arguments.
        command: Vec<String>,
    },
    /// A host is listed.
    HostFound {
        /// Its name.
        host: String,
        /// How many workers it takes.
        slots: u32,
        /// Who says so: `list` if the user has named it, `script` if the discovery script has,
        /// `dialled_in` if its agent has offered it.
        source: Source,
    },
    /// A host has another number of slots.
    HostResized {
        /// Its name.
        host: String,
        /// How many workers it takes now.
        slots: u32,
        /// How many it took before.
        before: u32,
        /// Who says so, as in `host_found`.
        source: Source,
    },
    /// A host is not listed any more.
    HostUnlisted {
        /// Its name.
        host: String,
        /// Who says so, as in `host_found`.
        source: Source,
    },
    /// It could not be found out which hosts there are; the job goes on with those known.
    HostsUnknown {
        /// Why not, in words.
        reason: String,
    },
    /// It is known again which hosts there are.
    HostsKnown,
    /// A host has been reached: workers can be started there.
    HostReady {
        /// Its name.
        host: String,
    },
    /// A host cannot be reached.
    HostUnreachable {
        /// Its name.
        host: String,
        /// What was seen, in words.
        reason: String,
        /// What to do about it, in words.
        hint: String,
        /// After how many seconds it is tried again; `null` in a fixed job, which ends.
        retry_seconds: Option<Seconds>,
    },
    /// A host that took part is lost, with its workers.
    HostLost {
        /// Its name.
        host: String,
        /// What was seen, in words.
        reason: String,
        /// What to do about it, in words.
        hint: String,
    },
    /// The agent on a host was told to stop, as by somebody who shuts the host down.
    HostLeaving {
        /// Its name.
        host: String,
        /// How many seconds its workers have to leave in order.
        grace_seconds: Seconds,
    },
    /// A host gets no new workers for a while, because it has failed.
    HostRests {
        /// Its name.
        host: String,
        /// For how many seconds; `null` means for the rest of the job.
        seconds: Option<Seconds>,
        /// Whether the workers that live there stay.
        keeps_workers: bool,
    },
    /// A host that rested may take part again.
    HostUsable {
        /// Its name.
        host: String,
    },
    /// A worker's process runs.
    WorkerStarted {
        /// The worker, and its place in the job.
        #[serde(flatten)]
        member: Member,
        /// Its process id on its host.
        pid: u32,
    },
    /// A worker has called `init` and waits for the others.
    WorkerJoined {
        /// The worker, and its place in the job.
        #[serde(flatten)]
        member: Member,
    },
    /// A world is complete: its ranks know each other and can begin.
    WorldFormed {
        /// How many worlds have been complete so far, with this one.
        world: u64,
        /// The number of this world among all that were tried, as its ranks know it.
        epoch: Epoch,
        /// Its workers, in rank order.
        members: Vec<Member>,
        /// How many of them are in a world for the first time.
        newcomers: u32,
    },
    /// Some ranks have waited long for a tensor that others have not submitted; told once for each tensor.
    Stalled {
        /// The tensor's name.
        tensor: String,
        /// For how many seconds the first rank has waited.
        seconds: Seconds,
        /// The ranks that wait.
        waiting: Vec<Rank>,
        /// The ranks that are late.
        late: Vec<Rank>,
    },
    /// A worker's process is stopped or frozen.
    WorkerHalted {
        /// The worker, and its place in the job.
        #[serde(flatten)]
        member: Member,
        /// Its process, or one of those that it has started.
        process: Condition,
        /// For how many seconds.
        seconds: Seconds,
        /// After how many seconds of waiting for it the job ends; `null` if nobody has set that.
        limit_seconds: Option<Seconds>,
    },
    /// A worker does not answer, and its process has not been found stopped.
    WorkerSilent {
        /// The worker, and its place in the job.
        #[serde(flatten)]
        member: Member,
        /// Its process as its agent has seen it; `null` if nobody could look.
        process: Option<Condition>,
        /// For how many seconds.
        seconds: Seconds,
    },
    /// A worker that was stopped or silent goes on.
    WorkerResumed {
        /// The worker, and its place in the job.
        #[serde(flatten)]
        member: Member,
        /// After how many seconds.
        seconds: Seconds,
    },
    /// The agent of a host does not answer.
    HostSilent {
        /// The host's name.
        host: String,
        /// The workers on it that do answer; if there are none, the whole host may be frozen.
        answering: Vec<Member>,
        /// For how many seconds.
        seconds: Seconds,
    },
    /// The agent of a host that was silent answers again.
    HostAnswers {
        /// The host's name.
        host: String,
        /// After how many seconds.
        seconds: Seconds,
    },
    /// A worker has failed or is as good as dead. What it said last may still be on its way: the
    /// verdict at the end knows more.
    WorkerLost {
        /// The worker, and its place in the job.
        #[serde(flatten)]
        member: Member,
        /// Why.
        cause: Cause,
        /// The code that its process gave; `null` if it gave none.
        exit_code: Option<i32>,
        /// The signal that killed it; `null` if none did as far as is known.
        signal: Option<i32>,
    },
    /// A worker is told to leave the job.
    WorkerRemoved {
        /// The worker, and its place in the job.
        #[serde(flatten)]
        member: Member,
        /// Why, in words.
        reason: String,
    },
    /// A worker's process has ended that had been told to: when it was removed, or at the end of the job.
    WorkerStopped {
        /// The worker, and its place in the job.
        #[serde(flatten)]
        member: Member,
        /// The code that its process gave; `null` if it gave none.
        exit_code: Option<i32>,
        /// The signal that killed it; `null` if none did as far as is known.
        signal: Option<i32>,
    },
    /// A worker's process has ended with code 0.
    WorkerFinished {
        /// The worker, and its place in the job.
        #[serde(flatten)]
        member: Member,
        /// Whether it is the first: an elastic job forms no new world from then on.
        first: bool,
    },
    /// There are too few workers to go on; more are waited for.
    TooFewWorkers {
        /// How many there are.
        there: u32,
        /// How many there must be.
        needed: u32,
        /// For how many seconds more are waited for, from when there were too few.
        timeout_seconds: Seconds,
    },
    /// Training goes on after a loss: the first step is finished and committed. Times are counted from the
    /// news of the loss.
    Recovered {
        /// How many ranks go on.
        ranks: u32,
        /// Seconds until a world was complete again.
        met_seconds: Seconds,
        /// Seconds until its ranks had the state of the training.
        state_seconds: Seconds,
        /// Seconds until the first commit.
        commit_seconds: Seconds,
    },
    /// Something that the job writes could not be written; the job goes on. Told once for each.
    OutputLost {
        /// What: `stdout`, `stderr`, `files` (of `--output-filename`) or `event_log`.
        output: Output,
        /// Why, in words.
        reason: String,
    },
    /// Events between the one before and this one are missing in the event log, because they came faster
    /// than they could be written.
    EventsDropped {
        /// How many.
        count: u64,
    },
    /// The job has ended: the last event, unless the launcher itself was killed.
    JobEnded {
        /// The launcher's exit code.
        exit_code: u8,
        /// Why it has ended.
        verdict: Judgement,
    },
}

/// A worker and its place in the job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The worker's number, which it keeps for life. In a fixed job it is the rank.
    pub worker: Worker,
    /// Its rank in the last world that it was part of; before the first, the one it will probably have.
    pub rank: Rank,
    /// The name of its host.
    pub host: String,
    /// Its slot there.
    pub slot: u32,
}

impl fmt::Display for Member {
    /// How messages name a worker: `rank 2 (node-b, slot 0)`. Where nobody knows yet where it is, its
    /// number must do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.as_str() {
            "" => write!(f, "{}", self.rank),
            host => write!(f, "{} ({host}, slot {})", self.rank, self.slot),
        }
    }
}

/// Whether the ranks of a job change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// They are the same from beginning to end.
    #[default]
    Fixed,
    /// They come and go.
    Elastic,
}

/// Who says which hosts there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The user, once and for all.
    #[default]
    List,
    /// A script, again and again.
    Script,
    /// Agents that somebody else has started there, and that have dialled in.
    DialledIn,
}

/// Something that a job writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// The launcher's standard output.
    Stdout,
    /// The launcher's standard error.
    Stderr,
    /// The files of `--output-filename`.
    Files,
    /// The file of `--event-log`.
    EventLog,
}

/// Why a job has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judgement {
    /// What ended it, in one word for programs.
    pub reason: EndReason,
    /// The signal that the launcher was sent, if that ended the job; else `null`.
    pub signal: Option<i32>,
    /// Who failed first, and why; `null` if nobody did, or if that is not why the job has ended.
    pub first: Option<Culprit>,
    /// What the user is told; `null` if all went well.
    pub text: Option<String>,
}

impl Judgement {
    /// Nobody is to blame: all went well, or this text says what did not.
    pub fn of(reason: EndReason, text: Option<String>) -> Judgement {
        Judgement { reason, signal: None, first: None, text }
    }
}

/// A worker that failed, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Culprit {
    /// The worker, and its place in the job.
    #[serde(flatten)]
    pub member: Member,
    /// Why, with everything that it has said and written.
    pub cause: Cause,
}

impl Culprit {
    /// The lines about it: the first behind `before`, and those with details.
    pub fn lines(&self, before: &str) -> String {
        format!("{before}{} {}\n{}", self.member, self.cause.what, self.cause.lines())
    }
}

/// What ended a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// All went well.
    Done,
    /// A rank has failed, and with it the job.
    RankFailed,
    /// Every worker of an elastic job has failed.
    AllFailed,
    /// Some of the last world of an elastic job have failed, after others had finished.
    SomeFailed,
    /// A host was lost, and with it a fixed job.
    HostLost,
    /// The hosts could not be reached, or did not find each other: no rank was started.
    NotStarted,
    /// Nobody who is left has the state of the training.
    NoState,
    /// The world was formed anew more often than `--reset-limit` allows.
    ResetLimit,
    /// Worlds fall apart again and again although nobody dies.
    NoProgress,
    /// Too few workers came within `--elastic-timeout`.
    TimedOut,
    /// Too few workers are left and no host may start more.
    TooFewLeft,
    /// The launcher was sent a signal.
    Interrupted,
    /// All went well, but output could not be written.
    OutputLost,
}

impl Happening {
    /// The loss of a worker whose process has ended so, or of one whose end nobody has seen.
    pub fn lost(member: Member, cause: Cause, exit: Option<&Exit>) -> Happening {
        let (exit_code, signal) = exit.map_or((None, None), numbers);
        Happening::WorkerLost { member, cause, exit_code, signal }
    }

    /// The end of a worker that was told to end.
    pub fn stopped(member: Member, exit: &Exit) -> Happening {
        let (exit_code, signal) = numbers(exit);
        Happening::WorkerStopped { member, exit_code, signal }
    }
}

/// The code or the signal with which a process has ended.
fn numbers(exit: &Exit) -> (Option<i32>, Option<i32>) {
    match exit {
        Exit::Code(code) => (Some(*code), None),
        Exit::Signal(signal) => (None, Some(*signal)),
        Exit::OutOfMemory => (None, Some(9)),
        Exit::NotStarted { .. } | Exit::Unknown { .. } => (None, None),
    }
}
