//! What workers and users are told: why a worker is refused, told to go or given up, and why an elastic
//! job ends. The reference page `docs/reference/elastic.md` lists all ends, made from here.

use std::time::Duration;

use crate::Rank;
use crate::cause::{Cause, CauseKind};
use crate::event::{Culprit, EndReason, Seconds, many, some};
use crate::wire::agent::{Exit, signal_name};

/// Why a job has ended, unless all went well. Most are for elastic jobs, which outlive single failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The launcher was sent this signal, while so many ranks ran.
    Interrupted { signal: i32, ranks: usize },
    /// It ends before any worker was started, for the reason that this text gives.
    CalledOff(String),
    /// A worker has failed, and with it the job.
    RankFailed,
    /// The same of a whole host.
    HostLost { reason: String, hint: String },
    /// Nobody is left.
    AllFailed,
    /// Some of the last world have failed.
    SomeFailed,
    /// Nobody who is left has the state.
    NoState,
    /// It has begun anew too often: so often it may.
    ResetLimit { limit: u32 },
    /// So many worlds in a row have fallen apart although nobody died.
    NoProgress { worlds: u32 },
    /// Too few workers came.
    TimedOut { there: u32, needed: u32, timeout: Duration, hosts: Vec<String> },
    /// Too few workers are left and no more can come.
    Hopeless { there: u32, needed: u32, hosts: Vec<String> },
}

impl End {
    /// In one word for programs.
    pub(super) fn reason(&self) -> EndReason {
        match self {
            End::Interrupted { .. } => EndReason::Interrupted,
            End::CalledOff(_) => EndReason::NotStarted,
            End::RankFailed => EndReason::RankFailed,
            End::HostLost { .. } => EndReason::HostLost,
            End::AllFailed => EndReason::AllFailed,
            End::SomeFailed => EndReason::SomeFailed,
            End::NoState => EndReason::NoState,
            End::ResetLimit { .. } => EndReason::ResetLimit,
            End::NoProgress { .. } => EndReason::NoProgress,
            End::TimedOut { .. } => EndReason::TimedOut,
            End::Hopeless { .. } => EndReason::TooFewLeft,
        }
    }

    /// The last lines of a job in which `first` failed first since the last world was formed, if
    /// somebody did.
    pub(super) fn text(&self, first: Option<&Culprit>) -> String {
        let lines = |before: &str| first.map(|first| first.lines(before)).unwrap_or_default();
        match self {
            End::Interrupted { signal, ranks } => format!(
                "error: stopped by {}, {}",
                signal_name(*signal),
                match ranks {
                    0 => "before any rank was started".into(),
                    ranks => format!("and all {ranks} ranks with it"),
                }
            ),
            End::CalledOff(text) => text.clone(),
            // The verdict says more about these.
            End::RankFailed | End::HostLost { .. } => lines("error: "),
            End::AllFailed => format!("{}  no rank is left\n\nhint: {ABOVE}", lines("error: ")),
            End::SomeFailed => {
                format!("{}  others had finished before\n\nhint: {ABOVE}", lines("error: "))
            }
            End::NoState => format!(
                "error: No hosts from previous set remaining, unable to broadcast state.\n{}  every \
                 other rank that had the state of the training is gone, too\n\nhint: start the job \
                 again from its last checkpoint",
                match first {
                    Some(_) => lines("  "),
                    None => "  the last rank has left\n".into(),
                }
            ),
            End::ResetLimit { limit } => format!(
                "error: Horovod was shutdown because number of resets during elastic job exceeded \
                 limit: {limit}\n{}\nhint: see the notes above for what happened, or raise \
                 `--reset-limit`",
                match first {
                    Some(_) => lines("  the last one: "),
                    None => "  the last one: the set of hosts has changed\n".into(),
                }
            ),
            End::NoProgress { worlds } => format!(
                "error: {worlds} worlds in a row have fallen apart before a step was committed, \
                 although no rank has died\n\nhint: see what the ranks wrote above: most likely they \
                 do not make the same calls, or cannot reach each other"
            ),
            End::TimedOut { there, needed, timeout, hosts } => format!(
                "error: Timed out waiting for {needed} ranks: {there} are there. Timeout after {} \
                 seconds.\n{}{}\nhint: see why {} are missing, or raise `--elastic-timeout`",
                timeout.as_secs(),
                list(hosts),
                lines("  before that: "),
                if first.is_some() { "ranks" } else { "hosts" },
            ),
            End::Hopeless { there, needed, hosts } => {
                let short = format!(
                    "{there} of at least {needed} ranks are left and no host may start more"
                );
                let more = "give more hosts, a smaller `--min-np`, or let hosts that failed come back \
                            with `--blacklist-cooldown-range`";
                let hosts = list(hosts);
                match first {
                    Some(_) => {
                        let first = lines("error: ");
                        format!("{first}  {short}\n{hosts}\nhint: {ABOVE}; to outlive it, {more}")
                    }
                    None => format!("error: {short}\n{hosts}\nhint: {more}"),
                }
            }
        }
    }
}

