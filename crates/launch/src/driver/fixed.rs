//! The driver of a job whose ranks are the same from the beginning to the end.
//!
//! 1. Listen, with a fresh key; start one agent per host; let them find each other (`start`); tell
//!    each its ranks.
//! 2. Pass on output, input and words until every rank has ended. The rendezvous decides who must hear
//!    what, the verdict who failed first.
//! 3. Dismiss the agents, which remove what is left; wait until they are gone; judge.

use std::time::Duration;

use ronde_control::event::{Happening, Source};
use ronde_control::liveness::{self, Liveness};
use ronde_control::muster::{self, Muster};
use ronde_control::rendezvous::{Action, Event, Rendezvous, Seat, Time};
use ronde_control::verdict::{Outcome, Verdict};
use ronde_control::wire::DriverToRank;
use ronde_control::wire::agent::{AgentToDriver, DriverToAgent, Exit, signal_name};
use ronde_control::{Rank, VERSION};
use tokio::sync::mpsc;

use super::ending::{Ending, Step};
use super::hands::Hands;
use super::screen::{Done, Screen};
use super::stage::{self, Count, Remains, Stage};
use super::start::{self, Span, Start};
use super::watchers::Answer;
use super::{Fixed, Job, News, entropy, hex};
use crate::LaunchError;
use crate::hosts::Slot;
use crate::reach::Trouble;

const KILL: i32 = 9;

/// A job on its way.
pub(super) struct Driver {
    muster: Muster,
    start: Start,
    rendezvous: Rendezvous,
    verdict: Verdict,
    liveness: Liveness,
    /// How long ranks may wait for one that does not run.
    limit: Option<Duration>,
    ending: Ending,
    agents: Vec<Hands>,
    slots: Vec<Slot>,
    stage: Stage,
    dismissed: bool,
    given_up: bool,
}

impl Driver {
    pub(super) async fn start(
        job: &Job,
        crew: &Fixed,
        news: &mpsc::Sender<News>,
    ) -> Result<Driver, LaunchError> {
        let seat = |slot: &Slot| Seat { host: slot.host.clone(), slot: slot.local_rank };
        let seats: Vec<Seat> = crew.slots.iter().map(seat).collect();
        let (count, span) = (Count::Exactly(crew.slots.len()), Span::of(&crew.hosts));
        let mut stage = Stage::open(job, count, span, &seats, news).await?;
        let size = seats.len() as u32;
        stage.started(job, count, (size, Some(size)));
        for (host, _) in &crew.hosts {
            let slots = seats.iter().filter(|seat| seat.host == *host).count() as u32;
            let (host, source) = (host.clone(), Source::List);
            stage.happened(Happening::HostFound { host, slots, source });
        }
        let limit = job.stall_shutdown();
        let agents = start::agents(&crew.hosts, &job.program, &hex(&entropy()?[..12]), news)?;
        Ok(Driver {
            muster: start::muster(job, crew, stage.addresses.clone()),
            start: Start::new(job, crew, stage.key.clone()),
            rendezvous: Rendezvous::new(VERSION, seats.clone(), crew.join_timeout),
            verdict: Verdict::new(seats),
            liveness: Liveness::new(liveness::Limits { awaited: limit, host: None }),
            limit,
            ending: Ending::default(),
            agents,
            slots: crew.slots.clone(),
            stage,
            dismissed: false,
            given_up: false,
        })
    }

