//! What the user is told when the hosts do not come together.

use std::time::Duration;

use super::paths::{Call, Paths};
use super::{Guest, Host, State, Trouble};
use crate::Time;
use crate::wire::agent::Dial;

/// Lines that are printed before the rest is only counted.
const LINES: usize = 8;

/// Some hosts could not be reached, were lost, or have not answered.
pub(super) fn missing(hosts: &[Host], limit: Duration, now: Time) -> String {
    let mut lines = Vec::new();
    let mut hints: Vec<String> = Vec::new();
    for (host, Trouble { reason, hint }) in absent(hosts, limit, now) {
        lines.push(format!("`{}`: {reason}", hosts[host].guest.name));
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

/// Hosts that could not be reached, were lost, or have not answered: what was seen of each, and what to
/// do about it.
pub(super) fn absent(hosts: &[Host], limit: Duration, now: Time) -> Vec<(usize, Trouble)> {
    let trouble = |host: &Host| match &host.state {
        State::Gone(trouble) => Some(trouble.clone()),
        State::Awaited | State::There if now >= limit => Some(not_answered(&host.guest, limit)),
        _ => None,
    };
    let hosts = hosts.iter().enumerate();
    hosts.filter_map(|(number, host)| Some((number, trouble(host)?))).collect()
}

/// All hosts are there, but some cannot reach others.
pub(super) fn unreachable(hosts: &[Host], paths: &Paths) -> String {
    let broken: Vec<_> = paths.broken().collect();
    let lines: Vec<String> = broken
        .iter()
        .map(|(from, to, calls)| {
            let name = &hosts[*from].guest.name;
            format!("`{name}` cannot reach {}: {}", whom(hosts, *to), how(calls))
        })
        .collect();
    let hint = to_open(broken.iter().flat_map(|(.., calls)| calls.iter()));
    text("some hosts cannot reach each other", &lines, &[hint.to_owned()])
}

/// The same as [`absent`] gives it: each host that cannot reach another, with the first it cannot.
pub(super) fn lonely(hosts: &[Host], paths: &Paths) -> Vec<(usize, Trouble)> {
    let mut broken: Vec<_> = paths.broken().collect();
    broken.dedup_by_key(|(from, ..)| *from);
    let trouble = |(from, to, calls): (usize, Option<usize>, &[Call])| {
        let reason = format!("it cannot reach {}: {}", whom(hosts, to), how(calls));
        (from, Trouble { reason, hint: to_open(calls.iter()).to_owned() })
    };
    broken.into_iter().map(trouble).collect()
}

fn whom(hosts: &[Host], to: Option<usize>) -> String {
    to.map_or("the launcher".into(), |host| format!("`{}`", hosts[host].guest.name))
}

/// What to do about calls that failed.
pub(crate) fn to_open<'a>(mut calls: impl Iterator<Item = &'a Call>) -> &'static str {
    match calls.any(|call| !matches!(call.outcome, Some(Dial::Refused))) {
        true => {
            "what times out is mostly dropped by a firewall: allow TCP between these hosts, on \
             the ports of `sysctl net.ipv4.ip_local_port_range`, or name an interface that is \
             not filtered with `--network-interfaces`"
        }
        false => {
            "something between these hosts refuses TCP: allow it on the ports of `sysctl \
             net.ipv4.ip_local_port_range`, or name another interface with \
             `--network-interfaces`"
        }
    }
}

/// A host has another version than the launcher: what it is, and what to do.
pub(crate) fn other_version(theirs: &str, ours: &str) -> Trouble {
    // The package has Ronde's own version, without Horovod's in front.
    let package = ours.rsplit("ronde.").next().unwrap_or(ours);
    Trouble {
        reason: format!("it runs Ronde {theirs}, and this launcher is Ronde {ours}"),
        hint: format!("install the same version there: {}", crate::install::command(package)),
    }
}

/// A host has not answered in time.
pub(crate) fn not_answered(guest: &Guest, limit: Duration) -> Trouble {
    let wait = "`--start-timeout` sets how long to wait";
    let hint = match guest.here {
        true => wait.to_owned(),
        false => format!("see whether `ssh {} true` answers; {wait}", guest.name),
    };
    Trouble { reason: format!("it has not answered within {} s", limit.as_secs()), hint }
}

/// A host has no interface that will do, but perhaps these.
pub(crate) fn no_address(known: &[String]) -> Trouble {
    let names: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
    match names.as_slice() {
        [] => Trouble {
            reason: "it has no network address but its loopback".into(),
            hint:
                "connect it to the network of the other hosts; `ip address` there shows what it has"
                    .into(),
        },
        names => Trouble {
            reason: "none of the interfaces that `--network-interfaces` names has an address"
                .into(),
            hint: format!("name what it has, too: {}", names.join(", ")),
        },
    }
}

pub(crate) fn how(calls: &[Call]) -> String {
    let what = |call: &Call| {
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

impl Trouble {
    /// What was seen, and what to do about it.
    pub fn new(reason: impl Into<String>, hint: impl Into<String>) -> Trouble {
        Trouble { reason: reason.into(), hint: hint.into() }
    }
}
