//! Why an elastic job ends, in words: each is a [`Reason`]. The reference page
//! `docs/reference/elastic.md` lists them all, and the lines while it runs, made from here.

use std::fmt;
use std::time::Duration;

use crate::event::{Culprit, EndReason, seconds};

/// Why an elastic job ends.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// The job has ended: nobody is left.
    AllFailed {
        /// Who failed first since the last world was formed.
        first: Culprit,
    },
    /// The job has ended: some of the last world have failed.
    SomeFailed {
        /// Who failed first since the last world was formed.
        first: Culprit,
    },
    /// The job has ended: nobody who is left has the state.
    NoState {
        /// Who failed first since the last world was formed; if nobody did, the last one has left.
        first: Option<Culprit>,
    },
    /// The job has ended: it has begun anew too often.
    ResetLimit {
        /// How often it may.
        limit: u32,
        /// Who made it begin anew once more; a change of the hosts if nobody did.
        first: Option<Culprit>,
    },
    /// The job has ended: worlds fall apart although nobody dies.
    NoProgress {
        /// How many did in a row.
        worlds: u32,
    },
    /// The job has ended: too few workers came.
    TimedOut {
        /// How many there were.
        there: u32,
        /// How many there must be.
        needed: u32,
        /// How long was waited.
        timeout: Duration,
        /// What is known of the hosts.
        hosts: Vec<String>,
        /// Who failed first since the last world was formed, if somebody did.
        first: Option<Culprit>,
    },
    /// The job has ended: too few workers are left and no more can come.
    Hopeless {
        /// How many there are.
        there: u32,
        /// How many there must be.
        needed: u32,
        /// What is known of the hosts.
        hosts: Vec<String>,
        /// Who failed first since the last world was formed, if somebody did.
        first: Option<Culprit>,
    },
}

impl Reason {
    /// Who failed first, where that explains the end of the job.
    pub(super) fn first_mut(&mut self) -> Option<&mut Culprit> {
        match self {
            Reason::AllFailed { first } | Reason::SomeFailed { first } => Some(first),
            Reason::NoState { first }
            | Reason::ResetLimit { first, .. }
            | Reason::TimedOut { first, .. }
            | Reason::Hopeless { first, .. } => first.as_mut(),
            Reason::NoProgress { .. } => None,
        }
    }

    /// The same for programs.
    pub(super) fn word(&self) -> EndReason {
        match self {
            Reason::AllFailed { .. } => EndReason::AllFailed,
            Reason::SomeFailed { .. } => EndReason::SomeFailed,
            Reason::NoState { .. } => EndReason::NoState,
            Reason::ResetLimit { .. } => EndReason::ResetLimit,
            Reason::NoProgress { .. } => EndReason::NoProgress,
            Reason::TimedOut { .. } => EndReason::TimedOut,
            Reason::Hopeless { .. } => EndReason::TooFewLeft,
        }
    }
}

impl fmt::Display for Reason {
    /// The last lines of a job.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::AllFailed { first } => {
                write!(f, "{}  no rank is left\n\nhint: {ABOVE}", first.lines("error: "))
            }
            Reason::SomeFailed { first } => {
                write!(f, "{}  others had finished before\n\nhint: {ABOVE}", first.lines("error: "))
            }
            Reason::NoState { first } => write!(
                f,
                "error: No hosts from previous set remaining, unable to broadcast state.\n{}  every \
                 other rank that had the state of the training is gone, too\n\nhint: start the job \
                 again from its last checkpoint",
                first.as_ref().map_or_else(
                    || "  the last rank has left\n".to_owned(),
                    |first| first.lines("  ")
                )
            ),
            Reason::ResetLimit { limit, first } => write!(
                f,
                "error: Horovod was shutdown because number of resets during elastic job exceeded \
                 limit: {limit}\n{}\nhint: see the notes above for what happened, or raise \
                 `--reset-limit`",
                first.as_ref().map_or_else(
                    || "  the last one: the set of hosts has changed\n".to_owned(),
                    |first| first.lines("  the last one: ")
                )
            ),
            Reason::NoProgress { worlds } => write!(
                f,
                "error: {worlds} worlds in a row have fallen apart before a step was committed, \
                 although no rank has died\n\nhint: see what the ranks wrote above: most likely they \
                 do not make the same calls, or cannot reach each other"
            ),
            Reason::TimedOut { there, needed, timeout, hosts, first } => write!(
                f,
                "error: Timed out waiting for {needed} ranks: {there} are there. Timeout after {} \
                 seconds.\n{}{}\nhint: see why {} are missing, or raise `--elastic-timeout`",
                timeout.as_secs(),
                list(hosts),
                first.as_ref().map_or_else(String::new, |first| first.lines("  before that: ")),
                if first.is_some() { "ranks" } else { "hosts" },
            ),
            Reason::Hopeless { there, needed, hosts, first } => {
                let short = format!(
                    "{there} of at least {needed} ranks are left and no host may start more"
                );
                let more = "give more hosts, a smaller `--min-np`, or let hosts that failed come back \
                            with `--blacklist-cooldown-range`";
                let hosts = list(hosts);
                match first {
                    Some(first) => {
                        let first = first.lines("error: ");
                        write!(f, "{first}  {short}\n{hosts}\nhint: {ABOVE}; to outlive it, {more}")
                    }
                    None => write!(f, "error: {short}\n{hosts}\nhint: {more}"),
                }
            }
        }
    }
}

