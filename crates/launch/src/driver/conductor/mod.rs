//! The driver of a job: carries out what the machine in `ronde_control::job` decides, and tells it what
//! happens. It decides nothing.

mod arrivals;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use ronde_control::event::Happening;
use ronde_control::job::{Action, AgentId, Event, Machine, Outcome, Start, Terms};
use ronde_control::muster::{self, Muster, Plan};
use ronde_control::status::Status;
use ronde_control::wire::agent::{AgentToDriver, DriverToAgent, Stream, WorkerSpec, output_cost};
use ronde_control::{Time, VERSION, Worker, printable};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::environment::{self, Part};
use super::errand::Returned;
use super::hands::Hands;
use super::screen::{Done, Item, Viewer};
use super::stage::Stage;
use super::start::Span;
use super::{Job, News, cluster, entropy, hex};
use crate::LaunchError;
use crate::hosts::{Host, Slot};
use crate::logs::prefix;
use crate::reach::dialled::Offer;
use crate::reach::{Trouble, Way};
use crate::signals::Signals;
use crate::source::{HostSource, Search};

/// How long an agent that was told to stop waits for its workers to leave at their next commit.
const LINGER: Duration = Duration::from_secs(30);

/// What a job is told whose caller has gone.
const HANG_UP: i32 = 1;

/// Events that an answer to whoever watches shows.
const LAST: usize = 8;

/// A job on its way.
pub(super) struct Driver<'a> {
    job: &'a Job,
    /// What the marks of its processes begin with.
    id: String,
    span: Span,
    news: mpsc::Sender<News>,
    machine: Machine,
    stage: Stage,
    agents: BTreeMap<AgentId, Agent>,
    /// Hosts that have not arrived. Those of a job that needs all of them are one party, which starts
    /// together or not at all. Otherwise each is a party of its own, because it may come at any time;
    /// ranks dial each other at all addresses that a host has, so it need only reach the launcher.
    parties: Vec<Muster>,
    /// Agents that have dialled in and that the job has not sent for, by the names of their hosts.
    waiting: BTreeMap<String, Offer>,
    /// The hosts, and how each is reached that was ever named.
    hosts: Vec<Host>,
    ways: BTreeMap<String, Way>,
    /// Where each rank sits, in rank order, where that is known from the beginning.
    slots: Vec<Slot>,
    /// The ranks of such a job as workers of TensorFlow's own strategies.
    cluster: Vec<SocketAddr>,
    /// Where torch.distributed's own rendezvous would be: on the first host that arrived.
    master: Option<(IpAddr, u16)>,
    /// The agent of the worker that has the launcher's input.
    first: Option<AgentId>,
    given_up: bool,
    /// Finds hosts.
    search: JoinSet<()>,
}

struct Agent {
    hands: Hands,
    state: State,
}

enum State {
    Coming,
    Ready(Plan),
    /// It was told to end, or is of no use.
    Leaving,
}

