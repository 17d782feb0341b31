//! Who failed first, and what the user is told about it.
//!
//! One failure makes many: when a worker dies, the others lose it and fail in turn, and the rest is
//! stopped. The verdict follows the blame back to the first cause, whose exit code becomes the
//! launcher's and whose name stands first in the last lines on the screen. A rank that exited with
//! code 0 cannot be the cause: then the one that missed it is, and the text says who left early.
//!
//! This file only judges what it is told; it prints nothing.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::words::End;
use crate::cause::{Cause, CauseKind, Farewell, Raised, Tail};
use crate::event::{Culprit, EndReason, Judgement, Member, some};
use crate::wire::agent::{Exit, Obstacle};
use crate::{Rank, Worker};

/// Everything known about how the workers of a job ended since its last world was complete.
#[derive(Default)]
pub struct Verdict {
    accounts: BTreeMap<Worker, Account>,
    /// Workers that failed by themselves, in the order in which it was learned.
    failures: Vec<Worker>,
    stopping: bool,
    /// Why the job has ended, unless all went well or, if it needs all its workers, with the first failure.
    end: Option<End>,
}

#[derive(Default)]
struct Account {
    who: Member,
    farewell: Farewell,
    blames: Option<Worker>,
    exit: Option<Exit>,
    stopped: bool,
    /// Why the launcher counts it as dead, whatever its process does.
    condemned: Option<Cause>,
    tail: Tail,
}

impl Account {
    fn has_raised(&self) -> bool {
        matches!(self.farewell, Farewell::Exception(_))
    }

    fn cause(&self) -> Cause {
        match &self.condemned {
            Some(cause) => cause.clone(),
            None => Cause::of(self.exit.as_ref(), &self.farewell, &self.tail),
        }
    }
}

/// The end of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The launcher's exit code.
    pub code: u8,
    /// Why it has ended. A text ends with a newline.
    pub verdict: Judgement,
}

impl Outcome {
    /// That of a job in which nothing went wrong.
    pub fn well() -> Outcome {
        Outcome { code: 0, verdict: Judgement::of(EndReason::Done, None) }
    }

    /// That of a job that ended for this reason and in these words, by nobody's failure.
    pub fn because(reason: EndReason, code: u8, text: String) -> Outcome {
        Outcome { code, verdict: Judgement::of(reason, Some(text)) }
    }

    /// The same if some output could not be written. A job that has not failed then gives code 1, as
    /// other commands do whose output is lost.
    pub fn without(self, lost: &[String]) -> Outcome {
        if lost.is_empty() || self.code != 0 {
            return self;
        }
        let text = format!(
            "error: all ranks have ended well, but output is lost: {}\n\nhint: free space there, or \
             send the output elsewhere; `--output-filename` keeps a copy of it\n",
            lost.join("; ")
        );
        Outcome::because(EndReason::OutputLost, 1, text)
    }
}

impl Verdict {
    /// A worker is started, or has a rank in a world.
    pub fn enter(&mut self, who: Member) {
        let account = self.accounts.entry(who.worker).or_default();
        account.who = who;
    }

    /// A worker that was told to go will not be missed: however it ends is no failure.
    pub fn excuse(&mut self, worker: Worker) {
        self.accounts.retain(|known, account| *known != worker || account.condemned.is_some());
    }

    /// A world is complete: what ended before does not explain what comes.
    pub fn begin_anew(&mut self) {
        self.failures.clear();
        self.accounts.retain(|_, account| account.exit.is_none() && account.condemned.is_none());
        for account in self.accounts.values_mut() {
            (account.farewell, account.blames) = (Farewell::None, None);
        }
    }

    /// A worker has left its world, because of an exception or in order.
    pub fn left(&mut self, worker: Worker, error: Option<Raised>, blames: Option<Worker>) {
        if let Some(account) = self.accounts.get_mut(&worker) {
            (account.farewell, account.blames) = (Farewell::of(error), blames);
        }
    }

