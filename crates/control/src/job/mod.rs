//! The job machine: decides which hosts are used, which workers run, who forms the next world, who
//! failed first, and when the job is over.
//!
//! Workers run on the slots of hosts; each is one process with a number that never changes. Workers
//! form worlds, one after the other, and have ranks in each. The same machine runs every job, and
//! [`JobSpec`] says which kind it is. The workers of a *fixed* job never change: every world needs
//! all of them, so the first loss ends the job. An *elastic* job has hosts that come and go: a
//! world ends when one of its workers dies, or when its workers rejoin because others have been
//! added or must leave. Survivors are never restarted: once all of them have rejoined, they form
//! the next world, if there are enough. A new worker waits until the world re-forms at a commit.
//! Ranks are kept where possible, and rank 0 always has the training state.
//!
//! Every event is handled first ([`arrivals`], [`losses`], [`watch`]); then everything is done that
//! has become possible or due: workers start and leave ([`staffing`]), a world is formed
//! ([`world`]), the job ends ([`end`]) with a verdict ([`verdict`]). A death has two sources that
//! race: the broken connection, and the agent's report, which knows the cause. Where the second may
//! change the meaning of the first, the first is held for [`TIME_LIMIT`]. Every wait has an end and
//! every decision a message ([`messages`]). Nothing here waits, reads a clock or owns a socket;
//! randomness comes from a seed.

mod arrivals;
mod end;
pub mod ending;
mod hosts;
mod losses;
mod member;
pub mod messages;
mod rank_assignment;
mod spec;
mod staffing;
mod status_query;
#[cfg(test)]
mod tests;
pub mod verdict;
mod watch;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

pub use spec::{CooldownScope, JobSpec};
pub use verdict::{JobOutcome, OutputView};

use ending::Ending;
use hosts::Hosts;
use member::JobWorker;
use status_query::StatusQuery;
use verdict::FailureAnalysis;

use crate::event::{self, JobEventKind, Seconds};
use crate::liveness::{self, Liveness};
use crate::status::Status;
use crate::wire::agent::{Condition, Exit};
use crate::wire::{Change, DriverToRank, Greeting, RankToDriver};
use crate::{ConnectionId, Epoch, Rank, Time, Worker};

/// How long a broken connection waits for the agent's report, and vice versa.
pub const TIME_LIMIT: Duration = Duration::from_secs(1);

/// Minimum time for which a host must be silent before it counts as lost: it may only be slow.
const LEAST_HOST_LIMIT: Duration = Duration::from_secs(10);

/// A host and its number of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostOffer {
    /// Name of the host.
    pub host: String,
    /// How many workers it can run.
    pub slots: u32,
}

/// An agent on a host. When a host is reached again, its new agent has the next number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentId(pub u32);

/// Input to the job machine: something the driver observed.
#[derive(Clone, Debug)]
pub enum JobInput {
    /// The current list of hosts, in order.
    Discovered(Vec<HostOffer>),
    /// Host discovery failed for this reason.
    Undiscovered(String),
    /// A host is ready: workers can be started on it.
    Ready(AgentId),
    /// A host could not be reached, or was lost.
    Gone {
        /// The agent concerned.
        agent: AgentId,
        /// What was observed, in words.
        reason: String,
        /// What to do about it.
        hint: String,
    },
    /// The set-up of the hosts failed with this error message.
    CalledOff(String),
    /// An agent was told to stop and will do so after this time.
    Leaving(AgentId, Duration),
    /// Somebody has started the standing agent of this host again, after it had gone: the host may
    /// be used, whatever happened before. The list of hosts follows.
    OfferedAgain(String),
    /// An agent has sent something, of whatever kind.
    Heard(AgentId),
    /// A worker's process was started, with this process id.
    Started(Worker, u32),
    /// A worker's process has ended.
    Exited(Worker, Exit),
    /// A worker was stopped, for example by `SIGSTOP`.
    Stopped(Worker),
    /// A worker that was stopped continues.
    Continued(Worker),
    /// An agent has inspected the processes of workers.
    Looked(Vec<(Worker, Condition)>),
    /// A peer with the job key has greeted.
    Greeted(ConnectionId, Greeting),
    /// A peer has sent a message.
    Said(ConnectionId, RankToDriver),
    /// A connection has closed, from either end.
    Closed(ConnectionId),
    /// A watcher asks for the status of the job.
    Asked,
    /// The launcher was sent this signal.
    Interrupted(i32),
    /// Handles timers that are due at `now`.
    Tick,
}

