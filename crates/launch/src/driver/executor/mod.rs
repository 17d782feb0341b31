//! The driver of a job: carries out what the state machine in `ronde_control::job` decides, and
//! reports to it what happens. It decides nothing.

mod arrivals;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStringExt;

use ronde_control::event::JobEventKind;
use ronde_control::host_setup::{HostPlan, HostSetup, HostSetupInput};
use ronde_control::job::{
    AgentId, JobAction, JobInput, JobMachine, JobOutcome, JobSpec, OutputView, Start,
};
use ronde_control::launcher::Invitation;
use ronde_control::status::Status;
use ronde_control::wire::agent::{
    AgentToDriver, DriverToAgent, OutputStream, Terminal, WindowSize, WorkerSpec, output_cost,
};
use ronde_control::{GpuShare, Rank, Time, VERSION, Worker, printable, to_hex};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::agent_handle::AgentHandle;
use super::context::DriverContext;
use super::environment::{self, WorkerPlace};
use super::remote_call::CallResult;
use super::screen::{Passing, ScreenItem, Viewer, WindowCredit};
use super::start::Span;
use super::{DriverInput, Job, cluster, entropy};
use crate::LaunchError;
use crate::hosts::{Host, Slot};
use crate::logs::{prefix, time_of_day_now};
use crate::reach::dialed::DialedAgent;
use crate::reach::{HostProblem, ReachMethod};
use crate::signals::Signals;
use crate::source::{HostSource, KeyPlace, Search};
use crate::window;

/// The signal (SIGHUP) that ends a job whose caller is gone.
const HANG_UP: i32 = 1;

/// How many of the last events a status reply contains.
const LAST: usize = 8;

/// A running job.
pub(super) struct Driver<'a> {
    job: &'a Job,
    /// Prefix of the marks of its processes.
    id: String,
    span: Span,
    news: mpsc::Sender<DriverInput>,
    machine: JobMachine,
    context: DriverContext,
    agents: BTreeMap<AgentId, ConnectedAgent>,
    /// Batches of hosts that are still being set up. If the job needs all its hosts, they form one
    /// batch, which starts together or not at all. Otherwise each host is a batch of its own,
    /// because it may join at any time; ranks dial each other at every address of a host, so a host
    /// only needs to reach the launcher.
    batches: Vec<HostSetup>,
    /// Agents that have dialed in and that the job has not asked for yet, by host name.
    waiting: BTreeMap<String, DialedAgent>,
    /// The current hosts, and how to reach every host that was ever listed.
    hosts: Vec<Host>,
    /// The machines of hosts that share one, by host name.
    machines: BTreeMap<String, String>,
    methods: BTreeMap<String, ReachMethod>,
    /// The slot of each rank, in rank order, if known from the start.
    slots: Vec<Slot>,
    /// If so, the ranks as workers of TensorFlow's own strategies.
    cluster: Vec<SocketAddr>,
    /// Where torch.distributed's own rendezvous would be: on the first host that arrived.
    master: Option<(IpAddr, u16)>,
    /// The agent of the worker that gets the launcher's standard input.
    first: Option<AgentId>,
    /// The workers that have a terminal.
    terminals: BTreeMap<Worker, WorkerTerminal>,
    given_up: bool,
    /// Tasks that look for hosts.
    search: JoinSet<()>,
}

struct ConnectedAgent {
    handle: AgentHandle,
    state: AgentState,
}

/// A worker's terminal.
struct WorkerTerminal {
    agent: AgentId,
    rank: Rank,
    passing: Passing,
    /// Whether standard error is written to it, too.
    stderr: bool,
}

enum AgentState {
    Coming,
    Ready(HostPlan),
    /// It was asked to end, or is not needed.
    Leaving,
}

