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
//! Every wait has an end and every decision its words (see [`words`]). Nothing here waits, reads a
//! clock or owns a socket; chance comes from a seed.

use std::time::Duration;

use crate::rendezvous::{Connection, Time};
use crate::status::Report;
use crate::wire::agent::Exit;
use crate::wire::{DriverToRank, Greeting, RankToDriver};
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

/// Who says which hosts there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The user, once and for all.
    List,
    /// A script, again and again.
    Script,
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
    /// Tell the user something. One line, without an end.
    Note(String),
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
}

/// An elastic job.
pub struct Elastic {
    _limits: Limits,
}

impl Elastic {
    /// Nothing is known yet. `seed` is for the length of rests.
    pub fn new(_version: &str, limits: Limits, _seed: u64) -> Elastic {
        Elastic { _limits: limits }
    }

    /// Takes in what happened at `now`.
    pub fn on(&mut self, _event: Event, _now: Time) -> Vec<Action> {
        Vec::new()
    }

    /// When something must happen even if nothing else does.
    pub fn next_wakeup(&self) -> Option<Time> {
        None
    }

    /// The workers whose world is complete, and the ways to them.
    pub fn inside(&self) -> Vec<(Worker, Rank, Connection)> {
        Vec::new()
    }
}
