//! The stream of a job's events, read by the screen, by `ronde status` and from the file that
//! `horovodrun --event-log` writes.
//!
//! Each [`JobEvent`] has a number, a time and a [`JobEventKind`]. Programs read events as JSON, one
//! flat object per line. Its keys are the field names below and never change: additions get new
//! names. `docs/reference/events.md` is generated from the comments in this file. People read the
//! lines that [`JobEventKind::line`] returns. Times are passed in.

#[cfg(test)]
pub(crate) mod examples;
mod messages;
#[cfg(test)]
mod reference;
mod seconds;

use std::fmt;

pub(crate) use messages::{many, process, some};
pub use seconds::Seconds;

use serde::{Deserialize, Serialize};

use crate::cause::Cause;
use crate::wire::agent::{Condition, Exit};
use crate::{Epoch, Rank, Worker};

/// One event of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEvent {
    /// Sequence number, starting at 0 without gaps.
    pub number: u64,
    /// When the launcher learned of it: seconds since 1970, by the clock of the launcher's host.
    pub time: Seconds,
    /// The event itself.
    #[serde(flatten)]
    pub what: JobEventKind,
}

/// The kinds of events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum JobEventKind {
    /// The job starts. This is always the first event.
    JobStarted {
        /// Ronde's version.
        version: String,
        /// `fixed` if the ranks never change, `elastic` if they come and go.
        kind: JobKind,
        /// How many ranks it starts with.
        ranks: u32,
        /// Minimum number of ranks; the job does not continue with fewer.
        min: u32,
        /// Maximum number of ranks; `null` if there is no limit.
        max: Option<u32>,
        /// The program and its arguments.
        command: Vec<String>,
    },
    /// A host was added to the list of hosts.
    HostFound {
        /// Name of the host.
        host: String,
        /// How many workers it can run.
        slots: u32,
        /// Where the host comes from: `list` if the user named it, `script` if the discovery script
        /// did, `dialed_in` if its agent connected by itself.
        source: HostSourceKind,
    },
    /// The number of slots of a host has changed.
    HostResized {
        /// Name of the host.
        host: String,
        /// How many workers it can run now.
        slots: u32,
        /// How many it could run before.
        before: u32,
        /// Where the number comes from, as in `host_found`.
        source: HostSourceKind,
    },
    /// A host was removed from the list of hosts.
    HostUnlisted {
        /// Name of the host.
        host: String,
        /// Where the host came from, as in `host_found`.
        source: HostSourceKind,
    },
    /// Host discovery failed; the job continues with the known hosts.
    HostsUnknown {
        /// Human-readable reason.
        reason: String,
    },
    /// Host discovery works again.
    HostsKnown,
    /// A host is ready: workers can be started there.
    HostReady {
        /// Name of the host.
        host: String,
    },
    /// A host cannot be reached.
    HostUnreachable {
        /// Name of the host.
        host: String,
        /// What was observed, in words.
        reason: String,
        /// What to do about it, in words.
        hint: String,
        /// Seconds until the next attempt; `null` in a fixed job, which ends.
        retry_seconds: Option<Seconds>,
    },
    /// A host was lost, together with its workers.
    HostLost {
        /// Name of the host.
        host: String,
        /// What was observed, in words.
        reason: String,
        /// What to do about it, in words.
        hint: String,
    },
    /// The agent on a host was told to stop, for example because the host is shutting down.
    HostLeaving {
        /// Name of the host.
        host: String,
        /// How many seconds its workers have to leave gracefully.
        grace_seconds: Seconds,
    },
    /// A host is on cooldown after a failure: no new workers are started there.
    HostRests {
        /// Name of the host.
        host: String,
        /// How long, in seconds; `null` means for the rest of the job.
        seconds: Option<Seconds>,
        /// Whether the workers running there stay in the job.
        keeps_workers: bool,
    },
    /// The cooldown of a host is over.
    HostUsable {
        /// Name of the host.
        host: String,
    },
    /// A worker's process was started.
    WorkerStarted {
        /// The worker and its place in the job.
        #[serde(flatten)]
        member: WorkerInfo,
        /// Its process id on its host.
        pid: u32,
    },
    /// A worker has called `init` and is waiting for the others.
    WorkerJoined {
        /// The worker and its place in the job.
        #[serde(flatten)]
        member: WorkerInfo,
    },
    /// A world is complete: its ranks are connected and can begin.
    WorldFormed {
        /// How many worlds have been completed so far, including this one.
        world: u64,
        /// The epoch of this world: its number among all attempts, as its ranks know it.
        epoch: Epoch,
        /// Its workers, in rank order.
        members: Vec<WorkerInfo>,
        /// How many of them are part of a world for the first time.
        newcomers: u32,
    },
    /// Some ranks have waited long for a tensor that others have not submitted; reported once for
    /// each tensor.
    Stalled {
        /// The tensor's name.
        tensor: String,
        /// How long the first rank has been waiting, in seconds.
        seconds: Seconds,
        /// The ranks that are waiting.
        waiting: Vec<Rank>,
        /// The ranks that are late.
        late: Vec<Rank>,
    },
    /// A worker's process is stopped or frozen.
    WorkerHalted {
        /// The worker and its place in the job.
        #[serde(flatten)]
        member: WorkerInfo,
        /// Its process, or one of its child processes.
        process: Condition,
        /// How long, in seconds.
        seconds: Seconds,
        /// The job ends once others have waited this many seconds for it; `null` if there is no
        /// limit.
        limit_seconds: Option<Seconds>,
    },
    /// A worker does not answer, but its process was not found stopped.
    WorkerSilent {
        /// The worker and its place in the job.
        #[serde(flatten)]
        member: WorkerInfo,
        /// Its process as its agent saw it; `null` if that is not known.
        process: Option<Condition>,
        /// How long, in seconds.
        seconds: Seconds,
    },
    /// A worker that was stopped or silent continues.
    WorkerResumed {
        /// The worker and its place in the job.
        #[serde(flatten)]
        member: WorkerInfo,
        /// After how many seconds.
        seconds: Seconds,
    },
    /// The agent of a host does not answer.
    HostSilent {
        /// Name of the host.
        host: String,
        /// The workers there that do answer; if there are none, the whole host may be frozen.
        answering: Vec<WorkerInfo>,
        /// How long, in seconds.
        seconds: Seconds,
        /// After how many seconds of silence the host counts as lost, if ever.
        limit_seconds: Option<Seconds>,
    },
    /// The agent of a host that was silent answers again.
    HostAnswers {
        /// Name of the host.
        host: String,
        /// After how many seconds.
        seconds: Seconds,
    },
    /// A worker has failed or must be considered dead. Its last output may still be in flight; the
    /// verdict at the end knows more.
    WorkerLost {
        /// The worker and its place in the job.
        #[serde(flatten)]
        member: WorkerInfo,
        /// Cause of the failure, as far as it is known.
        cause: Cause,
        /// Exit code of its process; `null` if there is none.
        exit_code: Option<i32>,
        /// The signal that killed it; `null` if none is known.
        signal: Option<i32>,
    },
    /// A worker was asked to leave the job.
    WorkerRemoved {
        /// The worker and its place in the job.
        #[serde(flatten)]
        member: WorkerInfo,
        /// Human-readable reason.
        reason: String,
    },
    /// A worker's process has ended as requested: when it was removed, or at the end of the job.
    WorkerStopped {
        /// The worker and its place in the job.
        #[serde(flatten)]
        member: WorkerInfo,
        /// Exit code of its process; `null` if there is none.
        exit_code: Option<i32>,
        /// The signal that killed it; `null` if none is known.
        signal: Option<i32>,
    },
    /// A worker's process has ended with code 0.
    WorkerFinished {
        /// The worker and its place in the job.
        #[serde(flatten)]
        member: WorkerInfo,
        /// Whether it is the first to finish: an elastic job forms no new world from then on.
        first: bool,
    },
    /// There are too few workers to continue; the job waits for more.
    TooFewWorkers {
        /// How many workers there are.
        there: u32,
        /// How many are needed.
        needed: u32,
        /// How long the job waits for more, in seconds, counted from when there were too few.
        timeout_seconds: Seconds,
    },
    /// Training continues after a loss: the first step is done and committed. Times are counted
    /// from when the launcher learned of the loss.
    Recovered {
        /// How many ranks continue.
        ranks: u32,
        /// Seconds until a world was complete again.
        met_seconds: Seconds,
        /// Seconds until its ranks had the training state.
        state_seconds: Seconds,
        /// Seconds until the first commit.
        commit_seconds: Seconds,
    },
    /// An output of the job could not be written; the job continues. Reported once per output.
    OutputLost {
        /// Which output: `stdout`, `stderr`, `files` (of `--output-filename`) or `event_log`.
        output: OutputKind,
        /// Human-readable reason.
        reason: String,
    },
    /// Events before this one are missing in the event log, because they arrived faster than they
    /// could be written.
    EventsDropped {
        /// Number of events that were dropped.
        count: u64,
    },
    /// The job has ended. This is the last event, unless the launcher itself was killed.
    JobEnded {
        /// The launcher's exit code.
        exit_code: u8,
        /// Why the job ended.
        verdict: Verdict,
    },
}

