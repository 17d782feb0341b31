//! The driver of an elastic job, whose workers come and go.
//!
//! Which hosts take part, who is started where, who meets in the next world and when the job is over
//! is decided in `ronde_control::elastic`; here its words are carried out and what happens is told to
//! it. A signal to the launcher is the one thing decided here: then nothing is started any more, and
//! the workers are made to end as those of any job are.

mod arrival;
mod discovery;
mod workers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use ronde_control::elastic::{self, Action, AgentId, Elastic, Event, Limits, Offer};
use ronde_control::event::Happening;
use ronde_control::liveness::{self, Liveness};
use ronde_control::muster::{self, Guest, Plan};
use ronde_control::rendezvous::{self, Time};
use ronde_control::verdict::Outcome;
use ronde_control::wire::DriverToRank;
use ronde_control::wire::agent::{AgentToDriver, DriverToAgent, Exit, signal_name};
use ronde_control::{Epoch, Rank, VERSION, Worker};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::ending::{Ending, Step};
use super::hands::Hands;
use super::screen::{Done, Screen};
use super::stage::{self, Count, Remains, Stage};
use super::start::{self, Part, Recipe, Span};
use super::watchers::Answer;
use super::{Job, News, entropy, hex};
use crate::agent::free_ports;
use crate::hosts::Host;
use crate::reach::{Trouble, Way, ssh};
use crate::{LaunchError, interfaces};
use arrival::Arrival;
use discovery::Discovery;
pub use discovery::Script;
use workers::Workers;

/// How long an agent that was told to stop waits for its workers to leave at their next commit.
pub const LINGER: Duration = Duration::from_secs(30);

/// A host is silent for at least so long before it counts as lost: it may only be slow.
const LEAST_HOST_LIMIT: Duration = Duration::from_secs(10);

/// The workers of a job, who come and go.
#[derive(Clone, Debug)]
pub struct Crew {
    /// How many there may be, and for how long what is waited for.
    pub limits: Limits,
    /// Where they run.
    pub hosts: Hosts,
    /// How hosts are reached that the script names.
    pub ssh: ssh::Options,
}

/// Where workers run.
#[derive(Clone, Debug)]
pub enum Hosts {
    /// On these hosts.
    Listed(Vec<(Host, Way)>),
    /// On those that a script names.
    Script(Script),
}

impl Hosts {
    /// How far the job reaches. A script may name any host, but without a network there is only one.
    fn span(&self) -> Span {
        match self {
            Hosts::Listed(hosts) if hosts.iter().all(|(_, way)| way.is_local()) => {
                Span::ThisMachine
            }
            Hosts::Listed(_) => Span::Hosts,
            Hosts::Script(_) => {
                let all = interfaces::all().unwrap_or_default();
                match interfaces::for_others(&all).is_empty() {
                    true => Span::ThisMachine,
                    false => Span::Hosts,
                }
            }
        }
    }
}

/// A job on its way.
pub(super) struct Driver {
    machine: Elastic,
    liveness: Liveness,
    recipe: Recipe,
    stage: Stage,
    ending: Ending,
    agents: BTreeMap<AgentId, Agent>,
    workers: Workers,
    /// What the hosts offer, and how each is reached that was ever named.
    offers: Vec<Offer>,
    ways: BTreeMap<String, Way>,
    /// Hosts whose agents were told to stop: they count as not there until they are named anew.
    stopping: BTreeSet<String>,
    /// Where torch.distributed's own rendezvous would be: on the first host that arrived.
    master: Option<(IpAddr, u16)>,
    outcome: Option<Outcome>,
    /// Whether that is the machine's judgement, and no signal to the launcher.
    judged: bool,
    dismissed: bool,
    given_up: bool,
    office: Office,
    /// Runs the script.
    discovery: JoinSet<()>,
    /// The hosts that the user has named, until that is told.
    listed: Option<Vec<(Host, Way)>>,
}

