//! Who failed first, and what the user is told about it.
//!
//! One failure makes many: when a rank dies, the others lose it and fail in turn, and the rest is
//! stopped. The verdict follows the blame back to the first cause, whose exit code becomes the
//! launcher's and whose name stands first in the last lines on the screen. A rank that exited with
//! code 0 cannot be the cause: then the one that missed it is, and the text says who left early.
//!
//! This file only judges what it is told; it prints nothing.

#[cfg(test)]
mod tests;

use crate::Rank;
use crate::cause::{Cause, CauseKind, Farewell, Tail};
use crate::event::{Culprit, EndReason, Happening, Judgement};
use crate::rendezvous::Seat;
use crate::wire::agent::{Exit, Obstacle, signal_name};

/// Everything known about how the ranks of a job ended.
pub struct Verdict {
    seats: Vec<Seat>,
    accounts: Vec<Account>,
    /// Ranks that failed by themselves, in the order in which it was learned.
    failures: Vec<Rank>,
    stopping: bool,
    interrupted: Option<i32>,
    /// What happened to a whole host, and what to do about it.
    problem: Option<(String, String)>,
    /// What to tell the user of a job that has not begun.
    called_off: Option<String>,
}

#[derive(Default)]
struct Account {
    farewell: Farewell,
    blames: Option<Rank>,
    exit: Option<Exit>,
    stopped: bool,
    /// Why the launcher has ended it, if it was the cause of the end.
    condemned: Option<String>,
    tail: Tail,
}

impl Account {
    fn has_raised(&self) -> bool {
        matches!(self.farewell, Farewell::Exception(_))
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
    /// That of a launcher that was told to stop, by the signal of this number, while so many ranks ran.
    pub fn interrupted(signal: i32, ranks: usize) -> Outcome {
        let what = match ranks {
            0 => "before any rank was started".to_owned(),
            ranks => format!("and all {ranks} ranks with it"),
        };
        let text = format!("error: stopped by {}, {what}\n", signal_name(signal));
        let verdict = Judgement::of(EndReason::Interrupted, Some(text));
        let verdict = Judgement { signal: Some(signal), ..verdict };
        Outcome { code: Exit::Signal(signal).code(), verdict }
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
        Outcome { code: 1, verdict: Judgement::of(EndReason::OutputLost, Some(text)) }
    }
}

impl Verdict {
    /// Nothing has happened yet.
    pub fn new(seats: Vec<Seat>) -> Verdict {
        let accounts = seats.iter().map(|_| Account::default()).collect();
        Verdict {
            seats,
            accounts,
            failures: Vec::new(),
            stopping: false,
            interrupted: None,
            problem: None,
            called_off: None,
        }
    }

    /// A rank has left its world, because of an exception or in order.
    pub fn left(&mut self, rank: Rank, error: Option<String>, blames: Option<Rank>) {
        let account = &mut self.accounts[rank.index()];
        account.farewell = Farewell::of(error);
        account.blames = blames;
    }

    /// A rank has written a line to standard error.
    pub fn wrote(&mut self, rank: Rank, line: &str) {
        self.accounts[rank.index()].tail.wrote(line);
    }

    /// A rank's process has ended; gives that as an event, if it is news.
    pub fn exited(&mut self, rank: Rank, exit: &Exit) -> Option<Happening> {
        let first = !self.accounts.iter().any(|it| it.exit.as_ref().is_some_and(Exit::is_success));
        let account = &mut self.accounts[rank.index()];
        if account.exit.is_some() {
            return None;
        }
        account.stopped = self.stopping;
        if !exit.is_success() && !self.stopping && !self.failures.contains(&rank) {
            self.failures.push(rank);
        }
        account.exit = Some(exit.clone());
        let Culprit { member, cause } = self.culprit(rank);
        Some(match self.stopping {
            _ if exit.is_success() => Happening::WorkerFinished { member, first },
            true => Happening::stopped(member, exit),
            false => Happening::lost(member, cause, Some(exit)),
        })
    }

    /// A rank that others have waited for too long is about to be ended: it is the first cause, even if
    /// others have failed before because of it.
    pub fn condemned(&mut self, rank: Rank, cause: String) {
        self.accounts[rank.index()].condemned.get_or_insert(cause);
        self.failures.retain(|known| *known != rank);
        self.failures.insert(0, rank);
    }

    /// From here on ranks end because the launcher ends them.
    pub fn stopping(&mut self) {
        self.stopping = true;
    }

    /// The launcher itself was told to stop, by the signal of this number.
    pub fn interrupted(&mut self, signal: i32) {
        if !self.failed() {
            self.interrupted.get_or_insert(signal);
        }
        self.stopping();
    }

    /// A whole host went wrong, which explains what its ranks suffer.
    pub fn host_failed(&mut self, reason: String, hint: String) {
        if !self.failed() && self.interrupted.is_none() {
            self.problem = Some((reason, hint));
        }
    }

    /// The job ends before any rank was started, for the reason that this text gives.
    pub fn called_off(&mut self, text: String) {
        self.called_off.get_or_insert(text);
    }

    /// Whether something has gone wrong.
    pub fn failed(&self) -> bool {
        !self.failures.is_empty() || self.problem.is_some()
    }

    /// Whether every rank's end is known.
    pub fn is_complete(&self) -> bool {
        self.accounts.iter().all(|account| account.exit.is_some())
    }

