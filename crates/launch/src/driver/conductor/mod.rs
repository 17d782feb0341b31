//! The driver of a job: carries out what the machine in `ronde_control::job` decides, and tells it what
//! happens. It decides nothing.

mod arrivals;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ronde_control::event::Source;
use ronde_control::job::{self, Action, AgentId, Event, Machine, Outcome, Start, Terms};
use ronde_control::muster::{self, Plan};
use ronde_control::wire::agent::{AgentToDriver, DriverToAgent};
use ronde_control::{Time, VERSION, Worker};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::hands::Hands;
use super::party::Party;
use super::screen::{Done, Screen};
use super::stage::{self, Remains, Stage};
use super::start::{Part, Recipe, Span};
use super::{Job, News, cluster, entropy, hex};
use crate::LaunchError;
use crate::hosts::{Host, Slot};
use crate::reach::dialled::Offer;
use crate::reach::{Trouble, Way};
use crate::source::HostSource;

/// How long an agent that was told to stop waits for its workers to leave at their next commit.
pub const LINGER: Duration = Duration::from_secs(30);

/// A job on its way.
pub(super) struct Driver {
    machine: Machine,
    recipe: Recipe,
    stage: Stage,
    agents: BTreeMap<AgentId, Agent>,
    /// Hosts that have not arrived.
    parties: Vec<Party>,
    /// Agents that have dialled in and that the job has not sent for, by the names of their hosts.
    waiting: BTreeMap<String, Offer>,
    /// What the hosts offer, and how each is reached that was ever named.
    offers: Vec<job::Offer>,
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
    office: Office,
    /// Finds hosts.
    search: JoinSet<()>,
    /// The hosts that the user has named, until that is told.
    listed: Option<Vec<(Host, Way)>>,
}

/// What it takes to start an agent.
struct Office {
    program: PathBuf,
    id: String,
    span: Span,
    start_timeout: Duration,
    outlives_losses: bool,
    source: Source,
    ranks: u32,
    news: mpsc::Sender<News>,
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

impl Driver {
    pub(super) async fn start(job: &Job, news: &mpsc::Sender<News>) -> Result<Driver, LaunchError> {
        let span = job.hosts.span();
        let mut stage = Stage::open(job, news).await?;
        stage.started(job);
        if let HostSource::DialledIn(agents) = &job.hosts {
            stage.tell(&agents.invitation(&stage.addresses));
        }
        let seed = entropy()?;
        let seed = seed.iter().fold(0, |seed: u64, byte| seed.rotate_left(8) ^ u64::from(*byte));
        let mut search = JoinSet::new();
        let listed = job.hosts.begin(job, &mut search, news);
        // Whoever may end a stalled job may end a stopped worker.
        let stopped = job.terms.stopped.into_iter().chain(job.stall_shutdown()).min();
        let terms = Terms { stopped, ..job.terms.clone() };
        Ok(Driver {
            machine: Machine::new(VERSION, terms, seed),
            recipe: Recipe::new(job, stage.key.clone()),
            stage,
            agents: BTreeMap::new(),
            parties: Vec::new(),
            waiting: BTreeMap::new(),
            offers: Vec::new(),
            ways: BTreeMap::new(),
            slots: Vec::new(),
            cluster: Vec::new(),
            master: None,
            first: None,
            given_up: false,
            office: Office {
                program: job.program.clone(),
                id: hex(&entropy()?[..12]),
                span,
                start_timeout: job.start_timeout,
                outlives_losses: job.terms.outlives_losses(),
                source: job.hosts.kind(),
                ranks: job.terms.start,
                news: news.clone(),
            },
            search,
            listed,
        })
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
                self.stage.tell_world(&workers);
            }
            Action::Answer(status) => self.stage.answer(status),
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
        self.parties.retain(|party| !party.has(id));
    }

