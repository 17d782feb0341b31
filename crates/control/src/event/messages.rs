//! What the screen says about the events of a job. `docs/reference/elastic.md` lists the lines.

use super::{HostSourceKind, JobEventKind, JobKind, OutputKind, Seconds, WorkerInfo};
use crate::Rank;
use crate::wire::agent::{Condition, ProcessState};

impl JobEventKind {
    /// The line on the screen while the job runs; `None` if the screen does not show the event.
    pub fn line(&self) -> Option<String> {
        self.about_hosts().or_else(|| self.about_workers())
    }

    /// The line for a watcher that follows every event.
    pub fn text(&self) -> String {
        self.line().unwrap_or_else(|| self.about_the_rest())
    }

    /// Whether its line is shown in a job of this kind. A fixed job ends with its first loss and
    /// reports then what happened; until then only unresponsive ranks and hosts matter.
    pub fn is_shown_in(&self, kind: JobKind) -> bool {
        let concerns_all = matches!(
            self,
            JobEventKind::WorkerHalted { .. }
                | JobEventKind::WorkerSilent { .. }
                | JobEventKind::WorkerResumed { .. }
                | JobEventKind::HostSilent { .. }
                | JobEventKind::HostAnswers { .. }
                | JobEventKind::OutputLost { .. }
        );
        concerns_all || kind == JobKind::Elastic
    }

    fn about_hosts(&self) -> Option<String> {
        Some(match self {
            // The user wrote the list and knows it; the loss of an agent that had dialed in has
            // been reported already.
            JobEventKind::HostUnlisted { source: HostSourceKind::DialedIn, .. } => return None,
            JobEventKind::HostFound { source: HostSourceKind::List, .. }
            | JobEventKind::HostResized { source: HostSourceKind::List, .. }
            | JobEventKind::HostUnlisted { source: HostSourceKind::List, .. } => return None,
            JobEventKind::HostFound { host, slots, .. } => {
                format!("found host `{host}` with {}", many(*slots, "slot"))
            }
            JobEventKind::HostResized { host, slots, before, .. } => {
                format!("host `{host}` now has {} (was {before})", many(*slots, "slot"))
            }
            JobEventKind::HostUnlisted { host, .. } => {
                format!(
                    "host `{host}` is no longer listed: any ranks there leave at the next commit"
                )
            }
            JobEventKind::HostsUnknown { reason } => {
                format!("host discovery failed, continuing with the known hosts: {reason}")
            }
            JobEventKind::HostsKnown => "host discovery works again".into(),
            JobEventKind::HostUnreachable { host, reason, hint, retry_seconds } => {
                let again = retry_seconds.map(|time| format!(", trying again in {time}"));
                let again = again.unwrap_or_default();
                format!("host `{host}` cannot be used{again}: {reason} (hint: {hint})")
            }
            JobEventKind::HostLost { host, reason, hint } => {
                format!("lost host `{host}`: {reason} (hint: {hint})")
            }
            JobEventKind::HostLeaving { host, grace_seconds } => format!(
                "the agent on host `{host}` was told to stop: its ranks have {grace_seconds} to leave \
                 at a commit"
            ),
            JobEventKind::HostRests { host, seconds, keeps_workers } => {
                let what = if *keeps_workers { "gets no new ranks" } else { "is not used" };
                let length = match seconds {
                    Some(time) => format!("for {time}"),
                    None => "for the rest of the job".into(),
                };
                format!("host `{host}` {what} {length}")
            }
            JobEventKind::HostUsable { host } => format!("host `{host}` may be used again"),
            JobEventKind::HostSilent { host, answering, seconds, limit_seconds } => {
                host_silent(host, answering, seconds.0.as_secs(), *limit_seconds)
            }
            JobEventKind::HostAnswers { host, seconds } => {
                format!("host `{host}` answers again after {} s", seconds.0.as_secs())
            }
            _ => return None,
        })
    }

    fn about_workers(&self) -> Option<String> {
        Some(match self {
            JobEventKind::WorkerHalted { member, process, seconds, limit_seconds } => {
                halted(member, process, seconds.0.as_secs(), *limit_seconds)
            }
            JobEventKind::WorkerSilent { member, process, seconds } => {
                silent(member, process.as_ref(), seconds.0.as_secs())
            }
            JobEventKind::WorkerResumed { member, seconds } => {
                format!("{member} resumed after {} s", seconds.0.as_secs())
            }
            JobEventKind::WorkerLost { member, cause, .. } => {
                format!("lost {member}: {}", cause.what)
            }
            JobEventKind::WorkerRemoved { member, reason } => {
                format!("{member} leaves the job: {reason}")
            }
            JobEventKind::WorkerFinished { member, first: true } => {
                format!("{member} has finished: training is over")
            }
            JobEventKind::TooFewWorkers { there, needed, timeout_seconds } => format!(
                "{there} of at least {needed} ranks ready: waiting up to {timeout_seconds} for more"
            ),
            JobEventKind::WorldFormed { world, members, newcomers, .. } => {
                let size = many(members.len() as u32, "rank");
                format!("world {world} is formed: {size}, {newcomers} of them new")
            }
            JobEventKind::Recovered { ranks, met_seconds, state_seconds, commit_seconds } => {
                format!(
                    "recovered with {}: rejoined after {met_seconds}, state restored after \
                     {state_seconds}, first step done after {commit_seconds}",
                    many(*ranks, "rank")
                )
            }
            // The loss of other outputs is reported by their writers, even after the job.
            JobEventKind::OutputLost { output: OutputKind::EventLog, reason } => {
                format!("cannot write the event log: {reason}; the job continues without it")
            }
            _ => return None,
        })
    }
}

