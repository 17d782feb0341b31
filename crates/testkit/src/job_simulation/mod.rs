//! Simulates a job, fixed or elastic: the launcher's real state machine, with simulated hosts,
//! workers, network and clock.
//!
//! Messages are delayed but stay in order on their connection; connections break; workers and
//! agents die, stop and are slow; the list of hosts changes; a user interrupts the launcher. The
//! workers train as real ones do: they get the state from rank 0, finish steps together, commit,
//! and rejoin when told to. Those of a fixed job sometimes shut down and join again, and end when
//! they lose another one. After every event the simulation checks what must always hold (see
//! [`JobSimulation::check_action`]); everything derives from one seed.

mod chaos;
mod worker;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::panic::catch_unwind;
use std::time::Duration;

use ronde_control::event::{EndReason, JobKind, Verdict};
use ronde_control::job::{
    AgentId, HostOffer, JobAction, JobInput, JobMachine, JobOutcome, JobSpec, Start,
};
use ronde_control::wire::agent::Exit;
use ronde_control::wire::{DriverToRank, Greeting, RankToDriver};
use ronde_control::{ConnectionId, Epoch, Rank, Time, Worker};

use crate::rng::TestRng;
use worker::SimulatedWorker;

/// Number of steps of the training.
pub const STEPS: u64 = 120;

/// How long a job may still take after the last fault.
const TIME_LIMIT: Duration = Duration::from_secs(900);

/// How a job ended.
#[derive(Debug)]
pub struct SimulationReport {
    /// The launcher's exit code.
    pub code: u8,
    /// The launcher's last message.
    pub text: Option<String>,
    /// Number of worlds formed.
    pub worlds: u64,
    /// Number of faults.
    pub faults: usize,
    /// Time of the end.
    pub end: Time,
    /// Whether it is fixed or elastic.
    pub kind: JobKind,
    /// Number of inputs to the machine.
    pub events: u64,
}

/// A scheduled event of the simulation.
enum Scheduled {
    /// An input to the launcher.
    Event(JobInput),
    /// A message to a worker arrives on this connection.
    Tells(ConnectionId, DriverToRank),
    /// The launcher has closed this connection.
    HangsUp(ConnectionId),
    /// A worker takes its next step; the number tells obsolete plans from current ones.
    Plan(Worker, u64, WorkerStep),
    /// An agent has connected, or failed to.
    Arrives(AgentId),
    /// Something goes wrong.
    Fault,
}

/// A worker's next step.
#[derive(Clone, Copy, Debug)]
enum WorkerStep {
    /// It connects to the launcher.
    Call,
    /// It has found the ranks that share memory with it.
    Locate,
    /// The current operation of all ranks has completed, with this result.
    Finish(u64),
    /// Its process ends.
    Exit(i32),
}

/// The operations that the ranks of one world run together, one after the other.
#[derive(Default)]
struct WorldProgram {
    members: Vec<Worker>,
    /// The workers that have started each operation.
    started: BTreeMap<u64, BTreeSet<Worker>>,
    /// Rank 0's input to each operation.
    inputs: BTreeMap<u64, u64>,
}

/// A simulated job.
pub struct JobSimulation {
    machine: JobMachine,
    job_spec: JobSpec,
    rng: TestRng,
    now: Time,
    agenda: BinaryHeap<Reverse<(Time, u64)>>,
    scheduled: BTreeMap<u64, Scheduled>,
    order: u64,
    workers: BTreeMap<Worker, SimulatedWorker>,
    agents: BTreeMap<AgentId, String>,
    connections: BTreeMap<ConnectionId, Worker>,
    /// The time until which each direction of a connection is busy, so that messages stay in order.
    busy: BTreeMap<(ConnectionId, bool), Time>,
    calls: u64,
    programs: BTreeMap<u64, WorldProgram>,
    epoch: u64,
    /// A step that every member of a world has committed: it must never be lost.
    safe: u64,
    offers: Vec<HostOffer>,
    faults: usize,
    faults_left: usize,
    last_fault: Time,
    /// The worker that was killed or failed by itself, in a job without any other fault.
    failed_worker: Option<Worker>,
    events: u64,
    report: Option<SimulationReport>,
    /// A log of all events, for debugging.
    log: Option<Vec<String>>,
}

