//! Which worker failed first, and what is reported about it.
//!
//! One failure causes many: when a worker dies, the others lose it and fail in turn, and the rest
//! are stopped. The verdict follows the blame back to the first cause, whose exit code becomes the
//! launcher's and whose name comes first in the last lines on the screen. A rank that exited with
//! code 0 cannot be the cause: in that case the rank that needed it is, and the text says which one
//! left early.
//!
//! This module only draws conclusions from what is reported to it; it prints nothing.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::messages::EndCause;
use crate::cause::{Cause, CauseKind, Departure, Raised, Tail};
use crate::event::{EndReason, FailedWorker, Verdict, WorkerInfo, some};
use crate::wire::agent::{Exit, OutputStream, StartFailure};
use crate::{Rank, Worker};

/// Everything known about how workers ended since the last world was complete.
#[derive(Default)]
pub struct FailureAnalysis {
    accounts: BTreeMap<Worker, Account>,
    /// Workers that failed on their own, in the order in which the launcher learned of it.
    failures: Vec<Worker>,
    stopping: bool,
    /// Why the job ended, if it did not succeed and the first failure alone does not explain it.
    end: Option<EndCause>,
}

#[derive(Default)]
struct Account {
    who: WorkerInfo,
    departure: Departure,
    blames: Option<Worker>,
    exit: Option<Exit>,
    stopped: bool,
    /// Why the launcher treats it as dead, no matter what its process does.
    condemned: Option<Cause>,
    tail: Tail,
    pid: Option<u32>,
    /// The time of day at which its process ended.
    ended_at: Option<String>,
    view: OutputView,
}

/// How the user sees a worker's standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputView {
    /// As lines with a prefix that names the worker's rank and this stream.
    Marked(OutputStream),
    /// Unchanged, because the worker has the launcher's terminal.
    Unmarked,
    /// Not at all: the user chose to see other ranks.
    Hidden,
}

impl Default for OutputView {
    fn default() -> OutputView {
        OutputView::Marked(OutputStream::Stderr)
    }
}

impl Account {
    fn has_raised(&self) -> bool {
        matches!(self.departure, Departure::Exception(_))
    }

    fn cause(&self) -> Cause {
        match &self.condemned {
            Some(cause) => cause.clone(),
            None => Cause::of(self.exit.as_ref(), &self.departure, &self.tail),
        }
    }
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobOutcome {
    /// The launcher's exit code.
    pub code: u8,
    /// Why it ended. A text ends with a newline.
    pub verdict: Verdict,
}

impl JobOutcome {
    /// The outcome of a job that succeeded.
    pub fn well() -> JobOutcome {
        JobOutcome { code: 0, verdict: Verdict::of(EndReason::Done, None) }
    }

    /// The outcome of a job that ended for this reason and with this text, without a failed worker.
    pub fn because(reason: EndReason, code: u8, text: String) -> JobOutcome {
        JobOutcome { code, verdict: Verdict::of(reason, Some(text)) }
    }

    /// The outcome if some output could not be written. A job that has not failed then exits with
    /// code 1, like other commands whose output is lost.
    pub fn without(self, lost: &[String]) -> JobOutcome {
        if lost.is_empty() || self.code != 0 {
            return self;
        }
        let text = format!(
            "error: all ranks succeeded, but output was lost: {}\n\nhint: free space there, or \
             send the output elsewhere; `--output-filename` keeps a copy of it\n",
            lost.join("; ")
        );
        JobOutcome::because(EndReason::OutputLost, 1, text)
    }
}

impl FailureAnalysis {
    /// A worker was started, or has a rank in a world.
    pub fn enter(&mut self, who: WorkerInfo) {
        let account = self.accounts.entry(who.worker).or_default();
        account.who = who;
    }

    /// A worker was asked to leave: however it ends, that is not a failure.
    pub fn excuse(&mut self, worker: Worker) {
        self.accounts.retain(|known, account| *known != worker || account.condemned.is_some());
    }

    /// A world is complete: earlier ends do not explain later failures.
    pub fn begin_anew(&mut self) {
        self.failures.clear();
        self.accounts.retain(|_, account| account.exit.is_none() && account.condemned.is_none());
        for account in self.accounts.values_mut() {
            (account.departure, account.blames) = (Departure::None, None);
        }
    }

