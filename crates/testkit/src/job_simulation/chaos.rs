//! The random set-up of a simulated job, and the faults injected into it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use ronde_control::event::{HostSourceKind, JobKind};
use ronde_control::job::{AgentId, CooldownScope, HostOffer, JobInput, JobMachine, JobSpec};
use ronde_control::wire::RankToDriver;
use ronde_control::wire::agent::Exit;
use ronde_control::{Time, Worker};

use super::{JobSimulation, Scheduled};
use crate::rng::TestRng;

impl JobSimulation {
    pub(super) fn of(seed: u64) -> JobSimulation {
        let mut rng = TestRng::of(seed);
        let hosts = 1 + rng.below(4);
        let offers: Vec<HostOffer> = (0..hosts)
            .map(|host| HostOffer { host: format!("h{host}"), slots: 1 + rng.below(3) as u32 })
            .collect();
        let slots: u32 = offers.iter().map(|offer| offer.slots).sum();
        let job_spec = match rng.once_in(3) {
            true => JobSimulation::fixed(slots, &mut rng),
            false => JobSimulation::elastic(slots, &mut rng),
        };
        let faults = rng.below(15);
        let seed = rng.roll();
        JobSimulation::with(
            (JobMachine::new("1", job_spec.clone(), seed), job_spec),
            offers,
            rng,
            faults,
        )
    }

    fn fixed(slots: u32, rng: &mut TestRng) -> JobSpec {
        let second = Duration::from_secs(1);
        let stopped = rng.once_in(2).then_some(20 * second);
        JobSpec::fixed(1 + rng.below(slots as usize) as u32, 90 * second, stopped)
    }

    fn elastic(slots: u32, rng: &mut TestRng) -> JobSpec {
        let start = 1 + rng.below(slots as usize) as u32;
        let second = Duration::from_secs(1);
        JobSpec {
            kind: JobKind::Elastic,
            least_hosts: 1,
            start,
            min: 1 + rng.below(start as usize) as u32,
            max: rng.once_in(2).then(|| start + rng.below(3) as u32),
            timeout: 60 * second,
            joining: 90 * second,
            stopped: Some(5 * second),
            leaving: 30 * second,
            resets: rng.once_in(5).then(|| rng.below(6) as u32),
            cooldown: (!rng.once_in(3)).then_some((second, 4 * second)),
            cooldown_scope: if rng.once_in(2) { CooldownScope::Host } else { CooldownScope::Slot },
            source: if rng.once_in(4) { HostSourceKind::List } else { HostSourceKind::Script },
        }
    }

    fn with(
        (machine, job_spec): (JobMachine, JobSpec),
        offers: Vec<HostOffer>,
        rng: TestRng,
        faults: usize,
    ) -> JobSimulation {
        JobSimulation {
            machine,
            job_spec,
            rng,
            now: Time::ZERO,
            agenda: BinaryHeap::<Reverse<(Time, u64)>>::new(),
            scheduled: BTreeMap::new(),
            order: 0,
            workers: BTreeMap::new(),
            agents: BTreeMap::new(),
            connections: BTreeMap::new(),
            busy: BTreeMap::new(),
            calls: 0,
            programs: BTreeMap::new(),
            epoch: 0,
            safe: 0,
            offers,
            faults: 0,
            faults_left: faults,
            last_fault: Time::ZERO,
            failed_worker: None,
            events: 0,
            report: None,
            log: None,
        }
    }

    pub(super) fn begin(&mut self) {
        self.list();
        if self.faults_left > 0 {
            self.soon(4000, Scheduled::Fault);
        }
    }

    fn list(&mut self) {
        let offers = self.offers.clone();
        self.tell_machine(JobInput::Discovered(offers));
    }

    /// An agent that was requested connects, or fails to.
    pub(super) fn arrive(&mut self, agent: AgentId) {
        if !self.agents.contains_key(&agent) {
            return;
        }
        let fails = self.faults_left > 0 && self.rng.once_in(8);
        match (fails, self.job_spec.kind) {
            (false, _) => self.tell_machine(JobInput::Ready(agent)),
            (true, JobKind::Elastic) => self.agent_lost(agent),
            (true, JobKind::Fixed) => {
                self.faults += 1;
                self.tell_machine(JobInput::CalledOff("error: a host is missing\n".into()));
            }
        }
    }