/// A worker and its place in the job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// The worker's number, which never changes. In a fixed job it equals the rank.
    pub worker: Worker,
    /// Its rank in its latest world; before the first one, the rank it will probably get.
    pub rank: Rank,
    /// Name of its host.
    pub host: String,
    /// Slot (local rank) on that host.
    pub slot: u32,
}

impl fmt::Display for WorkerInfo {
    /// How messages name a worker: `rank 2 (node-b, slot 0)`, or only its rank while its host is
    /// unknown.
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
    /// The ranks never change.
    #[default]
    Fixed,
    /// Ranks come and go.
    Elastic,
}

/// Where a host comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostSourceKind {
    /// The user's list, which never changes.
    #[default]
    List,
    /// A discovery script, which runs repeatedly.
    Script,
    /// An agent that was started by something else and dialed in.
    DialedIn,
}

/// An output of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputKind {
    /// The launcher's standard output.
    Stdout,
    /// The launcher's standard error.
    Stderr,
    /// The files of `--output-filename`.
    Files,
    /// The file of `--event-log`.
    EventLog,
}

/// Why a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// What ended the job, as a word for programs.
    pub reason: EndReason,
    /// The signal sent to the launcher, if that ended the job; otherwise `null`.
    pub signal: Option<i32>,
    /// The worker that failed first, and why; `null` if none did, or if that did not end the job.
    pub first: Option<FailedWorker>,
    /// The text printed for the user; `null` if the job succeeded.
    pub text: Option<String>,
}

