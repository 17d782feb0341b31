//! One worker as the machine sees it.

use super::AgentId;
use crate::cause::Cause;
use crate::wire::agent::Exit;
use crate::wire::{Peer, RankToDriver};
use crate::{Connection, Rank, Time};

/// A worker that has been started and whose end is not known.
#[derive(Default)]
pub(super) struct Member {
    /// Its host's place in the row of hosts.
    pub(super) host: usize,
    pub(super) slot: u32,
    pub(super) agent: AgentId,
    /// Its process on its host, once it runs.
    pub(super) pid: Option<u32>,
    pub(super) phase: Phase,
    pub(super) connection: Option<Connection>,
    /// Whether it answers when it is asked.
    pub(super) answers: bool,
    /// Its rank in the last world that it was part of, else the one it will probably have.
    pub(super) rank: Rank,
    /// Whether it has been part of a world.
    pub(super) has_been_inside: bool,
    /// Whether it has the state of the training.
    pub(super) has_state: bool,
    /// Why it will not be part of the next world, if so.
    pub(super) going: Option<Going>,
    /// Since when it is awaited: started, or left the world.
    pub(super) since: Time,
    /// When it counts as lost and why, unless it clears itself before.
    pub(super) suspect: Option<(Time, Cause)>,
    /// How it ended, while its last words may still be on their way.
    pub(super) exit: Option<Exit>,
    /// Its next connection, while the last words on the old one may still be on their way.
    pub(super) next: Option<Next>,
    /// How often others have given up on it in a row.
    pub(super) quarrels: u32,
}

/// How far a worker has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// Started, or on its way from one world to the next.
    #[default]
    Away,
    /// Connected, but it has not joined.
    Greeted,
    /// Joined, waits for the next world.
    Waiting(Peer),
    /// Part of the world.
    Inside {
        /// The first rank of its host, once it has said so.
        leader: Option<Rank>,
    },
}

/// A connection that is heard before the old one has ended.
pub(super) struct Next {
    pub(super) connection: Connection,
    /// What was said on it.
    pub(super) said: Option<RankToDriver>,
    /// How long the old one may still take.
    pub(super) until: Time,
}

/// A worker's way out.
pub(super) struct Going {
    /// Why, in words.
    pub(super) reason: String,
    /// When it is made to end.
    pub(super) kill_at: Option<Time>,
}

impl Member {
    pub(super) fn is_inside(&self) -> bool {
        matches!(self.phase, Phase::Inside { .. })
    }

    /// Whether it has found its place in the world.
    pub(super) fn is_seated(&self) -> bool {
        matches!(self.phase, Phase::Inside { leader: Some(_) })
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting(_))
    }

    /// Whether it may be part of the next world.
    pub(super) fn stays(&self) -> bool {
        self.going.is_none() && self.exit.is_none()
    }
}
