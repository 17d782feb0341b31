//! Sets up the memory that the ranks of an island share.
//!
//! Each rank hands the first one its two doorbells over the unix socket. The first one creates the
//! segment and the arena, and hands both to every rank, along with all doorbells. The sockets then
//! stay open and carry nothing but a goodbye: they break when their owner dies.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use ronde_control::Rank;

use super::layout::IslandLayout;
use super::{IncomingPeers, JoiningRank};
use crate::error::Error;
use crate::group::Arena;
use crate::transport::bell::Doorbell;
use crate::transport::handover::{give, take};
use crate::transport::shm::Segment;
use crate::transport::socket::{Socket, Waiting};
use crate::transport::waiter::Doorbells;
use crate::transport::wire::SealedWire;

/// What the ranks of an island share.
pub(super) struct IslandResources {
    pub(super) segment: Segment,
    pub(super) arena: OwnedFd,
    /// The doorbells of all ranks, in the order of their local indices.
    pub(super) bells: Vec<Doorbells>,
    /// The sockets whose end shows that a rank has died.
    pub(super) lifelines: Vec<(Rank, Socket)>,
}

impl JoiningRank {
    /// Sends or receives the shared memory of this island, if any ranks of the world share memory.
    pub(super) fn share(
        &mut self,
        (layout, arena_bytes): (&IslandLayout, usize),
        leader: Option<(Rank, SealedWire)>,
        own: &Doorbells,
        incoming_peers: &mut IncomingPeers,
        deadline: Instant,
    ) -> Result<Option<IslandResources>, Error> {
        let island = layout.island();
        let mut wait = |socket: &Socket, flags| self.session.wait(socket, flags, deadline);
        let resources = match leader {
            _ if !layout.is_shared() => return Ok(None),
            Some((leader, wire)) => receive_resources((leader, wire), own, island.len(), &mut wait),
            None => send_resources((&island[1..], arena_bytes), own, incoming_peers, &mut wait),
        };
        resources.map(Some).map_err(|error| failed(&error))
    }
}

fn send_resources(
    (members, arena_bytes): (&[Rank], usize),
    own: &Doorbells,
    incoming_peers: &mut IncomingPeers,
    wait: &mut Waiting<'_>,
) -> io::Result<IslandResources> {
    let (segment, fd) = Segment::create(1 + members.len())?;
    let arena = Arena::create(1 + members.len(), arena_bytes)?;
    let (mut bells, mut lifelines) = (vec![own.duplicate()?], Vec::new());
    for rank in members {
        let wire = incoming_peers.island_members.remove(rank).ok_or(io::ErrorKind::NotFound)?;
        let socket = wire.into_socket()?;
        bells.push(Doorbells::from_fds(&mut take(&socket, 2, wait)?.into_iter())?);
        lifelines.push((*rank, socket));
    }
    let mut resources = vec![fd.as_fd(), arena.as_fd()];
    resources.extend(bells.iter().flat_map(Doorbells::fds));
    for (_, socket) in &lifelines {
        give(socket, &resources, wait)?;
    }
    Ok(IslandResources { segment, arena, bells, lifelines })
}

fn receive_resources(
    (leader, wire): (Rank, SealedWire),
    own: &Doorbells,
    local_ranks: usize,
    wait: &mut Waiting<'_>,
) -> io::Result<IslandResources> {
    let socket = wire.into_socket()?;
    give(&socket, &own.fds(), wait)?;
    let mut fds = take(&socket, 2 + 2 * local_ranks, wait)?.into_iter();
    let segment = fds.next().ok_or(io::ErrorKind::UnexpectedEof)?;
    let arena = fds.next().ok_or(io::ErrorKind::UnexpectedEof)?;
    let segment = Segment::open(&segment, local_ranks)?;
    let bells =
        (0..local_ranks).map(|_| Doorbells::from_fds(&mut fds)).collect::<io::Result<_>>()?;
    Ok(IslandResources { segment, arena, bells, lifelines: vec![(leader, socket)] })
}

impl Doorbells {
    fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.foreground.as_fd(), self.background.as_fd()]
    }

    fn from_fds(fds: &mut impl Iterator<Item = OwnedFd>) -> io::Result<Doorbells> {
        let mut next = || fds.next().map(Doorbell::of_peer).ok_or(io::ErrorKind::UnexpectedEof);
        Ok(Doorbells { foreground: next()?, background: next()? })
    }

    fn duplicate(&self) -> io::Result<Doorbells> {
        let [foreground, background] = self.fds();
        let copies = [foreground.try_clone_to_owned()?, background.try_clone_to_owned()?];
        Doorbells::from_fds(&mut copies.into_iter())
    }
}

pub(super) fn failed(error: &io::Error) -> Error {
    Error::Setup(format!("cannot set up the shared memory of this host: {error}"))
}
