//! What is wrong between the hosts.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{Finding, Report, Severity, Speed};
use crate::muster::paths::{Call, Paths};
use crate::muster::words;

/// How many times slower than the others a way must be to be worth a word: short measurements on busy
/// machines spread widely.
const SLOWER: u64 = 5;

/// A round trip below this is never called long.
const SHORT_TRIP: u32 = 2_000;

pub(super) fn findings(report: &Report, paths: &Paths) -> Vec<Finding> {
    let well = |host: usize| report.hosts.get(host).is_none_or(|host| host.facts.is_some());
    let mut findings = Vec::new();
    for ((from, to), calls) in paths.pairs().filter(|((from, to), _)| well(*from) && well(*to)) {
        let Some(caller) = report.hosts.get(from).map(|host| host.name.as_str()) else { continue };
        let whom = report.hosts.get(to).map(|host| format!("`{}`", host.name));
        let whom = whom.unwrap_or_else(|| "the launcher".into());
        let needed = to < from || to >= report.hosts.len();
        // A way that is blocked in both directions is told once.
        if !needed && is_shut(calls) && is_shut(paths.calls(to, from)) {
            continue;
        }
        findings.extend(blocked(&Way { caller, whom, needed }, calls));
    }
    findings.extend(unused(report));
    findings.extend(slow(&report.speeds));
    findings.extend(report.speeds.iter().filter_map(unmeasured));
    findings
}

/// A way from one host to another, or to the launcher.
struct Way<'a> {
    caller: &'a str,
    whom: String,
    /// Whether ranks of a job dial this way: they dial those in front of them, and the launcher.
    needed: bool,
}

fn is_shut(calls: &[Call]) -> bool {
    calls.iter().all(|call| call.micros().is_none())
}

/// A way on which nothing, or not every port, gets through.
fn blocked(way: &Way<'_>, calls: &[Call]) -> Option<Finding> {
    let Way { caller, whom, needed } = way;
    let open: BTreeSet<IpAddr> =
        calls.iter().filter(|call| call.micros().is_some()).map(|call| call.address.ip()).collect();
    // An address that answers on some ports should answer on all.
    let closed = calls.iter().filter(|call| call.micros().is_none());
    let closed: Vec<Call> =
        closed.filter(|call| open.contains(&call.address.ip())).cloned().collect();
    let (severity, what) = match (open.is_empty(), closed.as_slice()) {
        (true, _) if *needed => {
            (Severity::Error, format!("cannot reach {whom}: {}", words::how(calls)))
        }
        (true, _) => (
            Severity::Warning,
            format!(
                "cannot reach {whom}, as it must in jobs that name it behind {whom}: {}",
                words::how(calls)
            ),
        ),
        (false, []) => return None,
        (false, closed) => (
            Severity::Warning,
            format!("reaches {whom} on some ports only: {}", words::how(closed)),
        ),
    };
    let failed = calls.iter().filter(|call| call.micros().is_none());
    let fix = words::to_open(failed).to_owned();
    Some(Finding { severity, hosts: vec![(*caller).to_owned()], what, fix })
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
            findings.push(Finding {
                severity: Severity::Note,
                hosts: vec![host.name.clone()],
                what: format!(
                    "nobody reaches it at {} (`{}`){alike}; it is not used",
                    each.address, each.interface
                ),
                fix: "nothing: addresses are chosen by dialling".into(),
            });
        }
    }
    findings
}

/// Ways that are much slower than most.
fn slow(speeds: &[Speed]) -> Vec<Finding> {
    let measured: Vec<&Speed> = speeds.iter().filter(|speed| speed.problem.is_none()).collect();
    let mut rates: Vec<u64> = measured.iter().map(|speed| speed.bytes_per_second).collect();
    let mut trips: Vec<u32> = measured.iter().map(|speed| speed.round_trip_micros).collect();
    rates.sort_unstable();
    trips.sort_unstable();
    let (Some(rate), Some(trip)) = (rates.get(rates.len() / 2), trips.get(trips.len() / 2)) else {
        return Vec::new();
    };
    let gigabits = |rate: u64| rate as f64 * 8e-9;
    let millis = |micros: u32| f64::from(micros) * 1e-3;
    let finding = |speed: &Speed, what: String| Finding {
        severity: Severity::Warning,
        hosts: vec![speed.from.clone()],
        what,
        fix: "see cable, switch port and `ethtool` there, and what else uses the network".into(),
    };
    let few = measured.iter().filter(|speed| speed.bytes_per_second.saturating_mul(SLOWER) < *rate);
    let few = few.map(|speed| {
        let (slow, most) = (gigabits(speed.bytes_per_second), gigabits(*rate));
        let to = &speed.to;
        finding(speed, format!("sends {slow:.2} Gb/s to `{to}`, and most send {most:.2} Gb/s"))
    });
    let long = measured.iter().filter(|speed| {
        let far = u64::from(speed.round_trip_micros) > SLOWER * u64::from(*trip);
        far && speed.round_trip_micros > SHORT_TRIP
    });
    let long = long.map(|speed| {
        let (far, most) = (millis(speed.round_trip_micros), millis(*trip));
        let to = &speed.to;
        finding(speed, format!("is {far:.1} ms there and back from `{to}`, most are {most:.1} ms"))
    });
    few.chain(long).collect()
}

fn unmeasured(speed: &Speed) -> Option<Finding> {
    let problem = speed.problem.as_ref()?;
    Some(Finding {
        severity: Severity::Warning,
        hosts: vec![speed.from.clone()],
        what: format!("could not measure the way to `{}`: {problem}", speed.to),
        fix: "run it again; if it stays, the connection breaks under load".into(),
    })
}