    fn start_worker(&mut self, start: &Start) {
        self.stage.rename(start.worker, start.rank);
        if start.worker == Worker(0) {
            self.first = Some(start.agent);
        }
        if self.cluster.is_empty() {
            self.cluster = self.cluster();
        }
        let Some(Agent { hands, state: State::Ready(plan) }) = self.agents.get(&start.agent) else {
            return;
        };
        let (address, master_port) = self.master.unwrap_or((Ipv4Addr::LOCALHOST.into(), 0));
        let first = plan.first.filter(|_| !self.office.outlives_losses).unwrap_or(address);
        let plan = Plan { first: Some(first), ..plan.clone() };
        let slot = match self.slots.get(start.rank.index()) {
            Some(slot) => slot.clone(),
            None => likely_slot(start, &self.offers),
        };
        self.recipe.start(
            hands,
            &plan,
            Part {
                slot: &slot,
                worker: start.worker,
                is_elastic: self.office.outlives_losses,
                late: start.late,
                size: start.size,
                master_port,
                cluster: &self.cluster,
            },
        );
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
        let from = (id.0 as usize, &agent.hands);
        let complains = |worker, line: &str| self.machine.wrote(worker, line);
        let Some(message) = self.stage.hear(from, message, complains) else { return };
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
                    self.stage.feed(&agent.hands);
                }
                self.decide(Event::Started(worker, pid), now);
            }
            AgentToDriver::Exited { worker, exit } => {
                tracing::info!(worker = worker.0, "the worker {exit}");
                self.decide(Event::Exited(worker, exit), now);
            }
            AgentToDriver::Stopped { worker } => self.decide(Event::Stopped(worker), now),
            AgentToDriver::Continued { worker } => self.decide(Event::Continued(worker), now),
            AgentToDriver::Looked { found } => self.decide(Event::Looked(found), now),
            AgentToDriver::Leaving => self.decide(Event::Leaving(id, LINGER), now),
            // Nobody asks for the rest.
            _ => {}
        }
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
        let Some(news) = self.stage.on(news) else { return };
        match news {
            News::Rendezvous(heard) => {
                if let Some(event) = self.stage.outboxes.take_in(heard) {
                    self.decide(event, now);
                }
            }
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
            News::Asked(answer) => {
                self.stage.watchers.add(answer);
                self.decide(Event::Asked, now);
            }
            News::Stdin(piece) => {
                if let Some(first) = self.first {
                    self.tell(first, stage::input(piece));
                }
            }
            _ => {}
        }
    }

    /// The launcher was sent a signal.
    pub(super) fn signalled(&mut self, signal: i32, now: Time) {
        self.decide(Event::Interrupted(signal), now);
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: Time) {
        match self.listed.take() {
            Some(hosts) => self.found(hosts, now),
            None => self.decide(Event::Tick, now),
        }
        let steps = self.parties.iter_mut().flat_map(|party| party.tick(now)).collect();
        self.proceed(steps, now);
    }

    /// When something must happen even if nothing else does.
    pub(super) fn next_wakeup(&self) -> Option<Time> {
        let parties = self.parties.iter().filter_map(Party::next_wakeup);
        parties.chain(self.machine.next_wakeup()).min()
    }

    /// Whether nothing is left of the job.
    pub(super) fn is_over(&self) -> bool {
        self.given_up || (self.machine.is_over() && self.agents.is_empty())
    }

    /// How the job ended, and what is still open of its surroundings; the screen only if it is worth
    /// waiting for what it has still to show.
    pub(super) fn finish(self) -> (Outcome, Option<Screen>, Remains) {
        let (screen, remains) = self.stage.close();
        // By now everything has come that workers wrote before they ended.
        (self.machine.outcome(), (!self.given_up).then_some(screen), remains)
    }
}

fn id(index: usize) -> AgentId {
    AgentId(index as u32)
}

/// The place that a worker will probably have, if all slots on offer are used.
fn likely_slot(start: &Start, offers: &[job::Offer]) -> Slot {
    let Start { host, slot, .. } = start;
    let has = |offer: &&job::Offer| offer.slots > *slot || offer.host == *host;
    let having: Vec<&job::Offer> = offers.iter().filter(has).collect();
    let own = having.iter().position(|offer| offer.host == *host);
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
        let offers = [("a", 2), ("b", 1), ("c", 4)]
            .map(|(host, slots)| job::Offer { host: host.into(), slots });
        let slot = likely_slot(&start("c"), &offers);
        assert_eq!((slot.local_rank, slot.local_size), (1, 4));
        assert_eq!((slot.cross_rank, slot.cross_size), (1, 2));
        let slot = likely_slot(&start("gone"), &offers);
        assert_eq!((slot.local_size, slot.cross_rank, slot.cross_size), (2, 0, 2));
    }
}