    /// A worker has left its world, because of an exception or in an orderly way.
    pub fn left(&mut self, worker: Worker, error: Option<Raised>, blames: Option<Worker>) {
        if let Some(account) = self.accounts.get_mut(&worker) {
            (account.departure, account.blames) = (Departure::of(error), blames);
        }
    }

    /// A worker has written a line to standard error.
    pub fn wrote(&mut self, worker: Worker, line: &str) {
        if let Some(account) = self.accounts.get_mut(&worker) {
            account.tail.wrote(line);
        }
    }

    /// A worker's process has started.
    pub fn runs_as(&mut self, worker: Worker, pid: u32) {
        if let Some(account) = self.accounts.get_mut(&worker) {
            account.pid = Some(pid);
        }
    }

    /// Sets how a worker's output is shown.
    pub fn seen_as(&mut self, worker: Worker, view: OutputView) {
        if let Some(account) = self.accounts.get_mut(&worker) {
            account.view = view;
            account.tail.has_both_streams =
                matches!(view, OutputView::Unmarked | OutputView::Marked(OutputStream::Stdout));
        }
    }

    /// A worker's process has ended at this time of day.
    pub fn ended_at(&mut self, worker: Worker, time: String) {
        if let Some(account) = self.accounts.get_mut(&worker) {
            account.ended_at.get_or_insert(time);
        }
    }

    /// A worker's process has ended.
    pub fn exited(&mut self, worker: Worker, exit: Exit) {
        let Some(account) = self.accounts.get_mut(&worker) else { return };
        if account.exit.is_some() {
            return;
        }
        account.stopped = self.stopping;
        if !exit.is_success() && !self.stopping && !self.failures.contains(&worker) {
            self.failures.push(worker);
        }
        account.exit = Some(exit);
    }

    /// A worker is treated as dead, for this cause.
    pub fn condemn(&mut self, worker: Worker, cause: Cause) {
        if let Some(account) = self.accounts.get_mut(&worker) {
            account.condemned.get_or_insert(cause);
            if !self.failures.contains(&worker) {
                self.failures.push(worker);
            }
        }
    }

    /// A worker that the others have waited for is treated as dead: it is the first cause, even if
    /// the others have already failed because of it.
    pub fn condemn_first(&mut self, worker: Worker, cause: Cause) {
        self.condemn(worker, cause);
        self.failures.retain(|known| *known != worker);
        self.failures.insert(0, worker);
    }

    /// From now on workers end because the launcher ends them.
    pub fn stopping(&mut self) {
        self.stopping = true;
    }

    /// The job ends for this reason; the first reason counts.
    pub(super) fn end(&mut self, end: EndCause) {
        self.end.get_or_insert(end);
    }

    /// The job ends for this reason, unless a worker has already failed and thereby ended the job.
    pub(super) fn end_unless_failed(&mut self, end: EndCause) {
        if !self.failed() {
            self.end(end);
        }
    }

    /// Whether anything has failed.
    pub fn failed(&self) -> bool {
        !self.failures.is_empty() || matches!(self.end, Some(EndCause::HostLost { .. }))
    }

    /// Why a worker failed, as far as it is known.
    pub(super) fn cause(&self, worker: Worker) -> Cause {
        self.accounts.get(&worker).map(Account::cause).unwrap_or_default()
    }

    /// Whether a worker ended because the launcher stopped it.
    pub(super) fn was_stopped(&self, worker: Worker) -> bool {
        self.accounts.get(&worker).is_some_and(|account| account.stopped)
    }

    /// How a worker's process ended, if it has.
    pub(super) fn exit(&self, worker: Worker) -> Option<&Exit> {
        self.accounts.get(&worker)?.exit.as_ref()
    }

    /// A worker and its last known place in the job.
    pub(super) fn who(&self, worker: Worker) -> WorkerInfo {
        let unknown = || WorkerInfo { worker, rank: Rank(worker.0), ..WorkerInfo::default() };
        self.accounts.get(&worker).map_or_else(unknown, |account| account.who.clone())
    }