/// What it takes to start an agent.
struct Office {
    program: PathBuf,
    id: String,
    span: Span,
    start_timeout: Duration,
    news: mpsc::Sender<News>,
}

struct Agent {
    hands: Hands,
    state: State,
}

enum State {
    Coming(Arrival),
    Ready(Plan),
    /// It was told to end, or is of no use.
    Leaving,
}

impl Driver {
    pub(super) async fn start(
        job: &Job,
        crew: &Crew,
        news: &mpsc::Sender<News>,
    ) -> Result<Driver, LaunchError> {
        let span = crew.hosts.span();
        let count = Count::Initially(crew.limits.start as usize);
        let mut stage = Stage::open(job, count, span, &[], news).await?;
        stage.started(job, count, (crew.limits.min, crew.limits.max));
        let drawn = entropy()?;
        let seed = drawn.iter().fold(0, |seed: u64, byte| seed.rotate_left(8) ^ u64::from(*byte));
        let mut discovery = JoinSet::new();
        let mut listed = None;
        match &crew.hosts {
            Hosts::Listed(hosts) => listed = Some(hosts.clone()),
            Hosts::Script(script) => {
                let search = Discovery {
                    script: script.clone(),
                    program: job.program.clone(),
                    cwd: job.cwd.clone(),
                    ssh: crew.ssh.clone(),
                    news: news.clone(),
                };
                discovery.spawn(search.run());
            }
        }
        // Whoever may end a stalled job may end a stopped worker.
        let stopped = crew.limits.stopped.into_iter().chain(job.stall_shutdown()).min();
        let host = stopped.map(|limit| limit.max(LEAST_HOST_LIMIT));
        Ok(Driver {
            machine: Elastic::new(VERSION, Limits { stopped, ..crew.limits.clone() }, seed),
            liveness: Liveness::new(liveness::Limits { awaited: None, host }),
            recipe: Recipe::new(job, stage.key.clone()),
            stage,
            ending: Ending::default(),
            agents: BTreeMap::new(),
            workers: Workers::default(),
            offers: Vec::new(),
            ways: BTreeMap::new(),
            stopping: BTreeSet::new(),
            master: None,
            outcome: None,
            judged: false,
            dismissed: false,
            given_up: false,
            office: Office {
                program: job.program.clone(),
                id: hex(&entropy()?[..12]),
                span,
                start_timeout: job.start_timeout,
                news: news.clone(),
            },
            discovery,
            listed,
        })
    }

    /// Asks what an event means, and does it.
    fn decide(&mut self, event: Event, now: Time) {
        let mut actions = VecDeque::from(self.machine.on(event, now));
        while let Some(action) = actions.pop_front() {
            if let Some(event) = self.carry_out(action, now) {
                actions.extend(self.machine.on(event, now));
            }
        }
    }

    /// Does what was decided; gives what came of it if that is known at once.
    fn carry_out(&mut self, action: Action, now: Time) -> Option<Event> {
        match action {
            Action::Tell(connections, message) => self.stage.outboxes.tell(connections, &message),
            Action::Close(connection) => self.stage.outboxes.close(connection),
            Action::Formed(epoch, workers) => self.formed(epoch, workers, now),
            Action::Reported(worker, report) => {
                if let Some(rank) = self.workers.rank(worker) {
                    self.stage.watchers.census.reported(rank, report);
                }
            }
            Action::Answered(worker, waits) => self.liveness.heard(Rank(worker.0), waits, now),
            // Once the end has begun nothing else is started, told or judged.
            _ if self.outcome.is_some() => {}
            Action::Reach(agent, host) => return self.reach(agent, &host, now),
            Action::Release(agent) => self.release(agent),
            Action::Start(start) => self.start_worker(&start),
            Action::Signal(worker, signal) => {
                let agent = self.workers.agent(worker).and_then(|agent| self.agents.get(&agent));
                if let Some(agent) = agent {
                    let rank = Rank(worker.0);
                    agent.hands.tell(DriverToAgent::SignalOne { rank, signal });
                }
            }
            Action::Happened(what) => self.stage.happened(what),
            Action::End { code, .. } => {
                self.outcome = Some(Outcome { code, verdict: self.machine.judgement() });
                self.judged = true;
                self.dismiss();
                if code != 0 {
                    self.ending.failed(now);
                }
            }
        }
        None
    }