impl Verdict {
    /// A verdict that blames no worker: the job succeeded, or the text says what went wrong.
    pub fn of(reason: EndReason, text: Option<String>) -> Verdict {
        Verdict { reason, signal: None, first: None, text }
    }

    /// The code by which `ronde explain` knows what went wrong.
    pub fn code(&self) -> Option<String> {
        let first = || self.first.as_ref().map(|first| first.cause.kind.to_string());
        self.reason.code().or_else(first)
    }
}

/// A worker that failed, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedWorker {
    /// The worker and its place in the job.
    #[serde(flatten)]
    pub member: WorkerInfo,
    /// Why, based on everything it reported and wrote.
    pub cause: Cause,
    /// Its process id on its host; `null` if it never ran.
    pub pid: Option<u32>,
    /// The time of day at which its process ended, as in `14:03:59`, by the clock and in the time zone of
    /// the launcher's host; `null` if that is not known.
    pub time: Option<String>,
}

impl FailedWorker {
    /// The report about it: a first line starting with `before`, then the details.
    pub fn lines(&self, before: &str) -> String {
        let process = match (self.pid, &self.time) {
            (Some(pid), Some(time)) => format!("  process {pid}, ended at {time}\n"),
            (Some(pid), None) => format!("  process {pid}\n"),
            (None, _) => String::new(),
        };
        format!("{before}{} {}\n{}{process}", self.member, self.cause.what, self.cause.lines())
    }
}

/// What ended a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::VariantArray)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The job succeeded.
    Done,
    /// A rank failed, which ended the job.
    RankFailed,
    /// Every worker of an elastic job has failed.
    AllFailed,
    /// Some ranks of the last world of an elastic job failed after others had finished.
    SomeFailed,
    /// A host was lost, which ended a fixed job.
    HostLost,
    /// The hosts could not be reached or could not reach each other: no rank was started.
    NotStarted,
    /// None of the remaining workers has the training state.
    NoState,
    /// The world was re-formed more often than `--reset-limit` allows.
    ResetLimit,
    /// Worlds keep breaking up although no worker dies.
    NoProgress,
    /// Too few workers joined within `--elastic-timeout`.
    TimedOut,
    /// Too few workers are left, and no host may start more.
    TooFewLeft,
    /// The launcher was sent a signal.
    Interrupted,
    /// The job succeeded, but output could not be written.
    OutputLost,
}

impl EndReason {
    /// The code by which `ronde explain` knows this reason, if there is more to say about it than
    /// about the worker that failed first.
    pub fn code(&self) -> Option<String> {
        use EndReason::{AllFailed, Done, Interrupted, RankFailed, SomeFailed};
        match self {
            Done | Interrupted | RankFailed | AllFailed | SomeFailed => None,
            reason => Some(reason.to_string()),
        }
    }
}

impl fmt::Display for EndReason {
    /// The name for programs: `timed_out`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl JobEventKind {
    /// The loss of a worker; `exit` is how its process ended, if that is known.
    pub fn lost(member: WorkerInfo, cause: Cause, exit: Option<&Exit>) -> JobEventKind {
        let (exit_code, signal) = exit.map_or((None, None), numbers);
        JobEventKind::WorkerLost { member, cause, exit_code, signal }
    }

    /// The end of a worker that was told to stop.
    pub fn stopped(member: WorkerInfo, exit: &Exit) -> JobEventKind {
        let (exit_code, signal) = numbers(exit);
        JobEventKind::WorkerStopped { member, exit_code, signal }
    }
}

/// The exit code or the signal of a process that has ended.
fn numbers(exit: &Exit) -> (Option<i32>, Option<i32>) {
    match exit {
        Exit::Code(code) => (Some(*code), None),
        Exit::Signal(signal) => (None, Some(*signal)),
        Exit::OutOfMemory => (None, Some(9)),
        Exit::NotStarted { .. } | Exit::Unknown { .. } => (None, None),
    }
}
