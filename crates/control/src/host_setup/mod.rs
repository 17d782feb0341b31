//! Connects the hosts of a job before its ranks start, as a pure decision.
//!
//! 1. The agent of every host sends `Hello`. If all hosts are this machine, the ranks start at
//!    once.
//! 2. Otherwise each agent listens on all its addresses and reports them.
//! 3. Each agent dials every address of the launcher and of the other hosts, and reports the
//!    results. Interface names do not matter here; an address that several hosts have, such as that
//!    of a docker bridge, answers only if it is the intended host's (see the handshake).
//! 4. Once every host has reached the launcher and every earlier host, the ranks start, with the
//!    addresses that worked, best first. Ranks dial only earlier ones.
//!
//! If this cannot work, the set-up fails with an error that names the hosts, what was observed, and
//! what to do. Nothing here waits, reads a clock or owns a socket.

pub(crate) mod messages;
pub(crate) mod paths;
#[cfg(test)]
mod tests;

pub use messages::other_version;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::Serialize;

use crate::PortRange;
use crate::Time;
use crate::job::AgentId;
use crate::wire::Callee;
use crate::wire::agent::{Dial, DialTarget, Listener};
use paths::Paths;

/// How long to wait for more hosts to fail or answer once one has failed, so that the error names
/// all.
pub const TOGETHER: Duration = Duration::from_secs(2);

/// How long to wait for better addresses once every needed path has one.
pub const SETTLING: Duration = Duration::from_millis(50);

/// A host that is to run ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupHost {
    /// Name of the host, as the user wrote it.
    pub name: String,
    /// Whether it is the launcher's own machine.
    pub here: bool,
}

/// What is wrong with a host, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostProblem {
    /// What was observed, in words.
    pub reason: String,
    /// What to do about it.
    pub hint: String,
}

/// An event on a host.
#[derive(Clone, Debug)]
pub enum HostSetupInput {
    /// Its agent has connected.
    Hello {
        /// The agent's version.
        version: String,
    },
    /// Its agent is listening.
    Listening {
        /// The addresses the agent listens on.
        listeners: Vec<Listener>,
        /// The interfaces that the user could name instead.
        known: Vec<String>,
        /// Free ports there.
        ports: Vec<u16>,
        /// The ports that ranks there may listen on.
        range: PortRange,
    },
    /// Its agent has dialed a process.
    Dialed {
        /// The process that was dialed.
        callee: Callee,
        /// The address that was dialed.
        address: SocketAddr,
        /// Result of the attempt.
        outcome: Dial,
    },
    /// It cannot be reached, or was lost.
    Gone(HostProblem),
}

/// An action for the caller. Hosts are identified by their agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostSetupAction {
    /// Have this host listen.
    Listen(AgentId),
    /// Have this host dial.
    Dial(AgentId, Vec<DialTarget>),
    /// Start the ranks: one plan per host.
    Start(Vec<(AgentId, HostPlan)>),
    /// Give up: the problem of each host that is responsible, and the error message about all of
    /// them.
    Fail(Vec<(AgentId, HostProblem)>, String),
}

/// What the ranks of a host need to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPlan {
    /// The addresses of the launcher's rendezvous, best first.
    pub rendezvous: Vec<SocketAddr>,
    /// Where they listen for ranks of other hosts, best first; empty if there are none.
    pub listen: Vec<IpAddr>,
    /// The address of the first host.
    pub first: Option<IpAddr>,
    /// Free ports on their host.
    pub ports: Vec<u16>,
    /// The ports that they may listen on.
    pub range: PortRange,
}

/// The set-up of the hosts of a job.
pub struct HostSetup {
    version: String,
    launcher: Vec<SocketAddr>,
    hosts: Vec<SetupEntry>,
    /// When it began; all other times are relative to that.
    since: Time,
    limit: Duration,
    paths: Paths,
    phase: SetupPhase,
    /// Whether any host is, or may later be, another machine than the launcher's.
    spans: bool,
}

