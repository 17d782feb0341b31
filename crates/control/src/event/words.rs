//! The lines on the screen about what happens in a job. `docs/reference/elastic.md` lists them.

use super::{Happening, JobKind, Member, Output, Seconds, Source};
use crate::Rank;
use crate::wire::agent::{Condition, ProcessState};

impl Happening {
    /// The line that users see while the job runs, if it is for them.
    pub fn line(&self) -> Option<String> {
        self.about_hosts().or_else(|| self.about_workers())
    }

    /// The same for somebody who follows every event.
    pub fn text(&self) -> String {
        self.line().unwrap_or_else(|| self.about_the_rest())
    }

    /// Whether its line is shown in a job of this kind. A fixed job ends with its first loss and says
    /// then what happened; until then only who does not answer is worth a line.
    pub fn is_shown_in(&self, kind: JobKind) -> bool {
        let concerns_all = matches!(
            self,
            Happening::WorkerHalted { .. }
                | Happening::WorkerSilent { .. }
                | Happening::WorkerResumed { .. }
                | Happening::HostSilent { .. }
                | Happening::HostAnswers { .. }
                | Happening::OutputLost { .. }
        );
        concerns_all || kind == JobKind::Elastic
    }

    fn about_hosts(&self) -> Option<String> {
        Some(match self {
            // What the user has listed needs no repetition.
            // The loss of an agent that had dialled in has been told.
            Happening::HostUnlisted { source: Source::DialledIn, .. } => return None,
            Happening::HostFound { source: Source::List, .. }
            | Happening::HostResized { source: Source::List, .. }
            | Happening::HostUnlisted { source: Source::List, .. } => return None,
            Happening::HostFound { host, slots, .. } => {
                format!("found host `{host}` with {}", many(*slots, "slot"))
            }
            Happening::HostResized { host, slots, before, .. } => {
                format!("host `{host}` has {} now, {before} before", many(*slots, "slot"))
            }
            Happening::HostUnlisted { host, .. } => {
                format!("host `{host}` is not listed any more: its ranks leave at the next commit")
            }
            Happening::HostsUnknown { reason } => format!(
                "could not find out which hosts there are, going on with those known: {reason}"
            ),
            Happening::HostsKnown => "found out again which hosts there are".into(),
            Happening::HostUnreachable { host, reason, hint, retry_seconds } => {
                let again = retry_seconds.map(|time| format!(", trying again in {time}"));
                let again = again.unwrap_or_default();
                format!("host `{host}` cannot be used{again}: {reason} (hint: {hint})")
            }
            Happening::HostLost { host, reason, hint } => {
                format!("lost host `{host}`: {reason} (hint: {hint})")
            }
            Happening::HostLeaving { host, grace_seconds } => format!(
                "the agent on host `{host}` was told to stop: its ranks have {grace_seconds} to leave \
                 at a commit"
            ),
            Happening::HostRests { host, seconds, keeps_workers } => {
                let what = if *keeps_workers { "takes no new ranks" } else { "takes no part" };
                let length = seconds.map_or("from now on".into(), |time| format!("for {time}"));
                format!("host `{host}` {what} {length}")
            }
            Happening::HostUsable { host } => format!("host `{host}` may be used again"),
            Happening::HostSilent { host, answering, seconds } => {
                host_silent(host, answering, seconds.0.as_secs())
            }
            Happening::HostAnswers { host, seconds } => {
                format!("host `{host}` answers again after {} s", seconds.0.as_secs())
            }
            _ => return None,
        })
    }

    fn about_workers(&self) -> Option<String> {
        Some(match self {
            Happening::WorkerHalted { member, process, seconds, limit_seconds } => {
                halted(member, process, seconds.0.as_secs(), *limit_seconds)
            }
            Happening::WorkerSilent { member, process, seconds } => {
                silent(member, process.as_ref(), seconds.0.as_secs())
            }
            Happening::WorkerResumed { member, seconds } => {
                format!("{member} goes on after {} s", seconds.0.as_secs())
            }
            Happening::WorkerLost { member, cause, .. } => format!("lost {member}: {}", cause.what),
            Happening::WorkerRemoved { member, reason } => {
                format!("{member} leaves the job: {reason}")
            }
            Happening::WorkerFinished { member, first: true } => {
                format!("{member} has finished: no new world will be formed")
            }
            Happening::TooFewWorkers { there, needed, timeout_seconds } => format!(
                "{there} of at least {needed} ranks are there: waiting up to {timeout_seconds} for more"
            ),
            Happening::WorldFormed { world, members, newcomers, .. } => {
                let size = many(members.len() as u32, "rank");
                format!("world {world} is formed: {size}, {newcomers} of them new")
            }
            Happening::Recovered { ranks, met_seconds, state_seconds, commit_seconds } => format!(
                "recovered with {}: they met after {met_seconds}, had the state after \
                 {state_seconds} and finished a step after {commit_seconds}",
                many(*ranks, "rank")
            ),
            // The others are told by whoever could not write them, even after the job.
            Happening::OutputLost { output: Output::EventLog, reason } => {
                format!("the event log cannot be written: {reason}; the job goes on without it")
            }
            _ => return None,
        })
    }
}

