//! What `ronde doctor` asks the hosts of a job, in which order, and what the answers mean.
//!
//! 1. The agent of a host sends `Hello`. It is asked for the time repeatedly; the fastest answer
//!    shows how its clock differs.
//! 2. It is asked for facts, and to listen on a few ports of every address.
//! 3. Hosts that listen dial each other and the launcher.
//! 4. Two hosts that reach each other and are idle measure the path between them. No host takes
//!    part in two measurements at a time.
//!
//! Nothing waits for a host that does not answer: the others continue without it. The result is a
//! [`DoctorReport`]. Nothing here waits, reads a clock or owns a socket.

mod agree;
mod confinement;
mod facts;
mod gpus;
mod machines;
mod network;
mod report;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

pub use confinement::{Confinement, ContainerSigns, container};
pub use facts::{
    Address, Cpus, Facts, GpuInfo, GpuLibrary, Gpus, Limit, MemoryInfo, ProcessLimits, Python,
};
pub use report::{
    ClockOffset, DialAttempt, DoctorReport, Finding, HostPath, HostReport, Severity, Speed,
};

pub use crate::host_setup::HostProblem;

use crate::host_setup::paths::{self, Paths};
use crate::host_setup::{SetupHost, dials, messages};
use crate::settings::{HostNetwork, RONDE_ADVERTISE};
use crate::wire::agent::{AgentToDriver, DialTarget, DriverToAgent, Listener, NetworkChoice, Rate};
use crate::wire::{Callee, JobKey};
use crate::{Time, VERSION};

/// How often each host is asked for the time.
const QUESTIONS: u32 = 4;

/// How many ports of each address are tried, because a firewall may block only some.
pub const PORTS: u32 = 3;

/// Up to this many hosts, all pairs are measured; with more, each host is paired with some.
const EACH_WITH_EACH: usize = 8;

/// Time limit for a call between hosts, in which a lost packet is retransmitted once.
const CALL: Duration = Duration::from_millis(1500);

/// How long a host sends to measure a path.
const LOAD: Duration = Duration::from_millis(80);

/// How long hosts that have answered may take for everything else.
pub const WORK: Duration = Duration::from_secs(4);

/// An event on a host.
#[derive(Clone, Debug)]
pub enum DoctorInput {
    /// Its agent has connected.
    Hello {
        /// The agent's version.
        version: String,
    },
    /// It has reported the time.
    Clock(ClockOffset),
    /// It has sent any other message.
    Said(AgentToDriver),
    /// It cannot be reached, or was lost.
    Gone(HostProblem),
}

/// Messages to hosts, which are identified by their numbers.
pub type Commands = Vec<(usize, DriverToAgent)>;

/// A run of `ronde doctor`.
pub struct DoctorRun {
    launcher: Vec<SocketAddr>,
    key: JobKey,
    interfaces: Vec<String>,
    network: HostNetwork,
    limit: Duration,
    hosts: Vec<ProbedHost>,
    paths: Paths,
    trials: BTreeMap<(usize, usize), SpeedTest>,
    now: Time,
}

struct ProbedHost {
    state: ProbeState,
    setup_host: SetupHost,
    questions: u32,
    listens: u32,
    listeners: Vec<Listener>,
    report: HostReport,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeState {
    Awaited,
    There,
    Gone,
}

struct SpeedTest {
    address: SocketAddr,
    outcome: Option<Result<Rate, String>>,
}

impl DoctorRun {
    /// Starts with these hosts and the number of their slots; `limit` is how long they have to
    /// answer. `launcher` are the addresses of this process; the hosts listen on `interfaces`, or
    /// on all of them, for peers that hold the key.
    pub fn new(
        setup_hosts: Vec<(SetupHost, u32)>,
        launcher: Vec<SocketAddr>,
        (key, interfaces): (JobKey, Vec<String>),
        limit: Duration,
    ) -> DoctorRun {
        let hosts: Vec<ProbedHost> = setup_hosts.into_iter().map(ProbedHost::new).collect();
        DoctorRun {
            launcher,
            key,
            interfaces,
            network: HostNetwork::default(),
            limit,
            paths: Paths::new(hosts.len()),
            hosts,
            trials: BTreeMap::new(),
            now: Time::ZERO,
        }
    }

