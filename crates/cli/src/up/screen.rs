//! What `ronde up` and `ronde down` print.

use std::path::Path;

use ronde_control::counted;
use ronde_control::doctor::{DoctorReport, Finding, Severity};
use ronde_control::provision::{AgentKind, HostFacts, KeyState, PortState};
use ronde_control::settings::RONDE_AGENT_PORT;
use ronde_launch::hosts::Host;
use ronde_launch::provision::{HostOutcome, UpReport};
use ronde_launch::reach::HostProblem;

use super::arguments::ChosenHosts;
use crate::doctor::finding_text;
use crate::tables::plain;

/// What was done on each host, or what stands in the way.
pub(super) fn outcome(report: &UpReport) -> String {
    let mut text = String::new();
    let broken = report.hosts.iter().filter(|host| !host.problems.is_empty()).count();
    for host in &report.hosts {
        for warning in &host.warnings {
            text += &finding(&host.name, Severity::Warning, warning);
        }
        for problem in &host.problems {
            text += &finding(&host.name, Severity::Error, problem);
        }
    }
    if broken == 0 {
        return text + &report.hosts.iter().map(done).collect::<String>();
    }
    let changed = match report.has_begun {
        true => "; run `ronde up` again once that is fixed",
        false => "; nothing was changed",
    };
    let all = counted(report.hosts.len(), "host");
    text + &format!("\n{broken} of {all} cannot be used yet{changed}\n")
}

fn done(host: &HostOutcome) -> String {
    let done: Vec<String> = host.done.iter().map(|step| step.past()).collect();
    let done = if done.is_empty() { "nothing to do".into() } else { done.join(", ") };
    format!("{}: {done}\n", host.name)
}

fn finding(host: &str, severity: Severity, HostProblem { reason, hint }: &HostProblem) -> String {
    let (what, fix) = (reason.clone(), hint.clone());
    finding_text(&Finding { severity, hosts: vec![host.to_owned()], what, fix })
}

/// What to know about a key pair for ssh that was just made.
pub(super) fn made_login(folder: &Path) -> String {
    format!(
        "note: you had no key for ssh, so one was made: `{}`",
        folder.join("id_ed25519").display()
    )
}

/// The command that starts a job on these hosts.
pub(super) fn command(
    chosen: &ChosenHosts,
    report: &DoctorReport,
    (port, runs): (u16, RunsIn),
) -> String {
    // Without a number from the user, a host has one rank per GPU.
    let slots = |host: &Host| match chosen.have_slots {
        true => host.slots,
        false => {
            let facts = report.hosts.iter().find(|it| it.name == host.name);
            let facts = facts.and_then(|it| it.facts.as_ref());
            facts.map_or(1, |facts| facts.gpus.devices.len().max(1) as u32)
        }
    };
    let hosts: Vec<(&str, u32)> =
        chosen.hosts.iter().map(|host| (host.name.as_str(), slots(host))).collect();
    let count: u32 = hosts.iter().map(|(_, slots)| slots).sum();
    let joined = |number: &dyn Fn(u32) -> u32| {
        let one = |(name, slots): &(&str, u32)| bracketed(name, number(*slots));
        hosts.iter().map(one).collect::<Vec<_>>().join(",")
    };
    // Ranks on this machine are children of the launcher, with the environment of this shell, unless
    // the variable names their agent.
    let is_here = chosen.shells.iter().any(|shell| shell.destination.is_none());
    if is_here && runs == RunsIn::Container {
        let agents = joined(&|_| port.into());
        return format!("HOROVOD_HOSTNAME={agents} horovodrun -np {count} python train.py");
    }
    let path = if is_here { "PATH=~/.local/share/ronde/env/bin:$PATH " } else { "" };
    let port = match port.to_string() {
        port if port == RONDE_AGENT_PORT.default => String::new(),
        port => format!(" --agent-port {port}"),
    };
    let hosts = joined(&|slots| slots);
    format!("{path}horovodrun -np {count} -H {hosts} --reach agent{port} python train.py")
}

/// What the agents and their ranks run in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunsIn {
    Environment,
    Container,
}

fn bracketed(name: &str, number: u32) -> String {
    if name.contains(':') { format!("[{name}]:{number}") } else { format!("{name}:{number}") }
}

