//! An elastic job as a decision: which hosts take part, which workers run, and who forms the next
//! world.
//!
//! Hosts are discovered and disappear; on their slots run workers, each one process with a number for
//! life. Workers meet in worlds, one after the other: a world ends when one of its workers dies, or when
//! its workers meet again because others have come or must go. Survivors are never started again: as
//! soon as all that are left have come, they are the next world, if there are enough. A newcomer waits
//! until the world meets again at a commit. Ranks are kept where that can be, and rank 0 is always one
//! who has the state of the training.
//!
//! Every event is taken in ([`meet`], [`losses`]), and then everything is done that has become
//! possible or due: workers start and go ([`crew`]), a world is formed ([`world`]), the job ends
//! ([`end`]). Every wait has an end and every decision its words ([`words`]). Nothing here waits, reads
//! a clock or owns a socket; chance comes from a seed.

mod crew;
mod end;
mod hosts;
mod losses;
mod meet;
mod member;
mod seats;
#[cfg(test)]
mod tests;
mod words;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

pub use crate::event::Source;
pub use words::Reason;

use hosts::{Hosts, News};
use member::{Member, Phase};

use crate::cause::{Cause, Farewell, Tail};
use crate::event::{self, EndReason, Happening, Judgement};
use crate::liveness::Roll;
use crate::rendezvous::{Connection, Time};
use crate::status::Report;
use crate::wire::agent::Exit;
use crate::wire::{Change, DriverToRank, Greeting, RankToDriver};
use crate::{Epoch, Rank, Worker};

/// The bounds of an elastic job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many workers there must be before training starts.
    pub start: u32,
    /// Below how many training does not go on.
    pub min: u32,
    /// Above how many there are none, if there is such a number.
    pub max: Option<u32>,
    /// How long to wait for enough workers.
    pub timeout: Duration,
    /// How long a worker may take from its start until it joins: importing, building its model.
    pub joining: Duration,
    /// How long a worker may be stopped before it counts as dead; for ever if there is none.
    pub stopped: Option<Duration>,
    /// How many times the world may be formed anew.
    pub resets: Option<u32>,
    /// How long a host rests that has failed, at least and at most; for ever if there is none.
    pub cooldown: Option<(Duration, Duration)>,
    /// What rests when a worker fails.
    pub resting: Resting,
    /// Who says which hosts there are.
    pub source: Source,
}

/// What rests when a worker fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resting {
    /// Its host with all its workers, as in Horovod, if there are enough workers elsewhere; else only
    /// its slot.
    #[default]
    Host,
    /// Its slot only.
    Slot,
}

/// A host and how many workers it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its name.
    pub host: String,
    /// The number of its slots.
    pub slots: u32,
}

/// One agent on a host. A host that is reached again has another agent, with the next number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentId(pub u32);

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// These are the hosts now, in order.
    Discovered(Vec<Offer>),
    /// It could not be found out which hosts there are; this is why.
    Undiscovered(String),
    /// A host has been reached: workers can be started on it.
    Ready(AgentId),
    /// A host could not be reached, or was lost.
    Gone {
        /// Whose.
        agent: AgentId,
        /// What was seen, in words.
        reason: String,
        /// What to do about it.
        hint: String,
    },
    /// A worker's process has ended.
    Exited(Worker, Exit),
    /// A worker was stopped, as by `SIGSTOP`.
    Stopped(Worker),
    /// A worker that was stopped goes on.
    Continued(Worker),
    /// Somebody with the job's key has greeted.
    Greeted(Connection, Greeting),
    /// Somebody said something.
    Said(Connection, RankToDriver),
    /// A connection has ended, whoever ended it.
    Closed(Connection),
    /// Time has passed.
    Tick,
}

/// What to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start an agent on the host of this name.
    Reach(AgentId, String),
    /// End an agent and what is left of its workers.
    Release(AgentId),
    /// Start a worker.
    Start(Start),
    /// Send a worker a signal; 15 asks it to end, 9 makes it.
    Signal(Worker, i32),
    /// Tell these the same thing.
    Tell(Vec<Connection>, DriverToRank),
    /// End this connection once everything has been told.
    Close(Connection),
    /// A world has been formed of these workers, in rank order.
    Formed(Epoch, Vec<Worker>),
    /// A worker has said what it has done so far.
    Reported(Worker, Report),
    /// A worker has answered a `Ping`, and for how long it has waited for others.
    Answered(Worker, Option<Duration>),
    /// Something happened that belongs into the job's stream of events.
    Happened(Happening),
    /// The job is over: dismiss all agents.
    End {
        /// The launcher's exit code.
        code: u8,
        /// What to tell the user, unless all went well. Ends with a newline.
        text: Option<String>,
    },
}