/// An action for the driver.
#[derive(Clone, Debug, PartialEq)]
pub enum JobAction {
    /// Start agents on these hosts. Those of a fixed job start together or not at all.
    Reach(Vec<(AgentId, String)>),
    /// End an agent and the rest of its workers.
    Release(AgentId),
    /// Start a worker.
    Start(Start),
    /// Have an agent send a signal to a worker: 15 to ask it to end, 9 to kill it.
    Signal(AgentId, Worker, i32),
    /// Send a signal to all workers.
    SignalAll(i32),
    /// Have an agent show that it is alive and report the state of these workers' processes.
    Look(AgentId, Vec<Worker>),
    /// An agent has been silent for so long that it is given up.
    Cut(AgentId, Duration),
    /// Send a message to these connections.
    Tell(Vec<ConnectionId>, DriverToRank),
    /// Close this connection once everything has been sent.
    Close(ConnectionId),
    /// A world of these workers, in rank order, has begun to form.
    Formed(Epoch, Vec<Worker>),
    /// The status of the job, for the watchers that have asked.
    Answer(Status),
    /// Publish this event.
    Happened(JobEventKind),
    /// Nothing is left to do: dismiss all agents.
    Dismiss,
    /// Stop waiting for workers that do not end.
    GiveUp,
}

/// A worker to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Number of the worker, for its whole life.
    pub worker: Worker,
    /// The agent that starts it.
    pub agent: AgentId,
    /// Name of the host it runs on.
    pub host: String,
    /// Slot (local rank) on that host.
    pub slot: u32,
    /// The rank that it will probably have, which also labels its output.
    pub rank: Rank,
    /// The probable size of its world.
    pub size: u32,
    /// Whether the job has had a world already.
    pub late: bool,
}

/// Who reports a worker's death besides the connection that breaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum DeathReports {
    /// The agents of the launcher.
    #[default]
    Agents,
    /// Nobody: rank 0 runs the rendezvous, and another launcher has started the ranks.
    Nobody,
}

/// The state machine of one job.
#[derive(Default)]
pub struct JobMachine {
    version: String,
    job_spec: JobSpec,
    reports: DeathReports,
    rng: u64,
    hosts: Hosts,
    members: BTreeMap<Worker, JobWorker>,
    connections: BTreeMap<ConnectionId, Worker>,
    workers: u32,
    epoch: Epoch,
    world: WorldPhase,
    /// The workers of the last world that was formed, in rank order.
    order: Vec<Worker>,
    /// How many worlds have been completed.
    worlds: u32,
    /// Whether workers have been started.
    begun: bool,
    /// Whether any worker has ever had the training state.
    progress: bool,
    /// Whether a worker of an elastic job has finished successfully.
    finishing: bool,
    /// Why a job that needs all its workers can form no more worlds.
    doomed: Option<String>,
    /// Whether nothing new is started because the job is stopping.
    is_stopping: bool,
    /// Whether the agents have been dismissed.
    is_over: bool,
    verdict: FailureAnalysis,
    ending: Ending,
    liveness: Liveness,
    status_query: StatusQuery,
    /// Why host discovery fails, while it does.
    undiscovered: Option<String>,
    /// Since when there are too few workers, and whether that was reported.
    shortage: Option<(Time, Announced)>,
    /// Since when no worker has the training state.
    stateless: Option<Time>,
    /// Whether a worker has committed in the current world.
    committed: bool,
    /// How many worlds in a row broke up by themselves before a commit.
    fruitless: u32,
    /// The last world in which a rank gave up on another.
    given_up: Option<Epoch>,
    /// What the workers know about the next world.
    announced: Change,
    /// How long the workers that have joined wait for new ones.
    lingering: Option<Time>,
    recovery: Option<Recovery>,
    /// Nothing is due for the workers of a fixed job before this; there may be thousands of them.
    alarm: Option<Time>,
    /// The actions for the event being handled.
    actions: Vec<JobAction>,
}