    fn reach(&mut self, id: AgentId, host: &str, now: Time) -> Option<Event> {
        let way = self.ways.get(host).cloned().unwrap_or(Way::Local);
        let here = way.is_local();
        let Office { program, id: mark, span, start_timeout, news } = &self.office;
        let started = start::agent(id.0 as usize, (host, &way), (program, mark), news);
        let hands = match started {
            Ok(hands) => hands,
            Err(error) => {
                let reason = format!("its agent could not be started: {error}");
                let hint = match std::path::Path::new("/proc/self/stat").exists() {
                    true => "check the limits of this machine (`ulimit -a`)",
                    false => {
                        "`/proc` is not mounted, and Ronde needs it: `mount -t proc proc /proc`"
                    }
                };
                let hint = hint.into();
                return Some(Event::Gone { agent: id, reason, hint });
            }
        };
        let guest = Guest { name: host.to_owned(), here };
        let addresses = self.stage.addresses.clone();
        let arrival = Arrival::new(guest, *span, addresses, (*start_timeout, now));
        self.agents.insert(id, Agent { hands, state: State::Coming(arrival) });
        None
    }

    fn release(&mut self, id: AgentId) {
        let Some(agent) = self.agents.get_mut(&id) else { return };
        match agent.state {
            State::Coming(_) => agent.hands.kill(),
            State::Ready(_) => agent.hands.tell(DriverToAgent::End),
            State::Leaving => {}
        }
        agent.state = State::Leaving;
        self.liveness.host_gone(id.0);
    }

    fn dismiss(&mut self) {
        self.dismissed = true;
        self.discovery.abort_all();
        for id in self.agents.keys().copied().collect::<Vec<_>>() {
            self.release(id);
        }
    }

    fn start_worker(&mut self, start: &elastic::Start) {
        self.workers.add(start);
        self.stage.rename(Rank(start.worker.0), start.rank);
        let Some(Agent { hands, state: State::Ready(plan) }) = self.agents.get(&start.agent) else {
            return;
        };
        let (address, master_port) = self.master.unwrap_or((Ipv4Addr::LOCALHOST.into(), 0));
        let plan = Plan { first: Some(address), ..plan.clone() };
        let slot = workers::slot(start, &self.offers);
        let (worker, size, late) = (Some(start.worker), start.size, start.late);
        let part = Part { slot: &slot, worker, late, size, master_port, cluster: &[] };
        self.recipe.start(hands, &plan, part);
    }

    fn formed(&mut self, epoch: Epoch, workers: Vec<Worker>, now: Time) {
        tracing::info!(epoch = epoch.0, ?workers, "a world is formed");
        self.stage.tell_world(&workers.iter().map(|worker| worker.0).collect::<Vec<_>>());
        let census = self.workers.formed(epoch, workers);
        self.stage.watchers.begin_anew(census, now);
    }

    /// Asks a host's muster what an event means, and does it.
    fn gather(&mut self, id: AgentId, event: muster::Event, now: Time) {
        let agent = self.agents.get_mut(&id);
        let Some(Agent { state: State::Coming(arrival), .. }) = agent else { return };
        let steps = arrival.on(event, now);
        self.proceed(id, steps, now);
    }

