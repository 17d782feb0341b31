//! Detects whether the processes of a job run, or are stopped, frozen or cut off.
//!
//! A worker that stops in the middle of a collective breaks no connection: its kernel keeps
//! acknowledging what it receives. So the driver asks. Every [`BEAT`], each connected worker gets a
//! `Ping`, which a dedicated thread answers whatever the program does, and each agent gets a
//! `Look`. When a worker is silent for [`SILENCE`], its agent inspects its processes and can
//! distinguish a stopped or frozen one from a busy one; an agent that is silent itself means a
//! frozen host.
//!
//! A stopped process may be resumed, so it is only reported, unless the user has limited how long
//! others may wait. Nothing here reads a clock or owns a connection.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::event::{JobEventKind, Seconds, WorkerInfo, process};
use crate::wire::agent::{Condition, ProcessState};
use crate::{Time, Worker};

/// How often workers and agents are pinged.
pub const BEAT: Duration = Duration::from_secs(2);

/// When a silent worker is inspected; more than two beats, so that one may be late.
pub const SILENCE: Duration = Duration::from_millis(4500);

/// How long a process is stopped before it is reported.
const NOTICE: Duration = Duration::from_secs(3);

/// When a worker is reported that is silent, but not stopped as far as is known.
const UNEXPLAINED: Duration = Duration::from_secs(8);

/// When a silent host is reported.
const HOST_SILENCE: Duration = Duration::from_secs(6);

/// If this much time passes between two ticks, it was the driver that did not run.
const GAP: Duration = Duration::from_secs(4);

/// Time between two ticks.
const STEP: Duration = Duration::from_secs(1);

/// Limits for waits that would otherwise never end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LivenessLimits {
    /// How long others may wait for a stopped or silent worker; forever if not set.
    pub awaited: Option<Duration>,
    /// How long a host may be silent, whether others wait for it or not.
    pub host: Option<Duration>,
}

/// All workers and hosts, and which workers can be pinged.
#[derive(Clone, Debug, Default)]
pub struct Roster {
    /// All workers.
    pub workers: BTreeMap<Worker, WorkerInfo>,
    /// Names of hosts, by the numbers of their agents.
    pub hosts: BTreeMap<u32, String>,
    /// Workers that are connected to the driver.
    pub connected: BTreeSet<Worker>,
    /// Workers that are not connected although others wait for them.
    pub missing: BTreeSet<Worker>,
}

/// An action for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LivenessAction {
    /// Ping these workers.
    Ping(Vec<Worker>),
    /// Ping the agent of a host and have it inspect these workers.
    Look(u32, Vec<Worker>),
    /// Report that a worker or host is stopped or silent, or has recovered.
    Tell(JobEventKind),
    /// Others have waited too long for this worker: end it for this cause.
    Overdue(Worker, String),
    /// Others have waited too long for this host.
    HostOverdue(u32, Duration),
}

/// The liveness of all workers and hosts of a job.
#[derive(Default)]
pub struct Liveness {
    limits: LivenessLimits,
    processes: BTreeMap<Worker, ProcessLiveness>,
    hosts: BTreeMap<u32, HostLiveness>,
    next: Time,
    beat: Time,
    last: Time,
}

#[derive(Default)]
struct ProcessLiveness {
    host: u32,
    pid: u32,
    /// When it last answered, while it is connected.
    heard: Option<Time>,
    /// Since when it has been waiting for others, according to its last answer.
    waits: Option<Time>,
    /// Since when it has been stopped, and how.
    halt: Option<(Time, Condition)>,
    /// Its state when its agent last looked.
    seen: Option<Condition>,
    reported: Option<Reported>,
    is_overdue: bool,
}

/// What was reported to the user.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Reported {
    since: Time,
    is_halted: bool,
}

struct HostLiveness {
    heard: Time,
    reported: Option<Time>,
    is_overdue: bool,
}

impl Liveness {
    /// No workers and no hosts yet.
    pub fn new(limits: LivenessLimits) -> Liveness {
        Liveness { limits, ..Liveness::default() }
    }

    /// An agent has connected or sent something.
    pub fn heard_host(&mut self, host: u32, now: Time) {
        let unheard = HostLiveness { heard: now, reported: None, is_overdue: false };
        self.hosts.entry(host).or_insert(unheard).heard = now;
    }

    /// An agent is no longer expected to answer.
    pub fn host_gone(&mut self, host: u32) {
        self.hosts.remove(&host);
        self.processes.retain(|_, process| process.host != host);
    }

    /// A worker's process was started.
    pub fn started(&mut self, worker: Worker, host: u32, pid: u32) {
        self.processes.insert(worker, ProcessLiveness { host, pid, ..ProcessLiveness::default() });
    }

    /// A worker's process has ended.
    pub fn ended(&mut self, worker: Worker) {
        self.processes.remove(&worker);
    }