impl Happening {
    /// What the screen does not show, because the user knows it or will be told otherwise.
    fn about_the_rest(&self) -> String {
        match self {
            Happening::JobStarted { ranks, command, .. } => {
                format!("the job starts with {}: {}", many(*ranks, "rank"), command.join(" "))
            }
            Happening::HostFound { host, slots, .. } => {
                format!("host `{host}` is listed with {}", many(*slots, "slot"))
            }
            Happening::HostResized { host, slots, .. } => {
                format!("host `{host}` has {} now", many(*slots, "slot"))
            }
            Happening::HostUnlisted { host, .. } => format!("host `{host}` is not used any more"),
            Happening::HostReady { host } => format!("host `{host}` is ready"),
            Happening::WorkerStarted { member, pid } => format!("{member} runs as process {pid}"),
            Happening::WorkerJoined { member } => format!("{member} has joined"),
            Happening::WorkerStopped { member, .. } => format!("{member} was stopped"),
            Happening::WorkerFinished { member, .. } => format!("{member} has finished"),
            Happening::Stalled { tensor, seconds, waiting, late } => format!(
                "{} have waited {} s for `{tensor}`, which {} not submitted",
                list(waiting),
                seconds.0.as_secs(),
                match late.as_slice() {
                    [rank] => format!("{rank} has"),
                    ranks => format!("{} have", list(ranks)),
                }
            ),
            Happening::OutputLost { reason, .. } => format!("output is lost: {reason}"),
            Happening::EventsDropped { count } => {
                format!("{count} events are missing in the event log: the disk was too slow")
            }
            Happening::JobEnded { exit_code, verdict } => {
                let text = verdict.text.as_deref().unwrap_or_default();
                let first = text.lines().next().map(|line| format!(": {line}"));
                format!("the job has ended with code {exit_code}{}", first.unwrap_or_default())
            }
            // These have lines.
            _ => String::new(),
        }
    }
}

/// `rank 3`, `ranks 0, 1 and 14 more`.
fn list(ranks: &[Rank]) -> String {
    match ranks {
        [rank] => rank.to_string(),
        _ => format!("ranks {}", some(ranks.iter().map(|rank| rank.0))),
    }
}

fn halted(member: &Member, condition: &Condition, seconds: u64, limit: Option<Seconds>) -> String {
    let process = process(condition);
    let (pid, host) = (condition.pid, &member.host);
    let text = match condition.state {
        ProcessState::Frozen => format!(
            "{member} is frozen: {process} has been in a frozen cgroup for {seconds} s; `docker \
             unpause`, or whoever froze it, resumes it"
        ),
        ProcessState::Traced => format!(
            "{member} is stopped: a debugger has held {process} for {seconds} s; `continue` in the \
             debugger resumes it"
        ),
        _ => format!(
            "{member} is stopped: {process} got SIGSTOP or the like {seconds} s ago; `kill -CONT \
             {pid}` on {host} resumes it"
        ),
    };
    match limit {
        Some(Seconds(limit)) => format!(
            "{text}; the job ends once others have waited {} s for it \
             (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)",
            limit.as_secs()
        ),
        None => text,
    }
}

fn silent(member: &Member, condition: Option<&Condition>, seconds: u64) -> String {
    let what = match condition.map(|condition| (process(condition), condition.state)) {
        Some((process, ProcessState::Blocked)) => format!(
            ": {process} waits for a disk, a network file system or memory; see whether its host is \
             swapping"
        ),
        Some((process, _)) => {
            format!(", though {process} runs: its host may be overloaded or swapping")
        }
        None => ": its process may be stopped or frozen, or its host may be overloaded".into(),
    };
    format!("{member} has not answered for {seconds} s{what}")
}

fn host_silent(host: &str, answering: &[Member], seconds: u64) -> String {
    match answering {
        [] => format!(
            "host `{host}` has not answered for {seconds} s: it, or the container that the ranks run \
             in, may be paused, frozen or out of memory; the job goes on when it does"
        ),
        [member, ..] => format!(
            "the agent on host `{host}` has not answered for {seconds} s, though {} there does: see \
             whether somebody has stopped the agent's process (`pgrep -f ronde` on {host})",
            member.rank
        ),
    }
}

/// How messages name a process.
pub(crate) fn process(condition: &Condition) -> String {
    match condition.command.as_str() {
        "" => format!("process {}", condition.pid),
        command => format!("process {} ({command})", condition.pid),
    }
}

/// `1 slot`, `2 slots`.
pub(crate) fn many(count: u32, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// The first few of many: `0, 1 and 14 more`.
pub(crate) fn some(all: impl ExactSizeIterator<Item: ToString>) -> String {
    const SHOWN: usize = 8;
    let more = all.len().saturating_sub(SHOWN);
    let shown: Vec<String> = all.take(SHOWN).map(|one| one.to_string()).collect();
    match more {
        0 => shown.join(", "),
        _ => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::examples::examples;
    use super::*;

    #[test]
    fn whoever_follows_reads_something_about_every_event() {
        for what in examples() {
            assert!(what.text().len() > 10, "{what:?}");
        }
        let listed = Happening::HostFound { host: "a".into(), slots: 1, source: Source::List };
        assert_eq!(
            (listed.line(), listed.text().as_str()),
            (None, "host `a` is listed with 1 slot")
        );
        let (seconds, tensor) = (Seconds(Duration::from_secs(60)), "g".into());
        let (waiting, late) = ((0..12).map(Rank).collect(), vec![Rank(12)]);
        assert_eq!(
            Happening::Stalled { tensor, seconds, waiting, late }.text(),
            "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more have waited 60 s for `g`, which rank 12 has not \
             submitted"
        );
    }
}
