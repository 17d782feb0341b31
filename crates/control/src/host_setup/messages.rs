//! Error messages for hosts that cannot be used or cannot reach each other.

use std::time::Duration;

use super::paths::{PathCheck, Paths};
use super::{HostProblem, SetupEntry, SetupHost, SetupState};
use crate::Time;
use crate::wire::agent::Dial;

/// How many lines are printed before the rest is only counted.
const LINES: usize = 8;

/// The error if some hosts could not be reached, were lost, or have not answered.
pub(super) fn missing(hosts: &[SetupEntry], limit: Duration, now: Time) -> String {
    let mut lines = Vec::new();
    let mut hints: Vec<String> = Vec::new();
    for (host, HostProblem { reason, hint }) in absent(hosts, limit, now) {
        lines.push(format!("`{}`: {reason}", hosts[host].setup_host.name));
        if !hints.contains(&hint) {
            hints.push(hint);
        }
    }
    let title = match (lines.as_slice(), hosts) {
        ([line], [_]) => return text(line, &[], &hints),
        (lines, _) => format!("{} of {} hosts cannot take part", lines.len(), hosts.len()),
    };
    text(&title, &lines, &hints)
}

/// Hosts that could not be reached, were lost, or have not answered, each with what was observed
/// and what to do about it.
pub(super) fn absent(
    hosts: &[SetupEntry],
    limit: Duration,
    now: Time,
) -> Vec<(usize, HostProblem)> {
    let host_problem = |host: &SetupEntry| match &host.state {
        SetupState::Gone(host_problem) => Some(host_problem.clone()),
        SetupState::Awaited | SetupState::There if now >= limit => {
            Some(not_answered(&host.setup_host, limit))
        }
        _ => None,
    };
    let hosts = hosts.iter().enumerate();
    hosts.filter_map(|(number, host)| Some((number, host_problem(host)?))).collect()
}

/// The error if all hosts are up, but some cannot reach others.
pub(super) fn unreachable(hosts: &[SetupEntry], paths: &Paths) -> String {
    let broken: Vec<_> = paths.broken().collect();
    let lines: Vec<String> = broken
        .iter()
        .map(|(from, to, calls)| {
            let name = &hosts[*from].setup_host.name;
            format!("`{name}` cannot reach {}: {}", callee_name(hosts, *to), how(calls))
        })
        .collect();
    let hint = to_open(broken.iter().flat_map(|(.., calls)| calls.iter()));
    text("some hosts cannot reach each other", &lines, &[hint.to_owned()])
}

/// Each host that cannot reach another one, with the first that it cannot reach.
pub(super) fn isolated(hosts: &[SetupEntry], paths: &Paths) -> Vec<(usize, HostProblem)> {
    let mut broken: Vec<_> = paths.broken().collect();
    broken.dedup_by_key(|(from, ..)| *from);
    let host_problem = |(from, to, calls): (usize, Option<usize>, &[PathCheck])| {
        let reason = format!("it cannot reach {}: {}", callee_name(hosts, to), how(calls));
        (from, HostProblem { reason, hint: to_open(calls.iter()).to_owned() })
    };
    broken.into_iter().map(host_problem).collect()
}

fn callee_name(hosts: &[SetupEntry], to: Option<usize>) -> String {
    to.map_or("the launcher".into(), |host| format!("`{}`", hosts[host].setup_host.name))
}

/// A hint about failed calls.
pub(crate) fn to_open<'a>(mut calls: impl Iterator<Item = &'a PathCheck>) -> &'static str {
    match calls.any(|call| !matches!(call.outcome, Some(Dial::Refused))) {
        true => {
            "a timeout usually means a firewall: allow TCP between these hosts (`--port-range` \
             limits the ports), use `--network-interfaces` to name an interface that is not \
             filtered, or set RONDE_ADVERTISE in containers with published ports"
        }
        false => {
            "something between these hosts refuses TCP: allow it (`--port-range` limits the \
             ports), name another interface with `--network-interfaces`, or set RONDE_ADVERTISE \
             in containers with published ports"
        }
    }
}

/// The problem of a host whose version differs from the launcher's.
pub fn other_version(theirs: &str, ours: &str) -> HostProblem {
    // The package has Ronde's own version, without Horovod's as a prefix.
    let package = ours.rsplit("ronde.").next().unwrap_or(ours);
    HostProblem {
        reason: format!("it runs Ronde {theirs}, but this launcher is Ronde {ours}"),
        hint: format!("install the same version there: {}", crate::install::command(package)),
    }
}

/// The problem of a host that has not answered in time.
pub(crate) fn not_answered(setup_host: &SetupHost, limit: Duration) -> HostProblem {
    let wait = "`--start-timeout` sets how long to wait";
    let hint = match setup_host.here {
        true => wait.to_owned(),
        false => format!("check that `ssh {} true` works; {wait}", setup_host.name),
    };
    HostProblem { reason: format!("it has not answered within {} s", limit.as_secs()), hint }
}

/// The problem of a host without a suitable interface; `known` are the others that it has.
pub(crate) fn no_address(known: &[String]) -> HostProblem {
    let names: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
    match names.as_slice() {
        [] => HostProblem {
            reason: "it has no network address except loopback".into(),
            hint:
                "connect it to the network of the other hosts; `ip address` there shows what it has"
                    .into(),
        },
        names => HostProblem {
            reason: "none of the interfaces that `--network-interfaces` names has an address"
                .into(),
            hint: format!("also name one of its interfaces: {}", names.join(", ")),
        },
    }
}

pub(crate) fn how(calls: &[PathCheck]) -> String {
    let what = |call: &PathCheck| {
        format!("{} {}", call.address, call.failure().unwrap_or_else(|| "answered".into()))
    };
    match calls {
        [] => "it has no address".into(),
        calls => calls.iter().map(what).collect::<Vec<_>>().join(", "),
    }
}

fn text(title: &str, lines: &[String], hints: &[String]) -> String {
    let mut text = format!("error: {title}\n");
    for line in lines.iter().take(LINES) {
        text += &format!("  {line}\n");
    }
    if lines.len() > LINES {
        text += &format!("  and {} more\n", lines.len() - LINES);
    }
    text.push('\n');
    for hint in hints.iter().take(LINES) {
        text += &format!("hint: {hint}\n");
    }
    text
}

impl HostProblem {
    /// A problem with what was observed and what to do about it.
    pub fn new(reason: impl Into<String>, hint: impl Into<String>) -> HostProblem {
        HostProblem { reason: reason.into(), hint: hint.into() }
    }
}
