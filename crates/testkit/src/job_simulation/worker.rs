//! A simulated worker: it connects to the launcher, gets its rank, trains with the others, and
//! ends.
//!
//! Ranks run operations together, one after the other: operation 0 gives everyone rank 0's state,
//! then steps and agreements alternate. An operation completes when all members have started it,
//! but a member may learn of a death before it learns of that, as in a real network.

use ronde_control::cause::Raised;
use ronde_control::event::JobKind;
use ronde_control::job::{AgentId, JobInput, Start};
use ronde_control::wire::agent::Exit;
use ronde_control::wire::{DriverToRank, Milestone, Peer, RankToDriver};
use ronde_control::{ConnectionId, Rank, Time, Worker};

use super::{JobSimulation, STEPS, Scheduled, WorkerStep};

/// A simulated worker process.
pub(super) struct SimulatedWorker {
    pub(super) agent: AgentId,
    pub(super) slot: u32,
    pub(super) host: String,
    life: WorkerLife,
    pub(super) connection: Option<ConnectionId>,
    epoch: u64,
    rank: Rank,
    /// The first rank on its host.
    leader: Rank,
    /// Whether its world is complete, as far as it knows.
    laid_out: bool,
    /// The next operation with the others.
    operation: u64,
    step: u64,
    saved: u64,
    committed_here: bool,
    /// Whether it was told to rejoin.
    update: bool,
    /// The time since which it has been waiting for others.
    waits: Option<Time>,
    /// Messages that arrived while it was stopped.
    missed_messages: Vec<(ConnectionId, Option<DriverToRank>)>,
    missed_steps: Vec<(u64, WorkerStep)>,
    /// Earlier plans are obsolete.
    plan: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WorkerLife {
    Runs,
    Stopped,
    Over,
}

impl SimulatedWorker {
    pub(super) fn is_alive(&self) -> bool {
        self.life != WorkerLife::Over
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.life == WorkerLife::Stopped
    }

    /// Whether it believes that it is part of this world.
    pub(super) fn is_training_in(&self, epoch: u64) -> bool {
        self.is_alive() && epoch > 0 && self.epoch == epoch && self.connection.is_some()
    }
}

impl JobSimulation {
    pub(super) fn start_worker(&mut self, start: Start) {
        let Start { worker, agent, host, slot, rank, .. } = start;
        let simulated = SimulatedWorker {
            agent,
            slot,
            host,
            // The agent may have died unnoticed.
            life: if self.agents.contains_key(&agent) {
                WorkerLife::Runs
            } else {
                WorkerLife::Over
            },
            connection: None,
            epoch: 0,
            rank,
            leader: Rank(0),
            laid_out: false,
            operation: 0,
            step: 0,
            saved: 0,
            committed_here: false,
            update: false,
            waits: None,
            missed_messages: Vec::new(),
            missed_steps: Vec::new(),
            plan: 0,
        };
        if simulated.is_alive() {
            self.soon(1, Scheduled::Event(JobInput::Started(worker, 100 + worker.0)));
        }
        self.workers.insert(worker, simulated);
        self.plan_step(worker, 3000, WorkerStep::Call);
    }

    /// Plans a worker's next step; earlier plans become obsolete.
    fn plan_step(&mut self, worker: Worker, millis: usize, step: WorkerStep) {
        if let Some(simulated) = self.workers.get_mut(&worker) {
            simulated.plan += 1;
            let plan = simulated.plan;
            self.soon(millis, Scheduled::Plan(worker, plan, step));
        }
    }

    pub(super) fn take_step(&mut self, worker: Worker, plan: u64, step: WorkerStep) {
        let Some(simulated) = self.workers.get_mut(&worker) else { return };
        if simulated.plan != plan || simulated.life == WorkerLife::Over {
            return;
        }
        if simulated.life == WorkerLife::Stopped {
            return simulated.missed_steps.push((plan, step));
        }
        match step {
            WorkerStep::Call => self.call(worker),
            WorkerStep::Locate => {
                let (connection, leader) = (simulated.connection, simulated.leader);
                if let Some(connection) = connection {
                    self.send(connection, RankToDriver::Located { leader });
                }
            }
            WorkerStep::Finish(result) => self.finish(worker, result),
            WorkerStep::Exit(code) => self.die(worker, Exit::Code(code)),
        }
    }