impl<'a> Driver<'a> {
    pub(super) async fn start(
        job: &'a Job,
        news: mpsc::Sender<DriverInput>,
    ) -> Result<Driver<'a>, LaunchError> {
        let mut context = DriverContext::open(job, &news).await?;
        context.started(job);
        if let HostSource::DialedIn(agents) = &job.hosts {
            match agents.place {
                KeyPlace::Caller => {
                    let (addresses, key) = (context.addresses.clone(), agents.key.clone());
                    context.screen.show(ScreenItem::Invitation(Invitation { addresses, key }));
                }
                _ => context.tell(&agents.invitation(&context.addresses)),
            }
        }
        // A limit on stalls is also a limit on stopped workers.
        let stopped = job.job_spec.stopped.into_iter().chain(job.stall_shutdown()).min();
        let job_spec = JobSpec { stopped, ..job.job_spec.clone() };
        let mut driver = Driver {
            job,
            id: to_hex(&entropy::<12>()?),
            span: job.hosts.span(),
            machine: JobMachine::new(VERSION, job_spec, u64::from_ne_bytes(entropy()?)),
            context,
            agents: BTreeMap::new(),
            batches: Vec::new(),
            waiting: BTreeMap::new(),
            hosts: Vec::new(),
            machines: BTreeMap::new(),
            methods: BTreeMap::new(),
            slots: Vec::new(),
            cluster: Vec::new(),
            master: None,
            first: None,
            terminals: BTreeMap::new(),
            given_up: false,
            search: JoinSet::new(),
            news,
        };
        match &job.hosts {
            HostSource::Listed(hosts) => driver.found(hosts.clone(), Time::ZERO),
            HostSource::Script(script, reach) => {
                let (job, news) = (job.clone(), driver.news.clone());
                let search = Search { script: script.clone(), reach: reach.clone(), job, news };
                driver.search.spawn(search.run());
            }
            // They connect on their own.
            HostSource::DialedIn(_) => {}
        }
        Ok(driver)
    }

    /// Passes an event to the state machine and carries out its decisions.
    fn decide(&mut self, event: JobInput, now: Time) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.machine.on(event, now) {
                events.extend(self.carry_out(action, now));
            }
        }
    }

    /// Carries out a decision; returns its results, if they are known at once.
    fn carry_out(&mut self, action: JobAction, now: Time) -> Vec<JobInput> {
        match action {
            JobAction::Tell(connections, message) => {
                self.context.outboxes.tell(connections, &message);
            }
            JobAction::Close(connection) => self.context.outboxes.close(connection),
            JobAction::Formed(epoch, workers) => {
                tracing::info!("world {} formed with {} ranks", epoch.0, workers.len());
                // The caller of `horovod.run` must know which workers' results count.
                if self.context.viewer == Viewer::Caller && self.job.job_spec.outlives_losses() {
                    self.context.screen.show(ScreenItem::World(workers));
                }
            }
            JobAction::Answer(status) => {
                let status = Status { events: self.context.event_bus.last(LAST), ..status };
                for asker in self.context.askers.drain(..) {
                    // The asker may no longer be waiting.
                    let _ = asker.send(status.clone());
                }
            }
            JobAction::Happened(what) => self.context.happened(what),
            JobAction::Reach(hosts) => return self.reach(hosts, now),
            JobAction::Release(agent) => self.release(agent),
            JobAction::Start(start) => self.start_worker(&start),
            JobAction::Signal(agent, worker, signal) => {
                self.tell(agent, DriverToAgent::SignalOne { worker, signal });
            }
            JobAction::SignalAll(signal) => {
                let agents = self.agents.values();
                agents.for_each(|agent| agent.handle.tell(DriverToAgent::Signal { signal }));
            }
            JobAction::Look(agent, workers) => self.tell(agent, DriverToAgent::Look { workers }),
            JobAction::Cut(agent, during) => {
                if let Some(agent) = self.agents.get_mut(&agent) {
                    agent.handle.never_answered(during);
                }
            }
            JobAction::Dismiss => {
                self.search.abort_all();
                for (_, offer) in std::mem::take(&mut self.waiting) {
                    offer.refuse("the job is over");
                }
                for id in self.agents.keys().copied().collect::<Vec<_>>() {
                    self.release(id);
                }
            }
            JobAction::GiveUp => {
                tracing::warn!("some processes do not end; giving up on them");
                self.given_up = true;
                self.agents.values_mut().for_each(|agent| agent.handle.give_up());
            }
        }
        Vec::new()
    }

    fn tell(&self, agent: AgentId, command: DriverToAgent) {
        if let Some(agent) = self.agents.get(&agent) {
            agent.handle.tell(command);
        }
    }

    fn release(&mut self, id: AgentId) {
        let Some(agent) = self.agents.get_mut(&id) else { return };
        match agent.state {
            AgentState::Coming => agent.handle.kill(),
            AgentState::Ready(_) => agent.handle.tell(DriverToAgent::End),
            AgentState::Leaving => {}
        }
        agent.state = AgentState::Leaving;
        self.batches.retain(|batch| !batch.awaits(id));
    }

    fn start_worker(&mut self, start: &Start) {
        self.context.lines.rename(start.worker, start.rank);
        if start.worker == Worker(0) {
            self.first = Some(start.agent);
        }
        if self.cluster.is_empty() {
            self.cluster = self.cluster();
        }
        let Some(ConnectedAgent { handle, state: AgentState::Ready(plan) }) =
            self.agents.get(&start.agent)
        else {
            return;
        };
        let (address, port) = self.master.unwrap_or((Ipv4Addr::LOCALHOST.into(), 0));
        let is_elastic = self.job.job_spec.outlives_losses();
        let address = plan.first.filter(|_| !is_elastic).unwrap_or(address);
        let slot = match self.slots.get(start.rank.index()) {
            Some(slot) => slot.clone(),
            None => likely_slot(start, &self.hosts),
        };
        let part = WorkerPlace {
            slot: &slot,
            start,
            is_elastic,
            master: (address, port),
            cluster: &self.cluster,
        };
        let screen = &self.job.output.screen;
        let size = screen.window.map_or(window::USUAL, |_| window::size());
        let terminal = screen.terminal(start.rank, size);
        let bytes = |text: &OsString| text.clone().into_vec();
        let inherits = handle.traits.environment;
        let travels = |(name, _): &&(OsString, OsString)| inherits || environment::travels(name);
        let inherited = self.job.env.iter().filter(travels).cloned();
        let spec = WorkerSpec {
            worker: start.worker,
            argv: self.job.command.iter().map(bytes).collect(),
            cwd: self.job.cwd.clone().into_os_string().into_vec(),
            env: environment::of(inherited, (&self.context.key, &handle.mark), plan, part),
            own: if inherits { Vec::new() } else { environment::own() },
            terminal,
            gpus: self.job.gpus_per_rank.map(|gpus_per_rank| GpuShare {
                slot: slot.local_rank,
                slots: slot.local_size,
                gpus_per_rank,
            }),
        };
        // One at a time: an environment may be large, and the size of a frame is limited.
        handle.tell(DriverToAgent::Start { workers: vec![spec] });
        let view = self.view(start.rank, terminal);
        self.machine.seen_as(start.worker, view);
        if let Some(Terminal { stderr, .. }) = terminal {
            let passing = match screen.passed_through() == Some(start.rank) {
                true => Passing::Through,
                false => Passing::Lines,
            };
            let (agent, rank) = (start.agent, start.rank);
            self.terminals.insert(start.worker, WorkerTerminal { agent, rank, passing, stderr });
        }
    }

    /// How the user sees what a rank writes to standard error.
    fn view(&self, rank: Rank, terminal: Option<Terminal>) -> OutputView {
        let screen = &self.job.output.screen;
        match terminal {
            _ if !screen.shown.contains(rank) => OutputView::Hidden,
            Some(Terminal { stderr: true, .. }) if screen.passed_through() == Some(rank) => {
                OutputView::Unmarked
            }
            Some(Terminal { stderr: true, .. }) => OutputView::Marked(OutputStream::Stdout),
            _ => OutputView::Marked(OutputStream::Stderr),
        }
    }

    /// Passes the new size of the launcher's window on to the workers.
    pub(super) fn resized(&self, size: WindowSize) {
        self.context.screen.show(ScreenItem::Resized(size.columns.into()));
        for (worker, WorkerTerminal { agent, rank, .. }) in &self.terminals {
            if let Some(Terminal { size, .. }) = self.job.output.screen.terminal(*rank, size) {
                self.tell(*agent, DriverToAgent::Resize { worker: *worker, size });
            }
        }
    }

    /// The ranks as workers of TensorFlow's own strategies, if their slots are known.
    fn cluster(&self) -> Vec<SocketAddr> {
        let hosts = self.agents.values().filter_map(|agent| match &agent.state {
            AgentState::Ready(plan) => Some((agent.handle.host.as_str(), plan)),
            AgentState::Coming | AgentState::Leaving => None,
        });
        cluster::workers(&self.slots, &hosts.collect::<Vec<_>>())
    }

    fn on_agent_message(&mut self, id: AgentId, message: AgentToDriver, now: Time) {
        let Some(agent) = self.agents.get(&id) else { return };
        self.machine.on(JobInput::Heard(id), now);
        match message {
            AgentToDriver::Listening { listeners, known, ports, range } => {
                let input = HostSetupInput::Listening { listeners, known, ports, range };
                self.gather(id, input, now);
            }
            AgentToDriver::CannotListen { reason, hint } => {
                self.gather(id, HostSetupInput::Gone(HostProblem { reason, hint }), now);
            }
            AgentToDriver::Dialed { callee, address, outcome } => {
                let host = &agent.handle.host;
                tracing::info!("{host} tried {callee} at {address}: {outcome}");
                self.gather(id, HostSetupInput::Dialed { callee, address, outcome }, now);
            }
            AgentToDriver::Started { worker, pid } => {
                let (rank, host) = (self.context.lines.name(worker), &agent.handle.host);
                tracing::info!("{rank} runs on {host}, process {pid}");
                if worker == Worker(0) {
                    match self.context.viewer {
                        Viewer::Terminal => self.context.stdin.next(),
                        Viewer::Caller => agent.handle.tell(DriverToAgent::StdinEnd),
                    }
                }
                self.decide(JobInput::Started(worker, pid), now);
            }
            AgentToDriver::Exited { worker, exit } => {
                tracing::info!("{} {exit}", self.context.lines.name(worker));
                self.machine.ended_at(worker, time_of_day_now());
                self.decide(JobInput::Exited(worker, exit), now);
            }
            AgentToDriver::Output { worker, stream, bytes } => {
                let done = WindowCredit { agent: id.0 as usize, cost: output_cost(bytes.len()) };
                let stamp = self.context.stamp.text();
                let text = self.context.lines.push(worker, stream, &bytes, stamp);
                let live = self.passing(worker, stream) == Passing::Through;
                self.show((worker, stream), text, live.then_some(bytes), Some(done));
            }
            AgentToDriver::OutputEnd { worker, stream } => {
                let text = self.context.lines.end(worker, stream, self.context.stamp.text());
                let passing = self.passing(worker, stream);
                let live = (passing == Passing::Through).then(Vec::new);
                self.show((worker, stream), text, live, None);
                let rank = self.context.lines.name(worker);
                self.context.screen.show(ScreenItem::End(rank, stream, passing));
            }
            AgentToDriver::StdinTaken => self.context.stdin.next(),
            AgentToDriver::Problem { reason } => {
                tracing::warn!(host = agent.handle.host, reason, "an agent has a problem");
            }
            AgentToDriver::Stopped { worker } => self.decide(JobInput::Stopped(worker), now),
            AgentToDriver::Continued { worker } => self.decide(JobInput::Continued(worker), now),
            AgentToDriver::Looked { found } => self.decide(JobInput::Looked(found), now),
            AgentToDriver::Leaving => {
                let time_limit = self.job.job_spec.leaving;
                self.decide(JobInput::Leaving(id, time_limit), now);
            }
            // The driver requests nothing else.
            _ => {}
        }
    }

    /// Shows what a worker wrote, with prefixes; the state machine also reads its standard error,
    /// to find the cause of a failure.
    fn show(
        &mut self,
        (worker, stream): (Worker, OutputStream),
        bytes: Vec<u8>,
        live: Option<Vec<u8>>,
        done: Option<WindowCredit>,
    ) {
        let rank = self.context.lines.name(worker);
        let both = self.terminals.get(&worker).is_some_and(|terminal| terminal.stderr);
        if stream == OutputStream::Stderr || both {
            let prefix = format!("{}{}", self.context.stamp.text(), prefix(rank, stream));
            for line in String::from_utf8_lossy(&bytes).split(['\n', '\r']) {
                self.machine.wrote(worker, line.strip_prefix(&prefix).unwrap_or(line));
            }
        }
        self.context.screen.show(ScreenItem::Text { rank, stream, bytes, live, done });
    }

    /// How a worker's stream reaches the screen.
    fn passing(&self, worker: Worker, stream: OutputStream) -> Passing {
        match self.terminals.get(&worker) {
            Some(terminal) if stream == OutputStream::Stdout => terminal.passing,
            _ => Passing::Lines,
        }
    }

    fn agent_gone(&mut self, id: AgentId, host_problem: HostProblem, now: Time) {
        let Some(mut agent) = self.agents.remove(&id) else { return };
        let HostProblem { reason, hint } = agent.handle.shut_down(host_problem);
        tracing::info!("host {}: {reason}", agent.handle.host);
        match agent.state {
            AgentState::Coming => {
                self.gather(id, HostSetupInput::Gone(HostProblem { reason, hint }), now);
            }
            AgentState::Ready(_) | AgentState::Leaving => {
                self.decide(JobInput::Gone { agent: id, reason, hint }, now);
                self.watch_for_return(&agent.handle.host);
                self.forget(Some(agent.handle.host), now);
            }
        }
    }

    pub(super) fn on(&mut self, news: DriverInput, now: Time) {
        match news {
            DriverInput::Offered(offer) => self.offered(offer, now),
            DriverInput::StandsAgain(host) => self.stands_again(host, now),
            DriverInput::Late(text) => self.context.tell(&text),
            DriverInput::Hosts(Ok(hosts)) => self.found(hosts, now),
            DriverInput::Hosts(Err(reason)) => self.decide(JobInput::Undiscovered(reason), now),
            DriverInput::Hello(index, version) => {
                self.machine.on(JobInput::Heard(id(index)), now);
                self.gather(id(index), HostSetupInput::Hello { version }, now);
            }
            DriverInput::Agent(index, message) => self.on_agent_message(id(index), message, now),
            DriverInput::AgentGone(index, host_problem) => {
                self.agent_gone(id(index), host_problem, now);
            }
            DriverInput::Silent(index, error) if !self.machine.is_over() => {
                // The agent may have gone already; and the index comes from a peer's greeting.
                match self.agents.get_mut(&id(index)) {
                    Some(agent) => agent.handle.fell_silent(&error),
                    None => tracing::debug!(index, "a lifeline of an unknown host ended"),
                }
            }
            DriverInput::Printed(WindowCredit { agent, cost }) => {
                self.tell(id(agent), DriverToAgent::Printed { cost });
            }
            DriverInput::SideConnection(sealed, greeting) => {
                self.context.side_connections.receive(sealed, greeting);
            }
            DriverInput::Returned(rank, returned) => match (&self.job.deliveries, returned) {
                // The receiver may be gone; then the piece is dropped.
                (Some(deliveries), CallResult::Piece(bytes, _place)) => {
                    drop(deliveries.send(bytes));
                }
                (Some(_), CallResult::End) => {}
                (None, returned) => self.context.screen.show(ScreenItem::Returned(rank, returned)),
            },
            // The follower may be gone by now.
            DriverInput::Followed(follower) => drop(follower.send(self.context.event_bus.follow())),
            DriverInput::OutputLost(output, reason) => {
                self.context.happened(JobEventKind::OutputLost { output, reason });
            }
            DriverInput::Asked(answer) => {
                self.context.askers.push(answer);
                self.decide(JobInput::Asked, now);
            }
            DriverInput::Stdin(piece) => self.on_stdin(piece, now),
            meeting => {
                if let Some(event) = self.context.outboxes.take_in(meeting) {
                    self.decide(event, now);
                }
            }
        }
    }

    /// Passes the launcher's standard input to rank 0. Under `horovod.run`, the input only shows
    /// whether the caller is still alive.
    fn on_stdin(&mut self, piece: Option<Vec<u8>>, now: Time) {
        let command = match (self.context.viewer, piece) {
            (Viewer::Terminal, Some(bytes)) => DriverToAgent::Stdin { bytes },
            (Viewer::Terminal, None) => DriverToAgent::StdinEnd,
            (Viewer::Caller, Some(_)) => return self.context.stdin.next(),
            (Viewer::Caller, None) if self.is_over() => return,
            (Viewer::Caller, None) => return self.signalled(HANG_UP, now),
        };
        if let Some(first) = self.first {
            self.tell(first, command);
        }
    }

    /// Handles a signal to the launcher.
    pub(super) fn signalled(&mut self, signal: i32, now: Time) {
        self.decide(JobInput::Interrupted(signal), now);
    }

    /// Handles timers that are due at `now`.
    pub(super) fn tick(&mut self, now: Time) {
        self.decide(JobInput::Tick, now);
        let actions = self.batches.iter_mut().flat_map(|batch| batch.tick(now)).collect();
        self.proceed(actions, now);
    }

    /// When to call `tick` even if no input arrives.
    pub(super) fn next_wakeup(&self) -> Option<Time> {
        let wakeups = self.batches.iter().filter_map(HostSetup::next_wakeup);
        wakeups.chain(self.machine.next_wakeup()).min()
    }

    /// Whether nothing of the job is left.
    pub(super) fn is_over(&self) -> bool {
        self.given_up || (self.machine.is_over() && self.agents.is_empty())
    }

    /// Waits until all output and events are written, or for a signal.
    pub(super) async fn finish(self, signals: &mut Signals) -> JobOutcome {
        // By now all output of the workers has arrived.
        let mut outcome = self.machine.outcome();
        // It quotes text from ranks, hosts and scripts.
        outcome.verdict.text = outcome.verdict.text.map(|text| printable(&text).into_owned());
        let through = self.job.output.screen.passed_through();
        let (screen, event_bus, _side_connections) = self.context.close(through);
        if !self.given_up {
            tokio::select! {
                lost = tokio::task::spawn_blocking(|| screen.finish()) => {
                    outcome = outcome.without(&lost.unwrap_or_default());
                }
                _ = signals.next() => {}
            }
        }
        let JobOutcome { code, verdict } = outcome.clone();
        tokio::select! {
            line = event_bus.finish(JobEventKind::JobEnded { exit_code: code, verdict }) => {
                if let Some(line) = line {
                    // The screen has already ended.
                    let _ = writeln!(io::stderr(), "[ronde] {line}");
                }
            }
            _ = signals.next() => {}
        }
        outcome
    }
}

