//! A worker, as the job machine sees it.

use super::AgentId;
use crate::cause::Cause;
use crate::wire::agent::Exit;
use crate::wire::{Peer, RankToDriver};
use crate::{ConnectionId, Rank, Time};

/// A worker that was started and has not ended, as far as is known.
#[derive(Default)]
pub(super) struct JobWorker {
    /// Index of its host.
    pub(super) host: usize,
    pub(super) slot: u32,
    pub(super) agent: AgentId,
    /// Its process id on its host, once it runs.
    pub(super) pid: Option<u32>,
    pub(super) phase: WorkerPhase,
    pub(super) connection: Option<ConnectionId>,
    /// Whether it answers pings and questions.
    pub(super) answers: bool,
    /// Its rank in its latest world, or the one it will probably have.
    pub(super) rank: Rank,
    /// Whether it has been part of a world.
    pub(super) has_been_inside: bool,
    /// Whether it has the training state.
    pub(super) has_state: bool,
    /// Why it will not be part of the next world, if so.
    pub(super) leaving: Option<Leaving>,
    /// Since when others wait for it: when it was started, or left the world.
    pub(super) since: Time,
    /// When it counts as lost and why, unless it recovers before.
    pub(super) suspect: Option<(Time, Cause)>,
    /// How it ended, while its last messages may still be in flight.
    pub(super) exit: Option<Exit>,
    /// Its next connection, while the last messages on the old one may still be in flight.
    pub(super) next: Option<NextConnection>,
    /// How many times in a row others have given up on it.
    pub(super) complaints: u32,
}

/// Where a worker is in its life cycle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum WorkerPhase {
    /// Started, or between two worlds.
    #[default]
    Away,
    /// Connected, but not joined.
    Greeted,
    /// Joined; waits for the next world.
    Waiting(Peer),
    /// Part of the world.
    Inside {
        /// The first rank of its host, once it has reported that.
        leader: Option<Rank>,
    },
}

/// A connection that was opened before the old one closed.
pub(super) struct NextConnection {
    pub(super) connection: ConnectionId,
    /// The message received on it.
    pub(super) said: Option<RankToDriver>,
    /// How long to wait for the old one to close.
    pub(super) until: Time,
}

/// A worker that is to leave the job.
pub(super) struct Leaving {
    /// Human-readable reason.
    pub(super) reason: String,
    /// When it is killed.
    pub(super) kill_at: Option<Time>,
}

impl JobWorker {
    pub(super) fn is_inside(&self) -> bool {
        matches!(self.phase, WorkerPhase::Inside { .. })
    }

    /// Whether it has reported the first rank of its host.
    pub(super) fn has_rank(&self) -> bool {
        matches!(self.phase, WorkerPhase::Inside { leader: Some(_) })
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.phase, WorkerPhase::Waiting(_))
    }

    /// Whether it may be part of the next world.
    pub(super) fn stays(&self) -> bool {
        self.leaving.is_none() && self.exit.is_none()
    }
}
