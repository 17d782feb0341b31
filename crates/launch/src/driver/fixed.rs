//! The driver: starts the agents, holds the rendezvous, shows the output, and ends the job.
//!
//! One loop takes all news in the order they come and asks the decisions in `ronde-control` what they
//! mean: the rendezvous who must hear what, the verdict who failed first. The walk of a job:
//!
//! 1. Listen, with a fresh key; start one agent per host; let them find each other (`start`); tell
//!    each its ranks.
//! 2. Pass on output, input and words until every rank has ended.
//! 3. Dismiss the agents, which remove what is left; wait until they are gone; judge.

mod cluster;
pub mod ending;
mod environment;
mod errand;
mod files;
mod guests;
pub(crate) mod hands;
mod screen;
pub mod service;
pub(crate) mod start;
mod stdin;
mod watchers;

use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ronde_control::muster::{self, Muster};
use ronde_control::rendezvous::{Action, Event, Rendezvous, Seat, Time};
use ronde_control::verdict::{Outcome, Verdict};
use ronde_control::wire::agent::{
    AgentToDriver, DriverToAgent, Exit, Stream, output_cost, signal_name,
};
use ronde_control::wire::{DriverToRank, Greeting, JobKey};
use ronde_control::{Rank, VERSION};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::hosts::Slot;
use crate::logs::{Lines, Stamp, Times};
use crate::reach::{Trouble, Way};
use crate::signals::Signals;
use crate::supervise::{self, Scope};
use crate::wire::Sealed;
use crate::{LaunchError, machine};
use ending::{Ending, Step};
use errand::Returned;
use files::Files;
use guests::Guests;
use hands::Hands;
use screen::{Done, Screen, Text, Viewer};
use service::{Heard, Outboxes};
use start::Start;
use stdin::Stdin;
use watchers::{Answer, Watchers};

/// News that may wait for the driver; whoever brings more waits.
const NEWS: usize = 1024;

/// What a job is told whose caller has gone.
const HANG_UP: i32 = 1;

/// A job, ready to run.
#[derive(Clone, Debug)]
pub struct Job {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Where each rank sits, in rank order.
    pub slots: Vec<Slot>,
    /// The hosts in the order of their ranks, and how each is reached.
    pub hosts: Vec<(String, Way)>,
    /// The environment that all ranks inherit.
    pub env: Vec<(OsString, OsString)>,
    /// Where all ranks run.
    pub cwd: PathBuf,
    /// This executable, which is also the agent.
    pub program: PathBuf,
    /// Where the ranks meet if all hosts are this machine; otherwise all addresses are tried.
    pub listen: IpAddr,
    /// The interfaces by which hosts may reach each other; all if there are none.
    pub interfaces: Vec<String>,
    /// How long it may take until all hosts have found each other.
    pub start_timeout: Duration,
    /// How long a gathering of the ranks may take.
    pub join_timeout: Duration,
    /// What becomes of the ranks' output beside the screen.
    pub output: Output,
    /// Where those who want to watch the job find it, if they may.
    pub registry: Option<PathBuf>,
    /// The function that all ranks call, if `horovod.run` starts this job.
    pub function: Option<Arc<[u8]>>,
    /// Where goes what ranks deliver, piece by piece, if this process itself wants it; then output is
    /// shown as ever.
    pub deliveries: Option<std::sync::mpsc::Sender<Vec<u8>>>,
}

/// What becomes of the ranks' output beside the screen.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// The directory where it is kept too.
    pub files: Option<PathBuf>,
    /// Whether lines begin with the time.
    pub times: Times,
}