    fn call(&mut self, worker: Worker) {
        let connection = self.greet(worker);
        let simulated = self.workers.get_mut(&worker).expect("the worker exists");
        simulated.connection = Some(connection);
        (simulated.laid_out, simulated.operation, simulated.update, simulated.epoch) =
            (false, 0, false, 0);
        (simulated.committed_here, simulated.step) = (false, simulated.saved);
        let (host, local_rank) = (simulated.host.clone(), simulated.slot);
        let peer = Peer {
            pid: 1,
            host,
            machine: String::new(),
            local_rank,
            addresses: Vec::new(),
            unix: None,
        };
        self.send(connection, RankToDriver::Join(peer));
    }

    /// Leaves its world and connects again.
    fn rejoin(&mut self, worker: Worker) {
        let simulated = self.workers.get_mut(&worker).expect("the worker exists");
        let connection = simulated.connection.take();
        (simulated.step, simulated.laid_out, simulated.epoch) = (simulated.saved, false, 0);
        if let Some(connection) = connection {
            self.send(connection, RankToDriver::Leaving { error: None, blames: None });
            self.drop_connection(connection);
        }
        self.plan_step(worker, 100, WorkerStep::Call);
    }

    pub(super) fn receive(&mut self, connection: ConnectionId, message: DriverToRank) {
        let Some(&worker) = self.connections.get(&connection) else { return };
        let Some(simulated) = self.workers.get_mut(&worker) else { return };
        if simulated.life == WorkerLife::Stopped {
            return simulated.missed_messages.push((connection, Some(message)));
        }
        match message {
            DriverToRank::Assign { rank } => simulated.rank = rank,
            DriverToRank::World { epoch, peers } => {
                simulated.epoch = epoch.0;
                let me = &peers[simulated.rank.index()];
                let here = peers.iter().position(|peer| peer.host == me.host);
                let (host, slots) = (me.host.clone(), peers.len());
                simulated.leader = Rank(here.unwrap_or_default() as u32);
                let right = host == simulated.host && simulated.rank.index() < slots;
                self.require(right, "a worker gets the place of another one");
                self.plan_step(worker, 30, WorkerStep::Locate);
            }
            DriverToRank::Layout { .. } => {
                simulated.laid_out = true;
                self.start_operation(worker);
            }
            DriverToRank::Lost { rank, .. } if self.job_spec.kind == JobKind::Fixed => {
                self.fail_because_of(worker, rank);
            }
            DriverToRank::Lost { .. } | DriverToRank::Again { .. } => self.rejoin(worker),
            DriverToRank::Removed { .. } => self.plan_step(worker, 200, WorkerStep::Exit(0)),
            DriverToRank::Refused { .. } => self.plan_step(worker, 200, WorkerStep::Exit(1)),
            // Some rejoin as soon as they learn of new workers, as scripts do that wait for such an
            // update.
            DriverToRank::Update { change } => {
                let early = change.coming && worker.0.is_multiple_of(3);
                simulated.update |= change.removed || change.added || early;
            }
            DriverToRank::Ask => {}
            DriverToRank::Ping => {
                let waits = simulated.waits.map(|since| self.now.saturating_sub(since));
                self.send(connection, RankToDriver::Pong { waits });
            }
        }
    }

    /// The launcher has closed a connection.
    pub(super) fn disconnected(&mut self, connection: ConnectionId) {
        let Some(&worker) = self.connections.get(&connection) else { return };
        let Some(simulated) = self.workers.get_mut(&worker) else { return };
        if simulated.life == WorkerLife::Stopped {
            return simulated.missed_messages.push((connection, None));
        }
        self.connections.remove(&connection);
        if simulated.connection == Some(connection) {
            simulated.connection = None;
            simulated.epoch = 0;
        }
    }

