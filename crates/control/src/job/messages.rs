//! Messages to workers and users: why a worker is refused, removed or given up, and why an elastic
//! job ends. The reference page `docs/reference/elastic.md` is generated from them.

use std::time::Duration;

use crate::Rank;
use crate::cause::{Cause, CauseKind};
use crate::event::{EndReason, FailedWorker, Seconds, many, some};
use crate::wire::agent::{Exit, signal_name};

/// Why a job ended, if it did not succeed. Most are for elastic jobs, which survive single
/// failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EndCause {
    /// The launcher was sent this signal while so many ranks were running.
    Interrupted { signal: i32, ranks: usize },
    /// It ended before any worker was started, with this error message.
    CalledOff(String),
    /// A worker failed, which ended the job.
    RankFailed,
    /// A host was lost, which ended the job.
    HostLost { reason: String, hint: String },
    /// Every rank has failed.
    AllFailed,
    /// Some ranks of the last world have failed.
    SomeFailed,
    /// None of the remaining workers has the training state.
    NoState,
    /// The world was re-formed more often than the limit allows.
    ResetLimit { limit: u32 },
    /// So many worlds in a row broke up although no worker died.
    NoProgress { worlds: u32 },
    /// Too few workers joined in time.
    TimedOut { there: u32, needed: u32, timeout: Duration, hosts: Vec<String> },
    /// Too few workers are left, and no more can be started.
    Hopeless { there: u32, needed: u32, hosts: Vec<String> },
}

impl EndCause {
    /// The reason as a word for programs.
    pub(super) fn reason(&self) -> EndReason {
        match self {
            EndCause::Interrupted { .. } => EndReason::Interrupted,
            EndCause::CalledOff(_) => EndReason::NotStarted,
            EndCause::RankFailed => EndReason::RankFailed,
            EndCause::HostLost { .. } => EndReason::HostLost,
            EndCause::AllFailed => EndReason::AllFailed,
            EndCause::SomeFailed => EndReason::SomeFailed,
            EndCause::NoState => EndReason::NoState,
            EndCause::ResetLimit { .. } => EndReason::ResetLimit,
            EndCause::NoProgress { .. } => EndReason::NoProgress,
            EndCause::TimedOut { .. } => EndReason::TimedOut,
            EndCause::Hopeless { .. } => EndReason::TooFewLeft,
        }
    }

    /// The last lines of a job. `first` is the worker that failed first since the last world was
    /// formed, if any did; `above` says where to find its output.
    pub(super) fn text(&self, first: Option<&FailedWorker>, above: Option<&str>) -> String {
        let above = above.unwrap_or("see the messages above");
        let lines = |before: &str| first.map(|first| first.lines(before)).unwrap_or_default();
        match self {
            EndCause::Interrupted { signal, ranks } => format!(
                "error: stopped by {}, {}",
                signal_name(*signal),
                match ranks {
                    0 => "before any rank was started".into(),
                    1 => "along with its only rank".into(),
                    ranks => format!("along with its {ranks} ranks"),
                }
            ),
            EndCause::CalledOff(text) => text.clone(),
            // The verdict has its own texts for these.
            EndCause::RankFailed | EndCause::HostLost { .. } => lines("error: "),
            EndCause::AllFailed => {
                format!("{}  no rank is left\n\nhint: {above}", lines("error: "))
            }
            EndCause::SomeFailed => {
                format!("{}  others had finished before\n\nhint: {above}", lines("error: "))
            }
            EndCause::NoState => format!(
                "error: No hosts from previous set remaining, unable to broadcast state.\n{}  every \
                 other rank that had the training state is gone too\n\nhint: start the job again \
                 from its last checkpoint",
                match first {
                    Some(_) => lines("  "),
                    None => "  the last rank has left\n".into(),
                }
            ),
            EndCause::ResetLimit { limit } => format!(
                "error: Horovod was shutdown because number of resets during elastic job exceeded \
                 limit: {limit}\n{}\nhint: see the messages above for what happened, or raise \
                 `--reset-limit`",
                match first {
                    Some(_) => lines("  the last one: "),
                    None => "  the last one: the set of hosts has changed\n".into(),
                }
            ),
            EndCause::NoProgress { worlds } => format!(
                "error: {worlds} worlds in a row broke up before a step was committed, although no \
                 rank died\n\nhint: check the ranks' output above: most likely they do not make \
                 the same calls, or cannot reach each other"
            ),
            EndCause::TimedOut { there, needed, timeout, hosts } => format!(
                "error: Timed out waiting for {needed} ranks: {there} ready. Timeout after {} \
                 seconds.\n{}{}\nhint: find out why {} are missing, or raise `--elastic-timeout`",
                timeout.as_secs(),
                list(hosts),
                lines("  before that: "),
                if first.is_some() { "ranks" } else { "hosts" },
            ),
            EndCause::Hopeless { there, needed, hosts } => {
                let short = format!(
                    "{there} of at least {needed} ranks are left and no host may start more"
                );
                let more = "add hosts, lower `--min-np`, or let failed hosts return with \
                            `--blacklist-cooldown-range`";
                let hosts = list(hosts);
                match first {
                    Some(_) => {
                        let first = lines("error: ");
                        format!("{first}  {short}\n{hosts}\nhint: {above}; to survive it, {more}")
                    }
                    None => format!("error: {short}\n{hosts}\nhint: {more}"),
                }
            }
        }
    }
}