    fn hear(&mut self, index: usize, message: AgentToDriver, now: Time) {
        self.liveness.heard_host(index as u32, now);
        let agent = (index, &self.agents[index]);
        if message.rank().is_some_and(|rank| rank.index() >= self.slots.len()) {
            tracing::warn!(host = agent.1.host, "an agent named a rank that is not there");
            return;
        }
        let complains = |rank, line: &str| self.verdict.wrote(rank, line);
        let Some(message) = self.stage.hear(agent, message, complains) else { return };
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
                self.liveness.started(rank, index as u32, pid);
                self.stage.watchers.census.started(rank, pid);
                if let Some(member) = self.rendezvous.member(rank) {
                    self.stage.happened(Happening::WorkerStarted { member, pid });
                }
                if rank == Rank(0) {
                    self.stage.feed(&self.agents[index]);
                }
            }
            AgentToDriver::Exited { rank, exit } => self.exited(rank, exit, now),
            AgentToDriver::Stopped { rank } => self.liveness.stopped(rank, now),
            AgentToDriver::Continued { rank } => self.liveness.continued(rank),
            AgentToDriver::Looked { found } => self.liveness.looked(found, now),
            // A job of a fixed size does not ask for the rest.
            _ => {}
        }
    }

    fn exited(&mut self, rank: Rank, exit: Exit, now: Time) {
        tracing::info!(rank = rank.0, "the rank {exit}");
        self.stage.watchers.census.exited(rank, exit.to_string());
        self.liveness.ended(rank);
        if !exit.is_success()
            && !self.verdict.failed()
            && let Some((culprit, cause)) = self.liveness.culprit()
        {
            self.condemn(culprit, cause, now);
        }
        if let Some(what) = self.verdict.exited(rank, &exit) {
            self.stage.happened(what);
        }
        self.meet(Event::Exited(rank, exit), now);
        if self.verdict.failed() {
            self.ending.failed(now);
        }
    }

    fn agent_gone(&mut self, index: usize, trouble: Trouble, now: Time) {
        let Trouble { reason, hint } = self.agents[index].bury(trouble);
        let host = self.agents[index].host.clone();
        self.liveness.host_gone(index as u32);
        if self.dismissed {
            return;
        }
        if !self.muster.is_over() {
            return self.gather(index, muster::Event::Gone { reason, hint }, now);
        }
        self.stage.happened(Happening::HostLost {
            host: host.clone(),
            reason: reason.clone(),
            hint: hint.clone(),
        });
        let reason = format!("lost host `{host}`: {reason}");
        self.verdict.host_failed(reason.clone(), hint);
        let ranks = self.slots.iter().filter(|slot| slot.host == host).map(|slot| slot.rank);
        for rank in ranks.collect::<Vec<_>>() {
            self.exited(rank, Exit::Unknown { reason: reason.clone() }, now);
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
                muster::Action::Dial(host, targets) => start::dial(&self.agents[host], targets),
                muster::Action::Start(plans) => {
                    tracing::info!(?plans, "the hosts have found each other");
                    for agent in &self.agents {
                        self.stage.happened(Happening::HostReady { host: agent.host.clone() });
                    }
                    if let Err(error) = self.start.ranks(&self.agents, &plans) {
                        self.call_off(format!("error: {error}\n"), now);
                    }
                }
                muster::Action::Fail(text) => {
                    for (host, (reason, hint)) in self.muster.troubles(now) {
                        let (host, retry_seconds) = (self.agents[host].host.clone(), None);
                        let what = Happening::HostUnreachable { host, reason, hint, retry_seconds };
                        self.stage.happened(what);
                    }
                    self.call_off(text, now);
                }
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
                self.agents.iter_mut().for_each(Hands::give_up);
            }
        }
    }

    /// Asks the rendezvous what an event means, and does it.
    fn meet(&mut self, event: Event, now: Time) {
        for action in self.rendezvous.on(event, now) {
            match action {
                Action::Tell(connections, message) => {
                    self.stage.outboxes.tell(connections, &message);
                }
                Action::Close(connection) => self.stage.outboxes.close(connection),
                Action::Formed(epoch) => {
                    tracing::info!(epoch = epoch.0, "a world is formed");
                    self.stage.watchers.census.formed(epoch.0);
                }
                Action::Happened(what) => self.stage.happened(what),
                Action::Reported(rank, report) => self.stage.watchers.census.reported(rank, report),
                Action::Answered(rank, waits) => self.liveness.heard(rank, waits, now),
                Action::Left { rank, error, blames } => self.verdict.left(rank, error, blames),
                Action::Lost { rank, cause } => tracing::info!(rank = rank.0, cause, "lost a rank"),
            }
        }
    }

    /// Asks who is still there, and tells the user who is not.
    fn look_around(&mut self, now: Time) {
        let roll = self.rendezvous.roll();
        for action in self.liveness.tick(&roll, now) {
            match action {
                liveness::Action::Ping(ranks) => {
                    let ways = ranks.iter().filter_map(|rank| self.rendezvous.connection(*rank));
                    self.stage.outboxes.tell(ways.collect(), &DriverToRank::Ping);
                }
                liveness::Action::Look(host, ranks) => {
                    self.agents[host as usize].tell(DriverToAgent::Look { ranks });
                }
                liveness::Action::Overdue(rank, cause) => self.condemn(rank, cause, now),
                liveness::Action::HostOverdue(host, during) => {
                    self.agents[host as usize].never_answered(during);
                }
                news => {
                    let member = |rank| self.rendezvous.member(rank);
                    let host = |host: u32| Some(self.agents[host as usize].host.clone());
                    if let Some(what) = news.happening(self.limit, member, host) {
                        self.stage.happened(what);
                    }
                }
            }
        }
    }

    /// Ends a rank that the others have waited for too long.
    fn condemn(&mut self, rank: Rank, cause: String, now: Time) {
        tracing::info!(rank = rank.0, cause, "a rank is given up");
        self.verdict.condemned(rank, cause.clone());
        self.meet(Event::Condemned(rank, cause), now);
        let host = &self.slots[rank.index()].host;
        if let Some(agent) = self.agents.iter().find(|agent| agent.host == *host) {
            agent.tell(DriverToAgent::SignalOne { rank, signal: KILL });
        }
        self.ending.failed(now);
    }

    /// Asks the ranks of the world, unless they are just being asked for somebody else.
    fn asked(&mut self, answer: Answer, now: Time) {
        if self.stage.watchers.add(answer) {
            return;
        }
        let (ranks, connections): (Vec<_>, Vec<_>) = self.rendezvous.inside().unzip();
        self.stage.outboxes.tell(connections, &DriverToRank::Ask);
        self.stage.watchers.census.asked(ranks, now);
    }
}