    /// A worker of a fixed job ends because it has lost another one.
    fn fail_because_of(&mut self, worker: Worker, rank: Rank) {
        let simulated = self.workers.get_mut(&worker).expect("the worker exists");
        let connection = simulated.connection.take();
        (simulated.laid_out, simulated.epoch) = (false, 0);
        if let Some(connection) = connection {
            let error = Some(Raised::by_program(format!("HorovodInternalError: lost {rank}")));
            self.send(connection, RankToDriver::Leaving { error, blames: Some(rank) });
            self.drop_connection(connection);
        }
        self.plan_step(worker, 300, WorkerStep::Exit(1));
    }

    /// A worker starts its next operation with the others.
    fn start_operation(&mut self, worker: Worker) {
        // Programs of fixed jobs sometimes shut down and join again.
        let again = self.job_spec.kind == JobKind::Fixed && self.rng.once_in(40);
        let now = self.now;
        let simulated = self.workers.get_mut(&worker).expect("the worker exists");
        simulated.waits = Some(now);
        simulated.update |= again;
        let (epoch, operation, rank) = (simulated.epoch, simulated.operation, simulated.rank);
        let input = match operation {
            0 => simulated.saved,
            _ => u64::from(simulated.update),
        };
        let Some(program) = self.programs.get_mut(&epoch) else { return };
        let started = program.started.entry(operation).or_default();
        started.insert(worker);
        if rank == Rank(0) {
            program.inputs.insert(operation, input);
        }
        if started.len() < program.members.len() {
            return;
        }
        let (members, result) = (program.members.clone(), program.inputs.get(&operation).copied());
        let result = result.unwrap_or_default();
        // Without all its members an operation never completes.
        if !members.iter().all(|member| self.workers[member].is_training_in(epoch)) {
            return;
        }
        if operation == 0 {
            let (safe, most) = (self.safe, self.workers.values().map(|it| it.saved).max());
            self.require(result >= safe, "a committed step is lost");
            self.require(Some(result) <= most, "a step was never saved");
        }
        if operation > 0 && operation % 2 == 0 {
            let least = members.iter().map(|member| self.workers[member].saved).min();
            self.safe = self.safe.max(least.unwrap_or_default());
        }
        for member in members {
            let millis = if self.rng.once_in(10) { 300 } else { 40 };
            self.plan_step(member, millis, WorkerStep::Finish(result));
        }
    }

    /// An operation has completed: those with odd numbers are steps, the others agreements on
    /// whether to rejoin.
    fn finish(&mut self, worker: Worker, result: u64) {
        let simulated = self.workers.get_mut(&worker).expect("the worker exists");
        let Some(connection) = simulated.connection else { return };
        let operation = simulated.operation;
        simulated.operation += 1;
        simulated.waits = None;
        if operation == 0 {
            (simulated.step, simulated.saved) = (result, result);
            self.reach(connection, Milestone::State);
        } else if operation % 2 == 1 {
            simulated.step += 1;
            simulated.saved = simulated.step;
            if !std::mem::replace(&mut simulated.committed_here, true) {
                self.reach(connection, Milestone::Commit);
            }
        } else if result > 0 {
            return self.rejoin(worker);
        } else if simulated.step >= STEPS {
            simulated.connection = None;
            self.send(connection, RankToDriver::Leaving { error: None, blames: None });
            self.drop_connection(connection);
            return self.plan_step(worker, 100, WorkerStep::Exit(0));
        }
        self.start_operation(worker);
    }

    /// Workers of elastic jobs report their milestones.
    fn reach(&mut self, connection: ConnectionId, milestone: Milestone) {
        if self.job_spec.kind == JobKind::Elastic {
            self.send(connection, RankToDriver::Reached(milestone));
        }
    }