fn id(index: usize) -> AgentId {
    AgentId(index as u32)
}

/// The slot that a worker will probably have, assuming that all offered slots are used.
fn likely_slot(start: &Start, hosts: &[Host]) -> Slot {
    let Start { host, slot, .. } = start;
    let has = |known: &&Host| known.slots > *slot || known.name == *host;
    let having: Vec<&Host> = hosts.iter().filter(has).collect();
    let own = having.iter().position(|known| known.name == *host);
    Slot {
        rank: start.rank,
        host: host.clone(),
        local_rank: *slot,
        local_size: own.map_or(0, |own| having[own].slots).max(slot + 1),
        cross_rank: own.unwrap_or(0) as u32,
        cross_size: having.len().max(1) as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_likely_slot_follows_from_the_offered_slots() {
        let start = |host: &str| Start {
            worker: Worker(9),
            agent: AgentId(4),
            host: host.into(),
            slot: 1,
            rank: Rank(3),
            size: 5,
            late: false,
        };
        let hosts = [("a", 2), ("b", 1), ("c", 4)].map(|(name, slots)| Host {
            name: name.into(),
            user: None,
            slots,
        });
        let slot = likely_slot(&start("c"), &hosts);
        assert_eq!((slot.local_rank, slot.local_size), (1, 4));
        assert_eq!((slot.cross_rank, slot.cross_size), (1, 2));
        let slot = likely_slot(&start("gone"), &hosts);
        assert_eq!((slot.local_size, slot.cross_rank, slot.cross_size), (2, 0, 2));
    }
}