/// A table with the state of each host.
pub(super) fn status(hosts: &[Host], states: &[Result<HostFacts, HostProblem>]) -> String {
    let header = ["host", "agent", "runs with", "port", "key", "Python"].map(String::from).to_vec();
    let row = |(host, state): (&Host, &Result<HostFacts, HostProblem>)| match state {
        Err(problem) => vec![host.name.clone(), problem.reason.clone()],
        Ok(facts) => vec![
            host.name.clone(),
            agent(facts).into(),
            facts.agent_spec.clone().unwrap_or_else(|| "-".into()),
            port(&facts.port),
            key(&facts.key).into(),
            facts.python_version.map_or("-".into(), |(major, minor)| format!("{major}.{minor}")),
        ],
    };
    let rows: Vec<_> = std::iter::once(header).chain(hosts.iter().zip(states).map(row)).collect();
    plain(&rows, &[], None)
}

fn agent(facts: &HostFacts) -> &'static str {
    match facts.agent {
        Some(AgentKind::Process) => "runs as a process",
        Some(AgentKind::Service) => "runs as a service",
        Some(AgentKind::Container) => "runs in a container",
        None if facts.agent_spec.is_some() => "has stopped",
        None => "none",
    }
}

fn port(port: &PortState) -> String {
    match port {
        PortState::Free => "free".into(),
        PortState::Ours => "listens".into(),
        PortState::Taken(None) => "in use by another process".into(),
        PortState::Taken(Some(owner)) => format!("in use by {owner}"),
    }
}

fn key(key: &KeyState) -> &'static str {
    match key {
        KeyState::Missing => "none",
        KeyState::Digest(_) => "yes",
        KeyState::Unusable => "not private",
    }
}

/// What `ronde down` removed.
pub(super) fn removed(hosts: &[Host], removed: &[Result<Vec<String>, HostProblem>]) -> String {
    let line = |(host, removed): (&Host, &Result<Vec<String>, HostProblem>)| match removed {
        Ok(removed) if removed.is_empty() => format!("{}: nothing to remove\n", host.name),
        Ok(removed) => format!("{}: removed {}\n", host.name, removed.join(", ")),
        Err(problem) => finding(&host.name, Severity::Error, problem),
    };
    hosts.iter().zip(removed).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ronde_launch::provision::HostShell;
    use ronde_launch::reach::ssh::{Destination, SshOptions};

    /// Names of hosts that are this machine, or are not.
    fn chosen(names: &[&str], is_here: bool) -> ChosenHosts {
        let destination = || {
            (!is_here).then(|| Destination { login: "x".into(), options: SshOptions::default() })
        };
        let shell = |name: &&str| HostShell { name: (*name).into(), destination: destination() };
        let host = |name: &&str| Host { name: (*name).into(), user: None, slots: 2 };
        ChosenHosts {
            shells: names.iter().map(shell).collect(),
            hosts: names.iter().map(host).collect(),
            recorded: Vec::new(),
            have_slots: true,
        }
    }

    #[test]
    fn the_command_names_the_hosts_and_what_is_unusual() {
        let shown = |chosen: &ChosenHosts, port, runs| {
            command(chosen, &DoctorReport::default(), (port, runs))
        };
        let away = chosen(&["a", "fd00::1"], false);
        assert_eq!(
            shown(&away, 29508, RunsIn::Environment),
            "horovodrun -np 4 -H a:2,[fd00::1]:2 --reach agent python train.py"
        );
        assert_eq!(
            shown(&away, 4000, RunsIn::Container),
            "horovodrun -np 4 -H a:2,[fd00::1]:2 --reach agent --agent-port 4000 python train.py"
        );
        let here = chosen(&["me"], true);
        assert_eq!(
            shown(&here, 29508, RunsIn::Environment),
            "PATH=~/.local/share/ronde/env/bin:$PATH horovodrun -np 2 -H me:2 --reach agent python \
             train.py"
        );
        assert_eq!(
            shown(&here, 29508, RunsIn::Container),
            "HOROVOD_HOSTNAME=me:29508 horovodrun -np 2 python train.py"
        );
        let unnumbered = ChosenHosts { have_slots: false, ..away };
        assert!(shown(&unnumbered, 29508, RunsIn::Container).contains("-np 2 -H a:1,[fd00::1]:1"));
    }
}
