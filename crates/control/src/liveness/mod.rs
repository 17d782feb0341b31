//! Whether the processes of a job still run, or are stopped, frozen or cut off.
//!
//! A worker that stops in the middle of a collective breaks no connection: its kernel goes on to
//! acknowledge what it is sent. So the driver asks. Every worker that is connected gets a `Ping` every
//! [`BEAT`], which a thread of its own answers whatever the program does; every agent gets a `Look`.
//! Whoever is silent for [`SILENCE`] has its processes looked at by its agent, who can tell a stopped
//! or frozen one from one that is busy; and an agent that is itself silent means a frozen host.
//!
//! A stopped process may be resumed, so being stopped is told and nothing more, unless the user has set
//! a limit to how long others may wait. Nothing here reads a clock or owns a connection.

#[cfg(test)]
mod tests;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::event::{Happening, Member};
use crate::wire::agent::{Condition, ProcessState};
use crate::{Time, Worker};

/// How often workers and agents are asked.
pub const BEAT: Duration = Duration::from_secs(2);

/// After how long a silent worker is looked at; more than two beats, so that one may be late.
pub const SILENCE: Duration = Duration::from_millis(4500);

/// How long a process may be stopped before it is worth a word.
const NOTICE: Duration = Duration::from_secs(3);

/// After how long a worker that is silent, but not stopped as far as anybody knows, is named.
const UNEXPLAINED: Duration = Duration::from_secs(8);

/// After how long a silent host is named.
const HOST_SILENCE: Duration = Duration::from_secs(6);

/// If this much time passes between two looks, it was the driver that did not run.
const GAP: Duration = Duration::from_secs(4);

/// How often this machine looks at what it knows.
const STEP: Duration = Duration::from_secs(1);

/// What ends a wait that would otherwise have no end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// How long others may wait for somebody who is stopped or silent; for ever, unless it is set.
    pub awaited: Option<Duration>,
    /// How long a host may be silent, whether anybody waits for it or not.
    pub host: Option<Duration>,
}

/// Who can be asked at this moment.
#[derive(Clone, Debug, Default)]
pub struct Roll {
    /// Workers with a connection to the driver.
    pub connected: BTreeSet<Worker>,
    /// Workers without one, for which others wait.
    pub missing: BTreeSet<Worker>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask these workers whether they are there.
    Ping(Vec<Worker>),
    /// Ask the agent of a host, and have it look at these workers.
    Look(u32, Vec<Worker>),
    /// Tell the user that a worker is stopped.
    Halted(Worker, Condition, Duration),
    /// Tell the user that a worker does not answer; this is all that is known of its process.
    Silent(Worker, Option<Condition>, Duration),
    /// Tell the user that a worker goes on.
    Resumed(Worker, Duration),
    /// Tell the user that a host does not answer, or if some of its workers do, its agent.
    HostSilent(u32, Vec<Worker>, Duration),
    /// Tell the user that a host goes on.
    HostBack(u32, Duration),
    /// A worker has been waited for too long: end it, for this cause.
    Overdue(Worker, String),
    /// A host has been waited for too long.
    HostOverdue(u32, Duration),
}

impl Action {
    /// What is to be told, as an event; the rest is to be done. Workers and hosts are named by the
    /// caller, and `limit` is how long others may wait for a worker.
    pub fn happening(
        &self,
        limit: Option<Duration>,
        member: impl Fn(Worker) -> Option<Member>,
        host: impl Fn(u32) -> Option<String>,
    ) -> Option<Happening> {
        Some(match self {
            Action::Halted(worker, process, seconds) => Happening::WorkerHalted {
                member: member(*worker)?,
                process: process.clone(),
                seconds: *seconds,
                limit_seconds: limit,
            },
            Action::Silent(worker, process, seconds) => Happening::WorkerSilent {
                member: member(*worker)?,
                process: process.clone(),
                seconds: *seconds,
            },
            Action::Resumed(worker, seconds) => {
                Happening::WorkerResumed { member: member(*worker)?, seconds: *seconds }
            }
            Action::HostSilent(number, workers, seconds) => Happening::HostSilent {
                host: host(*number)?,
                answering: workers.iter().filter_map(|worker| member(*worker)).collect(),
                seconds: *seconds,
            },
            Action::HostBack(number, seconds) => {
                Happening::HostAnswers { host: host(*number)?, seconds: *seconds }
            }
            Action::Ping(_) | Action::Look(..) | Action::Overdue(..) | Action::HostOverdue(..) => {
                return None;
            }
        })
    }
}

/// Everything known about who answers.
pub struct Liveness {
    limits: Limits,
    processes: BTreeMap<Worker, Process>,
    hosts: BTreeMap<u32, Host>,
    next: Time,
    beat: Time,
    last: Time,
}