/// Everything the driver can learn.
pub(crate) enum News {
    /// Something happened at the rendezvous.
    Rendezvous(Heard),
    /// An agent is there; this is its version.
    Hello(usize, String),
    /// An agent said something.
    Agent(usize, AgentToDriver),
    /// An agent has ended, in this way.
    AgentGone(usize, Trouble),
    /// Nothing is heard any more from a host, or its lifeline was cut.
    Silent(usize, io::Error),
    /// Output has been written.
    Printed(Done),
    /// Standard input, or its end.
    Stdin(Option<Vec<u8>>),
    /// Somebody with the key has come for something else than the rendezvous.
    Guest(Sealed, Greeting),
    /// A rank has returned something to the caller of `horovod.run`.
    Returned(Rank, Returned),
    /// That caller has gone.
    Orphaned,
    /// Somebody wants to know how the job stands.
    Asked(Answer),
}

impl From<Heard> for News {
    fn from(heard: Heard) -> News {
        match heard {
            Heard::Silent(host, error) => News::Silent(host as usize, error),
            Heard::Guest(sealed, greeting) => News::Guest(sealed, greeting),
            heard => News::Rendezvous(heard),
        }
    }
}

/// Runs a job to its end.
pub async fn run(job: &Job, mut signals: Signals) -> Result<Outcome, LaunchError> {
    let start = Instant::now();
    let (sender, mut news) = mpsc::channel(NEWS);
    let mut driver = Driver::start(job, &sender).await?;
    driver.tick(start.elapsed());
    loop {
        let wakeup = driver.next_wakeup().map(|time| start + time);
        tokio::select! {
            Some(item) = news.recv() => driver.on(item, start.elapsed()),
            signal = signals.next() => driver.signalled(signal, start.elapsed()),
            () = sleep_until(wakeup.unwrap_or(start)), if wakeup.is_some() => {}
        }
        driver.tick(start.elapsed());
        if driver.is_over() {
            break;
        }
    }
    while let Ok(item) = news.try_recv() {
        driver.on(item, start.elapsed());
    }
    // The threads must not wait for a loop that has ended.
    drop(news);
    let (outcome, screen) = driver.finish();
    if let Some(screen) = screen {
        tokio::select! {
            _ = tokio::task::spawn_blocking(|| screen.finish()) => {}
            _ = signals.next() => {}
        }
    }
    Ok(outcome)
}

struct Driver {
    muster: Muster,
    start: Start,
    rendezvous: Rendezvous,
    verdict: Verdict,
    ending: Ending,
    outboxes: Outboxes,
    agents: Vec<Hands>,
    slots: Vec<Slot>,
    lines: Lines,
    stamp: Stamp,
    screen: Screen,
    stdin: Stdin,
    viewer: Viewer,
    deliveries: Option<std::sync::mpsc::Sender<Vec<u8>>>,
    guests: Guests,
    service: tokio::task::JoinHandle<()>,
    watchers: Watchers,
    dismissed: bool,
    given_up: bool,
}

impl Driver {
    async fn start(job: &Job, news: &mpsc::Sender<News>) -> Result<Driver, LaunchError> {
        let files = job.output.files.as_deref().map(|path| Files::create(path, job.slots.len()));
        let files = files.transpose()?;
        let key = JobKey::from_entropy(entropy()?);
        let (listener, addresses) = start::listen(&job.hosts, job.listen, &job.interfaces).await?;
        tracing::info!(?addresses, ranks = job.slots.len(), "the rendezvous is open");
        let agents = start::agents(&job.hosts, &job.program, &hex(&entropy()?[..12]), news)?;
        let seats: Vec<Seat> = job
            .slots
            .iter()
            .map(|slot| Seat { host: slot.host.clone(), slot: slot.local_rank })
            .collect();
        let viewer = match (&job.function, &job.deliveries) {
            (Some(_), None) => Viewer::Caller,
            _ => Viewer::Terminal,
        };
        let printed = news.clone();
        let screen = Screen::start(viewer, files, move |done| {
            let _ = printed.blocking_send(News::Printed(done));
        });
        let stdin = stdin::start(viewer, news.clone()).map_err(machine("start a thread"))?;
        let registration = watchers::register(job, &listener, &key);
        let service = tokio::spawn(service::run(listener, key.clone(), news.clone()));
        Ok(Driver {
            watchers: Watchers::new(&seats, registration),
            muster: start::muster(job, addresses),
            start: Start::new(job, key),
            rendezvous: Rendezvous::new(VERSION, seats.clone(), job.join_timeout),
            verdict: Verdict::new(seats),
            ending: Ending::default(),
            outboxes: Outboxes::default(),
            agents,
            slots: job.slots.clone(),
            lines: Lines::default(),
            stamp: Stamp::new(job.output.times),
            screen: screen.map_err(machine("start a thread"))?,
            stdin,
            deliveries: job.deliveries.clone(),
            viewer,
            guests: Guests::new(job, news.clone()),
            service,
            dismissed: false,
            given_up: false,
        })
    }