    fn proceed(&mut self, id: AgentId, steps: Vec<arrival::Step>, now: Time) {
        for step in steps {
            let Some(agent) = self.agents.get_mut(&id) else { return };
            match step {
                arrival::Step::Listen => self.recipe.listen((id.0, &agent.hands), 1),
                arrival::Step::Dial(targets) => start::dial(&agent.hands, targets),
                arrival::Step::Arrived(plan) => {
                    tracing::info!(host = agent.hands.host, ?plan, "a host has arrived");
                    Recipe::stay(&agent.hands, &plan);
                    let millis = LINGER.as_millis() as u32;
                    agent.hands.tell(DriverToAgent::Linger { millis });
                    self.master = self.master.or_else(|| master(&plan));
                    agent.state = State::Ready(plan);
                    self.decide(Event::Ready(id), now);
                }
                arrival::Step::Failed(Trouble { reason, hint }) => {
                    agent.hands.kill();
                    agent.state = State::Leaving;
                    self.decide(Event::Gone { agent: id, reason, hint }, now);
                }
            }
        }
    }

    fn hear(&mut self, id: AgentId, message: AgentToDriver, now: Time) {
        let Some(agent) = self.agents.get(&id) else { return };
        if !matches!(agent.state, State::Leaving) {
            self.liveness.heard_host(id.0, now);
        }
        let from = (id.0 as usize, &agent.hands);
        let complains = |rank: Rank, line: &str| self.machine.wrote(Worker(rank.0), line);
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
            AgentToDriver::Started { rank, pid } => {
                tracing::info!(worker = rank.0, pid, "a worker runs");
                self.liveness.started(rank, id.0, pid);
                self.workers.started(Worker(rank.0), pid);
                if let Some(member) = self.machine.member(Worker(rank.0)) {
                    self.stage.happened(Happening::WorkerStarted { member, pid });
                }
                if rank == Rank(0) {
                    self.stage.feed(&agent.hands);
                }
                if let Some(census) = self.workers.gathering() {
                    self.stage.watchers.begin_anew(census, now);
                }
            }
            AgentToDriver::Exited { rank, exit } => self.exited(Worker(rank.0), exit, now),
            AgentToDriver::Stopped { rank } => {
                self.liveness.stopped(rank, now);
                self.decide(Event::Stopped(Worker(rank.0)), now);
            }
            AgentToDriver::Continued { rank } => {
                self.liveness.continued(rank);
                self.decide(Event::Continued(Worker(rank.0)), now);
            }
            AgentToDriver::Looked { found } => self.liveness.looked(found, now),
            AgentToDriver::Leaving => {
                let host = agent.hands.host.clone();
                self.told_to_stop(host, now);
            }
            // Nobody asks for the rest.
            _ => {}
        }
    }

    fn exited(&mut self, worker: Worker, exit: Exit, now: Time) {
        tracing::info!(worker = worker.0, "the worker {exit}");
        self.workers.remove(worker);
        self.liveness.ended(Rank(worker.0));
        if let Some(rank) = self.workers.rank(worker) {
            self.stage.watchers.census.exited(rank, exit.to_string());
        }
        // Once the end has begun, those who are left end because of it.
        if let (Some(_), Some(member)) = (&self.outcome, self.machine.member(worker)) {
            self.stage.happened(Happening::stopped(member, &exit));
        }
        self.decide(Event::Exited(worker, exit), now);
    }

    fn agent_gone(&mut self, id: AgentId, trouble: Trouble, now: Time) {
        self.liveness.host_gone(id.0);
        let Some(mut agent) = self.agents.remove(&id) else { return };
        let Trouble { reason, hint } = agent.hands.bury(trouble);
        tracing::info!(host = agent.hands.host, reason, "an agent has gone");
        let left = self.workers.remove_of(id);
        match agent.state {
            State::Leaving => {
                let exit = Exit::Unknown { reason: "its agent has ended".into() };
                left.into_iter().for_each(|worker| self.exited(worker, exit.clone(), now));
            }
            _ => self.decide(Event::Gone { agent: id, reason, hint }, now),
        }
    }

    fn found(&mut self, hosts: Vec<(Host, Way)>, now: Time) {
        let offer = |(host, _): &(Host, Way)| Offer { host: host.name.clone(), slots: host.slots };
        self.offers = hosts.iter().map(offer).collect();
        self.ways.extend(hosts.into_iter().map(|(host, way)| (host.name, way)));
        self.stopping.retain(|host| self.offers.iter().any(|offer| offer.host == *host));
        self.offer(now);
    }

    /// A host is about to go: its workers leave as if it were not listed any more.
    fn told_to_stop(&mut self, host: String, now: Time) {
        self.stage.happened(Happening::HostLeaving { host: host.clone(), grace_seconds: LINGER });
        self.stopping.insert(host);
        self.offer(now);
    }

    fn offer(&mut self, now: Time) {
        self.offers.retain(|offer| !self.stopping.contains(&offer.host));
        self.decide(Event::Discovered(self.offers.clone()), now);
    }

    /// Asks who is still there, and tells the user who is not.
    fn look_around(&mut self, now: Time) {
        let roll = self.machine.roll();
        for action in self.liveness.tick(&roll, now) {
            match &action {
                liveness::Action::Ping(ranks) => {
                    let ways = ranks.iter().map(|rank| self.machine.connection(Worker(rank.0)));
                    let ways = ways.flatten().collect();
                    self.stage.outboxes.tell(ways, &DriverToRank::Ping);
                    continue;
                }
                liveness::Action::Look(host, ranks) => {
                    if let Some(agent) = self.agents.get(&AgentId(*host)) {
                        agent.hands.tell(DriverToAgent::Look { ranks: ranks.clone() });
                    }
                    continue;
                }
                liveness::Action::HostOverdue(host, during) => {
                    if let Some(agent) = self.agents.get_mut(&AgentId(*host)) {
                        agent.hands.never_answered(*during);
                    }
                    continue;
                }
                liveness::Action::Halted(rank, ..) => {
                    self.decide(Event::Stopped(Worker(rank.0)), now);
                }
                liveness::Action::Resumed(rank, _) => {
                    self.decide(Event::Continued(Worker(rank.0)), now);
                }
                _ => {}
            }
            let member = |rank: Rank| self.machine.member(Worker(rank.0));
            let agent = |host: u32| self.agents.get(&AgentId(host));
            let host = |host: u32| agent(host).map(|agent| agent.hands.host.clone());
            if let Some(what) = action.happening(None, member, host) {
                self.stage.happened(what);
            }
        }
    }

    fn asked(&mut self, answer: Answer, now: Time) {
        if self.stage.watchers.add(answer) {
            return;
        }
        let inside = self.machine.inside();
        let connections = inside.iter().map(|(_, _, connection)| *connection).collect();
        self.stage.outboxes.tell(connections, &DriverToRank::Ask);
        self.stage.watchers.census.asked(inside.into_iter().map(|(_, rank, _)| rank), now);
    }

    fn take(&mut self, step: Step) {
        let agents = self.agents.values_mut().map(|agent| &mut agent.hands);
        match step {
            Step::Send(signal) => {
                agents.for_each(|hands| hands.tell(DriverToAgent::Signal { signal }));
            }
            Step::GiveUp => {
                tracing::warn!("some processes do not end; giving up on them");
                self.given_up = true;
                agents.for_each(Hands::give_up);
            }
        }
    }
}