    /// This machine can be reached like this; hosts without a port range of their own use its range.
    pub fn within(self, network: HostNetwork) -> DoctorRun {
        DoctorRun { network, ..self }
    }

    /// Handles an event on a host at `now`.
    pub fn on(&mut self, index: usize, event: DoctorInput, now: Time) -> Commands {
        self.now = now;
        let mut commands = Vec::new();
        let listens = self.listens();
        let host = &mut self.hosts[index];
        match event {
            DoctorInput::Hello { version } => {
                host.state = ProbeState::There;
                host.report.ronde = Some(version.clone());
                if version == VERSION {
                    commands.push((index, DriverToAgent::AskTime));
                } else {
                    host.fail(messages::other_version(&version, VERSION));
                }
            }
            DoctorInput::Clock(clock) => {
                host.questions += 1;
                let known = host.report.clock.map_or(u64::MAX, |known| known.round_trip_micros);
                if clock.round_trip_micros < known {
                    host.report.clock = Some(clock);
                }
                match host.questions {
                    ..QUESTIONS => commands.push((index, DriverToAgent::AskTime)),
                    _ => {
                        let (key, interfaces) = (self.key.clone(), self.interfaces.clone());
                        let is_here = host.setup_host.here;
                        let host = index as u32;
                        let network = match is_here {
                            true => NetworkChoice::Launcher(self.network.clone()),
                            false => NetworkChoice::Own(self.network.ports.clone()),
                        };
                        let ports = 0;
                        let listen =
                            DriverToAgent::Listen { key, host, interfaces, ports, network };
                        commands.push((index, DriverToAgent::Examine));
                        commands.extend((0..listens).map(|_| (index, listen.clone())));
                    }
                }
            }
            DoctorInput::Said(AgentToDriver::Listening { listeners, known, .. }) => {
                commands.extend(self.listening(index, listeners, &known));
            }
            DoctorInput::Said(AgentToDriver::Examined { facts }) => {
                if listens == 0 {
                    host.report.addresses = facts.addresses.clone();
                }
                host.report.facts = Some(*facts);
            }
            DoctorInput::Said(AgentToDriver::Dialed { callee, address, outcome }) => {
                self.paths.record(index, callee, address, &outcome);
            }
            DoctorInput::Said(AgentToDriver::Measured { callee: Callee::Host(to), outcome }) => {
                if let Some(trial) = self.trials.get_mut(&(index, to as usize)) {
                    trial.outcome = Some(outcome);
                }
            }
            DoctorInput::Said(AgentToDriver::CannotListen { reason, hint }) => {
                host.report.trouble.get_or_insert(HostProblem { reason, hint });
                commands.extend(self.listening(index, Vec::new(), &[]));
            }
            // All other messages are about ranks, and there are none.
            DoctorInput::Said(_) => {}
            DoctorInput::Gone(problem) => {
                host.fail(problem);
                self.trials.retain(|(from, to), trial| {
                    trial.outcome.is_some() || ![*from, *to].contains(&index)
                });
            }
        }
        commands.extend(self.measure());
        commands
    }

    /// Handles timers that are due at `now`.
    pub fn tick(&mut self, now: Time) {
        self.now = now;
        if now < self.limit {
            return;
        }
        let limit = self.limit;
        for host in self.hosts.iter_mut().filter(|host| host.state == ProbeState::Awaited) {
            host.fail(messages::not_answered(&host.setup_host, limit));
        }
    }

    /// When `tick` must be called next.
    pub fn next_wakeup(&self) -> Time {
        match self.hosts.iter().any(|host| host.state == ProbeState::Awaited) {
            true => self.limit,
            false => self.limit + WORK,
        }
    }