/// What to do about a rank that failed.
const ABOVE: &str = "see what it wrote above";

/// Why somebody is refused who comes for something else.
pub(super) const WRONG_GUEST: &str =
    "this is the rendezvous of a job, where its own ranks join and nobody else";

/// Why workers are told to go.
pub(super) const UNLISTED: &str = "its host is not listed any more";
pub(super) const FEWER_SLOTS: &str = "its host has fewer slots now";
pub(super) const RESTING: &str = "its host rests after a failure";
pub(super) const FINISHED: &str = "the training has ended";

/// Why somebody is refused whose version is another one than the launcher's.
pub fn other_version(who: &str, theirs: &str, ours: &str) -> String {
    format!(
        "{who} runs Ronde {theirs} and its launcher runs Ronde {ours}: install the same version on \
         every host and start the job again"
    )
}

/// There is no such rank. `name` is what a process knows its rank by, `source` who has set that.
pub(super) fn no_such_rank(rank: Rank, size: u32, (name, source): (&str, &str)) -> String {
    format!(
        "there is no {rank} in a world of {size}: {name} is set by {source} and must not be changed"
    )
}

/// Two processes say that they are the same one.
pub(super) fn twin(rank: Rank, (name, source): (&str, &str)) -> String {
    format!(
        "{rank} is already there: two processes have the same {name}, which is set by {source} and \
         must not be changed"
    )
}

/// Too few agents have dialled in: how many with how many slots are there, and must be.
pub(super) fn too_few_agents(
    there: (u32, u32),
    needed: (u32, u32),
    (timeout, option): (Duration, &str),
) -> String {
    let agents = |(hosts, slots): (u32, u32)| {
        format!("{} with {}", many(hosts, "agent"), many(slots, "slot"))
    };
    let have = if there.0 == 1 { "has" } else { "have" };
    format!(
        "error: {} {have} dialled in within {}, and the job needs {}\n\nhint: see what the others say \
         (`ronde agent` tells why it cannot join), or give them longer with `{option}`\n",
        agents(there),
        Seconds(timeout),
        agents(needed)
    )
}

/// Nobody waits any longer for those who have not come.
pub(super) fn missing(names: &[String], size: u32, limit: Duration) -> String {
    format!(
        "after {} s {} of {size} ranks are still missing: {}; does every rank call `hvd.init()`? \
         RONDE_JOIN_TIMEOUT_SECONDS sets how long to wait",
        limit.as_secs(),
        names.len(),
        some(names.iter())
    )
}

/// How a process ended that others lose with it.
pub(super) fn exit(exit: &Exit) -> Cause {
    Cause::plain(CauseKind::of(exit), exit.to_string())
}

/// The same for one that ended well though others still wanted something of it.
pub(super) fn without_leaving(exit: &Exit) -> Cause {
    Cause::plain(CauseKind::of(exit), format!("{exit} without leaving"))
}

pub(super) fn closed() -> Cause {
    Cause::plain(CauseKind::ConnectionLost, "its connection to the launcher closed")
}

pub(super) fn ended_or_gone() -> Cause {
    Cause::plain(CauseKind::Unknown, "its process has ended, or its host is gone")
}

/// Why workers that live count as dead.
pub(super) fn unseated() -> Cause {
    Cause::plain(CauseKind::Late, "did not take its place in a new world and was killed")
}

