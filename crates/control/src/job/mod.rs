//! A job as a decision: which hosts take part, which workers run, who forms the next world, who failed
//! first, and when it is over.
//!
//! On the slots of hosts run workers, each one process with a number for life. Workers meet in worlds,
//! one after the other, in each of which they have ranks. There is one machine for every job, and
//! [`Terms`] say which one it is. The workers of a *fixed* job are the same from the beginning to the
//! end: every world needs all of them, so that the first loss dooms the job. An *elastic* job has
//! hosts that come and go: a world ends when one of its workers dies, or when its workers meet again
//! because others have come or must go. Survivors are never started again: as soon as all that are left
//! have come, they are the next world, if there are enough. A newcomer waits until the world meets again
//! at a commit. Ranks are kept where that can be, and rank 0 is always one who has the state of the
//! training.
//!
//! Every event is taken in ([`meet`], [`losses`], [`watch`]), and then everything is done that has become
//! possible or due: workers start and go ([`crew`]), a world is formed ([`world`]), the job ends ([`end`])
//! with a verdict ([`verdict`]). Two sources tell of a death and they race: the connection that breaks and
//! the agent's report, which knows better why. Whatever comes first is held for [`PATIENCE`] where the
//! other one may still change the meaning. Every wait has an end and every decision its words
//! ([`words`]). Nothing here waits, reads a clock or owns a socket; chance comes from a seed.

mod census;
mod crew;
mod end;
pub mod ending;
mod hosts;
mod losses;
mod meet;
mod member;
mod seats;
mod terms;
#[cfg(test)]
mod tests;
pub mod verdict;
mod watch;
pub mod words;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

pub use terms::{Resting, Terms};
pub use verdict::Outcome;

use census::Census;
use ending::Ending;
use hosts::Hosts;
use member::Member;
use verdict::Verdict;

use crate::event::{self, Happening, Seconds};
use crate::liveness::{self, Liveness};
use crate::status::Status;
use crate::wire::agent::{Condition, Exit};
use crate::wire::{Change, DriverToRank, Greeting, RankToDriver};
use crate::{Connection, Epoch, Rank, Time, Worker};

/// How long a broken connection waits for the agent's report, and the other way round.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// A host is silent for at least so long before it counts as lost: it may only be slow.
const LEAST_HOST_LIMIT: Duration = Duration::from_secs(10);

/// A host and how many workers it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its name.
    pub host: String,
    /// The number of its slots.
    pub slots: u32,
}

/// One agent on a host. A host that is reached again has another agent, with the next number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// The hosts cannot come together; this is what to tell the user.
    CalledOff(String),
    /// An agent was told to stop, and will in so long.
    Leaving(AgentId, Duration),
    /// An agent has said something, whatever it was.
    Heard(AgentId),
    /// A worker's process runs.
    Started(Worker, u32),
    /// A worker's process has ended.
    Exited(Worker, Exit),
    /// A worker was stopped, as by `SIGSTOP`.
    Stopped(Worker),
    /// A worker that was stopped goes on.
    Continued(Worker),
    /// An agent has looked at the processes of workers.
    Looked(Vec<(Worker, Condition)>),
    /// Somebody with the job's key has greeted.
    Greeted(Connection, Greeting),
    /// Somebody said something.
    Said(Connection, RankToDriver),
    /// A connection has ended, whoever ended it.
    Closed(Connection),
    /// Somebody wants to know how the job stands.
    Asked,
    /// The launcher was sent this signal.
    Interrupted(i32),
    /// Time has passed.
    Tick,
}

/// What to do about it.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Get agents onto the hosts of these names. Those of a fixed job start together or not at all.
    Reach(Vec<(AgentId, String)>),
    /// End an agent and what is left of its workers.
    Release(AgentId),
    /// Start a worker.
    Start(Start),
    /// Have an agent send a worker a signal; 15 asks it to end, 9 makes it.
    Signal(AgentId, Worker, i32),
    /// Send all workers a signal.
    SignalAll(i32),
    /// Have an agent say that it is there, and how the processes of these workers are.
    Look(AgentId, Vec<Worker>),
    /// An agent has said nothing for so long that nobody waits for it any longer.
    Cut(AgentId, Duration),
    /// Tell these the same thing.
    Tell(Vec<Connection>, DriverToRank),
    /// End this connection once everything has been told.
    Close(Connection),
    /// A world has been formed of these workers, in rank order.
    Formed(Epoch, Vec<Worker>),
    /// This is how the job stands, for those who have asked.
    Answer(Status),
    /// Tell everybody who follows the job that this has happened.
    Happened(Happening),
    /// Nothing is left to be done: dismiss all agents.
    Dismiss,
    /// Do not wait any longer for what does not end.
    GiveUp,
}

