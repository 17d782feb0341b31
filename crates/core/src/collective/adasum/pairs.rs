//! What Adasum asks of a group: that pairs of ranks can exchange something, all pairs at once.

use super::super::pieces;
use crate::buffer::{Region, Segments};
use crate::error::Error;
use crate::group::{Flow, Group, Linked, Shared};

/// One rank's part in a turn in which pairs exchange.
#[derive(Default)]
pub(super) struct Turn {
    pub(super) send: Option<Parcel>,
    pub(super) receive: Option<Parcel>,
    /// The longest parcel of this turn, anybody's.
    pub(super) longest: usize,
}

/// Something for a rank or from it.
#[derive(Clone)]
pub(super) struct Parcel {
    pub(super) peer: usize,
    pub(super) content: Segments,
}

impl Turn {
    /// The part of the turn that is with some ranks only, by the places that they have there.
    fn among(&self, place: impl Fn(usize) -> Option<usize>) -> Turn {
        let with = |parcel: &Option<Parcel>| {
            let Parcel { peer, content } = parcel.as_ref()?;
            Some(Parcel { peer: place(*peer)?, content: content.clone() })
        };
        Turn { send: with(&self.send), receive: with(&self.receive), longest: self.longest }
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
pub(super) fn exchange(group: &mut Group<'_>, turn: &Turn) -> Result<(), Error> {
    match group {
        Group::Shared(shared) => staged(shared, turn),
        Group::Linked(links) => linked(links, turn),
        Group::Islands(islands) => {
            let neighbours = islands.neighbours().to_vec();
            let seat = |peer: usize| neighbours.iter().position(|place| *place == peer);
            let away = |peer| seat(peer).is_none().then_some(peer);
            linked(&mut islands.everybody(), &turn.among(away))?;
            staged(&mut islands.home(), &turn.among(seat))
        }
    }
}

fn linked(links: &mut Linked<'_>, turn: &Turn) -> Result<(), Error> {
    let Turn { send, receive, .. } = turn;
    let (outgoing, incoming) = (regions(send), regions(receive));
    links.exchange(flow(send, &outgoing), flow(receive, &incoming))
}

fn regions(parcel: &Option<Parcel>) -> Vec<Region> {
    let content = parcel.iter().map(|parcel| &parcel.content);
    content.flat_map(|content| content.parts(0..content.length())).map(|(_, part)| part).collect()
}

fn flow<'a>(parcel: &Option<Parcel>, regions: &'a [Region]) -> Option<Flow<'a>> {
    parcel.as_ref().map(|parcel| Flow { peer: parcel.peer, regions })
}

/// In shared memory: as many steps as the longest parcel needs. In each a rank publishes a piece of
/// what it sends and copies out a piece of what it receives.
fn staged(shared: &mut Shared<'_>, turn: &Turn) -> Result<(), Error> {
    for piece in pieces(turn.longest, shared.piece()) {
        let part = |parcel: &Parcel| {
            let end = piece.end.min(parcel.content.length());
            piece.start.min(end)..end
        };
        if let Some(parcel) = &turn.send {
            let range = part(parcel);
            shared.enter()?;
            let staging = shared.staging(shared.me()).part(0..range.len());
            parcel.content.gather(range, staging);
            shared.publish();
        }
        if let Some(parcel) = &turn.receive {
            let range = part(parcel);
            shared.await_published(parcel.peer)?;
            let staging = shared.staging(parcel.peer).part(0..range.len());
            parcel.content.scatter(range, staging);
        }
        shared.finish();
    }
    Ok(())
}