pub(super) fn quarrel() -> Cause {
    let what = "could not be reached by other ranks in two worlds and was killed";
    Cause::plain(CauseKind::ConnectionLost, what)
}

pub(super) fn stopped(limit: Duration) -> Cause {
    let limit = Seconds(limit);
    let what = format!(
        "was stopped, as by SIGSTOP, for {limit} and was killed (RONDE_ELASTIC_STOPPED_SECONDS)"
    );
    Cause::plain(CauseKind::Halted, what)
}

pub(super) fn not_coming(limit: Duration) -> Cause {
    let what = format!(
        "did not come to the next world within {} and was killed; if it needs longer, raise \
         `--elastic-timeout`",
        Seconds(limit)
    );
    Cause::plain(CauseKind::Late, what)
}

pub(super) fn not_starting(limit: Duration) -> Cause {
    let what = format!(
        "has not joined {} after its start and was killed; if it needs longer to import and to build \
         its model, raise RONDE_JOIN_TIMEOUT_SECONDS",
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
    use crate::event::Happening;
    use crate::event::examples::{culprit, examples, member};

    const PAGE: &str = "../../docs/reference/elastic.md";

    fn ends() -> Vec<String> {
        let killed = culprit(CauseKind::Signal, "was killed by signal 9 (SIGKILL)");
        let mut raised = culprit(CauseKind::Exception, "raised KeyError: 'lr'");
        raised.cause.details = vec!["at train.py:12 in step: rate = config['lr']".into()];
        let hosts = || vec!["`node-b`: 2 slots, rests for 8 s".to_owned()];
        let timeout = Duration::from_secs(600);
        let (there, needed) = (1, 2);
        vec![
            End::AllFailed.text(Some(&raised)),
            End::SomeFailed.text(Some(&killed)),
            End::NoState.text(Some(&killed)),
            End::NoState.text(None),
            End::ResetLimit { limit: 3 }.text(Some(&killed)),
            End::ResetLimit { limit: 3 }.text(None),
            End::NoProgress { worlds: 3 }.text(None),
            End::TimedOut { there, needed, timeout, hosts: hosts() }.text(Some(&killed)),
            End::Hopeless { there, needed, hosts: hosts() }.text(Some(&raised)),
            End::Hopeless { there, needed, hosts: hosts() }.text(None),
        ]
    }

    /// What an elastic job tells while it runs: each event, and those for which there are several
    /// causes with each of them.
    fn lines() -> Vec<String> {
        let some = Duration::from_secs(8);
        let lost = |cause: Cause| Happening::lost(member(), cause, None).line();
        let removed =
            |why: &str| Happening::WorkerRemoved { member: member(), reason: why.into() }.line();
        let mut lines = Vec::new();
        for event in examples() {
            lines.extend(event.line());
            match event {
                Happening::WorkerLost { .. } => lines.extend(
                    [
                        lost(stopped(some)),
                        lost(not_coming(some)),
                        lost(not_starting(some)),
                        lost(unseated()),
                        lost(quarrel()),
                    ]
                    .into_iter()
                    .flatten(),
                ),
                Happening::WorkerRemoved { .. } => {
                    let others = [FEWER_SLOTS, RESTING, "it was sent SIGTERM", FINISHED];
                    lines.extend(others.into_iter().filter_map(removed));
                }
                _ => {}
            }
        }
        lines
    }

    fn page() -> String {
        let mut page = String::from(
            "# What an elastic job says\n\nEvery line that `horovodrun` can print about an elastic \
             job, with example values. Lines while the job runs begin with `[ronde]`; the last ones \
             stand on standard error and give the reason for the end. Programs read the same as \
             [events](events.md). This page is made from `crates/control/src/event/words.rs` and \
             `crates/control/src/job/words.rs`.\n\n## While it runs\n\n",
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
        assert_eq!(written, page(), "run the tests with BLESS=1 and look at the change");
    }

    #[test]
    fn every_line_says_something_of_its_own() {
        let mut texts = ends();
        texts.extend(lines());
        assert!(texts.iter().all(|text| text.len() > 10));
        let distinct: std::collections::BTreeSet<&String> = texts.iter().collect();
        assert_eq!(distinct.len(), texts.len());
    }
}
