//! What `ronde doctor` asks of the hosts of a job, in which order, and what the answers mean.
//!
//! 1. The agent of a host says `Hello`. It is asked for the time, a few times over; the fastest answer
//!    shows how its clock differs.
//! 2. It is asked for the facts, and to listen on a few ports of every address.
//! 3. Whoever listens is dialled by all who do, and dials them and the launcher.
//! 4. Two hosts that reach each other and have nothing else to do measure the way between them. No
//!    host measures with two others at a time.
//!
//! Nobody waits for a host that does not answer: the others go on among themselves. What comes out
//! is a [`Report`]. Nothing here waits, reads a clock or owns a socket.

mod agree;
mod facts;
mod machines;
mod network;
mod report;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

pub use facts::{Address, Cpus, Facts, Gpu, Gpus, Limit, Limits, Memory, Python};
pub use report::{Call, Clock, Finding, HostReport, Path, Report, Severity, Speed};

pub use crate::muster::Trouble;

use crate::Time;
use crate::muster::paths::{self, Paths};
use crate::muster::{Guest, dials, words};
use crate::wire::Callee;
use crate::wire::agent::{Dial, Listener, Rate, Target};

/// How often the time is asked for.
const QUESTIONS: u32 = 4;

/// How many ports of each address are tried: a firewall may let some through.
pub const PORTS: u32 = 3;

/// Up to so many hosts are measured each with each; of more, each with some.
const EACH_WITH_EACH: usize = 8;

/// How long hosts that have answered may take for the rest.
pub const WORK: Duration = Duration::from_secs(4);

/// What happened on a host.
#[derive(Clone, Debug)]
pub enum Event {
    /// Its agent is there.
    Hello {
        /// The agent's version.
        version: String,
    },
    /// It has told the time.
    Told(Clock),
    /// It listens on one more port of each address.
    Listening {
        /// Where.
        listeners: Vec<Listener>,
        /// The interfaces that would do if they were asked for.
        known: Vec<String>,
    },
    /// It has told the facts.
    Examined(Box<Facts>),
    /// It has dialled somebody.
    Dialled {
        /// Whom.
        callee: Callee,
        /// Where.
        address: SocketAddr,
        /// What came of it.
        outcome: Dial,
    },
    /// It has measured the way to another.
    Measured {
        /// To whom.
        callee: Callee,
        /// The figures, or why there are none.
        outcome: Result<Rate, String>,
    },
    /// It cannot be reached, or was lost.
    Gone(Trouble),
}

/// What to do next. Hosts are known by their number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask a host for the time.
    AskTime(usize),
    /// Ask it for the facts.
    Examine(usize),
    /// Have it listen, once more.
    Listen(usize),
    /// Have it dial.
    Dial(usize, Vec<Target>),
    /// Have it measure the way to another host, at this address.
    Measure(usize, usize, SocketAddr),
}

/// All hosts while they are looked at.
pub struct Visit {
    version: String,
    launcher: Vec<SocketAddr>,
    limit: Duration,
    hosts: Vec<Host>,
    paths: Paths,
    trials: BTreeMap<(usize, usize), Trial>,
    now: Time,
}

struct Host {
    state: State,
    guest: Guest,
    questions: u32,
    doors: u32,
    listeners: Vec<Listener>,
    report: HostReport,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Awaited,
    There,
    Gone,
}

struct Trial {
    address: SocketAddr,
    outcome: Option<Result<Rate, String>>,
}

impl Visit {
    /// Begins with these hosts and how many ranks each is to take; `limit` is how long they have to
    /// answer. `launcher` are the addresses of this process.
    pub fn new(
        version: &str,
        guests: Vec<(Guest, u32)>,
        launcher: Vec<SocketAddr>,
        limit: Duration,
    ) -> Visit {
        let hosts: Vec<Host> = guests.into_iter().map(Host::new).collect();
        Visit {
            version: version.to_owned(),
            launcher,
            limit,
            paths: Paths::new(hosts.len()),
            hosts,
            trials: BTreeMap::new(),
            now: Time::ZERO,
        }
    }