/// A worker to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Its number.
    pub worker: Worker,
    /// By whom.
    pub agent: AgentId,
    /// On which host.
    pub host: String,
    /// Its place there.
    pub slot: u32,
    /// The rank that it will probably have; its output goes by this number.
    pub rank: Rank,
    /// The probable size of its world.
    pub size: u32,
    /// Whether the job has been in a world already.
    pub late: bool,
}

/// Who else tells of a worker's death than the connection that breaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Reports {
    /// The agents of the launcher.
    #[default]
    Agents,
    /// Nobody: rank 0 lets the others meet, and somebody else's launcher has started them.
    Nobody,
}

/// A job.
#[derive(Default)]
pub struct Machine {
    version: String,
    terms: Terms,
    reports: Reports,
    dice: u64,
    hosts: Hosts,
    members: BTreeMap<Worker, Member>,
    connections: BTreeMap<Connection, Worker>,
    workers: u32,
    epoch: Epoch,
    world: World,
    /// The workers of the last world that was formed, in rank order.
    order: Vec<Worker>,
    /// How many worlds were complete.
    worlds: u32,
    /// Whether workers have been started.
    begun: bool,
    /// Whether anybody has ever had the state of the training.
    progress: bool,
    /// Whether a worker of an elastic job has finished well.
    finishing: bool,
    /// Why no world can be formed any more of a job that needs all its workers.
    doomed: Option<String>,
    /// Whether nothing is started any more.
    is_stopping: bool,
    /// Whether the agents have been dismissed.
    is_over: bool,
    verdict: Verdict,
    ending: Ending,
    liveness: Liveness,
    census: Census,
    /// Why it is not known which hosts there are.
    undiscovered: Option<String>,
    /// Since when there are too few workers, and whether the user knows.
    shortage: Option<(Time, Told)>,
    /// Since when nobody has the state.
    stateless: Option<Time>,
    /// Whether anybody has committed in the current world.
    committed: bool,
    /// How many worlds in a row have fallen apart by themselves, before anybody had committed.
    fruitless: u32,
    /// The last world in which a rank has given up on another.
    given_up: Option<Epoch>,
    /// What the workers know of the next world.
    told: Change,
    /// Until when those who have met wait for newcomers.
    lingering: Option<Time>,
    recovery: Option<Recovery>,
    /// Before this nothing is due about a worker of a fixed job, of which there may be thousands.
    alarm: Option<Time>,
    /// What is to be done about the event that is being taken in.
    actions: Vec<Action>,
}

/// How the current world stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum World {
    /// There was none yet.
    #[default]
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

/// The way back from a loss.
struct Recovery {
    since: Time,
    met: Option<Time>,
    state: Option<Time>,
}

impl Machine {
    /// Nothing is known yet. `seed` is for the length of rests.
    pub fn new(version: &str, terms: Terms, seed: u64) -> Machine {
        let outlives = terms.outlives_losses();
        let host = terms.stopped.filter(|_| outlives).map(|limit| limit.max(LEAST_HOST_LIMIT));
        let limits = liveness::Limits { awaited: terms.stopped.filter(|_| !outlives), host };
        Machine {
            version: version.to_owned(),
            terms,
            dice: seed,
            liveness: Liveness::new(limits),
            ..Machine::default()
        }
    }

    /// A job whose workers somebody else's launcher has started: rank 0 lets `size` ranks meet. Where
    /// they are they say themselves, a connection that closes is all that will ever be heard of a death,
    /// and nobody but the ranks can say how their processes are. `limit` bounds a gathering from its
    /// first rank to its last.
    pub fn kept_by_a_rank(version: &str, size: u32, limit: Duration) -> Machine {
        let mut machine = Machine::new(version, Terms::fixed(size, limit, None), 0);
        machine.reports = Reports::Nobody;
        machine.begun = true;
        let nowhere = machine.hosts.place("");
        for number in 0..size {
            let member = Member { host: nowhere, rank: Rank(number), ..Member::default() };
            machine.members.insert(Worker(number), member);
            machine.liveness.started(Worker(number), 0, 0);
        }
        machine
    }