    /// The launcher's exit code and final report.
    pub fn outcome(&self) -> JobOutcome {
        let first = self.first();
        let end = match (&self.end, &first) {
            (Some(end), _) => end,
            (None, Some(_)) => &EndCause::RankFailed,
            (None, None) => return JobOutcome::well(),
        };
        let code = match (end, &first) {
            (EndCause::Interrupted { signal, .. }, _) => Exit::Signal(*signal).code(),
            (
                EndCause::HostLost { .. } | EndCause::TimedOut { .. } | EndCause::NoProgress { .. },
                _,
            ) => 1,
            (_, first) => first.as_ref().map_or(1, |first| self.code(first.member.worker)),
        };
        let signal = match end {
            EndCause::Interrupted { signal, .. } => Some(*signal),
            _ => None,
        };
        let first = first.filter(|_| signal.is_none());
        let text = match (end, &first) {
            (EndCause::RankFailed, Some(first)) => self.text(first),
            (EndCause::HostLost { reason, hint }, _) => self.text_of_lost_host(reason, hint),
            _ => {
                let above = first.as_ref().map(|first| self.above(&first.member));
                end.text(first.as_ref(), above.as_deref())
            }
        };
        let text = Some(format!("{}\n", text.trim_end()));
        JobOutcome { code, verdict: Verdict { reason: end.reason(), signal, first, text } }
    }

    /// The worker that failed first, found by following the blame from the first known failure.
    pub fn first(&self) -> Option<FailedWorker> {
        let mut cause = *self.failures.first()?;
        let mut seen = vec![cause];
        while let Some(blamed) = self.accounts.get(&cause).and_then(|account| account.blames) {
            if seen.contains(&blamed) || !self.has_failed(blamed) {
                break;
            }
            seen.push(blamed);
            cause = blamed;
        }
        let account = self.accounts.get(&cause);
        Some(FailedWorker {
            member: self.who(cause),
            cause: self.cause(cause),
            pid: account.and_then(|account| account.pid),
            time: account.and_then(|account| account.ended_at.clone()),
        })
    }

    /// Whether a worker failed on its own, or raised an exception and was stopped before it ended.
    fn has_failed(&self, worker: Worker) -> bool {
        let account = self.accounts.get(&worker);
        account.is_some_and(|account| account.stopped && account.has_raised())
            || self.failures.contains(&worker)
    }

    /// The launcher's exit code, which follows from the first cause.
    fn code(&self, first: Worker) -> u8 {
        match self.accounts.get(&first) {
            Some(Account { exit: Some(exit), stopped: false, condemned: None, .. }) => {
                exit.code().max(1)
            }
            _ => 1,
        }
    }

    fn text(&self, first: &FailedWorker) -> String {
        let mut text = first.lines("error: ");
        let worker = first.member.worker;
        let blamed = self.accounts.get(&worker).and_then(|account| account.blames);
        let early = blamed.filter(|blamed| self.exit(*blamed).is_some_and(Exit::is_success));
        if let Some(blamed) = early {
            text += &format!("  {} had left early, with exit code 0\n", self.who(blamed));
        }
        text += &self.aftermath(worker);
        text + &format!("\nhint: {}\n", self.hint(first, early))
    }

    /// What happened to the other ranks.
    fn aftermath(&self, cause: Worker) -> String {
        let others = |test: &dyn Fn(Worker, &Account) -> bool| {
            let others = self.accounts.iter().filter(|(worker, _)| **worker != cause);
            let others = others.filter(|(worker, account)| test(**worker, account));
            let mut ranks: Vec<Rank> = others.map(|(_, account)| account.who.rank).collect();
            ranks.sort_unstable();
            ranks
        };
        // A rank with the same exception has the same error in its program, even if it learned of
        // the other's failure before it ended.
        let first = self.cause(cause);
        let same = |it| first.raised() && self.cause(it).what == first.what;
        let victim = |it, account: &Account| account.blames.is_some() && !same(it);
        let victims = others(&|it, account| self.has_failed(it) && victim(it, account));
        let failed = others(&|it, account| self.has_failed(it) && !victim(it, account));
        let stopped = others(&|it, account| account.stopped && !self.has_failed(it));
        let mut text = String::new();
        for (ranks, one, many) in [
            (victims, "failed because of it", "failed because of it"),
            (failed, "failed too", "failed too"),
            (stopped, "was terminated", "were terminated"),
        ] {
            match ranks.as_slice() {
                [] => {}
                [rank] => text += &format!("  {rank} {one}\n"),
                ranks => {
                    let numbers = some(ranks.iter().map(|rank| rank.0));
                    text += &format!("  {} ranks ({numbers}) {many}\n", ranks.len());
                }
            }
        }
        text
    }