    fn on(&mut self, news: News, now: Time) {
        match news {
            News::Rendezvous(heard) => {
                let event = self.outboxes.take_in(heard);
                self.meet(event, now);
            }
            News::Hello(index, version) => {
                tracing::info!(host = self.agents[index].host, version, "an agent is there");
                self.gather(index, muster::Event::Hello { version }, now);
            }
            News::Agent(index, message) => self.hear(index, message, now),
            News::AgentGone(index, trouble) => self.agent_gone(index, trouble, now),
            News::Silent(index, error) => self.fell_silent(index, &error),
            News::Printed(Done { agent, cost }) => {
                self.agents[agent].tell(DriverToAgent::Printed { cost });
            }
            News::Guest(sealed, greeting) => self.guests.receive(sealed, greeting),
            News::Returned(rank, returned) => self.returned(rank, returned),
            News::Orphaned => self.signalled(HANG_UP, now),
            News::Asked(answer) => self.asked(answer, now),
            News::Stdin(piece) => {
                let command = match piece {
                    Some(bytes) => DriverToAgent::Stdin { bytes },
                    None => DriverToAgent::StdinEnd,
                };
                // Rank 0 sits on the first host.
                if let Some(first) = self.agents.first() {
                    first.tell(command);
                }
            }
        }
    }

    fn returned(&self, rank: Rank, returned: Returned) {
        match (&self.deliveries, returned) {
            // Nobody may listen any more; then what comes is for nobody.
            (Some(deliveries), Returned::Piece(bytes, _place)) => drop(deliveries.send(bytes)),
            (Some(_), Returned::End) => {}
            (None, returned) => self.screen.hand_over(rank, returned),
        }
    }

    fn hear(&mut self, index: usize, message: AgentToDriver, now: Time) {
        match message {
            AgentToDriver::Listening { listeners, known, ports } => {
                tracing::info!(host = self.agents[index].host, ?listeners, "an agent listens");
                self.gather(index, muster::Event::Listening { listeners, known, ports }, now);
            }
            AgentToDriver::Dialled { callee, address, outcome } => {
                let host = &self.agents[index].host;
                tracing::info!(host, ?callee, %address, ?outcome, "an agent has dialled");
                self.gather(index, muster::Event::Dialled { callee, address, outcome }, now);
            }
            AgentToDriver::Started { rank, pid } => {
                tracing::info!(rank = rank.0, pid, "a rank runs");
                self.watchers.census.started(rank, pid);
                match self.viewer {
                    _ if rank != Rank(0) => {}
                    Viewer::Terminal => self.stdin.next(),
                    Viewer::Caller => self.agents[index].tell(DriverToAgent::StdinEnd),
                }
            }
            AgentToDriver::Output { rank, stream, bytes } => {
                let done = Done { agent: index, cost: output_cost(bytes.len()) };
                let text = self.lines.push(rank, stream, &bytes, self.stamp.text());
                self.show(rank, stream, text, Some(done));
            }
            AgentToDriver::OutputEnd { rank, stream } => {
                let text = self.lines.end(rank, stream, self.stamp.text());
                self.show(rank, stream, text, None);
            }
            AgentToDriver::StdinTaken => self.stdin.next(),
            AgentToDriver::Exited { rank, exit } => self.exited(rank, exit, now),
            AgentToDriver::Problem { reason } => {
                tracing::warn!(host = self.agents[index].host, reason, "an agent has a problem");
            }
            // A job of a fixed size does not ask for these.
            AgentToDriver::Time { .. }
            | AgentToDriver::Examined { .. }
            | AgentToDriver::Measured { .. }
            | AgentToDriver::Stopped { .. }
            | AgentToDriver::Continued { .. } => {}
        }
    }