/// What to do about a rank that failed.
const ABOVE: &str = "see what it wrote above";

/// Why workers are told to go.
pub(super) const UNLISTED: &str = "its host is not listed any more";
pub(super) const FEWER_SLOTS: &str = "its host has fewer slots now";
pub(super) const RESTING: &str = "its host rests after a failure";
pub(super) const FINISHED: &str = "the training has ended";

/// Why workers that live count as dead.
pub(super) const UNSEATED: &str = "did not take its place in a new world and was killed";
pub(super) const QUARREL: &str = "could not be reached by other ranks in two worlds and was killed";

pub(super) fn stopped(limit: Duration) -> String {
    format!(
        "was stopped, as by SIGSTOP, for {} and was killed (RONDE_ELASTIC_STOPPED_SECONDS)",
        seconds(limit)
    )
}

pub(super) fn not_coming(limit: Duration) -> String {
    format!(
        "did not come to the next world within {} and was killed; if it needs longer, raise \
         `--elastic-timeout`",
        seconds(limit)
    )
}

pub(super) fn not_starting(limit: Duration) -> String {
    format!(
        "has not joined {} after its start and was killed; if it needs longer to import and to build \
         its model, raise RONDE_JOIN_TIMEOUT_SECONDS",
        seconds(limit)
    )
}

fn list(lines: &[String]) -> String {
    lines.iter().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cause::{Cause, CauseKind};
    use crate::event::Happening;
    use crate::event::examples::{culprit, examples, member};

    const PAGE: &str = "../../docs/reference/elastic.md";

    fn reasons() -> Vec<Reason> {
        let killed = || culprit(CauseKind::Signal, "was killed by signal 9 (SIGKILL)");
        let mut raised = culprit(CauseKind::Exception, "raised KeyError: 'lr'");
        raised.cause.details = vec!["at train.py:12 in step: rate = config['lr']".into()];
        let hosts = || vec!["`node-b`: 2 slots, rests for 8 s".to_owned()];
        let timeout = Duration::from_secs(600);
        let (there, needed) = (1, 2);
        vec![
            Reason::AllFailed { first: raised.clone() },
            Reason::SomeFailed { first: killed() },
            Reason::NoState { first: Some(killed()) },
            Reason::NoState { first: None },
            Reason::ResetLimit { limit: 3, first: Some(killed()) },
            Reason::ResetLimit { limit: 3, first: None },
            Reason::NoProgress { worlds: 3 },
            Reason::TimedOut { there, needed, timeout, hosts: hosts(), first: Some(killed()) },
            Reason::Hopeless { there, needed, hosts: hosts(), first: Some(raised) },
            Reason::Hopeless { there, needed, hosts: hosts(), first: None },
        ]
    }

    /// What an elastic job tells while it runs: each event, and those for which there are several
    /// causes with each of them.
    fn lines() -> Vec<String> {
        let some = Duration::from_secs(8);
        let lost = |cause: String| {
            Happening::lost(member(), Cause::plain(CauseKind::Late, cause), None).line()
        };
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
                        lost(UNSEATED.into()),
                        lost(QUARREL.into()),
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
             `crates/control/src/elastic/words.rs`.\n\n## While it runs\n\n",
        );
        for line in lines() {
            page += &format!("- {line}\n");
        }
        page += "\n## Why it ends\n";
        for end in reasons() {
            page += &format!("\n```text\n{end}\n```\n");
        }
        page
    }

    #[test]
    fn the_reference_page_lists_every_reason() {
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(PAGE, page()).unwrap();
        }
        let written = std::fs::read_to_string(PAGE).unwrap_or_default();
        assert_eq!(written, page(), "run the tests with BLESS=1 and look at the change");
    }

    #[test]
    fn every_reason_says_something_of_its_own() {
        let mut texts: Vec<String> = reasons().iter().map(ToString::to_string).collect();
        texts.extend(lines());
        assert!(texts.iter().all(|text| text.len() > 10));
        let distinct: std::collections::BTreeSet<&String> = texts.iter().collect();
        assert_eq!(distinct.len(), texts.len());
    }
}