    /// Whether everything has been found out, or the time is up.
    pub fn is_over(&self) -> bool {
        self.now >= self.limit + WORK
            || (self.hosts.iter().all(|host| host.is_settled(self.listens()))
                && self.trials.values().all(|trial| trial.outcome.is_some())
                && !self.is_dialing())
    }

    /// All results and what they mean.
    pub fn report(&self) -> DoctorReport {
        let mut report = DoctorReport {
            hosts: self.hosts.iter().map(|host| host.report.clone()).collect(),
            paths: self.paths.pairs().filter_map(|(pair, calls)| self.path(pair, calls)).collect(),
            speeds: self
                .trials
                .iter()
                .filter_map(|(pair, trial)| self.speed(*pair, trial))
                .collect(),
            findings: Vec::new(),
        };
        for host in report.hosts.iter_mut().filter(|host| host.facts.is_none()) {
            host.trouble.get_or_insert_with(|| {
                let hint = "run it again with `--verbose`, or with a longer `--start-timeout`";
                HostProblem::new("it answered, but then did not report its state", hint)
            });
        }
        let mut findings = machines::findings(&report.hosts);
        findings.extend(agree::findings(&report.hosts));
        findings.extend(network::findings(&report, &self.paths));
        report.findings = merged(findings);
        report
    }

