//! One rank as the rendezvous sees it.

use super::{Connection, Time};
use crate::Rank;
use crate::cause::CauseKind;
use crate::wire::Peer;

/// Where a rank runs, as people know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The name of its host, as the user wrote it or the rank itself said.
    pub host: String,
    /// Its place among the ranks of that host.
    pub slot: u32,
}

impl Seat {
    /// How messages name the rank that sits here: `rank 2 (node-b, slot 0)`. Where nobody knows yet
    /// where it sits, its number must do.
    pub fn name(&self, rank: Rank) -> String {
        match self.host.as_str() {
            "" => rank.to_string(),
            host => format!("{rank} ({host}, slot {})", self.slot),
        }
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
    pub(super) suspect: Option<(Time, (CauseKind, String))>,
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
