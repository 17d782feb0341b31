//! What Adasum asks of a group: that pairs of ranks can exchange something, all pairs at once.

use super::super::pieces;
use crate::buffer::{Row, RowMut};
use crate::error::Error;
use crate::group::{Flow, Group, Shared};

/// One rank's part in a turn in which pairs exchange.
#[derive(Default)]
pub(super) struct Turn<'a> {
    pub(super) send: Option<Flow<Row<'a>>>,
    pub(super) receive: Option<Flow<RowMut<'a>>>,
    /// The longest row of this turn, anybody's.
    pub(super) longest: usize,
}

impl<'a> Turn<'a> {
    /// The part of the turn that is with those who have a seat, by their seats, and the other part.
    fn divide(self, seat: impl Fn(usize) -> Option<usize>) -> (Turn<'a>, Turn<'a>) {
        let Turn { send, receive, longest } = self;
        let (mut with, mut without) =
            (Turn { longest, ..Turn::default() }, Turn { longest, ..Turn::default() });
        if let Some(flow) = send {
            match seat(flow.peer) {
                Some(peer) => with.send = Some(Flow { peer, ..flow }),
                None => without.send = Some(flow),
            }
        }
        if let Some(flow) = receive {
            match seat(flow.peer) {
                Some(peer) => with.receive = Some(Flow { peer, ..flow }),
                None => without.receive = Some(flow),
            }
        }
        (with, without)
    }
}

/// This rank's place, and how many there are.
pub(super) fn places(group: &Group<'_>) -> (usize, usize) {
    match group {
        Group::Shared(shared) => (shared.me(), shared.ranks()),
        Group::Linked(links) => (links.me(), links.size()),
        Group::Islands(islands) => (islands.me(), islands.size()),
    }
}

/// Takes a turn; every rank of the group takes the same turns, if only to look on. Where some ranks
/// share memory, a pair goes through it if both do. Everybody is done with the sockets before it
/// turns to the memory, so nobody waits in the one for somebody who waits in the other.
pub(super) fn exchange(group: &mut Group<'_>, turn: Turn<'_>) -> Result<(), Error> {
    match group {
        Group::Shared(shared) => staged(shared, turn),
        Group::Linked(links) => links.exchange(turn.send, turn.receive),
        Group::Islands(islands) => {
            let neighbours = islands.neighbours().to_vec();
            let seat = |peer: usize| neighbours.iter().position(|place| *place == peer);
            let (home, away) = turn.divide(seat);
            islands.everybody().exchange(away.send, away.receive)?;
            staged(&mut islands.home(), home)
        }
    }
}

/// In shared memory: as many steps as the longest row needs. In each a rank publishes a piece of
/// what it sends and copies out a piece of what it receives.
fn staged(shared: &mut Shared<'_>, mut turn: Turn<'_>) -> Result<(), Error> {
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