    fn show(&mut self, rank: Rank, stream: Stream, bytes: Vec<u8>, done: Option<Done>) {
        if stream == Stream::Stderr {
            let prefix = format!("{}{}", self.stamp.text(), crate::logs::prefix(rank, stream));
            for line in String::from_utf8_lossy(&bytes).split(['\n', '\r']) {
                self.verdict.wrote(rank, line.strip_prefix(&prefix).unwrap_or(line));
            }
        }
        self.screen.show(Text { rank, stream, bytes, done });
    }

    fn exited(&mut self, rank: Rank, exit: Exit, now: Time) {
        tracing::info!(rank = rank.0, "the rank {exit}");
        self.watchers.census.exited(rank, exit.to_string());
        self.verdict.exited(rank, exit.clone());
        self.meet(Event::Exited(rank, exit), now);
        if self.verdict.failed() {
            self.ending.failed(now);
        }
    }

    fn agent_gone(&mut self, index: usize, trouble: Trouble, now: Time) {
        let agent = &mut self.agents[index];
        agent.gone = true;
        let Trouble { reason, hint } = agent.silent.take().unwrap_or(trouble);
        let host = agent.host.clone();
        // The guardian has done this already, unless it was killed too.
        if agent.way.is_local() && !supervise::sweep(&agent.mark, Scope::Marked) {
            tracing::warn!(host, "some processes of the job cannot be killed");
        }
        if self.dismissed {
            return;
        }
        if !self.muster.is_over() {
            return self.gather(index, muster::Event::Gone { reason, hint }, now);
        }
        let reason = format!("lost host `{host}`: {reason}");
        self.verdict.host_failed(reason.clone(), hint);
        let ranks = self.slots.iter().filter(|slot| slot.host == host).map(|slot| slot.rank);
        for rank in ranks.collect::<Vec<_>>() {
            self.exited(rank, Exit::Unknown { reason: reason.clone() }, now);
        }
    }

    /// A host that does not answer any more is let go; what was known of it goes with it.
    fn fell_silent(&mut self, index: usize, error: &io::Error) {
        let agent = &mut self.agents[index];
        tracing::info!(host = agent.host, %error, "the lifeline of a host was cut");
        // An agent that ends closes it, too; then its pipe tells more.
        if error.kind() != io::ErrorKind::UnexpectedEof && !self.dismissed {
            agent.silent = Some(Trouble {
                reason: format!("it does not answer any more ({error})"),
                hint: "see whether the host is up and its network cable is in".into(),
            });
            agent.kill();
        }
    }

    /// Asks the muster what an event means, and does it.
    fn gather(&mut self, host: usize, event: muster::Event, now: Time) {
        let actions = self.muster.on(host, event, now);
        self.proceed(actions, now);
    }

    fn proceed(&mut self, actions: Vec<muster::Action>, now: Time) {
        for action in actions {
            if self.dismissed {
                return;
            }
            match action {
                muster::Action::Listen(host) => self.start.listen(host, &self.agents[host]),
                muster::Action::Dial(host, targets) => Start::dial(&self.agents[host], targets),
                muster::Action::Start(plans) => {
                    tracing::info!(?plans, "the hosts have found each other");
                    if let Err(error) = self.start.ranks(&self.agents, &plans) {
                        self.call_off(format!("error: {error}\n"), now);
                    }
                }
                muster::Action::Fail(text) => self.call_off(text, now),
            }
        }
    }