    /// Takes in what happened on a host at `now`.
    pub fn on(&mut self, index: usize, event: Event, now: Time) -> Vec<Action> {
        self.now = now;
        let mut actions = Vec::new();
        let doors = self.doors();
        let host = &mut self.hosts[index];
        match event {
            Event::Hello { version } => {
                host.state = State::There;
                host.report.ronde = Some(version.clone());
                if version == self.version {
                    actions.push(Action::AskTime(index));
                } else {
                    host.fail(words::other_version(&version, &self.version));
                }
            }
            Event::Told(clock) => {
                host.questions += 1;
                let known = host.report.clock.map_or(u64::MAX, |known| known.round_trip_micros);
                if clock.round_trip_micros < known {
                    host.report.clock = Some(clock);
                }
                match host.questions {
                    ..QUESTIONS => actions.push(Action::AskTime(index)),
                    _ => {
                        actions.push(Action::Examine(index));
                        actions.extend((0..doors).map(|_| Action::Listen(index)));
                    }
                }
            }
            Event::Listening { listeners, known } => {
                actions.extend(self.listening(index, listeners, &known));
            }
            Event::Examined(facts) => {
                if doors == 0 {
                    host.report.addresses = facts.addresses.clone();
                }
                host.report.facts = Some(*facts);
            }
            Event::Dialled { callee, address, outcome } => {
                self.paths.note(index, callee, address, &outcome);
            }
            Event::Measured { callee, outcome } => {
                if let Callee::Host(to) = callee
                    && let Some(trial) = self.trials.get_mut(&(index, to as usize))
                {
                    trial.outcome = Some(outcome);
                }
            }
            Event::Gone(trouble) => {
                host.fail(trouble);
            }
        }
        actions.extend(self.measure());
        actions
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time) {
        self.now = now;
        if now < self.limit {
            return;
        }
        let limit = self.limit;
        for host in self.hosts.iter_mut().filter(|host| host.state == State::Awaited) {
            host.fail(words::not_answered(&host.guest, limit));
        }
    }

    /// When something must happen even if nothing else does.
    pub fn next_wakeup(&self) -> Time {
        match self.hosts.iter().any(|host| host.state == State::Awaited) {
            true => self.limit,
            false => self.limit + WORK,
        }
    }

    /// Whether there is nothing left to find out, or no time.
    pub fn is_over(&self) -> bool {
        self.now >= self.limit + WORK
            || (self.hosts.iter().all(|host| host.is_settled(self.doors()))
                && !self.trials.iter().any(|(pair, trial)| self.is_running(*pair, trial))
                && !self.is_dialling())
    }

    /// What was found out, and what it means.
    pub fn report(&self) -> Report {
        let mut report = Report {
            hosts: self.hosts.iter().map(|host| host.report.clone()).collect(),
            paths: self.paths.pairs().filter_map(|(pair, calls)| self.path(pair, calls)).collect(),
            speeds: self
                .trials
                .iter()
                .filter_map(|(pair, trial)| self.speed(*pair, trial))
                .collect(),
            findings: Vec::new(),
        };
        for host in report.hosts.iter_mut().filter(|host| host.trouble.is_none()) {
            if host.facts.is_none() {
                let reason = "it has answered, and then not told how it is".into();
                let hint = "run it again with `--verbose`, or with a longer `--start-timeout`";
                host.trouble = Some(Trouble { reason, hint: hint.into() });
            }
        }
        let mut findings = machines::findings(&report.hosts);
        findings.extend(agree::findings(&report.hosts));
        findings.extend(network::findings(&report, &self.paths));
        report.findings = merged(findings);
        report
    }