    /// Where to look for what a worker wrote.
    fn above(&self, member: &WorkerInfo) -> String {
        let account = self.accounts.get(&member.worker);
        if account.is_none_or(|account| account.tail.is_empty()) {
            return "it wrote nothing to stderr: see the log files that the program keeps, if any"
                .into();
        }
        match account.map(|account| account.view).unwrap_or_default() {
            OutputView::Marked(stream) => {
                let name = if stream == OutputStream::Stdout { "stdout" } else { "stderr" };
                format!("see the lines marked `[{}]<{name}>` above", member.rank.0)
            }
            OutputView::Unmarked => "see its output above".into(),
            OutputView::Hidden => {
                "`--ranks` hides its output: run the job again without that option, or look at the \
                 files of `--output-filename`"
                    .into()
            }
        }
    }

    fn hint(&self, first: &FailedWorker, early: Option<Worker>) -> String {
        let FailedWorker { member, cause, .. } = first;
        let above = self.above(member);
        if let Some(blamed) = early {
            return format!(
                "every rank must make the same calls: find out why {} finished first, for example \
                 because it has fewer batches",
                self.who(blamed).rank
            );
        }
        if cause.kind == CauseKind::Stalled {
            return "every rank must make the same calls: see what the missing ranks do instead, for \
                    example with `py-spy dump --pid`"
                .into();
        }
        let account = self.accounts.get(&member.worker);
        if cause.raised() || account.is_some_and(Account::has_raised) {
            return above;
        }
        let host = &member.host;
        if cause.kind == CauseKind::Halted {
            return format!(
                "find out who stopped it, or why `{host}` did not let it run; a larger \
                 `--stall-check-shutdown-time-seconds` waits longer"
            );
        }
        match self.exit(member.worker) {
            Some(Exit::OutOfMemory) => {
                "give the job more memory, a smaller batch or fewer ranks per host".into()
            }
            Some(Exit::Signal(9)) => format!(
                "if nobody killed it, memory ran out: `dmesg -T | grep -i oom` on `{host}` shows it; \
                 use a smaller batch or fewer ranks per host"
            ),
            Some(Exit::Signal(7)) => format!(
                "if shared memory ran out, make `/dev/shm` on `{host}` larger (in a container, \
                 `--shm-size`) or use fewer data loader workers; otherwise native code crashed: {above}"
            ),
            Some(Exit::Signal(4 | 6 | 8 | 11)) if !cause.details.is_empty() => {
                format!("native code crashed; {above}")
            }
            Some(Exit::Signal(4 | 6 | 8 | 11)) => {
                "native code crashed; run it again with `PYTHONFAULTHANDLER=1` to see where".into()
            }
            Some(Exit::Signal(_)) => {
                "something sent it that signal: a scheduler, a time limit or another process".into()
            }
            Some(Exit::NotStarted { obstacle, .. }) => not_started(*obstacle, host),
            Some(Exit::Code(code)) if cause.details.is_empty() => {
                format!(
                    "it wrote nothing to stderr; look for what ends the program with code {code}"
                )
            }
            Some(Exit::Unknown { .. }) => format!("check that `{host}` is still up"),
            _ => above,
        }
    }

    fn text_of_lost_host(&self, reason: &str, hint: &str) -> String {
        let count = self.accounts.values().filter(|account| account.exit.is_some()).count();
        let all = self.accounts.len();
        format!("error: {reason}\n  {count} of {all} ranks have ended\n\nhint: {hint}")
    }
}

/// The hint about a program that could not be started on `host`.
fn not_started(obstacle: StartFailure, host: &str) -> String {
    match obstacle {
        StartFailure::Missing => {
            format!("check the spelling and that it exists on `{host}` and is in its PATH")
        }
        StartFailure::NotExecutable => {
            "make it executable with `chmod +x`, or name its interpreter, as in `python train.py`"
                .into()
        }
        StartFailure::Denied => {
            format!("check the permissions of the directories above it on `{host}` with `namei -l`")
        }
        StartFailure::Directory => format!(
            "ranks run in the directory where the job was started, and it must exist on `{host}` too; \
             `--workdir` names another one"
        ),
        StartFailure::TooFewGpus => format!(
            "name more GPUs in CUDA_VISIBLE_DEVICES on `{host}`, give it fewer slots, or lower \
             `--gpus-per-rank`"
        ),
        StartFailure::System => format!("check the limits of `{host}`: `ulimit -a`, `free`, `df`"),
    }
}
