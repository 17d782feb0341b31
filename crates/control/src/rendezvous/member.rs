//! One rank as the rendezvous sees it.

use super::{Connection, Time};
use crate::wire::Peer;
use crate::{Rank, Worker, event};

/// Where a rank runs, as people know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The name of its host, as the user wrote it or the rank itself said.
    pub host: String,
    /// Its place among the ranks of that host.
    pub slot: u32,
}

impl Seat {
    /// The rank that sits here.
    pub fn member(&self, rank: Rank) -> event::Member {
        let (worker, host, slot) = (Worker(rank.0), self.host.clone(), self.slot);
        event::Member { worker, rank, host, slot }
    }

    /// How messages name the rank that sits here.
    pub fn name(&self, rank: Rank) -> String {
        self.member(rank).to_string()
    }
}

/// A rank, whether it is there or not.
pub(super) struct Member {
    pub(super) seat: Seat,
    pub(super) connection: Option<Connection>,
    pub(super) phase: Phase,
    /// Whether it answers when it is asked.
    pub(super) answers: bool,
    /// When it is to be announced as lost, and with which cause, unless it clears itself before.
    pub(super) suspect: Option<(Time, String)>,
}

/// How far a rank has come.
pub(super) enum Phase {
    /// Not there yet, or gone again.
    Away,
    /// Connected, but it has not joined.
    Greeted,
    /// Joined, waits for the others.
    Waiting(Peer),
    /// Part of the world of the current epoch.
    Inside {
        /// The first rank of its host, once it has said so.
        leader: Option<Rank>,
    },
}

impl Member {
    pub(super) fn new(seat: Seat) -> Member {
        Member { seat, connection: None, phase: Phase::Away, answers: false, suspect: None }
    }
}