    /// The launcher's exit code and last words.
    pub fn outcome(&self) -> Outcome {
        if let Some(problem) = &self.problem {
            let text = Some(self.problem_text(problem));
            let first = self.failures.first().map(|rank| self.culprit(*rank));
            let verdict = Judgement { first, ..Judgement::of(EndReason::HostLost, text) };
            return Outcome { code: 1, verdict };
        }
        if let (Some(text), None) = (&self.called_off, self.interrupted) {
            let verdict = Judgement::of(EndReason::NotStarted, Some(text.clone()));
            return Outcome { code: 1, verdict };
        }
        if let Some(signal) = self.interrupted {
            let ranks = if self.called_off.is_some() { 0 } else { self.seats.len() };
            return Outcome::interrupted(signal, ranks);
        }
        match self.first_cause() {
            Some(rank) => {
                let (first, text) = (Some(self.culprit(rank)), Some(self.text(rank)));
                let verdict = Judgement { first, ..Judgement::of(EndReason::RankFailed, text) };
                Outcome { code: self.code(rank), verdict }
            }
            None => Outcome { code: 0, verdict: Judgement::of(EndReason::Done, None) },
        }
    }

    /// Follows the blame from the first failure that was learned of.
    fn first_cause(&self) -> Option<Rank> {
        let mut cause = *self.failures.first()?;
        let mut seen = vec![cause];
        while let Some(blamed) = self.accounts[cause.index()].blames {
            if seen.contains(&blamed) || !self.has_failed(blamed) {
                break;
            }
            seen.push(blamed);
            cause = blamed;
        }
        Some(cause)
    }

    /// Whether a rank failed by itself, or has said so and was stopped before its process ended.
    fn has_failed(&self, rank: Rank) -> bool {
        let account = self.accounts.get(rank.index());
        account.is_some_and(|account| account.stopped && account.has_raised())
            || self.failures.contains(&rank)
    }

    fn code(&self, rank: Rank) -> u8 {
        let account = &self.accounts[rank.index()];
        match &account.exit {
            Some(exit) if !account.stopped && account.condemned.is_none() => exit.code(),
            _ => 1,
        }
    }

    fn text(&self, first: Rank) -> String {
        let account = &self.accounts[first.index()];
        let culprit = self.culprit(first);
        let mut text = culprit.lines("error: ");
        let early = account.blames.filter(|blamed| self.ended_well(*blamed));
        if let Some(blamed) = early {
            text += &format!("  {} had left early, with exit code 0\n", self.name(blamed));
        }
        text += &self.aftermath(first);
        text + &format!("\nhint: {}\n", self.hint(first, &culprit.cause, early))
    }

    /// A rank that failed, and why, as far as is known.
    fn culprit(&self, rank: Rank) -> Culprit {
        let account = &self.accounts[rank.index()];
        let cause = match &account.condemned {
            Some(what) => Cause::plain(CauseKind::Halted, what.clone()),
            None => Cause::of(account.exit.as_ref(), &account.farewell, &account.tail),
        };
        Culprit { member: self.seats[rank.index()].member(rank), cause }
    }

    /// What the other ranks suffered.
    fn aftermath(&self, cause: Rank) -> String {
        let others = |test: &dyn Fn(Rank, &Account) -> bool| {
            let pairs = self.accounts.iter().enumerate();
            let ranks = pairs.map(|(index, account)| (Rank(index as u32), account));
            let others = ranks.filter(|(rank, account)| *rank != cause && test(*rank, account));
            others.map(|(rank, _)| rank).collect::<Vec<_>>()
        };
        let victims = others(&|rank, account| self.has_failed(rank) && account.blames.is_some());
        let failed = others(&|rank, account| self.has_failed(rank) && account.blames.is_none());
        let stopped = others(&|rank, account| account.stopped && !self.has_failed(rank));
        let mut text = String::new();
        for (ranks, one, many) in [
            (victims, "failed because of it", "failed because of it"),
            (failed, "failed too", "failed too"),
            (stopped, "was stopped", "were stopped"),
        ] {
            match ranks.as_slice() {
                [] => {}
                [rank] => text += &format!("  {rank} {one}\n"),
                ranks => text += &format!("  {} {many}\n", list(ranks)),
            }
        }
        text
    }

    fn hint(&self, first: Rank, cause: &Cause, early: Option<Rank>) -> String {
        let above = format!("see the lines marked `[{}]<stderr>` above", first.0);
        if let Some(blamed) = early {
            return format!(
                "every rank must make the same calls: find out why {blamed} finished first, for \
                 example because it has fewer batches"
            );
        }
        if cause.is_stall() {
            return "every rank must make the same calls: see what the missing ranks do instead, for \
                    example with `py-spy dump --pid`"
                .into();
        }
        if cause.raised() {
            return above;
        }
        let host = &self.seats[first.index()].host;
        if self.accounts[first.index()].condemned.is_some() {
            return format!(
                "find out who stopped it, or why `{host}` did not let it run; a larger \
                 `--stall-check-shutdown-time-seconds` waits longer"
            );
        }
        match self.accounts[first.index()].exit.as_ref() {
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

    fn problem_text(&self, (reason, hint): &(String, String)) -> String {
        let count = self.accounts.iter().filter(|account| account.exit.is_some()).count();
        let all = self.seats.len();
        format!(
            "error: {reason}\n  {count} of {all} ranks have ended or were stopped\n\nhint: {hint}\n"
        )
    }

    fn ended_well(&self, rank: Rank) -> bool {
        let exit = self.accounts.get(rank.index()).and_then(|account| account.exit.as_ref());
        exit.is_some_and(Exit::is_success)
    }

    fn name(&self, rank: Rank) -> String {
        self.seats[rank.index()].name(rank)
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

fn list(ranks: &[Rank]) -> String {
    let numbers: Vec<_> = ranks.iter().take(8).map(|rank| rank.0.to_string()).collect();
    let more = ranks.len() - numbers.len();
    match more {
        0 => format!("{} ranks ({})", ranks.len(), numbers.join(", ")),
        _ => format!("{} ranks ({} and {more} more)", ranks.len(), numbers.join(", ")),
    }
}
