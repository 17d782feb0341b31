//! Everything that an elastic job can tell its user: each is a [`Reason`], and the reference page
//! `docs/reference/elastic.md` lists them all, made from here.

use std::fmt;
use std::time::Duration;

use crate::cause::{Cause, CauseKind};

/// Something that happened in an elastic job.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// A host is listed.
    Found {
        /// Its name.
        host: String,
        /// Its slots.
        slots: u32,
    },
    /// A host has another number of slots.
    Resized {
        /// Its name.
        host: String,
        /// Its slots.
        slots: u32,
        /// What it had.
        before: u32,
    },
    /// A host is not listed any more.
    Unlisted {
        /// Its name.
        host: String,
    },
    /// Nobody knows which hosts there are.
    Undiscovered {
        /// Why not.
        why: String,
    },
    /// It is known again which hosts there are.
    DiscoveredAgain,
    /// A host cannot be reached.
    Unreachable {
        /// Its name.
        host: String,
        /// What was seen.
        why: String,
        /// What to do.
        hint: String,
        /// After how long it is tried again.
        again: Duration,
    },
    /// A host that took part is lost.
    HostLost {
        /// Its name.
        host: String,
        /// What was seen.
        why: String,
        /// What to do.
        hint: String,
    },
    /// The agent on a host was told to stop, as by somebody who shuts the host down.
    HostLeaving {
        /// Its name.
        host: String,
        /// How long its workers have to leave in order.
        grace: Duration,
    },
    /// A host takes no part for a while.
    Rests {
        /// Its name.
        host: String,
        /// For how long; for ever if nobody says.
        length: Option<Duration>,
        /// Whether the workers that live there stay.
        spares: bool,
    },
    /// A host may take part again.
    Rested {
        /// Its name.
        host: String,
    },
    /// A worker died, or is as good as dead.
    Lost {
        /// Its name, as `rank 2 (node-b, slot 0)`.
        who: String,
        /// How.
        cause: String,
    },
    /// A worker is told to go.
    Removing {
        /// Its name.
        who: String,
        /// Why.
        why: String,
    },
    /// There are too few workers to go on.
    TooFew {
        /// How many there are.
        there: u32,
        /// How many there must be.
        needed: u32,
        /// How long to wait for more.
        timeout: Duration,
    },
    /// A world has been formed.
    Formed {
        /// How many worlds there have been.
        world: u64,
        /// How many ranks it has.
        size: u32,
        /// How many of them are new.
        newcomers: u32,
    },
    /// Training goes on after a loss.
    Recovered {
        /// How many ranks go on.
        size: u32,
        /// From the news of the loss until a world was complete again.
        met: Duration,
        /// Until its ranks had the state.
        state: Duration,
        /// Until the first step was finished and committed.
        commit: Duration,
    },
    /// A worker has finished well, so that the job comes to its end.
    Finishing {
        /// Its name.
        who: String,
    },
}

/// Why an elastic job has ended, unless all went well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Nobody is left.
    AllFailed,
    /// Some of the last world have failed.
    SomeFailed,
    /// Nobody who is left has the state.
    NoState,
    /// It has begun anew too often.
    ResetLimit {
        /// How often it may.
        limit: u32,
    },
    /// Worlds fall apart although nobody dies.
    NoProgress {
        /// How many did in a row.
        worlds: u32,
    },
    /// Too few workers came.
    TimedOut {
        /// How many there were.
        there: u32,
        /// How many there must be.
        needed: u32,
        /// How long was waited.
        timeout: Duration,
        /// What is known of the hosts.
        hosts: Vec<String>,
    },
    /// Too few workers are left and no more can come.
    Hopeless {
        /// How many there are.
        there: u32,
        /// How many there must be.
        needed: u32,
        /// What is known of the hosts.
        hosts: Vec<String>,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::AllFailed { .. }
            | Reason::SomeFailed { .. }
            | Reason::NoState { .. }
            | Reason::ResetLimit { .. }
            | Reason::NoProgress { .. }
            | Reason::TimedOut { .. }
            | Reason::Hopeless { .. } => self.end(f),
            _ => self.note(f),
        }
    }
}

