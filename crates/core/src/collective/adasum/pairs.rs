//! What Adasum needs from a group: that pairs of ranks exchange data, all pairs at once.

use super::super::pieces;
use crate::buffer::{Row, RowMut};
use crate::error::Error;
use crate::group::{Flow, Group, SharedGroup};

/// One rank's part in a turn in which pairs exchange data.
#[derive(Default)]
pub(super) struct PairTurn<'a> {
    pub(super) send: Option<Flow<Row<'a>>>,
    pub(super) receive: Option<Flow<RowMut<'a>>>,
    /// The longest row that any rank sends or receives in this turn.
    pub(super) longest: usize,
}

impl<'a> PairTurn<'a> {
    /// Splits the turn into the part with ranks that have a local index, addressed by it, and the
    /// rest.
    fn divide(self, local_index: impl Fn(usize) -> Option<usize>) -> (PairTurn<'a>, PairTurn<'a>) {
        let PairTurn { send, receive, longest } = self;
        let (mut local, mut remote) = (
            PairTurn { longest, ..PairTurn::default() },
            PairTurn { longest, ..PairTurn::default() },
        );
        if let Some(flow) = send {
            match local_index(flow.peer) {
                Some(peer) => local.send = Some(Flow { peer, ..flow }),
                None => remote.send = Some(flow),
            }
        }
        if let Some(flow) = receive {
            match local_index(flow.peer) {
                Some(peer) => local.receive = Some(Flow { peer, ..flow }),
                None => remote.receive = Some(flow),
            }
        }
        (local, remote)
    }
}

/// This rank's place in the group, and the number of ranks.
pub(super) fn places(group: &Group<'_>) -> (usize, usize) {
    match group {
        Group::Shared(shared) => (shared.me(), shared.ranks()),
        Group::Linked(links) => (links.me(), links.size()),
        Group::Islands(islands) => (islands.me(), islands.size()),
    }
}

/// Runs a turn. Every rank of the group runs the same turns, even if it has nothing to exchange.
/// Where some ranks share memory, a pair uses it if both of them do. Every rank is done with the
/// sockets before it turns to shared memory, so no rank waits in one for a rank that waits in the
/// other.
pub(super) fn exchange(group: &mut Group<'_>, turn: PairTurn<'_>) -> Result<(), Error> {
    match group {
        Group::Shared(shared) => staged(shared, turn),
        Group::Linked(links) => links.exchange(turn.send, turn.receive),
        Group::Islands(islands) => {
            let neighbors = islands.neighbors().to_vec();
            let local_index = |peer: usize| neighbors.iter().position(|place| *place == peer);
            let (local, remote) = turn.divide(local_index);
            islands.all_by_socket().exchange(remote.send, remote.receive)?;
            staged(&mut islands.local_group(), local)
        }
    }
}

/// In shared memory: as many steps as the longest row needs. In each, a rank publishes a piece of
/// what it sends and copies out a piece of what it receives.
fn staged(shared: &mut SharedGroup<'_>, mut turn: PairTurn<'_>) -> Result<(), Error> {
    for piece in pieces(turn.longest, shared.piece()) {
        let part = |length: usize| piece.start.min(length)..piece.end.min(length);
        if let Some(Flow { row, .. }) = &turn.send {
            let range = part(row.length());
            let staging = &mut shared.enter()?[..range.len()];
            row.gather(range, staging);
            shared.publish();
        }
        if let Some(Flow { peer, row }) = &mut turn.receive {
            let range = part(row.length());
            let staged = shared.published(*peer, 0..range.len())?;
            row.scatter(range, staged);
        }
        shared.finish();
    }
    Ok(())
}