/// A worker to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Its number.
    pub worker: Worker,
    /// Where.
    pub agent: AgentId,
    /// The name of its host.
    pub host: String,
    /// Its slot there.
    pub slot: u32,
    /// The rank that it will probably have; its output goes by this number.
    pub rank: Rank,
    /// The probable size of its world.
    pub size: u32,
    /// Whether the job has been in a world already.
    pub late: bool,
}

/// An elastic job.
pub struct Elastic {
    version: String,
    limits: Limits,
    dice: u64,
    hosts: Hosts,
    members: BTreeMap<Worker, Member>,
    connections: BTreeMap<Connection, Worker>,
    workers: u32,
    epoch: Epoch,
    world: World,
    /// How many worlds were complete.
    worlds: u32,
    /// Whether workers have been started.
    begun: bool,
    /// Whether anybody has ever had the state of the training.
    progress: bool,
    /// Whether a worker has finished well.
    finishing: bool,
    ended: bool,
    /// Why it has ended, unless all went well.
    reason: Option<Reason>,
    /// Why it is not known which hosts there are.
    undiscovered: Option<String>,
    /// What failed since the last world was complete.
    failures: Vec<Failure>,
    /// Since when there are too few workers, and whether the user knows.
    shortage: Option<(Time, Told)>,
    /// Since when nobody has the state.
    stateless: Option<Time>,
    /// Whether anybody has committed in the current world.
    committed: bool,
    /// How many worlds in a row have fallen apart by themselves, before anybody had committed.
    fruitless: u32,
    /// What the workers know of the next world.
    told: Change,
    /// Until when those who have met wait for newcomers.
    lingering: Option<Time>,
    recovery: Option<Recovery>,
    /// What is to be done about the event that is being taken in.
    actions: Vec<Action>,
}

/// How the current world stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum World {
    /// There was none yet.
    None,
    /// Its workers take their places, until then.
    Forming(Time),
    /// Complete.
    Whole,
    /// Somebody has left it or died, then: everybody must meet again.
    Broken(Time),
}

/// Whether something has been said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Yes,
    No,
}

/// A worker that failed.
struct Failure {
    member: event::Member,
    code: u8,
    /// How its process ended, unless it counted as dead before.
    exit: Option<Exit>,
    /// What it said and wrote, which may still be on its way when its end is known.
    farewell: Farewell,
    tail: Tail,
    /// What else explains it.
    told: Cause,
}

impl Failure {
    fn cause(&self) -> Cause {
        match &self.exit {
            Some(exit) => Cause::of(Some(exit), &self.farewell, &self.tail),
            None => self.told.clone(),
        }
    }
}

/// The way back from a loss.
struct Recovery {
    since: Time,
    met: Option<Time>,
    state: Option<Time>,
}

impl Elastic {
    /// Nothing is known yet. `seed` is for the length of rests.
    pub fn new(version: &str, limits: Limits, seed: u64) -> Elastic {
        Elastic {
            version: version.to_owned(),
            limits,
            dice: seed,
            hosts: Hosts::default(),
            members: BTreeMap::new(),
            connections: BTreeMap::new(),
            workers: 0,
            epoch: Epoch(0),
            world: World::None,
            worlds: 0,
            begun: false,
            progress: false,
            finishing: false,
            ended: false,
            reason: None,
            undiscovered: None,
            failures: Vec::new(),
            shortage: None,
            stateless: None,
            committed: false,
            fruitless: 0,
            told: Change::default(),
            lingering: None,
            recovery: None,
            actions: Vec::new(),
        }
    }

    /// Takes in what happened at `now`.
    pub fn on(&mut self, event: Event, now: Time) -> Vec<Action> {
        if self.ended {
            return Vec::new();
        }
        match event {
            Event::Discovered(offers) => self.discovered(&offers),
            Event::Undiscovered(why) => self.undiscovered(why),
            Event::Ready(agent) => {
                if let Some(host) = self.hosts.of(agent) {
                    self.hosts.reached(host, agent);
                    let host = self.hosts.all[host].name.clone();
                    self.happened(Happening::HostReady { host });
                }
            }
            Event::Gone { agent, reason, hint } => self.gone(agent, reason, hint, now),
            Event::Exited(worker, exit) => self.exited(worker, exit, now),
            Event::Stopped(worker) => self.stopped(worker, Some(now)),
            Event::Continued(worker) => self.stopped(worker, None),
            Event::Greeted(connection, greeting) => self.greeted(connection, &greeting, now),
            Event::Said(connection, message) => self.said(connection, message, now),
            Event::Closed(connection) => self.closed(connection, now),
            Event::Tick => {}
        }
        self.proceed(now);
        std::mem::take(&mut self.actions)
    }

    /// A worker has written a line to standard error; there is nothing to do about it.
    pub fn wrote(&mut self, worker: Worker, line: &str) {
        if let Some(member) = self.members.get_mut(&worker) {
            member.tail.wrote(line);
        } else if let Some(failure) = self.failures.iter_mut().find(|it| it.member.worker == worker)
        {
            failure.tail.wrote(line);
        }
    }