impl super::Driver for Driver {
    fn on(&mut self, news: News, now: Time) {
        let Some(news) = self.stage.on(news) else { return };
        match news {
            News::Rendezvous(heard) => {
                let event = match self.stage.outboxes.take_in(heard) {
                    rendezvous::Event::Greeted(from, greeting) => Event::Greeted(from, greeting),
                    rendezvous::Event::Said(from, message) => Event::Said(from, message),
                    rendezvous::Event::Closed(connection) => Event::Closed(connection),
                    rendezvous::Event::Exited(..)
                    | rendezvous::Event::Condemned(..)
                    | rendezvous::Event::Tick => Event::Tick,
                };
                self.decide(event, now);
            }
            News::Hosts(Ok(hosts)) => self.found(hosts, now),
            News::Hosts(Err(reason)) => self.decide(Event::Undiscovered(reason), now),
            News::Hello(index, version) => {
                self.gather(id(index), muster::Event::Hello { version }, now);
            }
            News::Agent(index, message) => self.hear(id(index), message, now),
            News::AgentGone(index, trouble) => self.agent_gone(id(index), trouble, now),
            News::Silent(index, error) if !self.dismissed => {
                if let Some(agent) = self.agents.get_mut(&id(index)) {
                    agent.hands.fell_silent(&error);
                }
            }
            News::Printed(Done { agent, cost }) => {
                if let Some(agent) = self.agents.get(&id(agent)) {
                    agent.hands.tell(DriverToAgent::Printed { cost });
                }
            }
            News::Asked(answer) => self.asked(answer, now),
            News::Stdin(piece) => {
                let first = self.workers.agent(Worker(0)).and_then(|id| self.agents.get(&id));
                if let Some(first) = first {
                    first.hands.tell(stage::input(piece));
                }
            }
            _ => {}
        }
    }