impl JobEventKind {
    /// Text for events without a line: the user knows them already, or learns of them elsewhere.
    fn about_the_rest(&self) -> String {
        match self {
            JobEventKind::JobStarted { ranks, command, .. } => {
                format!("the job starts with {}: {}", many(*ranks, "rank"), command.join(" "))
            }
            JobEventKind::HostFound { host, slots, .. } => {
                format!("host `{host}` is listed with {}", many(*slots, "slot"))
            }
            JobEventKind::HostResized { host, slots, .. } => {
                format!("host `{host}` now has {}", many(*slots, "slot"))
            }
            JobEventKind::HostUnlisted { host, .. } => {
                format!("host `{host}` is no longer used")
            }
            JobEventKind::HostReady { host } => format!("host `{host}` is ready"),
            JobEventKind::WorkerStarted { member, pid } => {
                format!("{member} runs as process {pid}")
            }
            JobEventKind::WorkerJoined { member } => format!("{member} has joined"),
            JobEventKind::WorkerStopped { member, .. } => format!("{member} has ended"),
            JobEventKind::WorkerFinished { member, .. } => format!("{member} has finished"),
            JobEventKind::Stalled { tensor, seconds, waiting, late } => format!(
                "`{tensor}` has kept {} waiting for {} s: {} not submitted it",
                list(waiting),
                seconds.0.as_secs(),
                match late.as_slice() {
                    [rank] => format!("{rank} has"),
                    ranks => format!("{} have", list(ranks)),
                }
            ),
            JobEventKind::OutputLost { reason, .. } => format!("output is lost: {reason}"),
            JobEventKind::EventsDropped { count } => {
                format!("{count} events are missing from the event log: the disk was too slow")
            }
            JobEventKind::JobEnded { exit_code, verdict } => {
                let text = verdict.text.as_deref().unwrap_or_default();
                let first = text.lines().next().map(|line| format!(": {line}"));
                format!("the job has ended with code {exit_code}{}", first.unwrap_or_default())
            }
            // All others have lines.
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

fn halted(
    member: &WorkerInfo,
    condition: &Condition,
    seconds: u64,
    limit: Option<Seconds>,
) -> String {
    let process = process(condition);
    let (pid, host) = (condition.pid, &member.host);
    let text = match condition.state {
        ProcessState::Frozen => format!(
            "{member} is frozen: {process} has been in a frozen cgroup for {seconds} s; `docker \
             unpause`, or whatever froze it, resumes it"
        ),
        ProcessState::Traced => format!(
            "{member} is stopped: a debugger has held {process} for {seconds} s; `continue` in the \
             debugger resumes it"
        ),
        _ => format!(
            "{member} is stopped: {process} received SIGSTOP or similar {seconds} s ago; `kill -CONT \
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

fn silent(member: &WorkerInfo, condition: Option<&Condition>, seconds: u64) -> String {
    let what = match condition.map(|condition| (process(condition), condition.state)) {
        Some((process, ProcessState::Blocked)) => format!(
            ": {process} is waiting for a disk, a network file system or memory; check whether its \
             host is swapping"
        ),
        Some((process, _)) => {
            format!(", though {process} runs: its host may be overloaded or swapping")
        }
        None => ": its process may be stopped or frozen, or its host may be overloaded".into(),
    };
    format!("{member} has not answered for {seconds} s{what}")
}

fn host_silent(
    host: &str,
    answering: &[WorkerInfo],
    seconds: u64,
    limit: Option<Seconds>,
) -> String {
    let then = match limit {
        Some(Seconds(limit)) => format!("it counts as lost after {} s", limit.as_secs()),
        None => "the job continues when it does; `--stall-check-shutdown-time-seconds` limits the \
                 wait"
            .to_owned(),
    };
    match answering {
        [] => format!(
            "host `{host}` has not answered for {seconds} s: it, or the container that the ranks run \
             in, may be paused, frozen or out of memory; {then}"
        ),
        [member, ..] => format!(
            "the agent on host `{host}` has not answered for {seconds} s, though {} there does: check \
             whether the agent's process is stopped (`pgrep -f ronde` on {host})",
            member.rank
        ),
    }
}

/// The name of a process in messages.
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
    fn every_event_has_a_text_for_watchers() {
        for what in examples() {
            assert!(what.text().len() > 10, "{what:?}");
        }
        let listed =
            JobEventKind::HostFound { host: "a".into(), slots: 1, source: HostSourceKind::List };
        assert_eq!(
            (listed.line(), listed.text().as_str()),
            (None, "host `a` is listed with 1 slot")
        );
        let (seconds, tensor) = (Seconds(Duration::from_secs(60)), "g".into());
        let (waiting, late) = ((0..12).map(Rank).collect(), vec![Rank(12)]);
        assert_eq!(
            JobEventKind::Stalled { tensor, seconds, waiting, late }.text(),
            "`g` has kept ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more waiting for 60 s: rank 12 has not \
             submitted it"
        );
    }
}