    /// A worker has answered; `waits` is how long it has been waiting for others.
    pub fn heard(&mut self, worker: Worker, waits: Option<Duration>, now: Time) {
        if let Some(process) = self.processes.get_mut(&worker) {
            process.heard = Some(now);
            process.waits = waits.map(|waits| now.saturating_sub(waits));
        }
    }

    /// An agent reports that a worker was stopped by a signal.
    pub fn stopped(&mut self, worker: Worker, now: Time) {
        if let Some(process) = self.processes.get_mut(&worker) {
            let (pid, command, state) = (process.pid, String::new(), ProcessState::Stopped);
            process.halt.get_or_insert((now, Condition { pid, command, state }));
        }
    }

    /// An agent reports that a worker was resumed.
    pub fn continued(&mut self, worker: Worker) {
        if let Some(process) = self.processes.get_mut(&worker) {
            process.halt = None;
        }
    }

    /// An agent reports what it found when it looked.
    pub fn looked(&mut self, found: Vec<(Worker, Condition)>, now: Time) {
        for (worker, condition) in found {
            let Some(process) = self.processes.get_mut(&worker) else { continue };
            process.halt = match (condition.state.is_halted(), process.halt.take()) {
                (true, Some((since, _))) => Some((since, condition.clone())),
                // It was not stopped when it last answered.
                (true, None) => Some((process.heard.unwrap_or(now), condition.clone())),
                (false, _) => None,
            };
            process.seen = Some(condition);
        }
    }

    /// Since when a worker has been stopped, if it is.
    pub fn halted_since(&self, worker: Worker) -> Option<Time> {
        self.processes.get(&worker)?.halt.as_ref().map(|(since, _)| *since)
    }

    /// If there is a limit on how long others may wait: a worker known to be stopped, which
    /// explains their failures, and the cause for ending it.
    pub fn culprit(&self) -> Option<(Worker, String)> {
        let limit = self.limits.awaited?;
        self.processes.iter().find_map(|(worker, process)| {
            let (_, condition) = process.halt.as_ref()?;
            Some((*worker, overdue(Some(condition), limit)))
        })
    }

    /// When to call `tick` next.
    pub fn next_wakeup(&self) -> Option<Time> {
        (!self.hosts.is_empty() || !self.processes.is_empty()).then_some(self.next)
    }

    /// Does everything that is due.
    pub fn tick(&mut self, roster: &Roster, now: Time) -> Vec<LivenessAction> {
        if now < self.next {
            return Vec::new();
        }
        let gap = now.saturating_sub(self.last);
        self.last = now;
        self.next = now + STEP;
        self.update_connected(roster, gap, now);
        let mut actions = Vec::new();
        self.judge_hosts(roster, now, &mut actions);
        self.judge_workers(roster, now, &mut actions);
        if now >= self.beat {
            self.beat = now + BEAT;
            self.ask(roster, now, &mut actions);
        }
        actions
    }

    /// Updates which workers are connected. Silence does not count while nobody listened: those
    /// workers and hosts start over.
    fn update_connected(&mut self, roster: &Roster, gap: Duration, now: Time) {
        for (worker, process) in &mut self.processes {
            if !roster.connected.contains(worker) {
                (process.heard, process.waits) = (None, None);
            } else if process.heard.is_none() || gap >= GAP {
                process.heard = Some(now);
            }
        }
        if gap >= GAP {
            self.hosts.values_mut().for_each(|host| host.heard = now);
        }
    }

    fn ask(&self, roster: &Roster, now: Time, actions: &mut Vec<LivenessAction>) {
        let connected = self.processes.iter().filter(|(_, process)| process.heard.is_some());
        let connected: Vec<Worker> = connected.map(|(worker, _)| *worker).collect();
        if !connected.is_empty() {
            actions.push(LivenessAction::Ping(connected));
        }
        for host in self.hosts.keys() {
            let is_suspect = |(worker, process): &(&Worker, &ProcessLiveness)| {
                process.host == *host
                    && (roster.missing.contains(worker)
                        || process.halt.is_some()
                        || process.reported.is_some()
                        || process.silence(now) >= SILENCE)
            };
            let suspects = self.processes.iter().filter(is_suspect).map(|(worker, _)| *worker);
            actions.push(LivenessAction::Look(*host, suspects.collect()));
        }
    }