impl Reason {
    /// Who failed first, where that explains the end of the job.
    pub(super) fn first_mut(&mut self) -> Option<&mut First> {
        match self {
            Reason::AllFailed { first }
            | Reason::SomeFailed { first }
            | Reason::NoState { first } => Some(first),
            Reason::ResetLimit { first, .. }
            | Reason::TimedOut { first, .. }
            | Reason::Hopeless { first, .. } => first.as_mut(),
            _ => None,
        }
    }

    /// A line while the job runs.
    fn note(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Found { host, slots } => write!(f, "found host `{host}` with {}", many(*slots)),
            Reason::Resized { host, slots, before } => {
                write!(f, "host `{host}` has {} now, {before} before", many(*slots))
            }
            Reason::Unlisted { host } => {
                write!(
                    f,
                    "host `{host}` is not listed any more: its ranks leave at the next commit"
                )
            }
            Reason::Undiscovered { why } => {
                write!(
                    f,
                    "could not find out which hosts there are, going on with those known: {why}"
                )
            }
            Reason::DiscoveredAgain => write!(f, "found out again which hosts there are"),
            Reason::Unreachable { host, why, hint, again } => write!(
                f,
                "host `{host}` cannot be used, trying again in {}: {why} (hint: {hint})",
                seconds(*again)
            ),
            Reason::HostLost { host, why, hint } => {
                write!(f, "lost host `{host}`: {why} (hint: {hint})")
            }
            Reason::HostLeaving { host, grace } => write!(
                f,
                "the agent on host `{host}` was told to stop: its ranks have {} to leave at a commit",
                seconds(*grace)
            ),
            Reason::Rests { host, length, spares } => self::rests(f, host, *length, *spares),
            Reason::Rested { host } => write!(f, "host `{host}` may be used again"),
            Reason::Lost { who, cause } => write!(f, "lost {who}: {cause}"),
            Reason::Removing { who, why } => write!(f, "{who} leaves the job: {why}"),
            Reason::TooFew { there, needed, timeout } => write!(
                f,
                "{there} of at least {needed} ranks are there: waiting up to {} for more",
                seconds(*timeout)
            ),
            Reason::Formed { world, size, newcomers } => {
                write!(f, "world {world} is formed: {}, {newcomers} of them new", ranks(*size))
            }
            Reason::Recovered { size, met, state, commit } => write!(
                f,
                "recovered with {}: they met after {}, had the state after {} and \
                 finished a step after {}",
                ranks(*size),
                seconds(*met),
                seconds(*state),
                seconds(*commit)
            ),
            Reason::Finishing { who } => {
                write!(f, "{who} has finished: no new world will be formed")
            }
            _ => Ok(()),
        }
    }

    /// The last lines of a job.
    fn end(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
                first.lines("  ")
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
            _ => Ok(()),
        }
    }

    /// One of each, for the reference page.
    pub fn examples() -> Vec<Reason> {
        let host = || "node-b".to_owned();
        let who = || "rank 2 (node-b, slot 0)".to_owned();
        let cause = || "was killed by signal 9 (SIGKILL)".to_owned();
        let first = || First { who: who(), cause: Cause::plain(CauseKind::Signal, cause()) };
        let raised = || First {
            who: who(),
            cause: Cause {
                what: "raised KeyError: 'lr'".into(),
                details: vec!["at train.py:12 in step: rate = config['lr']".into()],
                kind: CauseKind::Exception,
            },
        };
        let hosts = || vec!["`node-b`: 2 slots, rests for 8 s".to_owned()];
        let some = Duration::from_millis(8000);
        vec![
            Reason::Found { host: host(), slots: 2 },
            Reason::Resized { host: host(), slots: 4, before: 2 },
            Reason::Unlisted { host: host() },
            Reason::Undiscovered { why: "`./hosts.sh` ended with code 1".into() },
            Reason::DiscoveredAgain,
            Reason::Unreachable {
                host: host(),
                why: "nothing answers at port 22".into(),
                hint: "see whether sshd runs there".into(),
                again: some,
            },
            Reason::HostLost {
                host: host(),
                why: "it does not answer any more".into(),
                hint: "see whether the host is up".into(),
            },
            Reason::HostLeaving { host: host(), grace: Duration::from_secs(30) },
            Reason::Rests { host: host(), length: Some(some), spares: false },
            Reason::Rests { host: host(), length: None, spares: false },
            Reason::Rests { host: host(), length: Some(some), spares: true },
            Reason::Rested { host: host() },
            Reason::Lost { who: who(), cause: cause() },
            Reason::Lost { who: who(), cause: stopped(some) },
            Reason::Lost { who: who(), cause: not_coming(some) },
            Reason::Lost { who: who(), cause: not_starting(some) },
            Reason::Lost { who: who(), cause: UNSEATED.into() },
            Reason::Lost { who: who(), cause: QUARREL.into() },
            Reason::Removing { who: who(), why: UNLISTED.into() },
            Reason::Removing { who: who(), why: FEWER_SLOTS.into() },
            Reason::Removing { who: who(), why: RESTING.into() },
            Reason::Removing { who: who(), why: "it was sent SIGTERM".into() },
            Reason::Removing { who: who(), why: FINISHED.into() },
            Reason::TooFew { there: 1, needed: 2, timeout: Duration::from_secs(600) },
            Reason::Formed { world: 3, size: 4, newcomers: 1 },
            Reason::Recovered {
                size: 3,
                met: Duration::from_millis(90),
                state: Duration::from_millis(140),
                commit: Duration::from_millis(260),
            },
            Reason::Finishing { who: who() },
            Reason::AllFailed { first: raised() },
            Reason::SomeFailed { first: first() },
            Reason::NoState { first: first() },
            Reason::ResetLimit { limit: 3, first: Some(first()) },
            Reason::ResetLimit { limit: 3, first: None },
            Reason::NoProgress { worlds: 3 },
            Reason::TimedOut {
                there: 1,
                needed: 2,
                timeout: Duration::from_secs(600),
                hosts: hosts(),
                first: Some(first()),
            },
            Reason::Hopeless { there: 1, needed: 2, hosts: hosts(), first: Some(raised()) },
            Reason::Hopeless { there: 1, needed: 2, hosts: hosts(), first: None },
        ]
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

fn rests(
    f: &mut fmt::Formatter<'_>,
    host: &str,
    length: Option<Duration>,
    spares: bool,
) -> fmt::Result {
    let what = match spares {
        true => "takes no new ranks",
        false => "takes no part",
    };
    match length {
        Some(length) => write!(f, "host `{host}` {what} for {}", seconds(length)),
        None => write!(f, "host `{host}` {what} from now on"),
    }
}

fn many(slots: u32) -> String {
    match slots {
        1 => "1 slot".into(),
        _ => format!("{slots} slots"),
    }
}

fn ranks(count: u32) -> String {
    match count {
        1 => "1 rank".into(),
        _ => format!("{count} ranks"),
    }
}

/// A time in seconds, as people write it.
pub(super) fn seconds(time: Duration) -> String {
    match time.subsec_nanos() {
        0 => format!("{} s", time.as_secs()),
        _ => format!("{:.2} s", time.as_secs_f64()),
    }
}

fn list(lines: &[String]) -> String {
    lines.iter().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "../../docs/reference/elastic.md";

    fn page() -> String {
        let mut page = String::from(
            "# What an elastic job says\n\nEvery line that `horovodrun` can print about an elastic \
             job, with example values. Lines while the job runs begin with `[ronde]`; the last ones \
             stand on standard error and give the reason for the end. This page is made from \
             `crates/control/src/elastic/words.rs`.\n\n## While it runs\n\n",
        );
        let (ends, notes): (Vec<_>, Vec<_>) =
            Reason::examples().into_iter().partition(|it| it.to_string().starts_with("error: "));
        for note in notes {
            page += &format!("- {note}\n");
        }
        page += "\n## Why it ends\n";
        for end in ends {
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
        let texts: Vec<String> = Reason::examples().iter().map(ToString::to_string).collect();
        assert!(texts.iter().all(|text| text.len() > 10));
        let distinct: std::collections::BTreeSet<&String> = texts.iter().collect();
        assert_eq!(distinct.len(), texts.len());
    }
}