/// State of the current world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum WorldPhase {
    /// There is no world yet.
    #[default]
    None,
    /// Its workers are connecting; they have until this time.
    Forming(Time),
    /// All ranks have joined.
    Whole,
    /// A worker left it or died at this time: all workers must rejoin.
    Broken(Time),
}

/// Whether something was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Announced {
    Yes,
    No,
}

/// The recovery from a loss.
struct Recovery {
    since: Time,
    met: Option<Time>,
    state: Option<Time>,
}

impl JobMachine {
    /// The machine of a new job. `seed` randomizes the length of cooldowns.
    pub fn new(version: &str, job_spec: JobSpec, seed: u64) -> JobMachine {
        let outlives = job_spec.outlives_losses();
        let host = job_spec.stopped.filter(|_| outlives).map(|limit| limit.max(LEAST_HOST_LIMIT));
        let limits =
            liveness::LivenessLimits { awaited: job_spec.stopped.filter(|_| !outlives), host };
        JobMachine {
            version: version.to_owned(),
            job_spec,
            rng: seed,
            liveness: Liveness::new(limits),
            ..JobMachine::default()
        }
    }

    /// A job of `size` ranks started by another launcher, with the rendezvous in rank 0. The ranks
    /// report their own hosts, a death shows only as a closed connection, and only the ranks
    /// themselves can report the state of their processes. `limit` is the time from the first rank
    /// that joins to the last.
    pub fn kept_by_a_rank(version: &str, size: u32, limit: Duration) -> JobMachine {
        let mut machine = JobMachine::new(version, JobSpec::fixed(size, limit, None), 0);
        machine.reports = DeathReports::Nobody;
        machine.begun = true;
        let unknown = machine.hosts.place("");
        for number in 0..size {
            let member = JobWorker { host: unknown, rank: Rank(number), ..JobWorker::default() };
            machine.members.insert(Worker(number), member);
            machine.liveness.started(Worker(number), 0, 0);
        }
        machine
    }

    /// Handles what happened at `now`.
    pub fn on(&mut self, event: JobInput, now: Time) -> Vec<JobAction> {
        match event {
            JobInput::Discovered(offers) => self.discovered(&offers),
            JobInput::Undiscovered(why) => self.undiscovered(why),
            JobInput::Ready(agent) => {
                if let Some(host) = self.hosts.of(agent) {
                    self.hosts.reached(host, agent);
                    self.happened(JobEventKind::HostReady { host: self.hosts.name(host) });
                }
            }
            JobInput::Gone { agent, reason, hint } => self.gone(agent, reason, hint, now),
            JobInput::CalledOff(text) => self.called_off(text, now),
            JobInput::Leaving(agent, grace) => self.host_leaves(agent, grace),
            JobInput::OfferedAgain(host) => self.hosts.offered_again(&host),
            JobInput::Heard(agent) => return self.heard(agent, now),
            JobInput::Started(worker, pid) => self.started(worker, pid),
            JobInput::Exited(worker, exit) => self.exited(worker, exit, now),
            JobInput::Stopped(worker) => self.liveness.stopped(worker, now),
            JobInput::Continued(worker) => self.liveness.continued(worker),
            JobInput::Looked(found) => self.liveness.looked(found, now),
            JobInput::Greeted(connection, greeting) => self.greeted(connection, &greeting, now),
            JobInput::Said(connection, message) => self.said(connection, message, now),
            JobInput::Closed(connection) => self.closed(connection, now),
            JobInput::Asked => self.asked(now),
            JobInput::Interrupted(signal) => self.interrupted(signal, now),
            JobInput::Tick => {}
        }
        self.proceed(now);
        std::mem::take(&mut self.actions)
    }

    /// A worker has written a line to standard error, which requires no action.
    pub fn wrote(&mut self, worker: Worker, line: &str) {
        self.verdict.wrote(worker, line);
    }

