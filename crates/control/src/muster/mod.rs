//! How the hosts of a job come together before its ranks start, as a decision.
//!
//! 1. The agent of every host says `Hello`. If all hosts are this machine, the ranks start at once.
//! 2. Otherwise each agent listens on all its addresses and says where.
//! 3. Each dials the launcher and the other hosts at every address they have, and tells what came of
//!    it. Interface names mean nothing here; an address that several hosts have, such as a docker
//!    bridge's, answers only to the host it is meant for (see the handshake).
//! 4. Once every host has reached the launcher and every host in front of it, the ranks start, with
//!    the addresses that worked, best first. Ranks dial only those in front of them.
//!
//! Whatever cannot work ends the muster with words: which hosts, what was seen of them, what to do.
//! Nothing here waits, reads a clock or owns a socket.

pub(crate) mod paths;
#[cfg(test)]
mod tests;
pub(crate) mod words;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::Serialize;

use crate::Time;
use crate::wire::Callee;
use crate::wire::agent::{Dial, Listener, Target};
use paths::Paths;

/// How long others may still fail or answer once one host has failed, so that all are named at once.
pub const TOGETHER: Duration = Duration::from_secs(2);

/// How long a better address may still answer once there is one for everybody.
pub const SETTLING: Duration = Duration::from_millis(50);

/// A host that is to take part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// Its name, as the user wrote it.
    pub name: String,
    /// Whether it is the launcher's own machine.
    pub here: bool,
}

/// What is wrong with a host, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trouble {
    /// What was seen, in words.
    pub reason: String,
    /// What to do about it.
    pub hint: String,
}

/// What happened on a host.
#[derive(Clone, Debug)]
pub enum Event {
    /// Its agent is there.
    Hello {
        /// The agent's version.
        version: String,
    },
    /// Its agent listens.
    Listening {
        /// Where.
        listeners: Vec<Listener>,
        /// The interfaces that would do if they were asked for.
        known: Vec<String>,
        /// Ports that are free there.
        ports: Vec<u16>,
    },
    /// Its agent has dialled somebody.
    Dialled {
        /// Whom.
        callee: Callee,
        /// Where.
        address: SocketAddr,
        /// What came of it.
        outcome: Dial,
    },
    /// It cannot be reached, or was lost.
    Gone(Trouble),
}

/// What to do about it. Hosts are known by their number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Have this host listen.
    Listen(usize),
    /// Have this host dial.
    Dial(usize, Vec<Target>),
    /// Start the ranks: one plan per host.
    Start(Vec<Plan>),
    /// Give up, and tell the user this.
    Fail(String),
}

/// What the ranks of a host are told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Where they reach the launcher's rendezvous, best first.
    pub rendezvous: Vec<SocketAddr>,
    /// Where they listen for ranks of other hosts, best first; nowhere if there are none.
    pub listen: Vec<IpAddr>,
    /// Where they reach the first host.
    pub first: Option<IpAddr>,
    /// Ports that are free on their host.
    pub ports: Vec<u16>,
}

/// The hosts on their way to a job.
pub struct Muster {
    version: String,
    launcher: Vec<SocketAddr>,
    hosts: Vec<Host>,
    limit: Duration,
    paths: Paths,
    phase: Phase,
    /// Whether any host is not the launcher's own machine, or may come that is not.
    spans: bool,
}

struct Host {
    guest: Guest,
    state: State,
    listeners: Vec<Listener>,
    ports: Vec<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Awaited,
    There,
    Listening,
    Gone(Trouble),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not all agents are there, or listen.
    Gathering { fail_at: Option<Time> },
    /// They dial each other.
    Dialling { settle_at: Option<Time> },
    /// The ranks may start, or never will.
    Over,
}

impl Muster {
    /// Awaits these hosts, for at most `limit`. `launcher` are the addresses of the rendezvous.
    pub fn new(
        version: &str,
        guests: Vec<Guest>,
        launcher: Vec<SocketAddr>,
        limit: Duration,
    ) -> Muster {
        let host =
            |guest| Host { guest, state: State::Awaited, listeners: Vec::new(), ports: Vec::new() };
        let hosts: Vec<Host> = guests.into_iter().map(host).collect();
        Muster {
            version: version.to_owned(),
            launcher,
            paths: Paths::new(hosts.len()),
            spans: hosts.iter().any(|host| !host.guest.here),
            hosts,
            limit,
            phase: Phase::Gathering { fail_at: None },
        }
    }

    /// The same where others may come later: even the launcher's own machine listens for them.
    pub fn among_others(self) -> Muster {
        Muster { spans: true, ..self }
    }

    /// Takes in what happened on a host at `now`.
    pub fn on(&mut self, host: usize, event: Event, now: Time) -> Vec<Action> {
        if self.phase == Phase::Over {
            return Vec::new();
        }
        let mut actions = Vec::new();
        match event {
            Event::Hello { version } if version != self.version => {
                self.hosts[host].state = State::Gone(words::other_version(&version, &self.version));
            }
            Event::Hello { .. } => {
                self.hosts[host].state = State::There;
                if self.spans {
                    actions.push(Action::Listen(host));
                }
            }
            Event::Listening { listeners, known, ports } => {
                self.hosts[host].state = match listeners.is_empty() {
                    false => State::Listening,
                    true => State::Gone(words::no_address(&known)),
                };
                (self.hosts[host].listeners, self.hosts[host].ports) = (listeners, ports);
            }
            Event::Dialled { callee, address, outcome } => {
                self.paths.note(host, callee, address, &outcome);
            }
            Event::Gone(trouble) => self.hosts[host].state = State::Gone(trouble),
        }
        actions.extend(self.go_on(now));
        actions
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time) -> Vec<Action> {
        self.go_on(now).into_iter().collect()
    }