    /// Ends a job that has not begun.
    fn call_off(&mut self, text: String, now: Time) {
        self.verdict.called_off(text);
        self.dismiss();
        // An agent that is there says goodbye; whoever is not, or does not, is not waited for.
        self.ending.failed(now);
        for agent in self.agents.iter_mut().filter(|agent| !agent.way.is_local()) {
            agent.kill();
        }
    }

    fn dismiss(&mut self) {
        self.dismissed = true;
        for agent in &self.agents {
            agent.tell(DriverToAgent::End);
        }
    }

    fn signalled(&mut self, signal: i32, now: Time) {
        tracing::info!("passing {} on to all ranks", signal_name(signal));
        self.verdict.interrupted(signal);
        if !self.muster.is_over() {
            return self.call_off(String::new(), now);
        }
        if let Some(step) = self.ending.signalled(signal, now) {
            self.take(step);
        }
    }

    fn tick(&mut self, now: Time) {
        self.meet(Event::Tick, now);
        let actions = self.muster.tick(now);
        self.proceed(actions, now);
        self.watchers.answer(now);
        if let Some(step) = self.ending.tick(now) {
            self.take(step);
        }
        if self.verdict.is_complete() && !self.dismissed {
            self.dismiss();
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Send(signal) => {
                self.verdict.stopping();
                for agent in &self.agents {
                    agent.tell(DriverToAgent::Signal { signal });
                }
            }
            Step::GiveUp => {
                tracing::warn!("some processes do not end; giving up on them");
                self.given_up = true;
                for agent in &mut self.agents {
                    agent.kill();
                    if agent.way.is_local() {
                        supervise::sweep(&agent.mark, Scope::Marked);
                    }
                }
            }
        }
    }

    /// Asks the rendezvous what an event means, and does it.
    fn meet(&mut self, event: Event, now: Time) {
        for action in self.rendezvous.on(event, now) {
            match action {
                Action::Tell(connections, message) => self.outboxes.tell(connections, &message),
                Action::Close(connection) => self.outboxes.close(connection),
                Action::Formed(epoch) => {
                    tracing::info!(epoch = epoch.0, "a world is formed");
                    self.watchers.census.formed(epoch.0);
                }
                Action::Reported(rank, report) => self.watchers.census.reported(rank, report),
                Action::Left { rank, error, blames } => self.verdict.left(rank, error, blames),
                Action::Lost { rank, cause } => tracing::info!(rank = rank.0, cause, "lost a rank"),
            }
        }
    }

    /// Asks the ranks of the world, unless they are just being asked for somebody else.
    fn asked(&mut self, answer: Answer, now: Time) {
        if self.watchers.add(answer) {
            return;
        }
        let (ranks, connections): (Vec<_>, Vec<_>) = self.rendezvous.inside().unzip();
        self.outboxes.tell(connections, &DriverToRank::Ask);
        self.watchers.census.asked(ranks, now);
    }

    fn next_wakeup(&self) -> Option<Time> {
        let others = self.ending.next_wakeup().into_iter().chain(self.muster.next_wakeup());
        let others = others.chain(self.watchers.census.next_wakeup());
        self.rendezvous.next_wakeup().into_iter().chain(others).min()
    }

    fn is_over(&self) -> bool {
        self.given_up || self.agents.iter().all(|agent| agent.gone)
    }

    /// The verdict, and the screen if it is worth waiting for what it has still to show.
    fn finish(mut self) -> (Outcome, Option<Screen>) {
        self.service.abort();
        for (rank, stream, bytes) in self.lines.end_all(self.stamp.text()) {
            self.screen.show(Text { rank, stream, bytes, done: None });
        }
        (self.verdict.outcome(), (!self.given_up).then_some(self.screen))
    }
}

pub(crate) fn entropy() -> Result<[u8; 32], LaunchError> {
    let mut bytes = [0u8; 32];
    let count = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match count {
        Ok(32) => Ok(bytes),
        Ok(_) => Err(machine("draw random numbers")(std::io::Error::other("too few were given"))),
        Err(error) => Err(machine("draw random numbers")(error.into())),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