impl super::Driver for Driver {
    fn on(&mut self, news: News, now: Time) {
        let Some(news) = self.stage.on(news) else { return };
        match news {
            News::Rendezvous(heard) => {
                let event = self.stage.outboxes.take_in(heard);
                self.meet(event, now);
            }
            News::Hello(index, version) => {
                tracing::info!(host = self.agents[index].host, version, "an agent is there");
                if version == VERSION {
                    self.liveness.heard_host(index as u32, now);
                }
                self.gather(index, muster::Event::Hello { version }, now);
            }
            News::Agent(index, message) => self.hear(index, message, now),
            News::AgentGone(index, trouble) => self.agent_gone(index, trouble, now),
            News::Silent(index, error) if !self.dismissed => {
                // The number came from a greeting.
                match self.agents.get_mut(index) {
                    Some(agent) => agent.fell_silent(&error),
                    None => tracing::warn!(index, "a lifeline named a host that is not there"),
                }
            }
            News::Printed(Done { agent, cost }) => {
                self.agents[agent].tell(DriverToAgent::Printed { cost });
            }
            News::Asked(answer) => self.asked(answer, now),
            News::Stdin(piece) => {
                // Rank 0 sits on the first host.
                if let Some(first) = self.agents.first() {
                    first.tell(stage::input(piece));
                }
            }
            _ => {}
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
        if !self.dismissed && self.liveness.next_wakeup().is_some_and(|time| time <= now) {
            self.look_around(now);
        }
        let actions = self.muster.tick(now);
        self.proceed(actions, now);
        self.stage.tick(now);
        if let Some(step) = self.ending.tick(now) {
            self.take(step);
        }
        if self.verdict.is_complete() && !self.dismissed {
            self.dismiss();
        }
    }

    fn next_wakeup(&self) -> Option<Time> {
        let others = self.ending.next_wakeup().into_iter().chain(self.muster.next_wakeup());
        let others = others.chain(self.stage.watchers.census.next_wakeup());
        let others = others.chain(self.liveness.next_wakeup().filter(|_| !self.dismissed));
        self.rendezvous.next_wakeup().into_iter().chain(others).min()
    }

    fn is_over(&self) -> bool {
        self.given_up || self.agents.iter().all(|agent| agent.gone)
    }

    fn finish(self) -> (Outcome, Option<Screen>, Remains) {
        let (screen, remains) = self.stage.close();
        (self.verdict.outcome(), (!self.given_up).then_some(screen), remains)
    }
}