impl JobSimulation {
    /// Runs a whole job. If it breaks a rule, runs it once more with a log.
    pub fn play(seed: u64) -> SimulationReport {
        catch_unwind(|| JobSimulation::run(JobSimulation::of(seed))).unwrap_or_else(|_| {
            JobSimulation::run(JobSimulation { log: Some(Vec::new()), ..JobSimulation::of(seed) })
        })
    }

    fn run(mut job_simulation: JobSimulation) -> SimulationReport {
        job_simulation.begin();
        while job_simulation.report.is_none() {
            job_simulation.next();
        }
        job_simulation.report.unwrap_or_else(|| unreachable!("the loop ends with a report"))
    }

    /// The next event, from the simulation or from the machine's own clock.
    fn next(&mut self) {
        let planned = self.agenda.peek().map(|Reverse((time, _))| *time);
        let wakeup = self.machine.next_wakeup();
        let Some(time) = [planned, wakeup].into_iter().flatten().min() else {
            self.fail("nothing is scheduled, and the job has not ended");
        };
        self.now = self.now.max(time);
        if self.now > self.last_fault + TIME_LIMIT {
            self.fail("the job does not end although there are no more faults");
        }
        if planned == Some(time)
            && let Some(Reverse((_, order))) = self.agenda.pop()
        {
            if let Some(item) = self.scheduled.remove(&order) {
                self.run_item(item);
            }
        } else {
            self.tell_machine(JobInput::Tick);
            let again = self.machine.next_wakeup().is_some_and(|wakeup| wakeup <= self.now);
            self.require(!again || self.report.is_some(), "the machine wakes up without need");
        }
    }

    fn run_item(&mut self, item: Scheduled) {
        match item {
            Scheduled::Event(event) => self.tell_machine(event),
            Scheduled::Tells(connection, message) => self.receive(connection, message),
            Scheduled::HangsUp(connection) => self.disconnected(connection),
            Scheduled::Plan(worker, plan, step) => self.take_step(worker, plan, step),
            Scheduled::Arrives(agent) => self.arrive(agent),
            Scheduled::Fault => self.fault(),
        }
    }

    fn tell_machine(&mut self, event: JobInput) {
        if let Some(log) = &mut self.log {
            log.push(format!("{:?} {event:?}", self.now));
        }
        self.events += 1;
        let actions = self.machine.on(event, self.now);
        for action in actions {
            if let Some(log) = &mut self.log {
                log.push(format!("    {action:?}"));
            }
            self.check_action(&action);
            self.perform(action);
        }
    }

    /// Checks what must hold for every decision.
    fn check_action(&mut self, action: &JobAction) {
        match action {
            JobAction::Formed(epoch, workers) => {
                let count = workers.len() as u32;
                let distinct: BTreeSet<&Worker> = workers.iter().collect();
                self.require(distinct.len() == workers.len(), "a worker has two ranks");
                self.require(epoch.0 == self.epoch + 1, "worlds are numbered one by one");
                self.require(count >= self.job_spec.min, "a world is smaller than allowed");
                let max = self.job_spec.max.unwrap_or(u32::MAX);
                self.require(count <= max, "a world is larger than allowed");
                let inside = |worker: &&Worker| self.workers[worker].is_training_in(self.epoch);
                let busy = workers.iter().find(inside).copied();
                self.require(busy.is_none(), "a worker is in two worlds at once");
            }
            JobAction::Start(Start { agent, host, slot, .. }) => {
                let offered = self.offers.iter().filter(|offer| offer.host == *host);
                let slots = offered.map(|offer| offer.slots).sum::<u32>();
                self.require(*slot < slots, "a worker is started on a slot that was not offered");
                let twice = self.workers.values().any(|simulated| {
                    simulated.is_alive() && simulated.agent == *agent && simulated.slot == *slot
                });
                self.require(!twice, "two workers are on one slot");
            }
            JobAction::Dismiss => {
                let outcome = self.machine.outcome();
                self.check_outcome(&outcome);
            }
            _ => {}
        }
    }

    /// Checks what must hold for every end of a job.
    fn check_outcome(&mut self, outcome: &JobOutcome) {
        let JobOutcome { code, verdict: Verdict { reason, first, text, .. } } = outcome;
        self.require(
            (*code == 0) == text.is_none(),
            "a failure without a message, or a message without a failure",
        );
        self.require(
            (*code == 0) == (*reason == EndReason::Done),
            "the reason does not match the exit code",
        );
        self.require(*code == 0 || self.faults > 0, "a job without faults fails");
        if let (Some(failed_worker), JobKind::Fixed, 1) =
            (self.failed_worker, self.job_spec.kind, self.faults)
        {
            let first = first.as_ref().map(|first| first.member.worker);
            self.require(
                first == Some(failed_worker),
                "another worker is reported as the first cause",
            );
        }
    }