    pub(super) fn agent_lost(&mut self, agent: AgentId) {
        self.end_agent(agent);
        let (reason, hint) = ("it does not respond".to_owned(), "look".to_owned());
        self.soon(1500, Scheduled::Event(JobInput::Gone { agent, reason, hint }));
    }

    /// Injects one fault, and schedules the next one.
    pub(super) fn fault(&mut self) {
        self.faults += 1;
        self.faults_left -= 1;
        self.last_fault = self.now;
        let alive = self.workers.iter().filter(|(_, simulated)| simulated.is_alive());
        let alive: Vec<Worker> = alive.map(|(worker, _)| *worker).collect();
        let is_elastic = self.job_spec.kind == JobKind::Elastic;
        match (self.rng.below(10), alive.is_empty()) {
            (0, _) if is_elastic => self.change_hosts(),
            (0, _) if self.rng.once_in(4) => self.tell_machine(JobInput::Interrupted(15)),
            (1, _) if !self.agents.is_empty() => {
                let agents: Vec<AgentId> = self.agents.keys().copied().collect();
                let agent = self.rng.pick(&agents);
                self.agent_lost(agent);
            }
            (2, _) if is_elastic => {
                self.tell_machine(JobInput::Undiscovered("the script hangs".into()));
            }
            (_, true) => {}
            (kind, false) => {
                let worker = self.rng.pick(&alive);
                self.harm(kind, worker, &alive);
            }
        }
        if self.faults_left > 0 {
            // Faults also come in quick succession.
            let millis = if self.rng.once_in(3) { 20 } else { 5000 };
            self.soon(millis, Scheduled::Fault);
        } else {
            self.resume_all();
        }
    }

    fn harm(&mut self, kind: usize, worker: Worker, alive: &[Worker]) {
        match kind {
            3..=5 => {
                self.failed_worker = Some(worker);
                self.die(worker, if kind == 5 { Exit::Code(1) } else { Exit::Signal(9) });
            }
            6 => self.stop_or_resume(worker),
            7 => self.lose_connection(worker),
            8 => {
                let connection = self.workers[&worker].connection;
                let connection = connection.filter(|_| self.job_spec.kind == JobKind::Elastic);
                if let Some(connection) = connection.filter(|_| !self.workers[&worker].is_stopped())
                {
                    let reason = "it was sent SIGTERM".to_owned();
                    self.send(connection, RankToDriver::Departing { reason });
                }
            }
            _ => {
                let other = self.rng.pick(alive);
                let stopped = self.workers[&worker].is_stopped();
                if other != worker && !stopped {
                    self.break_link(worker, other);
                }
            }
        }
    }

    fn stop_or_resume(&mut self, worker: Worker) {
        match self.workers[&worker].is_stopped() {
            false => {
                self.stop(worker);
                self.agent_reports(JobInput::Stopped(worker));
            }
            true => self.continue_worker(worker),
        }
    }

    fn continue_worker(&mut self, worker: Worker) {
        self.agent_reports(JobInput::Continued(worker));
        self.resume(worker);
    }

    /// Reports of an agent about a worker arrive in order.
    fn agent_reports(&mut self, event: JobInput) {
        self.at(self.now + Duration::from_millis(5), Scheduled::Event(event));
    }

    fn resume_all(&mut self) {
        let stopped = self.workers.iter().filter(|(_, simulated)| simulated.is_stopped());
        for worker in stopped.map(|(worker, _)| *worker).collect::<Vec<_>>() {
            // Some stay stopped: the machine must give up on them. In a fixed job it may do so only
            // while others wait for them.
            if self.rng.once_in(2) || self.job_spec.kind == JobKind::Fixed {
                self.continue_worker(worker);
            }
        }
    }

    fn change_hosts(&mut self) {
        match self.rng.below(3) {
            0 if self.offers.len() > 1 => {
                let gone = self.rng.below(self.offers.len());
                self.offers.remove(gone);
            }
            1 => {
                let name = format!("h{}", self.rng.below(8));
                if !self.offers.iter().any(|offer| offer.host == name) {
                    let slots = 1 + self.rng.below(3) as u32;
                    self.offers.push(HostOffer { host: name, slots });
                }
            }
            _ => {
                let index = self.rng.below(self.offers.len());
                self.offers[index].slots = 1 + self.rng.below(3) as u32;
            }
        }
        self.list();
    }
}