    /// What a worker writes is shown so.
    pub fn seen_as(&mut self, worker: Worker, view: OutputView) {
        self.verdict.seen_as(worker, view);
    }

    /// A worker's process has ended at this time of day, as is told next.
    pub fn ended_at(&mut self, worker: Worker, time: String) {
        self.verdict.ended_at(worker, time);
    }

    /// Does everything that has become possible or due.
    fn proceed(&mut self, now: Time) {
        if !self.is_ending() {
            for news in self.hosts.end_cooldowns(now) {
                self.happened(news);
            }
        }
        if !self.is_over {
            self.give_up_on_the_late(now);
            self.check_liveness(now);
            self.dismiss(now);
            self.staff(now);
            self.gather(now);
            self.stop_waiting(now);
            self.set_alarm(now);
            self.announce_changes(now);
            self.release_agents();
        }
        self.end_remaining(now);
        self.may_end(now);
        self.answer(now);
    }

    /// When `Tick` must be sent next.
    pub fn next_wakeup(&self) -> Option<Time> {
        let always = [self.ending.next_wakeup(), self.status_query.until];
        let always = always.into_iter().flatten().min();
        if self.is_over {
            return always;
        }
        let times = [
            always,
            self.hosts.next_wakeup().filter(|_| !self.is_ending()),
            self.due(),
            self.growth(),
            self.lingering,
            self.shortage_due(),
            self.agents_due(),
            self.stateless.map(|since| since + TIME_LIMIT),
            self.liveness.next_wakeup(),
        ];
        times.into_iter().flatten().min()
    }

    /// Whether the job could use another host.
    pub fn takes_hosts(&self) -> bool {
        !self.is_ending() && !self.finishing && (self.job_spec.outlives_losses() || !self.begun)
    }

    /// Whether the agents have been dismissed.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    fn discovered(&mut self, offers: &[HostOffer]) {
        if self.undiscovered.take().is_some() {
            self.happened(JobEventKind::HostsKnown);
        }
        for news in self.hosts.list(offers, self.job_spec.source) {
            self.happened(news);
        }
    }

    fn undiscovered(&mut self, why: String) {
        if self.undiscovered.as_ref() != Some(&why) {
            self.happened(JobEventKind::HostsUnknown { reason: why.clone() });
            self.undiscovered = Some(why);
        }
    }

    /// A host is about to go: its workers leave as if it were no longer listed.
    fn host_leaves(&mut self, agent: AgentId, grace: Duration) {
        let Some(index) = self.hosts.of(agent) else { return };
        let host = &mut self.hosts.all[index];
        (host.is_leaving, host.slots) = (true, 0);
        let host = self.hosts.name(index);
        self.happened(JobEventKind::HostLeaving { host, grace_seconds: Seconds(grace) });
    }

    /// Publishes an event, unless the job is over.
    fn happened(&mut self, what: JobEventKind) {
        if !self.is_over {
            self.actions.push(JobAction::Happened(what));
        }
    }

    /// Something will be due for a worker at this time.
    fn alarm(&mut self, at: Time) {
        self.alarm = self.alarm.into_iter().chain([at]).min();
    }

    fn member(&mut self, worker: Worker) -> Option<&mut JobWorker> {
        self.members.get_mut(&worker)
    }

    /// The worker that had a rank in the last world.
    fn with_rank(&self, rank: Rank) -> Option<Worker> {
        self.order.get(rank.index()).copied()
    }

    /// A worker and its place in the job.
    fn who(&self, worker: Worker) -> event::WorkerInfo {
        match self.members.get(&worker) {
            Some(JobWorker { host, slot, rank, .. }) => {
                event::WorkerInfo { worker, rank: *rank, host: self.hosts.name(*host), slot: *slot }
            }
            None => self.verdict.who(worker),
        }
    }

    /// The name of a worker in messages.
    fn name(&self, worker: Worker) -> String {
        self.who(worker).to_string()
    }

    /// A random number in [0, 1), from SplitMix64.
    fn random(&mut self) -> f64 {
        self.rng = self.rng.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.rng ^ (self.rng >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed >> 40) as f64 / (1u64 << 24) as f64
    }
}
