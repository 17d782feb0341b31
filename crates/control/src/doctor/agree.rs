//! Compares what should be the same on all hosts.

use std::collections::BTreeMap;

use super::{Facts, Finding, HostReport, Severity, gpus};
use crate::{PACKAGE_VERSION, install};

/// The packages that are compared, and how serious a difference is.
const PACKAGES: [(&str, Severity); 8] = [
    // Ranks of another version are refused when they join.
    ("ronde", Severity::Error),
    ("torch", Severity::Warning),
    ("tensorflow", Severity::Warning),
    ("keras", Severity::Warning),
    ("jax", Severity::Warning),
    ("mxnet", Severity::Warning),
    ("lightning", Severity::Warning),
    ("numpy", Severity::Warning),
];

pub(super) fn findings(hosts: &[HostReport]) -> Vec<Finding> {
    let with = |has: fn(&Facts) -> bool| -> Vec<KnownFacts<'_>> {
        let known =
            hosts.iter().filter_map(|host| Some((host.name.as_str(), host.facts.as_ref()?)));
        known.filter(|(_, facts)| has(facts)).collect()
    };
    let pythons = with(|facts| facts.python.version.is_some());
    let mut findings = Vec::new();
    for (package, severity) in PACKAGES {
        let version = |facts: &Facts| facts.python.packages.get(package).cloned();
        let fix = |wanted: &str| match package {
            "ronde" => format!("{} on the others", install::command(wanted)),
            _ => format!("`pip install {package}=={wanted}` on the others"),
        };
        findings.extend(differing((package, severity), &pythons, version, fix));
    }
    let minor = |facts: &Facts| {
        let version = facts.python.version.as_deref()?;
        Some(version.splitn(3, '.').take(2).collect::<Vec<_>>().join("."))
    };
    let fix = |wanted: &str| {
        format!("use Python {wanted} everywhere: pickled objects may be incompatible")
    };
    findings.extend(differing(("Python", Severity::Warning), &pythons, minor, fix));
    findings.extend(gpus::differences(&with(|_| true)));
    findings
}

/// A host and its facts.
pub(super) type KnownFacts<'a> = (&'a str, &'a Facts);

/// Reports which hosts have what, unless all have the same. What most hosts have is taken as right;
/// for Ronde, what the launcher has.
pub(super) fn differing(
    (thing, severity): (&str, Severity),
    hosts: &[KnownFacts<'_>],
    value: impl Fn(&Facts) -> Option<String>,
    fix: impl Fn(&str) -> String,
) -> Option<Finding> {
    let mut having: BTreeMap<Option<String>, Vec<&str>> = BTreeMap::new();
    for (name, facts) in hosts {
        having.entry(value(facts)).or_default().push(name);
    }
    if having.len() < 2 {
        return None;
    }
    let most = having.iter().filter(|(value, _)| value.is_some()).max_by_key(|(value, names)| {
        let ours = thing == "ronde" && value.as_deref() == Some(PACKAGE_VERSION);
        // On a tie, the host that was named first is right.
        let place = hosts.iter().position(|(name, _)| names.first() == Some(name));
        (ours, names.len(), std::cmp::Reverse(place))
    });
    let (wanted, right) = most?;
    let wanted = wanted.clone()?;
    let others = having.iter().filter(|(value, _)| value.as_ref() != Some(&wanted));
    let others: Vec<String> = others
        .map(|(value, names)| {
            format!("{} on {}", value.as_deref().unwrap_or("missing"), listed(names))
        })
        .collect();
    let wrong = hosts.iter().map(|(name, _)| *name).filter(|name| !right.contains(name));
    // If it is only missing, the job may use another Python.
    let severity = match having.keys().flatten().count() {
        1 => severity.max(Severity::Warning),
        _ => severity,
    };
    Some(Finding {
        severity,
        hosts: wrong.map(str::to_owned).collect(),
        what: format!("{thing} differs: {wanted} on {}; {}", listed(right), others.join("; ")),
        fix: fix(&wanted),
    })
}

fn listed(names: &[&str]) -> String {
    const MOST: usize = 4;
    let shown: Vec<String> = names.iter().take(MOST).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(MOST) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
