//! Problems between hosts.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{Address, DoctorReport, Finding, Severity, Speed};
use crate::host_setup::messages;
use crate::host_setup::paths::{PathCheck, Paths};

/// How many times slower than the median a path must be to be reported: short measurements on busy
/// machines vary widely.
const SLOWER: u64 = 5;

/// A round trip below this many microseconds is never reported.
const SHORT_TRIP: u64 = 2_000;

pub(super) fn findings(report: &DoctorReport, paths: &Paths) -> Vec<Finding> {
    let answered = |host: usize| report.hosts.get(host).is_none_or(|host| host.facts.is_some());
    let mut findings = Vec::new();
    let pairs = paths.pairs().filter(|((from, to), _)| answered(*from) && answered(*to));
    for ((from, to), calls) in pairs {
        let Some(caller) = report.hosts.get(from) else { continue };
        let callee = report.hosts.get(to).map(|host| format!("`{}`", host.name));
        let callee = callee.unwrap_or_else(|| "the launcher".into());
        // Ranks of a job dial earlier hosts and the launcher.
        let (severity, need) = match to < from || to >= report.hosts.len() {
            true => (Severity::Error, String::new()),
            // A path that is blocked in both directions is reported once.
            false if is_shut(calls) && is_shut(paths.calls(to, from)) => continue,
            false => {
                (Severity::Warning, format!(", which it must in jobs that list it after {callee}"))
            }
        };
        let host = caller.name.as_str();
        if is_shut(calls) {
            let what = format!("cannot reach {callee}{need}: {}", messages::how(calls));
            findings.push(Finding::new(severity, host, what, messages::to_open(calls.iter())));
        } else {
            findings.extend(half_open(host, &callee, calls));
        }
    }
    findings.extend(unused(report));
    findings.extend(slow(&report.speeds));
    findings
}

fn is_shut(calls: &[PathCheck]) -> bool {
    calls.iter().all(|call| call.micros().is_none())
}

/// Reports a path on which some ports are blocked.
fn half_open(caller: &str, callee: &str, calls: &[PathCheck]) -> Option<Finding> {
    let (open, shut): (Vec<PathCheck>, Vec<PathCheck>) =
        calls.iter().cloned().partition(|call| call.micros().is_some());
    let open: BTreeSet<IpAddr> = open.iter().map(|call| call.address.ip()).collect();
    let fix = messages::to_open(shut.iter());
    // An address that answers on some ports should answer on all.
    let odd: Vec<PathCheck> =
        shut.into_iter().filter(|it| open.contains(&it.address.ip())).collect();
    let what = format!("reaches {callee} only on some ports: {}", messages::how(&odd));
    (!odd.is_empty()).then(|| Finding::warning(caller, what, fix))
}

/// Reports addresses at which no host is reached, of hosts that are reached at others.
fn unused(report: &DoctorReport) -> Vec<Finding> {
    let mut findings = Vec::new();
    for host in &report.hosts {
        let to_it = || report.paths.iter().filter(|path| path.to.as_ref() == Some(&host.name));
        let calls = || to_it().flat_map(|path| path.calls.iter());
        if !calls().any(|call| call.micros.is_some()) {
            continue;
        }
        for each in &host.addresses {
            let mut answers = calls().filter(|call| call.address.ip() == each.address);
            if answers.any(|call| call.micros.is_some()) {
                continue;
            }
            let owners = report
                .hosts
                .iter()
                .filter(|other| other.addresses.iter().any(|known| known.address == each.address));
            let shared = match owners.count() {
                0 | 1 => "",
                _ => ", which other hosts have too",
            };
            let Address { address, interface } = each;
            findings.push(Finding::new(
                Severity::Note,
                &host.name,
                format!(
                    "no host can reach it at {address} (`{interface}`){shared}; that address is \
                     not used"
                ),
                "nothing: Ronde uses only addresses that work",
            ));
        }
    }
    findings
}

/// Reports paths that are much slower than most, or could not be measured.
fn slow(speeds: &[Speed]) -> Vec<Finding> {
    const FIX: &str =
        "check the cable, the switch port and `ethtool` there, and other traffic on the network";
    let measured = || speeds.iter().filter(|speed| speed.problem.is_none());
    let rate = median(measured().map(|speed| speed.bytes_per_second));
    let trip = median(measured().map(|speed| speed.round_trip_micros.into()));
    let gigabits = |rate: u64| rate as f64 * 8e-9;
    let millis = |micros: u64| micros as f64 * 1e-3;
    let mut findings = Vec::new();
    for Speed { from, to, bytes_per_second, round_trip_micros, problem, .. } in speeds {
        if let Some(problem) = problem {
            let what = format!("could not measure the path to `{to}`: {problem}");
            let fix = "run it again; if this persists, the connection breaks under load";
            findings.push(Finding::warning(from, what, fix));
            continue;
        }
        if bytes_per_second.saturating_mul(SLOWER) < rate {
            let (slow, most) = (gigabits(*bytes_per_second), gigabits(rate));
            let what = format!("sends {slow:.2} Gb/s to `{to}`; most paths reach {most:.2} Gb/s");
            findings.push(Finding::warning(from, what, FIX));
        }
        let micros = u64::from(*round_trip_micros);
        if micros > SHORT_TRIP.max(SLOWER * trip) {
            let (far, most) = (millis(micros), millis(trip));
            let what = format!("has a round trip of {far:.1} ms to `{to}`; most take {most:.1} ms");
            findings.push(Finding::warning(from, what, FIX));
        }
    }
    findings
}

fn median(values: impl Iterator<Item = u64>) -> u64 {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}