struct SetupEntry {
    agent: AgentId,
    setup_host: SetupHost,
    state: SetupState,
    listeners: Vec<Listener>,
    ports: Vec<u16>,
    range: PortRange,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SetupState {
    Awaited,
    There,
    Listening,
    Gone(HostProblem),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SetupPhase {
    /// Not all agents have connected and are listening.
    Gathering { fail_at: Option<Time> },
    /// The agents dial each other.
    Dialing { settle_at: Option<Time> },
    /// The ranks may start, or the set-up has failed.
    Over,
}

impl HostSetup {
    /// Waits for these hosts, for at most `limit` from `now` on. `launcher` are the addresses of
    /// the rendezvous.
    pub fn new(
        version: &str,
        setup_hosts: Vec<(AgentId, SetupHost)>,
        launcher: Vec<SocketAddr>,
        (limit, now): (Duration, Time),
    ) -> HostSetup {
        let host = |(agent, setup_host)| {
            let (listeners, ports, range) = (Vec::new(), Vec::new(), PortRange::default());
            SetupEntry { agent, setup_host, state: SetupState::Awaited, listeners, ports, range }
        };
        let hosts: Vec<SetupEntry> = setup_hosts.into_iter().map(host).collect();
        HostSetup {
            version: version.to_owned(),
            launcher,
            paths: Paths::new(hosts.len()),
            spans: hosts.iter().any(|host| !host.setup_host.here),
            hosts,
            since: now,
            limit,
            phase: SetupPhase::Gathering { fail_at: None },
        }
    }

    /// Hosts may be added later: even the launcher's own machine listens for them.
    pub fn among_others(self) -> HostSetup {
        HostSetup { spans: true, ..self }
    }

    /// Whether it waits for the host of this agent.
    pub fn awaits(&self, agent: AgentId) -> bool {
        self.index(agent).is_some()
    }

    fn index(&self, agent: AgentId) -> Option<usize> {
        self.hosts.iter().position(|host| host.agent == agent)
    }

    /// Handles an event on a host at `now`.
    pub fn on(&mut self, agent: AgentId, event: HostSetupInput, now: Time) -> Vec<HostSetupAction> {
        let Some(host) = self.index(agent).filter(|_| !self.is_over()) else { return Vec::new() };
        let mut actions = Vec::new();
        match event {
            HostSetupInput::Hello { version } if version != self.version => {
                self.hosts[host].state =
                    SetupState::Gone(messages::other_version(&version, &self.version));
            }
            HostSetupInput::Hello { .. } => {
                self.hosts[host].state = SetupState::There;
                if self.spans {
                    actions.push(HostSetupAction::Listen(agent));
                }
            }
            HostSetupInput::Listening { listeners, known, ports, range } => {
                let host = &mut self.hosts[host];
                host.state = match listeners.is_empty() {
                    false => SetupState::Listening,
                    true => SetupState::Gone(messages::no_address(&known)),
                };
                (host.listeners, host.ports, host.range) = (listeners, ports, range);
            }
            HostSetupInput::Dialed { callee, address, outcome } => {
                self.paths.record(host, callee, address, &outcome);
            }
            HostSetupInput::Gone(host_problem) => {
                self.hosts[host].state = SetupState::Gone(host_problem);
            }
        }
        actions.extend(self.tick(now));
        actions
    }

    /// Handles timers that are due at `now`.
    pub fn tick(&mut self, now: Time) -> Vec<HostSetupAction> {
        let now = now.saturating_sub(self.since);
        match self.phase {
            SetupPhase::Gathering { fail_at } => self.gather(fail_at, now),
            SetupPhase::Dialing { settle_at } => self.settle(settle_at, now).into_iter().collect(),
            SetupPhase::Over => Vec::new(),
        }
    }

    /// When `tick` must be called next.
    pub fn next_wakeup(&self) -> Option<Time> {
        let due = match self.phase {
            SetupPhase::Gathering { fail_at } => fail_at,
            SetupPhase::Dialing { settle_at } => settle_at,
            SetupPhase::Over => return None,
        };
        Some(self.since + due.unwrap_or(self.limit).min(self.limit))
    }

    /// Whether it has ended, successfully or not.
    pub fn is_over(&self) -> bool {
        self.phase == SetupPhase::Over
    }

    fn gather(&mut self, fail_at: Option<Time>, now: Time) -> Vec<HostSetupAction> {
        let awaited = self.hosts.iter().any(|host| host.state == SetupState::Awaited);
        let gone = self.hosts.iter().any(|host| matches!(host.state, SetupState::Gone(_)));
        let due = now >= self.limit || fail_at.is_some_and(|time| now >= time);
        if due || (gone && !awaited) {
            return vec![self.fail(messages::missing(&self.hosts, self.limit, now), now)];
        }
        if gone {
            self.phase = SetupPhase::Gathering { fail_at: Some(fail_at.unwrap_or(now + TOGETHER)) };
            return Vec::new();
        }
        if !self.spans && !awaited {
            self.phase = SetupPhase::Over;
            let plan = HostPlan { rendezvous: self.launcher.clone(), ..HostPlan::default() };
            return vec![HostSetupAction::Start(
                self.agents().map(|agent| (agent, plan.clone())).collect(),
            )];
        }
        if self.hosts.iter().any(|host| host.state != SetupState::Listening) {
            return Vec::new();
        }
        self.phase = SetupPhase::Dialing { settle_at: None };
        let agents: Vec<AgentId> = self.agents().collect();
        let dial = |(host, agent)| HostSetupAction::Dial(agent, self.targets(host));
        agents.into_iter().enumerate().map(dial).collect()
    }

    /// The processes that a host dials: the launcher, and other hosts.
    fn targets(&mut self, from: usize) -> Vec<DialTarget> {
        let count = self.hosts.len();
        let others = (0..count).filter(|to| *to != from && dials(from, *to, count));
        let mut targets: Vec<DialTarget> = others
            .map(|to| DialTarget {
                callee: Callee::Host(to as u32),
                addresses: self.hosts[to].listeners.iter().map(|each| each.address).collect(),
            })
            .collect();
        targets
            .insert(0, DialTarget { callee: Callee::Launcher, addresses: self.launcher.clone() });
        for target in &targets {
            self.paths.expect(from, target);
        }
        targets
    }

    fn settle(&mut self, settle_at: Option<Time>, now: Time) -> Option<HostSetupAction> {
        if self.hosts.iter().any(|host| matches!(host.state, SetupState::Gone(_))) {
            return Some(self.fail(messages::missing(&self.hosts, self.limit, now), now));
        }
        let complete = self.paths.is_complete();
        let waiting = self.paths.is_waiting() && now < self.limit;
        if complete && (!waiting || settle_at.is_some_and(|time| now >= time)) {
            self.phase = SetupPhase::Over;
            return Some(HostSetupAction::Start(self.agents().zip(self.plans()).collect()));
        }
        if !complete && !waiting {
            return Some(self.fail(messages::unreachable(&self.hosts, &self.paths), now));
        }
        if complete && settle_at.is_none() {
            self.phase = SetupPhase::Dialing { settle_at: Some(now + SETTLING) };
        }
        None
    }

    fn plans(&self) -> Vec<HostPlan> {
        let plan = |host: usize| HostPlan {
            rendezvous: self.paths.reached(host, Callee::Launcher),
            listen: self.listen(host),
            first: match self.paths.reached(host, Callee::Host(0)).first() {
                Some(address) => Some(address.ip()),
                // The first host itself: an advertised address may not work from inside.
                None => self.on_interfaces(0).or_else(|| self.listen(0).first().copied()),
            },
            ports: self.hosts[host].ports.clone(),
            range: self.hosts[host].range.clone(),
        };
        (0..self.hosts.len()).map(plan).collect()
    }

    /// Where others reach the ranks of a host, best first. If that is an advertised address, all of
    /// the host's own follow, because its ranks may not reach each other at the advertised one.
    fn listen(&self, host: usize) -> Vec<IpAddr> {
        let listeners = &self.hosts[host].listeners;
        let reached = self.paths.best_of(host);
        let is_used = |listener: &Listener| {
            listener.interface.is_none() && reached.contains(&listener.address)
        };
        let all = listeners.iter().filter(|_| reached.is_empty() || listeners.iter().any(is_used));
        let mut chosen: Vec<IpAddr> = Vec::new();
        for address in reached.iter().chain(all.map(|listener| &listener.address)) {
            if !chosen.contains(&address.ip()) {
                chosen.push(address.ip());
            }
        }
        chosen
    }

    /// The first of the addresses at which others reach a host that one of its interfaces has.
    fn on_interfaces(&self, host: usize) -> Option<IpAddr> {
        let listeners = &self.hosts[host].listeners;
        let has = |ip: &IpAddr| {
            listeners.iter().any(|each| each.interface.is_some() && each.address.ip() == *ip)
        };
        self.listen(host).into_iter().find(has)
    }

    fn agents(&self) -> impl Iterator<Item = AgentId> {
        self.hosts.iter().map(|host| host.agent)
    }

    fn fail(&mut self, text: String, now: Time) -> HostSetupAction {
        self.phase = SetupPhase::Over;
        let mut problems = messages::absent(&self.hosts, self.limit, now);
        if problems.is_empty() {
            problems = messages::isolated(&self.hosts, &self.paths);
        }
        let named = |(host, host_problem): (usize, _)| (self.hosts[host].agent, host_problem);
        HostSetupAction::Fail(problems.into_iter().map(named).collect(), text)
    }
}

/// Whether a host dials another one: if there are very many hosts, each dials only some, to limit
/// the number of calls.
pub(crate) fn dials(from: usize, to: usize, count: usize) -> bool {
    const ALL: usize = 64;
    count <= ALL || to == 0 || from.abs_diff(to).is_power_of_two()
}