    fn listening(&mut self, index: usize, listeners: Vec<Listener>, known: &[String]) -> Commands {
        let host = &mut self.hosts[index];
        host.listens += 1;
        host.listeners.extend(listeners);
        if host.listens < PORTS {
            return Vec::new();
        }
        let addresses = &mut host.report.addresses;
        for Listener { interface, address } in &host.listeners {
            let interface = interface.clone().unwrap_or_else(|| RONDE_ADVERTISE.name.into());
            let address = Address { interface, address: address.ip() };
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        match host.listeners.is_empty() {
            true => {
                host.report.trouble.get_or_insert(messages::no_address(known));
                Vec::new()
            }
            false => self.dial(index),
        }
    }

    /// Has a host that listens and all others that do dial each other.
    fn dial(&mut self, index: usize) -> Commands {
        let mut targets = Vec::new();
        if !self.hosts[index].setup_host.here {
            targets.push(DialTarget { callee: Callee::Launcher, addresses: self.launcher.clone() });
        }
        let mut commands = Vec::new();
        let count = self.hosts.len();
        for other in (0..count).filter(|other| *other != index) {
            if self.hosts[other].listens < PORTS || self.hosts[other].listeners.is_empty() {
                continue;
            }
            if dials(index, other, count) {
                targets.push(self.target(other));
            }
            if dials(other, index, count) {
                let target = self.target(index);
                self.paths.expect(other, &target);
                commands.push((other, dial(vec![target])));
            }
        }
        for target in &targets {
            self.paths.expect(index, target);
        }
        commands.push((index, dial(targets)));
        commands
    }

    fn target(&self, index: usize) -> DialTarget {
        DialTarget {
            callee: Callee::Host(index as u32),
            addresses: self.hosts[index].listeners.iter().map(|each| each.address).collect(),
        }
    }

    /// Starts the measurements between pairs of idle hosts.
    fn measure(&mut self) -> Commands {
        let count = self.hosts.len();
        let mut idle = self.idle();
        let mut commands = Vec::new();
        for distance in 1..count {
            if count > EACH_WITH_EACH && !distance.is_power_of_two() {
                continue;
            }
            for from in 0..count {
                let to = (from + distance) % count;
                if !idle[from] || !idle[to] || self.trials.contains_key(&(from, to)) {
                    continue;
                }
                let callee = Callee::Host(to as u32);
                let reached = self.paths.reached(from, callee);
                let Some(address) = reached.first().copied() else { continue };
                (idle[from], idle[to]) = (false, false);
                self.trials.insert((from, to), SpeedTest { address, outcome: None });
                let millis = LOAD.as_millis() as u32;
                commands.push((from, DriverToAgent::Measure { callee, address, millis }));
            }
        }
        commands
    }

    /// For each host, whether it does nothing that a measurement would disturb.
    fn idle(&self) -> Vec<bool> {
        let ready =
            |host: &ProbedHost| host.state == ProbeState::There && host.report.facts.is_some();
        let mut idle: Vec<bool> = self.hosts.iter().map(ready).collect();
        for ((from, to), _) in self.trials.iter().filter(|(_, trial)| trial.outcome.is_none()) {
            (idle[*from], idle[*to]) = (false, false);
        }
        idle
    }

    fn both_there(&self, from: usize, to: usize) -> bool {
        let there =
            |host: usize| self.hosts.get(host).is_none_or(|it| it.state == ProbeState::There);
        there(from) && there(to)
    }

    fn is_dialing(&self) -> bool {
        let mut pairs = self.paths.pairs().filter(|((from, to), _)| self.both_there(*from, *to));
        pairs.any(|(_, calls)| calls.iter().any(|call| call.outcome.is_none()))
    }

    /// How often each host listens; 0 if there is no other machine.
    fn listens(&self) -> u32 {
        if self.hosts.iter().any(|host| !host.setup_host.here) { PORTS } else { 0 }
    }

    fn name(&self, host: usize) -> Option<String> {
        self.hosts.get(host).map(|host| host.setup_host.name.clone())
    }

    /// The calls from one host to another; `None` if one of them is gone.
    fn path(&self, (from, to): (usize, usize), calls: &[paths::PathCheck]) -> Option<HostPath> {
        let call = |call: &paths::PathCheck| DialAttempt {
            address: call.address,
            micros: call.micros(),
            failure: call.failure(),
        };
        let calls = calls.iter().map(call).collect();
        self.both_there(from, to)
            .then(|| Some(HostPath { from: self.name(from)?, to: self.name(to), calls }))?
    }

    fn speed(&self, (from, to): (usize, usize), trial: &SpeedTest) -> Option<Speed> {
        let (rate, problem) = match trial.outcome.clone()? {
            Ok(rate) => (rate, None),
            Err(problem) => (Rate::default(), Some(problem)),
        };
        Some(Speed {
            from: self.name(from)?,
            to: self.name(to)?,
            address: trial.address,
            bytes_per_second: rate.bytes_per_second,
            round_trip_micros: rate.round_trip_micros,
            problem,
        })
    }
}

impl ProbedHost {
    fn new((setup_host, slots): (SetupHost, u32)) -> ProbedHost {
        let (name, here) = (setup_host.name.clone(), setup_host.here);
        let report = HostReport { name, here, slots, ..HostReport::default() };
        ProbedHost {
            state: ProbeState::Awaited,
            setup_host,
            questions: 0,
            listens: 0,
            listeners: vec![],
            report,
        }
    }

    fn fail(&mut self, problem: HostProblem) {
        self.state = ProbeState::Gone;
        self.report.trouble.get_or_insert(problem);
    }

    fn is_settled(&self, listens: u32) -> bool {
        match self.state {
            ProbeState::Awaited => false,
            ProbeState::Gone => true,
            ProbeState::There => self.report.facts.is_some() && self.listens >= listens,
        }
    }
}

fn dial(targets: Vec<DialTarget>) -> DriverToAgent {
    DriverToAgent::Dial { targets, limit_millis: CALL.as_millis() as u32 }
}

/// Merges findings that several hosts share; the most severe come first.
fn merged(findings: Vec<Finding>) -> Vec<Finding> {
    let mut merged: Vec<Finding> = Vec::new();
    for finding in findings {
        let same = |known: &&mut Finding| {
            (known.severity, &known.what, &known.fix)
                == (finding.severity, &finding.what, &finding.fix)
        };
        match merged.iter_mut().find(same) {
            Some(known) => known.hosts.extend(finding.hosts),
            None => merged.push(finding),
        }
    }
    merged.sort_by_key(|finding| finding.severity);
    merged
}