struct Process {
    host: u32,
    pid: u32,
    /// When it was last heard, while it is connected.
    heard: Option<Time>,
    /// Since when it waits for others, as it said then.
    waits: Option<Time>,
    /// Since when it is stopped, and how.
    halt: Option<(Time, Condition)>,
    /// How it was when its agent last looked.
    seen: Option<Condition>,
    told: Option<Told>,
    is_overdue: bool,
}

/// What the user knows.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Told {
    since: Time,
    is_halted: bool,
}

struct Host {
    heard: Time,
    told: Option<Time>,
    is_overdue: bool,
}

impl Liveness {
    /// Nothing runs yet.
    pub fn new(limits: Limits) -> Liveness {
        let (processes, hosts) = (BTreeMap::new(), BTreeMap::new());
        let (next, beat, last) = (Time::ZERO, Time::ZERO, Time::ZERO);
        Liveness { limits, processes, hosts, next, beat, last }
    }

    /// An agent is there, or has said something.
    pub fn heard_host(&mut self, host: u32, now: Time) {
        let unheard = Host { heard: now, told: None, is_overdue: false };
        self.hosts.entry(host).or_insert(unheard).heard = now;
    }

    /// An agent is not expected to answer any more.
    pub fn host_gone(&mut self, host: u32) {
        self.hosts.remove(&host);
        self.processes.retain(|_, process| process.host != host);
    }

    /// A worker's process runs.
    pub fn started(&mut self, worker: Worker, host: u32, pid: u32) {
        let process = Process {
            host,
            pid,
            heard: None,
            waits: None,
            halt: None,
            seen: None,
            told: None,
            is_overdue: false,
        };
        self.processes.insert(worker, process);
    }

    /// A worker's process has ended.
    pub fn ended(&mut self, worker: Worker) {
        self.processes.remove(&worker);
    }

    /// A worker has answered; for so long it has waited for others.
    pub fn heard(&mut self, worker: Worker, waits: Option<Duration>, now: Time) {
        if let Some(process) = self.processes.get_mut(&worker) {
            process.heard = Some(now);
            process.waits = waits.map(|waits| now.saturating_sub(waits));
        }
    }

    /// The agent has been told by the system that a worker was stopped by a signal.
    pub fn stopped(&mut self, worker: Worker, now: Time) {
        if let Some(process) = self.processes.get_mut(&worker) {
            let (pid, command, state) = (process.pid, String::new(), ProcessState::Stopped);
            process.halt.get_or_insert((now, Condition { pid, command, state }));
        }
    }

    /// The same when it goes on.
    pub fn continued(&mut self, worker: Worker) {
        if let Some(process) = self.processes.get_mut(&worker) {
            process.halt = None;
        }
    }

    /// What an agent has found.
    pub fn looked(&mut self, found: Vec<(Worker, Condition)>, now: Time) {
        for (worker, condition) in found {
            let Some(process) = self.processes.get_mut(&worker) else { continue };
            process.halt = match (condition.state.is_halted(), process.halt.take()) {
                (true, Some((since, _))) => Some((since, condition.clone())),
                // It was not stopped when it was last heard.
                (true, None) => Some((process.heard.unwrap_or(now), condition.clone())),
                (false, _) => None,
            };
            process.seen = Some(condition);
        }
    }

    /// A worker that is known to be stopped, if others may wait only so long: what they suffer is its
    /// doing. And why it should be ended.
    pub fn culprit(&self) -> Option<(Worker, String)> {
        let limit = self.limits.awaited?;
        self.processes.iter().find_map(|(worker, process)| {
            let (_, condition) = process.halt.as_ref()?;
            Some((*worker, words::overdue(Some(condition), limit)))
        })
    }

    /// When to look again.
    pub fn next_wakeup(&self) -> Option<Time> {
        (!self.hosts.is_empty() || !self.processes.is_empty()).then_some(self.next)
    }

    /// Does what its time has come for.
    pub fn tick(&mut self, roll: &Roll, now: Time) -> Vec<Action> {
        if now < self.next {
            return Vec::new();
        }
        let gap = now.saturating_sub(self.last);
        self.last = now;
        self.next = now + STEP;
        self.call(roll, gap, now);
        let mut actions = Vec::new();
        self.judge_hosts(now, &mut actions);
        self.judge_workers(now, &mut actions);
        if now >= self.beat {
            self.beat = now + BEAT;
            self.ask(roll, now, &mut actions);
        }
        actions
    }

    /// Takes note of who is connected. Whoever could not be heard because nobody listened starts anew.
    fn call(&mut self, roll: &Roll, gap: Duration, now: Time) {
        for (worker, process) in &mut self.processes {
            if !roll.connected.contains(worker) {
                (process.heard, process.waits) = (None, None);
            } else if process.heard.is_none() || gap >= GAP {
                process.heard = Some(now);
            }
        }
        if gap >= GAP {
            self.hosts.values_mut().for_each(|host| host.heard = now);
        }
    }