impl<'a> Driver<'a> {
    pub(super) async fn start(
        job: &'a Job,
        news: mpsc::Sender<News>,
    ) -> Result<Driver<'a>, LaunchError> {
        let mut stage = Stage::open(job, &news).await?;
        stage.started(job);
        if let HostSource::DialledIn(agents) = &job.hosts {
            stage.tell(&agents.invitation(&stage.addresses));
        }
        // Whoever may end a stalled job may end a stopped worker.
        let stopped = job.terms.stopped.into_iter().chain(job.stall_shutdown()).min();
        let terms = Terms { stopped, ..job.terms.clone() };
        let mut driver = Driver {
            job,
            id: hex(&entropy::<12>()?),
            span: job.hosts.span(),
            machine: Machine::new(VERSION, terms, u64::from_ne_bytes(entropy()?)),
            stage,
            agents: BTreeMap::new(),
            parties: Vec::new(),
            waiting: BTreeMap::new(),
            hosts: Vec::new(),
            ways: BTreeMap::new(),
            slots: Vec::new(),
            cluster: Vec::new(),
            master: None,
            first: None,
            given_up: false,
            search: JoinSet::new(),
            news,
        };
        match &job.hosts {
            HostSource::Listed(hosts) => driver.found(hosts.clone(), Time::ZERO),
            HostSource::Script(script, ssh) => {
                let (job, news) = (job.clone(), driver.news.clone());
                let search = Search { script: script.clone(), ssh: ssh.clone(), job, news };
                driver.search.spawn(search.run());
            }
            // They come by themselves.
            HostSource::DialledIn(_) => {}
        }
        Ok(driver)
    }

    /// Asks what an event means, and does it.
    fn decide(&mut self, event: Event, now: Time) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.machine.on(event, now) {
                events.extend(self.carry_out(action, now));
            }
        }
    }

    /// Does what was decided; gives what came of it if that is known at once.
    fn carry_out(&mut self, action: Action, now: Time) -> Vec<Event> {
        match action {
            Action::Tell(connections, message) => self.stage.outboxes.tell(connections, &message),
            Action::Close(connection) => self.stage.outboxes.close(connection),
            Action::Formed(epoch, workers) => {
                tracing::info!(epoch = epoch.0, ?workers, "a world is formed");
                // The caller of `horovod.run` must know whose results count.
                if self.stage.viewer == Viewer::Caller && self.job.terms.outlives_losses() {
                    self.stage.screen.show(Item::World(workers));
                }
            }
            Action::Answer(status) => {
                let status = Status { events: self.stage.chronicle.last(LAST), ..status };
                for asker in self.stage.askers.drain(..) {
                    // Whoever does not wait any more loses nothing.
                    let _ = asker.send(status.clone());
                }
            }
            Action::Happened(what) => self.stage.happened(what),
            Action::Reach(hosts) => return self.reach(hosts, now),
            Action::Release(agent) => self.release(agent),
            Action::Start(start) => self.start_worker(&start),
            Action::Signal(agent, worker, signal) => {
                self.tell(agent, DriverToAgent::SignalOne { worker, signal });
            }
            Action::SignalAll(signal) => {
                let agents = self.agents.values();
                agents.for_each(|agent| agent.hands.tell(DriverToAgent::Signal { signal }));
            }
            Action::Look(agent, workers) => self.tell(agent, DriverToAgent::Look { workers }),
            Action::Cut(agent, during) => {
                if let Some(agent) = self.agents.get_mut(&agent) {
                    agent.hands.never_answered(during);
                }
            }
            Action::Dismiss => {
                self.search.abort_all();
                for (_, offer) in std::mem::take(&mut self.waiting) {
                    offer.refuse("the job is over");
                }
                for id in self.agents.keys().copied().collect::<Vec<_>>() {
                    self.release(id);
                }
            }
            Action::GiveUp => {
                tracing::warn!("some processes do not end; giving up on them");
                self.given_up = true;
                self.agents.values_mut().for_each(|agent| agent.hands.give_up());
            }
        }
        Vec::new()
    }

    fn tell(&self, agent: AgentId, command: DriverToAgent) {
        if let Some(agent) = self.agents.get(&agent) {
            agent.hands.tell(command);
        }
    }

    fn release(&mut self, id: AgentId) {
        let Some(agent) = self.agents.get_mut(&id) else { return };
        match agent.state {
            State::Coming => agent.hands.kill(),
            State::Ready(_) => agent.hands.tell(DriverToAgent::End),
            State::Leaving => {}
        }
        agent.state = State::Leaving;
        self.parties.retain(|party| !party.awaits(id));
    }

    fn start_worker(&mut self, start: &Start) {
        self.stage.lines.rename(start.worker, start.rank);
        if start.worker == Worker(0) {
            self.first = Some(start.agent);
        }
        if self.cluster.is_empty() {
            self.cluster = self.cluster();
        }
        let Some(Agent { hands, state: State::Ready(plan) }) = self.agents.get(&start.agent) else {
            return;
        };
        let (address, port) = self.master.unwrap_or((Ipv4Addr::LOCALHOST.into(), 0));
        let is_elastic = self.job.terms.outlives_losses();
        let address = plan.first.filter(|_| !is_elastic).unwrap_or(address);
        let slot = match self.slots.get(start.rank.index()) {
            Some(slot) => slot.clone(),
            None => likely_slot(start, &self.hosts),
        };
        let part = Part {
            slot: &slot,
            start,
            is_elastic,
            master: (address, port),
            cluster: &self.cluster,
        };
        let bytes = |text: &OsString| text.clone().into_vec();
        let inherits = hands.ties.environment;
        let travels = |(name, _): &&(OsString, OsString)| inherits || environment::travels(name);
        let inherited = self.job.env.iter().filter(travels).cloned();
        let spec = WorkerSpec {
            worker: start.worker,
            argv: self.job.command.iter().map(bytes).collect(),
            cwd: self.job.cwd.clone().into_os_string().into_vec(),
            env: environment::of(inherited, (&self.stage.key, &hands.mark), plan, part),
            own: if inherits { Vec::new() } else { environment::own() },
        };
        // One at a time: an environment may be large, and a frame is not endless.
        hands.tell(DriverToAgent::Start { workers: vec![spec] });
    }

    /// The ranks of a job whose seats are known as workers of TensorFlow's own strategies.
    fn cluster(&self) -> Vec<SocketAddr> {
        let hosts = self.agents.values().filter_map(|agent| match &agent.state {
            State::Ready(plan) => Some((agent.hands.host.as_str(), plan)),
            State::Coming | State::Leaving => None,
        });
        cluster::workers(&self.slots, &hosts.collect::<Vec<_>>())
    }

    fn hear(&mut self, id: AgentId, message: AgentToDriver, now: Time) {
        let Some(agent) = self.agents.get(&id) else { return };
        self.machine.on(Event::Heard(id), now);
        match message {
            AgentToDriver::Listening { listeners, known, ports } => {
                self.gather(id, muster::Event::Listening { listeners, known, ports }, now);
            }
            AgentToDriver::Dialled { callee, address, outcome } => {
                let host = &agent.hands.host;
                tracing::info!(host, ?callee, %address, ?outcome, "an agent has dialled");
                self.gather(id, muster::Event::Dialled { callee, address, outcome }, now);
            }
            AgentToDriver::Started { worker, pid } => {
                tracing::info!(worker = worker.0, pid, "a worker runs");
                if worker == Worker(0) {
                    match self.stage.viewer {
                        Viewer::Terminal => self.stage.stdin.next(),
                        Viewer::Caller => agent.hands.tell(DriverToAgent::StdinEnd),
                    }
                }
                self.decide(Event::Started(worker, pid), now);
            }
            AgentToDriver::Exited { worker, exit } => {
                tracing::info!(worker = worker.0, "the worker {exit}");
                self.decide(Event::Exited(worker, exit), now);
            }
            AgentToDriver::Output { worker, stream, bytes } => {
                let done = Done { agent: id.0 as usize, cost: output_cost(bytes.len()) };
                let stamp = self.stage.stamp.text();
                let text = self.stage.lines.push(worker, stream, &bytes, stamp);
                self.show((worker, stream), text, Some(done));
            }
            AgentToDriver::OutputEnd { worker, stream } => {
                let text = self.stage.lines.end(worker, stream, self.stage.stamp.text());
                self.show((worker, stream), text, None);
            }
            AgentToDriver::StdinTaken => self.stage.stdin.next(),
            AgentToDriver::Problem { reason } => {
                tracing::warn!(host = agent.hands.host, reason, "an agent has a problem");
            }
            AgentToDriver::Stopped { worker } => self.decide(Event::Stopped(worker), now),
            AgentToDriver::Continued { worker } => self.decide(Event::Continued(worker), now),
            AgentToDriver::Looked { found } => self.decide(Event::Looked(found), now),
            AgentToDriver::Leaving => self.decide(Event::Leaving(id, LINGER), now),
            // Nobody asks for the rest.
            _ => {}
        }
    }

    /// Shows what a worker wrote, with its prefixes; the machine reads what of it are complaints.
    fn show(&mut self, (worker, stream): (Worker, Stream), bytes: Vec<u8>, done: Option<Done>) {
        let rank = self.stage.lines.name(worker);
        if stream == Stream::Stderr {
            let prefix = format!("{}{}", self.stage.stamp.text(), prefix(rank, stream));
            for line in String::from_utf8_lossy(&bytes).split(['\n', '\r']) {
                self.machine.wrote(worker, line.strip_prefix(&prefix).unwrap_or(line));
            }
        }
        self.stage.screen.show(Item::Text { rank, stream, bytes, done });
    }

    fn agent_gone(&mut self, id: AgentId, trouble: Trouble, now: Time) {
        let Some(mut agent) = self.agents.remove(&id) else { return };
        let Trouble { reason, hint } = agent.hands.bury(trouble);
        tracing::info!(host = agent.hands.host, reason, "an agent has gone");
        match agent.state {
            State::Coming => self.gather(id, muster::Event::Gone(Trouble { reason, hint }), now),
            State::Ready(_) | State::Leaving => {
                self.decide(Event::Gone { agent: id, reason, hint }, now);
                self.forget(Some(agent.hands.host), now);
            }
        }
    }

    pub(super) fn on(&mut self, news: News, now: Time) {
        match news {
            News::Offered(offer) => self.offered(offer, now),
            News::Hosts(Ok(hosts)) => self.found(hosts, now),
            News::Hosts(Err(reason)) => self.decide(Event::Undiscovered(reason), now),
            News::Hello(index, version) => {
                self.machine.on(Event::Heard(id(index)), now);
                self.gather(id(index), muster::Event::Hello { version }, now);
            }
            News::Agent(index, message) => self.hear(id(index), message, now),
            News::AgentGone(index, trouble) => self.agent_gone(id(index), trouble, now),
            News::Silent(index, error) if !self.machine.is_over() => {
                // The number came from a greeting.
                match self.agents.get_mut(&id(index)) {
                    Some(agent) => agent.hands.fell_silent(&error),
                    None => tracing::warn!(index, "a lifeline named a host that is not there"),
                }
            }
            News::Printed(Done { agent, cost }) => {
                self.tell(id(agent), DriverToAgent::Printed { cost });
            }
            News::Guest(sealed, greeting) => self.stage.guests.receive(sealed, greeting),
            News::Returned(rank, returned) => match (&self.job.deliveries, returned) {
                // Nobody may listen any more; then what comes is for nobody.
                (Some(deliveries), Returned::Piece(bytes, _place)) => drop(deliveries.send(bytes)),
                (Some(_), Returned::End) => {}
                (None, returned) => self.stage.screen.show(Item::Returned(rank, returned)),
            },
            // Whoever has gone meanwhile loses nothing.
            News::Followed(follower) => drop(follower.send(self.stage.chronicle.follow())),
            News::OutputLost(output, reason) => {
                self.stage.happened(Happening::OutputLost { output, reason });
            }
            News::Asked(answer) => {
                self.stage.askers.push(answer);
                self.decide(Event::Asked, now);
            }
            News::Stdin(piece) => self.take_input(piece, now),
            meeting => {
                if let Some(event) = self.stage.outboxes.take_in(meeting) {
                    self.decide(event, now);
                }
            }
        }
    }

    /// Rank 0 has the launcher's input, unless it only shows whether the caller of `horovod.run` lives.
    fn take_input(&mut self, piece: Option<Vec<u8>>, now: Time) {
        let command = match (self.stage.viewer, piece) {
            (Viewer::Terminal, Some(bytes)) => DriverToAgent::Stdin { bytes },
            (Viewer::Terminal, None) => DriverToAgent::StdinEnd,
            (Viewer::Caller, Some(_)) => return self.stage.stdin.next(),
            (Viewer::Caller, None) if self.is_over() => return,
            (Viewer::Caller, None) => return self.signalled(HANG_UP, now),
        };
        if let Some(first) = self.first {
            self.tell(first, command);
        }
    }

    /// The launcher was sent a signal.
    pub(super) fn signalled(&mut self, signal: i32, now: Time) {
        self.decide(Event::Interrupted(signal), now);
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: Time) {
        self.decide(Event::Tick, now);
        let actions = self.parties.iter_mut().flat_map(|party| party.tick(now)).collect();
        self.proceed(actions, now);
    }

    /// When something must happen even if nothing else does.
    pub(super) fn next_wakeup(&self) -> Option<Time> {
        let parties = self.parties.iter().filter_map(Muster::next_wakeup);
        parties.chain(self.machine.next_wakeup()).min()
    }

    /// Whether nothing is left of the job.
    pub(super) fn is_over(&self) -> bool {
        self.given_up || (self.machine.is_over() && self.agents.is_empty())
    }

    /// Waits until everybody knows how the job ended, or for a signal.
    pub(super) async fn finish(self, signals: &mut Signals) -> Outcome {
        // By now everything has come that workers wrote before they ended.
        let mut outcome = self.machine.outcome();
        // It quotes what ranks, hosts and scripts have said.
        outcome.verdict.text = outcome.verdict.text.map(|text| printable(&text).into_owned());
        let (screen, chronicle, _guests) = self.stage.close();
        if !self.given_up {
            tokio::select! {
                lost = tokio::task::spawn_blocking(|| screen.finish()) => {
                    outcome = outcome.without(&lost.unwrap_or_default());
                }
                _ = signals.next() => {}
            }
        }
        let Outcome { code, verdict } = outcome.clone();
        tokio::select! {
            line = chronicle.finish(Happening::JobEnded { exit_code: code, verdict }) => {
                if let Some(line) = line {
                    // The screen has ended before.
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

/// The place that a worker will probably have, if all slots on offer are used.
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
    use ronde_control::Rank;

    use super::*;

    #[test]
    fn a_place_follows_from_what_is_on_offer() {
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