    /// When something must happen even if nothing else does.
    pub fn next_wakeup(&self) -> Option<Time> {
        match self.phase {
            Phase::Gathering { fail_at: at } | Phase::Dialling { settle_at: at } => {
                Some(at.unwrap_or(self.limit).min(self.limit))
            }
            Phase::Over => None,
        }
    }

    /// Whether it has ended, well or not.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// The hosts because of which a muster has failed: what is wrong with each, and what to do.
    pub fn troubles(&self, now: Time) -> Vec<(usize, Trouble)> {
        let absent = words::absent(&self.hosts, self.limit, now);
        match absent.is_empty() {
            true => words::lonely(&self.hosts, &self.paths),
            false => absent,
        }
    }

    fn go_on(&mut self, now: Time) -> Vec<Action> {
        match self.phase {
            Phase::Gathering { fail_at } => self.gather(fail_at, now),
            Phase::Dialling { settle_at } => self.settle(settle_at, now).into_iter().collect(),
            Phase::Over => Vec::new(),
        }
    }

    fn gather(&mut self, fail_at: Option<Time>, now: Time) -> Vec<Action> {
        let awaited = self.hosts.iter().any(|host| host.state == State::Awaited);
        let gone = self.hosts.iter().any(|host| matches!(host.state, State::Gone(_)));
        let due = now >= self.limit || fail_at.is_some_and(|time| now >= time);
        if due || (gone && !awaited) {
            return vec![self.fail(words::missing(&self.hosts, self.limit, now))];
        }
        if gone {
            self.phase = Phase::Gathering { fail_at: Some(fail_at.unwrap_or(now + TOGETHER)) };
            return Vec::new();
        }
        if !self.spans && !awaited {
            self.phase = Phase::Over;
            let plan = Plan { rendezvous: self.launcher.clone(), ..Plan::default() };
            return vec![Action::Start(vec![plan; self.hosts.len()])];
        }
        if self.hosts.iter().any(|host| host.state != State::Listening) {
            return Vec::new();
        }
        self.phase = Phase::Dialling { settle_at: None };
        (0..self.hosts.len()).map(|host| Action::Dial(host, self.targets(host))).collect()
    }

    /// Whom a host dials: the launcher, and the others.
    fn targets(&mut self, from: usize) -> Vec<Target> {
        let count = self.hosts.len();
        let others = (0..count).filter(|to| *to != from && dials(from, *to, count));
        let mut targets: Vec<Target> = others
            .map(|to| Target {
                callee: Callee::Host(to as u32),
                addresses: self.hosts[to].listeners.iter().map(|each| each.address).collect(),
            })
            .collect();
        targets.insert(0, Target { callee: Callee::Launcher, addresses: self.launcher.clone() });
        for target in &targets {
            self.paths.expect(from, target);
        }
        targets
    }

    fn settle(&mut self, settle_at: Option<Time>, now: Time) -> Option<Action> {
        if self.hosts.iter().any(|host| matches!(host.state, State::Gone(_))) {
            return Some(self.fail(words::missing(&self.hosts, self.limit, now)));
        }
        let complete = self.paths.is_complete();
        let waiting = self.paths.is_waiting() && now < self.limit;
        if complete && (!waiting || settle_at.is_some_and(|time| now >= time)) {
            self.phase = Phase::Over;
            return Some(Action::Start(self.plans()));
        }
        if !complete && !waiting {
            return Some(self.fail(words::unreachable(&self.hosts, &self.paths)));
        }
        if complete && settle_at.is_none() {
            self.phase = Phase::Dialling { settle_at: Some(now + SETTLING) };
        }
        None
    }

    fn plans(&self) -> Vec<Plan> {
        let listeners = |host: usize| -> Vec<IpAddr> {
            let all = self.hosts[host].listeners.iter().map(|each| each.address);
            let reached = self.paths.best_of(host);
            let chosen = if reached.is_empty() { all.collect() } else { reached };
            chosen.iter().map(SocketAddr::ip).collect()
        };
        let plan = |host: usize| Plan {
            rendezvous: self.paths.reached(host, Callee::Launcher),
            listen: listeners(host),
            first: match self.paths.reached(host, Callee::Host(0)).first() {
                Some(address) => Some(address.ip()),
                None => listeners(0).first().copied(),
            },
            ports: self.hosts[host].ports.clone(),
        };
        (0..self.hosts.len()).map(plan).collect()
    }

    fn fail(&mut self, text: String) -> Action {
        self.phase = Phase::Over;
        Action::Fail(text)
    }
}

/// Whether a host of so many dials another: of very many hosts each dials only some, so that the
/// number of calls stays bearable.
pub(crate) fn dials(from: usize, to: usize, count: usize) -> bool {
    const ALL: usize = 64;
    count <= ALL || to == 0 || from.abs_diff(to).is_power_of_two()
}