    fn ask(&self, roll: &Roll, now: Time, actions: &mut Vec<Action>) {
        let connected = self.processes.iter().filter(|(_, process)| process.heard.is_some());
        let connected: Vec<Worker> = connected.map(|(worker, _)| *worker).collect();
        if !connected.is_empty() {
            actions.push(Action::Ping(connected));
        }
        for host in self.hosts.keys() {
            let is_suspect = |(worker, process): &(&Worker, &Process)| {
                process.host == *host
                    && (roll.missing.contains(worker)
                        || process.halt.is_some()
                        || process.told.is_some()
                        || process.silence(now) >= SILENCE)
            };
            let suspects = self.processes.iter().filter(is_suspect).map(|(worker, _)| *worker);
            actions.push(Action::Look(*host, suspects.collect()));
        }
    }

    fn judge_hosts(&mut self, now: Time, actions: &mut Vec<Action>) {
        let limit = self.limits;
        let waited = limit.awaited.is_some_and(|limit| self.anybody_waits(limit, None, now));
        for (number, host) in &mut self.hosts {
            let silence = now.saturating_sub(host.heard);
            let there = || self.processes.iter().filter(|(_, process)| process.host == *number);
            match host.told {
                None if silence >= HOST_SILENCE => {
                    host.told = Some(host.heard);
                    let workers = there().filter(|(_, process)| process.silence(now) < SILENCE);
                    let workers = workers.filter(|(_, process)| process.heard.is_some());
                    let workers = workers.map(|(worker, _)| *worker).collect();
                    actions.push(Action::HostSilent(*number, workers, silence));
                }
                Some(since) if silence < HOST_SILENCE => {
                    (host.told, host.is_overdue) = (None, false);
                    actions.push(Action::HostBack(*number, now.saturating_sub(since)));
                    let workers = self.processes.values_mut();
                    for process in workers.filter(|process| process.host == *number) {
                        process.heard = process.heard.map(|_| now);
                    }
                }
                Some(_) if !host.is_overdue => {
                    let awaited = waited && limit.awaited.is_some_and(|limit| silence >= limit);
                    if awaited || limit.host.is_some_and(|limit| silence >= limit) {
                        host.is_overdue = true;
                        actions.push(Action::HostOverdue(*number, silence));
                    }
                }
                _ => {}
            }
        }
    }

    fn judge_workers(&mut self, now: Time, actions: &mut Vec<Action>) {
        let silent_hosts: Vec<u32> =
            self.hosts.iter().filter(|(_, host)| host.told.is_some()).map(|(n, _)| *n).collect();
        for (worker, process) in &mut self.processes {
            // The host's silence explains that of its workers.
            if silent_hosts.contains(&process.host) {
                continue;
            }
            actions.extend(process.judge(*worker, now));
        }
        let Some(limit) = self.limits.awaited else { return };
        let late: Vec<Worker> = self
            .processes
            .iter()
            .filter(|(worker, process)| {
                process.told.is_some_and(|told| told.since + limit <= now)
                    && !process.is_overdue
                    && self.anybody_waits(limit, Some(**worker), now)
            })
            .map(|(worker, _)| *worker)
            .collect();
        for worker in late {
            if let Some(process) = self.processes.get_mut(&worker) {
                process.is_overdue = true;
                let cause = words::overdue(process.halt.as_ref().map(|(_, how)| how), limit);
                actions.push(Action::Overdue(worker, cause));
            }
        }
    }

    /// Whether somebody else has waited for that long, and still does as far as is known.
    fn anybody_waits(&self, limit: Duration, but: Option<Worker>, now: Time) -> bool {
        self.processes.iter().any(|(worker, process)| {
            Some(*worker) != but
                && process.silence(now) < SILENCE
                && process.waits.is_some_and(|since| since + limit <= now)
        })
    }
}

impl Process {
    /// For how long it has not answered, if it could have.
    fn silence(&self, now: Time) -> Duration {
        self.heard.map_or(Duration::ZERO, |heard| now.saturating_sub(heard))
    }

    fn judge(&mut self, worker: Worker, now: Time) -> Option<Action> {
        let silence = self.silence(now);
        match (&self.halt, self.told) {
            (Some((since, condition)), told)
                if *since + NOTICE <= now && told.is_none_or(|told| !told.is_halted) =>
            {
                self.told = Some(Told { since: *since, is_halted: true });
                Some(Action::Halted(worker, condition.clone(), now.saturating_sub(*since)))
            }
            (None, None) if silence >= UNEXPLAINED => {
                let since = now.saturating_sub(silence);
                self.told = Some(Told { since, is_halted: false });
                Some(Action::Silent(worker, self.seen.clone(), silence))
            }
            (None, Some(told)) if silence < SILENCE => {
                (self.told, self.seen, self.is_overdue) = (None, None, false);
                Some(Action::Resumed(worker, now.saturating_sub(told.since)))
            }
            _ => None,
        }
    }
}