    fn perform(&mut self, action: JobAction) {
        match action {
            JobAction::Reach(hosts) => {
                for (agent, host) in hosts {
                    self.agents.insert(agent, host);
                    self.soon(2000, Scheduled::Arrives(agent));
                }
            }
            JobAction::Release(agent) => self.end_agent(agent),
            JobAction::Start(start) => self.start_worker(start),
            JobAction::Signal(_, worker, signal) => self.signal(worker, signal),
            JobAction::SignalAll(signal) => self.signal_all(signal),
            JobAction::Cut(agent, _) => self.agent_lost(agent),
            JobAction::Tell(connections, message) => {
                for connection in connections {
                    let item = Scheduled::Tells(connection, message.clone());
                    self.over(connection, true, item);
                }
            }
            JobAction::Close(connection) => {
                self.over(connection, true, Scheduled::HangsUp(connection));
            }
            JobAction::Formed(Epoch(epoch), workers) => {
                self.epoch = epoch;
                self.programs
                    .insert(epoch, WorldProgram { members: workers, ..WorldProgram::default() });
            }
            JobAction::Look(..) | JobAction::Answer(_) | JobAction::Happened(_) => {}
            JobAction::GiveUp => self.fail("the machine gives up on processes that it can kill"),
            JobAction::Dismiss => {
                let JobOutcome { code, verdict: Verdict { text, .. } } = self.machine.outcome();
                let (worlds, faults, end) = (self.epoch, self.faults, self.now);
                let (kind, events) = (self.job_spec.kind, self.events);
                self.report =
                    Some(SimulationReport { code, text, worlds, faults, end, kind, events });
            }
        }
    }

    /// Schedules something within `millis` milliseconds.
    fn soon(&mut self, millis: usize, item: Scheduled) {
        let delay = Duration::from_micros(1 + self.rng.below(millis * 1000) as u64);
        self.at(self.now + delay, item);
    }

    fn at(&mut self, time: Time, item: Scheduled) {
        self.order += 1;
        self.agenda.push(Reverse((time, self.order)));
        self.scheduled.insert(self.order, item);
    }

    /// Sends something over a connection, after everything in flight; `down` means to the worker.
    fn over(&mut self, connection: ConnectionId, down: bool, item: Scheduled) {
        let slow = self.rng.once_in(20);
        let delay = self.rng.below(if slow { 400_000 } else { 3000 }) as u64;
        let free = self.busy.get(&(connection, down)).copied().unwrap_or_default();
        let time = (self.now + Duration::from_micros(delay)).max(free + Duration::from_nanos(1));
        self.busy.insert((connection, down), time);
        self.at(time, item);
    }

    fn send(&mut self, connection: ConnectionId, message: RankToDriver) {
        self.over(connection, false, Scheduled::Event(JobInput::Said(connection, message)));
    }

    fn greet(&mut self, worker: Worker) -> ConnectionId {
        self.calls += 1;
        let connection = ConnectionId(self.calls);
        self.connections.insert(connection, worker);
        let version = "1".to_owned();
        let greeting = match self.job_spec.kind {
            JobKind::Fixed => Greeting::Rendezvous { version, rank: Rank(worker.0) },
            JobKind::Elastic => Greeting::Worker { version, worker },
        };
        self.over(connection, false, Scheduled::Event(JobInput::Greeted(connection, greeting)));
        connection
    }

    /// The worker closes its end of a connection.
    fn drop_connection(&mut self, connection: ConnectionId) {
        if self.connections.remove(&connection).is_some() {
            self.over(connection, false, Scheduled::Event(JobInput::Closed(connection)));
        }
    }

    fn exited(&mut self, worker: Worker, exit: Exit) {
        self.soon(50, Scheduled::Event(JobInput::Exited(worker, exit)));
    }

    fn require(&mut self, condition: bool, rule: &str) {
        if !condition {
            self.fail(rule);
        }
    }

    fn fail(&mut self, rule: &str) -> ! {
        let log = self.log.take().unwrap_or_default();
        let log = log[log.len().saturating_sub(120)..].join("\n");
        panic!("{log}\n{rule}, at {:?} with {:?}", self.now, self.job_spec);
    }
}