/// Why a peer is refused that is not a rank of this kind of job.
pub(super) const WRONG_PEER: &str = "this is a job's rendezvous; only its own ranks may join";

/// Why workers are told to leave.
pub(super) const UNLISTED: &str = "its host is no longer listed";
pub(super) const FEWER_SLOTS: &str = "its host now has fewer slots";
pub(super) const ON_COOLDOWN: &str = "its host is on cooldown after a failure";
pub(super) const FINISHED: &str = "the training has ended";

/// Why a process is refused whose version differs from the launcher's.
pub fn other_version(who: &str, theirs: &str, ours: &str) -> String {
    format!(
        "{who} runs Ronde {theirs}, but its launcher runs Ronde {ours}: install the same version on \
         every host and start the job again"
    )
}

/// There is no such rank. `name` is the name of a process's rank, `source` is what set it.
pub(super) fn no_such_rank(rank: Rank, size: u32, (name, source): (&str, &str)) -> String {
    format!(
        "there is no {rank} in a world of {size}: {name} is set by {source} and must not be changed"
    )
}

/// Two processes claim to be the same rank.
pub(super) fn duplicate(rank: Rank, (name, source): (&str, &str)) -> String {
    format!(
        "{rank} has already joined: two processes have the same {name}, which is set by {source} and \
         must not be changed"
    )
}

/// Too few agents have dialed in: the numbers of agents and slots that there are and that are
/// needed.
pub(super) fn too_few_agents(
    there: (u32, u32),
    needed: (u32, u32),
    (timeout, option): (Duration, &str),
) -> String {
    let agents = |(hosts, slots): (u32, u32)| {
        format!("{} with {}", many(hosts, "agent"), many(slots, "slot"))
    };
    format!(
        "error: {} connected within {}, but the job needs {}\n\nhint: see what `ronde agent` prints \
         on the other hosts, or wait longer with `{option}`\n",
        agents(there),
        Seconds(timeout),
        agents(needed)
    )
}

/// Some ranks have not joined in time.
pub(super) fn missing(names: &[String], size: u32, limit: Duration) -> String {
    format!(
        "after {} s {} of {size} ranks are still missing: {}; does every rank call `hvd.init()`? \
         RONDE_JOIN_TIMEOUT_SECONDS sets how long to wait",
        limit.as_secs(),
        names.len(),
        some(names.iter())
    )
}

/// The cause of a loss: how the process ended.
pub(super) fn exit(exit: &Exit) -> Cause {
    Cause::plain(CauseKind::of(exit), exit.to_string())
}

/// The cause of a loss: a process that exited successfully while others still needed it.
pub(super) fn without_leaving(exit: &Exit) -> Cause {
    Cause::plain(CauseKind::of(exit), format!("{exit} without leaving"))
}

pub(super) fn closed() -> Cause {
    Cause::plain(CauseKind::ConnectionLost, "its connection to the launcher closed")
}

pub(super) fn ended_or_gone() -> Cause {
    Cause::plain(CauseKind::Unknown, "its process has ended, or its host is gone")
}

/// Why live workers are treated as dead.
pub(super) fn without_rank() -> Cause {
    Cause::plain(CauseKind::Late, "did not join the new world and was killed")
}

pub(super) fn unreachable() -> Cause {
    let what = "could not be reached by other ranks in two worlds and was killed";
    Cause::plain(CauseKind::ConnectionLost, what)
}

pub(super) fn stopped(limit: Duration) -> Cause {
    let limit = Seconds(limit);
    let what = format!(
        "was stopped (for example by SIGSTOP) for {limit} and was killed \
         (RONDE_ELASTIC_STOPPED_SECONDS)"
    );
    Cause::plain(CauseKind::Halted, what)
}