    fn judge_hosts(&mut self, roster: &Roster, now: Time, actions: &mut Vec<LivenessAction>) {
        let limit = self.limits;
        let waited = limit.awaited.is_some_and(|limit| self.others_wait(limit, None, now));
        for (number, host) in &mut self.hosts {
            let silence = now.saturating_sub(host.heard);
            let name = || roster.hosts.get(number).cloned().unwrap_or_default();
            match host.reported {
                None if silence >= HOST_SILENCE => {
                    host.reported = Some(host.heard);
                    let answers = |process: &ProcessLiveness| {
                        process.host == *number
                            && process.heard.is_some()
                            && process.silence(now) < SILENCE
                    };
                    let answering = self.processes.iter().filter(|(_, process)| answers(process));
                    let answering =
                        answering.filter_map(|(worker, _)| roster.workers.get(worker).cloned());
                    actions.push(LivenessAction::Tell(JobEventKind::HostSilent {
                        host: name(),
                        answering: answering.collect(),
                        seconds: Seconds(silence),
                        limit_seconds: limit.host.or(limit.awaited).map(Seconds),
                    }));
                }
                Some(since) if silence < HOST_SILENCE => {
                    (host.reported, host.is_overdue) = (None, false);
                    let seconds = Seconds(now.saturating_sub(since));
                    actions.push(LivenessAction::Tell(JobEventKind::HostAnswers {
                        host: name(),
                        seconds,
                    }));
                    let workers = self.processes.values_mut();
                    for process in workers.filter(|process| process.host == *number) {
                        process.heard = process.heard.map(|_| now);
                    }
                }
                Some(_) if !host.is_overdue => {
                    let awaited = waited && limit.awaited.is_some_and(|limit| silence >= limit);
                    if awaited || limit.host.is_some_and(|limit| silence >= limit) {
                        host.is_overdue = true;
                        actions.push(LivenessAction::HostOverdue(*number, silence));
                    }
                }
                _ => {}
            }
        }
    }

    fn judge_workers(&mut self, roster: &Roster, now: Time, actions: &mut Vec<LivenessAction>) {
        let silent_hosts: Vec<u32> = self
            .hosts
            .iter()
            .filter(|(_, host)| host.reported.is_some())
            .map(|(n, _)| *n)
            .collect();
        for (worker, process) in &mut self.processes {
            // The host's silence explains that of its workers.
            if let Some(member) = roster.workers.get(worker)
                && !silent_hosts.contains(&process.host)
            {
                actions.extend(
                    process.judge(member, self.limits.awaited, now).map(LivenessAction::Tell),
                );
            }
        }
        let Some(limit) = self.limits.awaited else { return };
        let late: Vec<Worker> = self
            .processes
            .iter()
            .filter(|(worker, process)| {
                process.reported.is_some_and(|reported| reported.since + limit <= now)
                    && !process.is_overdue
                    && self.others_wait(limit, Some(**worker), now)
            })
            .map(|(worker, _)| *worker)
            .collect();
        for worker in late {
            if let Some(process) = self.processes.get_mut(&worker) {
                process.is_overdue = true;
                let cause = overdue(process.halt.as_ref().map(|(_, how)| how), limit);
                actions.push(LivenessAction::Overdue(worker, cause));
            }
        }
    }

    /// Whether another worker has been waiting for that long and, as far as is known, still is.
    fn others_wait(&self, limit: Duration, but: Option<Worker>, now: Time) -> bool {
        self.processes.iter().any(|(worker, process)| {
            Some(*worker) != but
                && process.silence(now) < SILENCE
                && process.waits.is_some_and(|since| since + limit <= now)
        })
    }
}

impl ProcessLiveness {
    /// How long it has not answered; zero if it is not connected.
    fn silence(&self, now: Time) -> Duration {
        self.heard.map_or(Duration::ZERO, |heard| now.saturating_sub(heard))
    }

    fn judge(
        &mut self,
        member: &WorkerInfo,
        limit: Option<Duration>,
        now: Time,
    ) -> Option<JobEventKind> {
        let silence = self.silence(now);
        let member = || member.clone();
        match (&self.halt, self.reported) {
            (Some((since, condition)), reported)
                if *since + NOTICE <= now
                    && reported.is_none_or(|reported| !reported.is_halted) =>
            {
                self.reported = Some(Reported { since: *since, is_halted: true });
                Some(JobEventKind::WorkerHalted {
                    member: member(),
                    process: condition.clone(),
                    seconds: Seconds(now.saturating_sub(*since)),
                    limit_seconds: limit.map(Seconds),
                })
            }
            (None, None) if silence >= UNEXPLAINED => {
                let since = now.saturating_sub(silence);
                self.reported = Some(Reported { since, is_halted: false });
                let (process, seconds) = (self.seen.clone(), Seconds(silence));
                Some(JobEventKind::WorkerSilent { member: member(), process, seconds })
            }
            (None, Some(reported)) if silence < SILENCE => {
                (self.reported, self.seen, self.is_overdue) = (None, None, false);
                let seconds = Seconds(now.saturating_sub(reported.since));
                Some(JobEventKind::WorkerResumed { member: member(), seconds })
            }
            _ => None,
        }
    }
}

/// Why a rank that others waited for too long is ended. Continues its name.
fn overdue(condition: Option<&Condition>, limit: Duration) -> String {
    let what = match condition {
        Some(condition) => {
            let how = match condition.state {
                ProcessState::Frozen => {
                    "was frozen (in a frozen cgroup, for example by `docker pause`)"
                }
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