    /// A worker has written a line to standard error.
    pub fn wrote(&mut self, worker: Worker, line: &str) {
        if let Some(account) = self.accounts.get_mut(&worker) {
            account.tail.wrote(line);
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

    /// A worker counts as dead, for this cause.
    pub fn condemn(&mut self, worker: Worker, cause: Cause) {
        if let Some(account) = self.accounts.get_mut(&worker) {
            account.condemned.get_or_insert(cause);
            if !self.failures.contains(&worker) {
                self.failures.push(worker);
            }
        }
    }

    /// The same for one that the others have waited for: it is the first cause, even if they have failed
    /// before because of it.
    pub fn condemn_first(&mut self, worker: Worker, cause: Cause) {
        self.condemn(worker, cause);
        self.failures.retain(|known| *known != worker);
        self.failures.insert(0, worker);
    }

    /// From here on workers end because the launcher ends them.
    pub fn stopping(&mut self) {
        self.stopping = true;
    }

    /// The job ends for this reason; the first one counts.
    pub(super) fn end(&mut self, end: End) {
        self.end.get_or_insert(end);
    }

    /// The same, unless a worker has failed before: a job that needs all its workers has ended with that.
    pub(super) fn end_unless_failed(&mut self, end: End) {
        if !self.failed() {
            self.end(end);
        }
    }

    /// Whether something has gone wrong.
    pub fn failed(&self) -> bool {
        !self.failures.is_empty() || matches!(self.end, Some(End::HostLost { .. }))
    }

    /// Why a worker has failed, as far as it is known.
    pub(super) fn cause(&self, worker: Worker) -> Cause {
        self.accounts.get(&worker).map(Account::cause).unwrap_or_default()
    }

    /// Whether a worker has ended because the launcher ended it.
    pub(super) fn was_stopped(&self, worker: Worker) -> bool {
        self.accounts.get(&worker).is_some_and(|account| account.stopped)
    }

    /// How a worker that has ended did so.
    pub(super) fn exit(&self, worker: Worker) -> Option<&Exit> {
        self.accounts.get(&worker)?.exit.as_ref()
    }

    /// A worker and the place that it had.
    pub(super) fn who(&self, worker: Worker) -> Member {
        let unknown = || Member { worker, rank: Rank(worker.0), ..Member::default() };
        self.accounts.get(&worker).map_or_else(unknown, |account| account.who.clone())
    }

    /// The launcher's exit code and last words.
    pub fn outcome(&self) -> Outcome {
        let first = self.first();
        let end = match (&self.end, &first) {
            (Some(end), _) => end,
            (None, Some(_)) => &End::RankFailed,
            (None, None) => return Outcome::well(),
        };
        let code = match (end, &first) {
            (End::Interrupted { signal, .. }, _) => Exit::Signal(*signal).code(),
            (End::HostLost { .. } | End::TimedOut { .. } | End::NoProgress { .. }, _) => 1,
            (_, first) => first.as_ref().map_or(1, |first| self.code(first.member.worker)),
        };
        let signal = match end {
            End::Interrupted { signal, .. } => Some(*signal),
            _ => None,
        };
        let first = first.filter(|_| signal.is_none());
        let text = match (end, &first) {
            (End::RankFailed, Some(first)) => self.text(first),
            (End::HostLost { reason, hint }, _) => self.text_of_lost_host(reason, hint),
            _ => end.text(first.as_ref()),
        };
        let text = Some(format!("{}\n", text.trim_end()));
        Outcome { code, verdict: Judgement { reason: end.reason(), signal, first, text } }
    }

    /// Who failed first, found by following the blame from the first failure that was learned of.
    pub fn first(&self) -> Option<Culprit> {
        let mut cause = *self.failures.first()?;
        let mut seen = vec![cause];
        while let Some(blamed) = self.accounts.get(&cause).and_then(|account| account.blames) {
            if seen.contains(&blamed) || !self.has_failed(blamed) {
                break;
            }
            seen.push(blamed);
            cause = blamed;
        }
        Some(Culprit { member: self.who(cause), cause: self.cause(cause) })
    }

    /// Whether a worker failed by itself, or has said so and was stopped before its process ended.
    fn has_failed(&self, worker: Worker) -> bool {
        let account = self.accounts.get(&worker);
        account.is_some_and(|account| account.stopped && account.has_raised())
            || self.failures.contains(&worker)
    }

    /// The exit code that the first cause gives the launcher.
    fn code(&self, first: Worker) -> u8 {
        match self.accounts.get(&first) {
            Some(Account { exit: Some(exit), stopped: false, condemned: None, .. }) => {
                exit.code().max(1)
            }
            _ => 1,
        }
    }

    fn text(&self, first: &Culprit) -> String {
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

    /// What the other ranks suffered.
    fn aftermath(&self, cause: Worker) -> String {
        let others = |test: &dyn Fn(Worker, &Account) -> bool| {
            let others = self.accounts.iter().filter(|(worker, _)| **worker != cause);
            let others = others.filter(|(worker, account)| test(**worker, account));
            let mut ranks: Vec<Rank> = others.map(|(_, account)| account.who.rank).collect();
            ranks.sort_unstable();
            ranks
        };
        let victims = others(&|it, account| self.has_failed(it) && account.blames.is_some());
        let failed = others(&|it, account| self.has_failed(it) && account.blames.is_none());
        let stopped = others(&|it, account| account.stopped && !self.has_failed(it));
        let mut text = String::new();
        for (ranks, one, many) in [
            (victims, "failed because of it", "failed because of it"),
            (failed, "failed too", "failed too"),
            (stopped, "was stopped", "were stopped"),
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

    fn hint(&self, Culprit { member, cause }: &Culprit, early: Option<Worker>) -> String {
        let above = format!("see the lines marked `[{}]<stderr>` above", member.rank.0);
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
                "if nobody killed it, memory ran out: `dmesg -T | grep -i oom` on `{host}` tells; \
                 a smaller batch or fewer ranks per host help"
            ),
            Some(Exit::Signal(7)) => format!(
                "if shared memory ran out, make `/dev/shm` on `{host}` larger (in a container, \
                 `--shm-size`) or use fewer data loader workers; otherwise native code crashed: {above}"
            ),
            Some(Exit::Signal(4 | 6 | 8 | 11)) if !cause.details.is_empty() => {
                format!("native code crashed; {above}")
            }
            Some(Exit::Signal(4 | 6 | 8 | 11)) => format!(
                "native code crashed; {above}, or run it again with `PYTHONFAULTHANDLER=1` to see \
                 where"
            ),
            Some(Exit::Signal(_)) => {
                "somebody sent it that signal: a scheduler, a time limit or another process".into()
            }
            Some(Exit::NotStarted { obstacle, .. }) => not_started(*obstacle, host),
            Some(Exit::Code(code)) if cause.details.is_empty() => {
                format!(
                    "it wrote nothing to stderr; look for what ends the program with code {code}"
                )
            }
            Some(Exit::Unknown { .. }) => format!("check that `{host}` is still there"),
            _ => above,
        }
    }

    fn text_of_lost_host(&self, reason: &str, hint: &str) -> String {
        let count = self.accounts.values().filter(|account| account.exit.is_some()).count();
        let all = self.accounts.len();
        format!(
            "error: {reason}\n  {count} of {all} ranks have ended or were stopped\n\nhint: {hint}"
        )
    }
}

/// What to do about a program that could not be started on `host`.
fn not_started(obstacle: Obstacle, host: &str) -> String {
    match obstacle {
        Obstacle::Missing => {
            format!("check the spelling and that it exists on `{host}` and is in its PATH")
        }
        Obstacle::NotExecutable => {
            "make it executable with `chmod +x`, or name its interpreter, as in `python train.py`"
                .into()
        }
        Obstacle::Denied => {
            format!("check who may enter the directories above it on `{host}`: `namei -l` shows")
        }
        Obstacle::Directory => format!(
            "ranks run in the directory where the job was started: it must be there on `{host}`, too"
        ),
        Obstacle::System => format!("check the limits of `{host}`: `ulimit -a`, `free`, `df`"),
    }
}
