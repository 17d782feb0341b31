//! What is wrong between the hosts.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{Address, Finding, Report, Severity, Speed};
use crate::muster::paths::{Call, Paths};
use crate::muster::words;

/// How many times slower than the others a way must be to be worth a word: short measurements on busy
/// machines spread widely.
const SLOWER: u64 = 5;

/// A round trip below this is never called long.
const SHORT_TRIP: u64 = 2_000;

pub(super) fn findings(report: &Report, paths: &Paths) -> Vec<Finding> {
    let well = |host: usize| report.hosts.get(host).is_none_or(|host| host.facts.is_some());
    let mut findings = Vec::new();
    for ((from, to), calls) in paths.pairs().filter(|((from, to), _)| well(*from) && well(*to)) {
        let Some(caller) = report.hosts.get(from) else { continue };
        let whom = report.hosts.get(to).map(|host| format!("`{}`", host.name));
        let whom = whom.unwrap_or_else(|| "the launcher".into());
        // Ranks of a job dial those in front of them, and the launcher.
        let (severity, need) = match to < from || to >= report.hosts.len() {
            true => (Severity::Error, String::new()),
            // A way that is blocked in both directions is told once.
            false if is_shut(calls) && is_shut(paths.calls(to, from)) => continue,
            false => {
                (Severity::Warning, format!(", as it must in jobs that name it behind {whom}"))
            }
        };
        let host = caller.name.as_str();
        if is_shut(calls) {
            let what = format!("cannot reach {whom}{need}: {}", words::how(calls));
            findings.push(Finding::new(severity, host, what, words::to_open(calls.iter())));
        } else {
            findings.extend(half_open(host, &whom, calls));
        }
    }
    findings.extend(unused(report));
    findings.extend(slow(&report.speeds));
    findings
}

fn is_shut(calls: &[Call]) -> bool {
    calls.iter().all(|call| call.micros().is_none())
}

/// A way on which not every port gets through.
fn half_open(caller: &str, whom: &str, calls: &[Call]) -> Option<Finding> {
    let (open, shut): (Vec<Call>, Vec<Call>) =
        calls.iter().cloned().partition(|call| call.micros().is_some());
    let open: BTreeSet<IpAddr> = open.iter().map(|call| call.address.ip()).collect();
    let fix = words::to_open(shut.iter());
    // An address that answers on some ports should answer on all.
    let odd: Vec<Call> = shut.into_iter().filter(|it| open.contains(&it.address.ip())).collect();
    let what = format!("reaches {whom} on some ports only: {}", words::how(&odd));
    (!odd.is_empty()).then(|| Finding::warning(caller, what, fix))
}

/// Addresses that nobody reaches, of hosts that are reached otherwise.
fn unused(report: &Report) -> Vec<Finding> {
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
            let twins = report
                .hosts
                .iter()
                .filter(|other| other.addresses.iter().any(|known| known.address == each.address));
            let alike = match twins.count() {
                0 | 1 => "",
                _ => ", and other hosts have the same one",
            };
            let Address { address, interface } = each;
            findings.push(Finding::new(
                Severity::Note,
                &host.name,
                format!("nobody reaches it at {address} (`{interface}`){alike}; it is not used"),
                "nothing: addresses are chosen by dialling",
            ));
        }
    }
    findings
}

/// Ways that are much slower than most, or could not be measured.
fn slow(speeds: &[Speed]) -> Vec<Finding> {
    const FIX: &str = "see cable, switch port and `ethtool` there, and what else uses the network";
    let measured = || speeds.iter().filter(|speed| speed.problem.is_none());
    let rate = median(measured().map(|speed| speed.bytes_per_second));
    let trip = median(measured().map(|speed| speed.round_trip_micros.into()));
    let gigabits = |rate: u64| rate as f64 * 8e-9;
    let millis = |micros: u64| micros as f64 * 1e-3;
    let mut findings = Vec::new();
    for Speed { from, to, bytes_per_second, round_trip_micros, problem, .. } in speeds {
        if let Some(problem) = problem {
            let what = format!("could not measure the way to `{to}`: {problem}");
            let fix = "run it again; if it stays, the connection breaks under load";
            findings.push(Finding::warning(from, what, fix));
            continue;
        }
        if bytes_per_second.saturating_mul(SLOWER) < rate {
            let (slow, most) = (gigabits(*bytes_per_second), gigabits(rate));
            let what = format!("sends {slow:.2} Gb/s to `{to}`, and most send {most:.2} Gb/s");
            findings.push(Finding::warning(from, what, FIX));
        }
        let micros = u64::from(*round_trip_micros);
        if micros > SHORT_TRIP.max(SLOWER * trip) {
            let (far, most) = (millis(micros), millis(trip));
            let what = format!("is {far:.1} ms there and back from `{to}`, most are {most:.1} ms");
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