    /// Sends all workers a signal; stopped workers react only to SIGKILL.
    pub(super) fn signal_all(&mut self, signal: i32) {
        for worker in self.workers.keys().copied().collect::<Vec<_>>() {
            if signal == 9 || !self.workers[&worker].is_stopped() {
                self.die(worker, Exit::Signal(signal));
            }
        }
    }

    pub(super) fn signal(&mut self, worker: Worker, signal: i32) {
        let Some(simulated) = self.workers.get(&worker) else { return };
        if simulated.is_alive() && (signal == 9 || simulated.connection.is_none()) {
            self.die(worker, Exit::Signal(signal));
        }
    }

    pub(super) fn stop(&mut self, worker: Worker) {
        let simulated = self.workers.get_mut(&worker).expect("the worker exists");
        simulated.life = WorkerLife::Stopped;
    }

    /// Continues a stopped worker, with everything that it missed.
    pub(super) fn resume(&mut self, worker: Worker) {
        let simulated = self.workers.get_mut(&worker).expect("the worker exists");
        simulated.life = WorkerLife::Runs;
        let (missed_messages, missed_steps) = (
            std::mem::take(&mut simulated.missed_messages),
            std::mem::take(&mut simulated.missed_steps),
        );
        for (plan, step) in missed_steps {
            self.take_step(worker, plan, step);
        }
        for (connection, message) in missed_messages {
            match message {
                Some(message) => self.receive(connection, message),
                None => self.disconnected(connection),
            }
        }
    }

    /// Ends a worker's process.
    pub(super) fn die(&mut self, worker: Worker, exit: Exit) {
        let simulated = self.workers.get_mut(&worker).expect("the worker exists");
        if !simulated.is_alive() {
            return;
        }
        simulated.life = WorkerLife::Over;
        let (connection, agent) = (simulated.connection.take(), simulated.agent);
        if let Some(connection) = connection {
            self.drop_connection(connection);
        }
        // Nobody reports on workers whose agent is gone.
        if self.agents.contains_key(&agent) {
            self.exited(worker, exit);
        }
    }

    /// Ends an agent and its workers.
    pub(super) fn end_agent(&mut self, agent: AgentId) {
        self.agents.remove(&agent);
        let here = self.workers.iter().filter(|(_, simulated)| simulated.agent == agent);
        for worker in here.map(|(worker, _)| *worker).collect::<Vec<_>>() {
            if self.workers[&worker].is_alive() {
                self.die(worker, Exit::Signal(9));
            }
        }
    }

    /// A worker loses its connection to the launcher, and connects again or ends.
    pub(super) fn lose_connection(&mut self, worker: Worker) {
        let simulated = self.workers.get_mut(&worker).expect("the worker exists");
        if let Some(connection) = simulated.connection.take() {
            (simulated.step, simulated.laid_out, simulated.epoch) = (simulated.saved, false, 0);
            self.drop_connection(connection);
            // Without its launcher a rank of a fixed job cannot go on.
            let next = match self.job_spec.kind {
                JobKind::Fixed => WorkerStep::Exit(1),
                JobKind::Elastic => WorkerStep::Call,
            };
            self.plan_step(worker, 200, next);
        }
    }

    /// A worker reports that it cannot reach another worker of its world any more.
    pub(super) fn break_link(&mut self, by: Worker, other: Worker) {
        let (rank, together) = {
            let (a, b) = (&self.workers[&by], &self.workers[&other]);
            (b.rank, a.epoch == b.epoch && a.laid_out && b.laid_out)
        };
        if let (true, Some(connection)) = (together, self.workers[&by].connection) {
            let cause = "connection reset".to_owned();
            self.send(connection, RankToDriver::GivenUp { rank, cause });
            match self.job_spec.kind {
                JobKind::Fixed => self.fail_because_of(by, rank),
                JobKind::Elastic => self.rejoin(by),
            }
        }
    }
}