    /// Why the job has ended, when everything has been heard that workers wrote.
    pub fn judgement(&self) -> Judgement {
        let Some(mut reason) = self.reason.clone() else {
            return Judgement::of(EndReason::Done, None);
        };
        if let (Some(first), Some(failure)) = (reason.first_mut(), self.failures.first()) {
            first.cause = failure.cause();
        }
        let text = format!("{}\n", reason.to_string().trim_end());
        let first = reason.first_mut().cloned();
        Judgement { reason: reason.word(), signal: None, first, text: Some(text) }
    }

    /// Does everything that has become possible or due.
    fn proceed(&mut self, now: Time) {
        for host in self.hosts.wake(now) {
            if self.hosts.all[host].slots > 0 {
                let host = self.hosts.all[host].name.clone();
                self.happened(Happening::HostUsable { host });
            }
        }
        self.give_up_on_the_late(now);
        self.dismiss(now);
        self.staff(now);
        self.gather(now);
        self.announce_changes(now);
        self.release_agents();
        self.may_end(now);
    }

    /// When something must happen even if nothing else does.
    pub fn next_wakeup(&self) -> Option<Time> {
        if self.ended {
            return None;
        }
        let members = self.members.values().filter_map(|member| self.due(member)).min();
        let forming = match self.world {
            World::Forming(until) => Some(until),
            _ => None,
        };
        let times = [
            self.hosts.next_wakeup(),
            members,
            forming,
            self.growth(),
            self.lingering,
            self.shortage_due(),
            self.stateless.map(|since| since + crate::rendezvous::PATIENCE),
        ];
        times.into_iter().flatten().min()
    }

    /// The workers whose world is complete, and the ways to them.
    pub fn inside(&self) -> Vec<(Worker, Rank, Connection)> {
        let inside = self.members.iter().filter(|(_, member)| {
            self.world == World::Whole && matches!(member.phase, Phase::Inside { .. })
        });
        inside
            .filter_map(|(worker, member)| Some((*worker, member.rank, member.connection?)))
            .collect()
    }

    /// Who can be asked whether its process runs; workers go by their numbers.
    pub fn roll(&self) -> Roll {
        let is_there = |member: &Member| member.connection.is_some() && member.answers;
        let connected = self.members.iter().filter(|(_, member)| is_there(member));
        let missing = self.members.iter().filter(|(_, member)| member.connection.is_none());
        Roll {
            connected: connected.map(|(worker, _)| Rank(worker.0)).collect(),
            missing: missing.map(|(worker, _)| Rank(worker.0)).collect(),
        }
    }

    /// The way to a worker, if it is connected.
    pub fn connection(&self, worker: Worker) -> Option<Connection> {
        self.members.get(&worker)?.connection
    }

    fn discovered(&mut self, offers: &[Offer]) {
        if self.undiscovered.take().is_some() {
            self.happened(Happening::HostsKnown);
        }
        for news in self.hosts.list(offers) {
            let of = |index: usize| {
                let host = &self.hosts.all[index];
                (host.name.clone(), host.slots)
            };
            let source = self.limits.source;
            self.happened(match news {
                News::Found(index) => {
                    let (host, slots) = of(index);
                    Happening::HostFound { host, slots, source }
                }
                News::Resized(index, before) => {
                    let (host, slots) = of(index);
                    Happening::HostResized { host, slots, before, source }
                }
                News::Unlisted(index) => Happening::HostUnlisted { host: of(index).0, source },
            });
        }
    }

    fn undiscovered(&mut self, why: String) {
        if self.undiscovered.as_ref() != Some(&why) {
            self.happened(Happening::HostsUnknown { reason: why.clone() });
            self.undiscovered = Some(why);
        }
    }

    fn stopped(&mut self, worker: Worker, since: Option<Time>) {
        if let Some(member) = self.members.get_mut(&worker) {
            member.stopped = since.map(|since| member.stopped.unwrap_or(since));
        }
    }

    fn happened(&mut self, what: Happening) {
        self.actions.push(Action::Happened(what));
    }

    /// A worker and its place, while its end is not known.
    pub fn member(&self, worker: Worker) -> Option<event::Member> {
        let member = self.members.get(&worker)?;
        let (rank, slot) = (member.rank, member.slot);
        Some(event::Member { worker, rank, host: self.hosts.all[member.host].name.clone(), slot })
    }

    /// How messages name a worker.
    fn name(&self, worker: Worker) -> String {
        self.member(worker).map_or(worker.to_string(), |member| member.to_string())
    }

    /// A number from zero up to one; the generator is SplitMix64.
    fn chance(&mut self) -> f64 {
        self.dice = self.dice.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.dice ^ (self.dice >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed >> 40) as f64 / (1u64 << 24) as f64
    }
}
