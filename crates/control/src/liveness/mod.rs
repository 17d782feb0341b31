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

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::event::{Happening, Member, Seconds, process};
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

/// Who can be asked at this moment, and what everybody is called.
#[derive(Clone, Debug, Default)]
pub struct Roll {
    /// All workers.
    pub workers: BTreeMap<Worker, Member>,
    /// The names of hosts, by the numbers of their agents.
    pub hosts: BTreeMap<u32, String>,
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
    /// Tell the user that somebody is stopped or silent, or goes on.
    Tell(Happening),
    /// A worker has been waited for too long: end it, for this cause.
    Overdue(Worker, String),
    /// A host has been waited for too long.
    HostOverdue(u32, Duration),
}

/// Everything known about who answers.
#[derive(Default)]
pub struct Liveness {
    limits: Limits,
    processes: BTreeMap<Worker, Process>,
    hosts: BTreeMap<u32, Host>,
    next: Time,
    beat: Time,
    last: Time,
}

#[derive(Default)]
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
        Liveness { limits, ..Liveness::default() }
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
        self.processes.insert(worker, Process { host, pid, ..Process::default() });
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

    /// Since when a worker is stopped, if it is.
    pub fn halted_since(&self, worker: Worker) -> Option<Time> {
        self.processes.get(&worker)?.halt.as_ref().map(|(since, _)| *since)
    }

    /// A worker that is known to be stopped, if others may wait only so long: what they suffer is its
    /// doing. And why it should be ended.
    pub fn culprit(&self) -> Option<(Worker, String)> {
        let limit = self.limits.awaited?;
        self.processes.iter().find_map(|(worker, process)| {
            let (_, condition) = process.halt.as_ref()?;
            Some((*worker, overdue(Some(condition), limit)))
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
        self.judge_hosts(roll, now, &mut actions);
        self.judge_workers(roll, now, &mut actions);
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

    fn judge_hosts(&mut self, roll: &Roll, now: Time, actions: &mut Vec<Action>) {
        let limit = self.limits;
        let waited = limit.awaited.is_some_and(|limit| self.anybody_waits(limit, None, now));
        for (number, host) in &mut self.hosts {
            let silence = now.saturating_sub(host.heard);
            let name = || roll.hosts.get(number).cloned().unwrap_or_default();
            match host.told {
                None if silence >= HOST_SILENCE => {
                    host.told = Some(host.heard);
                    let answers = |process: &Process| {
                        process.host == *number
                            && process.heard.is_some()
                            && process.silence(now) < SILENCE
                    };
                    let answering = self.processes.iter().filter(|(_, process)| answers(process));
                    let answering =
                        answering.filter_map(|(worker, _)| roll.workers.get(worker).cloned());
                    actions.push(Action::Tell(Happening::HostSilent {
                        host: name(),
                        answering: answering.collect(),
                        seconds: Seconds(silence),
                    }));
                }
                Some(since) if silence < HOST_SILENCE => {
                    (host.told, host.is_overdue) = (None, false);
                    let seconds = Seconds(now.saturating_sub(since));
                    actions.push(Action::Tell(Happening::HostAnswers { host: name(), seconds }));
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

    fn judge_workers(&mut self, roll: &Roll, now: Time, actions: &mut Vec<Action>) {
        let silent_hosts: Vec<u32> =
            self.hosts.iter().filter(|(_, host)| host.told.is_some()).map(|(n, _)| *n).collect();
        for (worker, process) in &mut self.processes {
            // The host's silence explains that of its workers.
            if let Some(member) = roll.workers.get(worker)
                && !silent_hosts.contains(&process.host)
            {
                actions.extend(process.judge(member, self.limits.awaited, now).map(Action::Tell));
            }
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
                let cause = overdue(process.halt.as_ref().map(|(_, how)| how), limit);
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

    fn judge(&mut self, member: &Member, limit: Option<Duration>, now: Time) -> Option<Happening> {
        let silence = self.silence(now);
        let member = || member.clone();
        match (&self.halt, self.told) {
            (Some((since, condition)), told)
                if *since + NOTICE <= now && told.is_none_or(|told| !told.is_halted) =>
            {
                self.told = Some(Told { since: *since, is_halted: true });
                Some(Happening::WorkerHalted {
                    member: member(),
                    process: condition.clone(),
                    seconds: Seconds(now.saturating_sub(*since)),
                    limit_seconds: limit.map(Seconds),
                })
            }
            (None, None) if silence >= UNEXPLAINED => {
                let since = now.saturating_sub(silence);
                self.told = Some(Told { since, is_halted: false });
                let (process, seconds) = (self.seen.clone(), Seconds(silence));
                Some(Happening::WorkerSilent { member: member(), process, seconds })
            }
            (None, Some(told)) if silence < SILENCE => {
                (self.told, self.seen, self.is_overdue) = (None, None, false);
                let seconds = Seconds(now.saturating_sub(told.since));
                Some(Happening::WorkerResumed { member: member(), seconds })
            }
            _ => None,
        }
    }
}

/// Why a rank that was waited for too long is ended. Reads behind its name.
fn overdue(condition: Option<&Condition>, limit: Duration) -> String {
    let what = match condition {
        Some(condition) => {
            let how = match condition.state {
                ProcessState::Frozen => "was frozen (a frozen cgroup, as by `docker pause`)",
                ProcessState::Traced => "was stopped by a debugger",
                _ => "was stopped (SIGSTOP)",
            };
            format!("{how}, {}", process(condition))
        }
        None => "did not answer".into(),
    };
    format!(
        "{what}, while others waited for it longer than the {} s of \
         HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        limit.as_secs()
    )
}