    /// Takes in what happened at `now`.
    pub fn on(&mut self, event: Event, now: Time) -> Vec<Action> {
        match event {
            Event::Discovered(offers) => self.discovered(&offers),
            Event::Undiscovered(why) => self.undiscovered(why),
            Event::Ready(agent) => {
                if let Some(host) = self.hosts.of(agent) {
                    self.hosts.reached(host, agent);
                    self.happened(Happening::HostReady { host: self.hosts.name(host) });
                }
            }
            Event::Gone { agent, reason, hint } => self.gone(agent, reason, hint, now),
            Event::CalledOff(text) => self.called_off(text, now),
            Event::Leaving(agent, grace) => self.host_leaves(agent, grace),
            Event::Heard(agent) => return self.heard(agent, now),
            Event::Started(worker, pid) => self.started(worker, pid),
            Event::Exited(worker, exit) => self.exited(worker, exit, now),
            Event::Stopped(worker) => self.liveness.stopped(worker, now),
            Event::Continued(worker) => self.liveness.continued(worker),
            Event::Looked(found) => self.liveness.looked(found, now),
            Event::Greeted(connection, greeting) => self.greeted(connection, &greeting, now),
            Event::Said(connection, message) => self.said(connection, message, now),
            Event::Closed(connection) => self.closed(connection, now),
            Event::Asked => self.asked(now),
            Event::Interrupted(signal) => self.interrupted(signal, now),
            Event::Tick => {}
        }
        self.proceed(now);
        std::mem::take(&mut self.actions)
    }

    /// A worker has written a line to standard error; there is nothing to do about it.
    pub fn wrote(&mut self, worker: Worker, line: &str) {
        self.verdict.wrote(worker, line);
    }

    /// Does everything that has become possible or due.
    fn proceed(&mut self, now: Time) {
        if !self.is_ending() {
            for news in self.hosts.wake(now) {
                self.happened(news);
            }
        }
        if !self.is_over {
            self.give_up_on_the_late(now);
            self.look_around(now);
            self.dismiss(now);
            self.staff(now);
            self.gather(now);
            self.stop_waiting(now);
            self.set_alarm(now);
            self.announce_changes(now);
            self.release_agents();
        }
        self.press(now);
        self.may_end(now);
        self.answer(now);
    }

    /// When something must happen even if nothing else does.
    pub fn next_wakeup(&self) -> Option<Time> {
        let always = [self.ending.next_wakeup(), self.census.until];
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
            self.stateless.map(|since| since + PATIENCE),
            self.liveness.next_wakeup(),
        ];
        times.into_iter().flatten().min()
    }

    /// Whether one more host would be of use.
    pub fn takes_hosts(&self) -> bool {
        !self.is_ending() && !self.finishing && (self.terms.outlives_losses() || !self.begun)
    }

    /// Whether the agents have been dismissed.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    fn discovered(&mut self, offers: &[Offer]) {
        if self.undiscovered.take().is_some() {
            self.happened(Happening::HostsKnown);
        }
        for news in self.hosts.list(offers, self.terms.source) {
            self.happened(news);
        }
    }

    fn undiscovered(&mut self, why: String) {
        if self.undiscovered.as_ref() != Some(&why) {
            self.happened(Happening::HostsUnknown { reason: why.clone() });
            self.undiscovered = Some(why);
        }
    }

    /// A host is about to go: its workers leave as if it were not listed any more.
    fn host_leaves(&mut self, agent: AgentId, grace: Duration) {
        let Some(index) = self.hosts.of(agent) else { return };
        let host = &mut self.hosts.all[index];
        (host.is_leaving, host.slots) = (true, 0);
        let host = self.hosts.name(index);
        self.happened(Happening::HostLeaving { host, grace_seconds: Seconds(grace) });
    }

    /// Tells everybody who follows the job, while there is something to follow.
    fn happened(&mut self, what: Happening) {
        if !self.is_over {
            self.actions.push(Action::Happened(what));
        }
    }

    /// Something will be due about a worker then.
    fn alarm(&mut self, at: Time) {
        self.alarm = self.alarm.into_iter().chain([at]).min();
    }

    fn member(&mut self, worker: Worker) -> Option<&mut Member> {
        self.members.get_mut(&worker)
    }

    /// Who had a rank in the last world that was formed.
    fn with_rank(&self, rank: Rank) -> Option<Worker> {
        self.order.get(rank.index()).copied()
    }

    /// A worker and its place in the job, as others know it.
    fn who(&self, worker: Worker) -> event::Member {
        match self.members.get(&worker) {
            Some(Member { host, slot, rank, .. }) => {
                event::Member { worker, rank: *rank, host: self.hosts.name(*host), slot: *slot }
            }
            None => self.verdict.who(worker),
        }
    }

    /// How messages name a worker.
    fn name(&self, worker: Worker) -> String {
        self.who(worker).to_string()
    }

    /// A number from zero up to one; the generator is SplitMix64.
    fn chance(&mut self) -> f64 {
        self.dice = self.dice.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.dice ^ (self.dice >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed >> 40) as f64 / (1u64 << 24) as f64
    }
}