    fn signalled(&mut self, signal: i32, now: Time) {
        tracing::info!("passing {} on to all workers", signal_name(signal));
        let workers = self.workers.count();
        self.outcome.get_or_insert_with(|| Outcome::interrupted(signal, workers));
        if let Some(step) = self.ending.signalled(signal, now) {
            self.take(step);
        }
    }

    fn tick(&mut self, now: Time) {
        match self.listed.take() {
            Some(hosts) => self.found(hosts, now),
            None => self.decide(Event::Tick, now),
        }
        for id in self.agents.keys().copied().collect::<Vec<_>>() {
            let agent = self.agents.get_mut(&id);
            if let Some(Agent { state: State::Coming(arrival), .. }) = agent {
                let steps = arrival.tick(now);
                self.proceed(id, steps, now);
            }
        }
        if !self.dismissed && self.liveness.next_wakeup().is_some_and(|time| time <= now) {
            self.look_around(now);
        }
        self.stage.tick(now);
        if let Some(step) = self.ending.tick(now) {
            self.take(step);
        }
        if self.outcome.is_some() && self.workers.count() == 0 && !self.dismissed {
            self.dismiss();
        }
    }

    fn next_wakeup(&self) -> Option<Time> {
        let arrivals = self.agents.values().filter_map(|agent| match &agent.state {
            State::Coming(arrival) => arrival.next_wakeup(),
            State::Ready(_) | State::Leaving => None,
        });
        let census = self.stage.watchers.census.next_wakeup();
        let others = self.ending.next_wakeup().into_iter().chain(census);
        let others = others.chain(self.liveness.next_wakeup().filter(|_| !self.dismissed));
        self.machine.next_wakeup().into_iter().chain(others).chain(arrivals).min()
    }

    fn is_over(&self) -> bool {
        self.given_up || (self.dismissed && self.agents.is_empty())
    }

    fn finish(self) -> (Outcome, Option<Screen>, Remains) {
        let (screen, remains) = self.stage.close();
        let unknown = || Outcome { code: 1, verdict: self.machine.judgement() };
        let mut outcome = self.outcome.unwrap_or_else(unknown);
        if self.judged {
            // By now everything has come that workers wrote before they ended.
            outcome.verdict = self.machine.judgement();
        }
        (outcome, (!self.given_up).then_some(screen), remains)
    }
}

fn id(index: usize) -> AgentId {
    AgentId(index as u32)
}

fn master(plan: &Plan) -> Option<(IpAddr, u16)> {
    let port = plan.ports.first().copied().or_else(|| free_ports(1).first().copied())?;
    Some((plan.listen.first().copied().unwrap_or(Ipv4Addr::LOCALHOST.into()), port))
}