pub(super) fn not_coming(limit: Duration) -> Cause {
    let what = format!(
        "did not join the next world within {} and was killed; if it needs longer, raise \
         `--elastic-timeout`",
        Seconds(limit)
    );
    Cause::plain(CauseKind::Late, what)
}

pub(super) fn not_starting(limit: Duration) -> Cause {
    let what = format!(
        "did not join within {} after its start and was killed; if it needs longer to import and to \
         build its model, raise RONDE_JOIN_TIMEOUT_SECONDS",
        Seconds(limit)
    );
    Cause::plain(CauseKind::Late, what)
}

fn list(lines: &[String]) -> String {
    lines.iter().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::JobEventKind;
    use crate::event::examples::{examples, failed_worker, member};

    const PAGE: &str = "../../docs/reference/elastic.md";

    fn ends() -> Vec<String> {
        let killed = failed_worker(CauseKind::Signal, "was killed by signal 9 (SIGKILL)");
        let mut raised = failed_worker(CauseKind::Exception, "raised KeyError: 'lr'");
        raised.cause.details = vec!["at train.py:12 in step: rate = config['lr']".into()];
        let hosts = || vec!["`node-b`: 2 slots, on cooldown for 8 s".to_owned()];
        let timeout = Duration::from_secs(600);
        let (there, needed) = (1, 2);
        let above = Some("see the lines marked `[2]<stderr>` above");
        vec![
            EndCause::AllFailed.text(Some(&raised), above),
            EndCause::SomeFailed.text(Some(&killed), above),
            EndCause::NoState.text(Some(&killed), above),
            EndCause::NoState.text(None, None),
            EndCause::ResetLimit { limit: 3 }.text(Some(&killed), above),
            EndCause::ResetLimit { limit: 3 }.text(None, None),
            EndCause::NoProgress { worlds: 3 }.text(None, None),
            EndCause::TimedOut { there, needed, timeout, hosts: hosts() }
                .text(Some(&killed), above),
            EndCause::Hopeless { there, needed, hosts: hosts() }.text(Some(&raised), above),
            EndCause::Hopeless { there, needed, hosts: hosts() }.text(None, None),
        ]
    }

    /// What an elastic job prints while it runs: every event, and those with several causes once
    /// for each of them.
    fn lines() -> Vec<String> {
        let some = Duration::from_secs(8);
        let lost = |cause: Cause| JobEventKind::lost(member(), cause, None).line();
        let removed =
            |why: &str| JobEventKind::WorkerRemoved { member: member(), reason: why.into() }.line();
        let mut lines = Vec::new();
        for event in examples() {
            lines.extend(event.line());
            match event {
                JobEventKind::WorkerLost { .. } => lines.extend(
                    [
                        lost(stopped(some)),
                        lost(not_coming(some)),
                        lost(not_starting(some)),
                        lost(without_rank()),
                        lost(unreachable()),
                    ]
                    .into_iter()
                    .flatten(),
                ),
                JobEventKind::WorkerRemoved { .. } => {
                    let others = [FEWER_SLOTS, ON_COOLDOWN, "it was sent SIGTERM", FINISHED];
                    lines.extend(others.into_iter().filter_map(removed));
                }
                _ => {}
            }
        }
        lines
    }

    fn page() -> String {
        let mut page = String::from(
            "# What an elastic job prints\n\nEvery line that `horovodrun` can print about an elastic \
             job, with example values. Lines while the job runs begin with `[ronde]`; the last ones \
             go to standard error and give the reason for the end. Programs read the same as \
             [events](events.md). This page is generated from \
             `crates/control/src/event/messages.rs` and \
             `crates/control/src/job/messages.rs`.\n\n## While it runs\n\n",
        );
        for line in lines() {
            page += &format!("- {line}\n");
        }
        page += "\n## Why it ends\n";
        for end in ends() {
            page += &format!("\n```text\n{end}\n```\n");
        }
        page
    }

    #[test]
    fn the_reference_page_lists_every_line() {
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(PAGE, page()).unwrap();
        }
        let written = std::fs::read_to_string(PAGE).unwrap_or_default();
        assert_eq!(written, page(), "run the tests with BLESS=1 and review the change");
    }

    #[test]
    fn no_two_lines_are_the_same() {
        let mut texts = ends();
        texts.extend(lines());
        assert!(texts.iter().all(|text| text.len() > 10));
        let distinct: std::collections::BTreeSet<&String> = texts.iter().collect();
        assert_eq!(distinct.len(), texts.len());
    }
}