    fn listening(
        &mut self,
        index: usize,
        listeners: Vec<Listener>,
        known: &[String],
    ) -> Vec<Action> {
        let host = &mut self.hosts[index];
        host.doors += 1;
        host.listeners.extend(listeners);
        if host.doors < PORTS {
            return Vec::new();
        }
        let addresses = &mut host.report.addresses;
        for Listener { interface, address } in &host.listeners {
            let address = Address { interface: interface.clone(), address: address.ip() };
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        match host.listeners.is_empty() {
            true => {
                host.report.trouble.get_or_insert(words::no_address(known));
                Vec::new()
            }
            false => self.dial(index),
        }
    }

    /// Has a host that listens dial the others who do, and them it.
    fn dial(&mut self, index: usize) -> Vec<Action> {
        let mut targets = Vec::new();
        if !self.hosts[index].guest.here {
            targets.push(Target { callee: Callee::Launcher, addresses: self.launcher.clone() });
        }
        let mut actions = Vec::new();
        let count = self.hosts.len();
        for other in (0..count).filter(|other| *other != index) {
            if self.hosts[other].doors < PORTS || self.hosts[other].listeners.is_empty() {
                continue;
            }
            if dials(index, other, count) {
                targets.push(self.target(other));
            }
            if dials(other, index, count) {
                let target = self.target(index);
                self.paths.expect(other, &target);
                actions.push(Action::Dial(other, vec![target]));
            }
        }
        for target in &targets {
            self.paths.expect(index, target);
        }
        actions.push(Action::Dial(index, targets));
        actions
    }

    fn target(&self, index: usize) -> Target {
        Target {
            callee: Callee::Host(index as u32),
            addresses: self.hosts[index].listeners.iter().map(|each| each.address).collect(),
        }
    }

    /// Pairs that may measure now.
    fn measure(&mut self) -> Vec<Action> {
        let count = self.hosts.len();
        let mut idle = self.idle();
        let mut actions = Vec::new();
        for distance in 1..count {
            if count > EACH_WITH_EACH && !distance.is_power_of_two() {
                continue;
            }
            for from in 0..count {
                let to = (from + distance) % count;
                if !idle[from] || !idle[to] || self.trials.contains_key(&(from, to)) {
                    continue;
                }
                let reached = self.paths.reached(from, Callee::Host(to as u32));
                let Some(address) = reached.first().copied() else { continue };
                (idle[from], idle[to]) = (false, false);
                self.trials.insert((from, to), Trial { address, outcome: None });
                actions.push(Action::Measure(from, to, address));
            }
        }
        actions
    }

    /// Whether each host has nothing to do that a measurement would disturb.
    fn idle(&self) -> Vec<bool> {
        let ready = |host: &Host| host.state == State::There && host.report.facts.is_some();
        let mut idle: Vec<bool> = self.hosts.iter().map(ready).collect();
        for ((from, to), trial) in &self.trials {
            if self.is_running((*from, *to), trial) {
                (idle[*from], idle[*to]) = (false, false);
            }
        }
        idle
    }

    fn is_running(&self, (from, to): (usize, usize), trial: &Trial) -> bool {
        trial.outcome.is_none() && self.both_there(from, to)
    }

    fn both_there(&self, from: usize, to: usize) -> bool {
        let there = |host: usize| self.hosts.get(host).is_none_or(|it| it.state == State::There);
        there(from) && there(to)
    }

    fn is_dialling(&self) -> bool {
        let mut pairs = self.paths.pairs().filter(|((from, to), _)| self.both_there(*from, *to));
        pairs.any(|(_, calls)| calls.iter().any(|call| call.outcome.is_none()))
    }

    /// How often a host listens; never if there is nobody else.
    fn doors(&self) -> u32 {
        if self.hosts.iter().any(|host| !host.guest.here) { PORTS } else { 0 }
    }

    fn name(&self, host: usize) -> Option<String> {
        self.hosts.get(host).map(|host| host.guest.name.clone())
    }

    /// What one host heard from another; nothing if one of the two is gone.
    fn path(&self, (from, to): (usize, usize), calls: &[paths::Call]) -> Option<Path> {
        let call = |call: &paths::Call| Call {
            address: call.address,
            micros: call.micros(),
            failure: call.failure(),
        };
        let calls = calls.iter().map(call).collect();
        self.both_there(from, to)
            .then(|| Some(Path { from: self.name(from)?, to: self.name(to), calls }))?
    }

    fn speed(&self, (from, to): (usize, usize), trial: &Trial) -> Option<Speed> {
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

impl Host {
    fn new((guest, slots): (Guest, u32)) -> Host {
        let (name, here) = (guest.name.clone(), guest.here);
        let report = HostReport { name, here, slots, ..HostReport::default() };
        Host { state: State::Awaited, guest, questions: 0, doors: 0, listeners: vec![], report }
    }

    fn fail(&mut self, trouble: Trouble) {
        self.state = State::Gone;
        self.report.trouble.get_or_insert(trouble);
    }

    fn is_settled(&self, doors: u32) -> bool {
        match self.state {
            State::Awaited => false,
            State::Gone => true,
            State::There => self.report.facts.is_some() && self.doors >= doors,
        }
    }
}

/// What several hosts have is told once; the worst comes first.
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
