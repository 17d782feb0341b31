//! The steps by which the ranks of an island come to share memory.
//!
//! Each rank hands the first one its two bells over the unix socket; the first one makes the segment
//! and the arena and hands everybody both and everybody's bells. The sockets then stay open and
//! silent but for a farewell: they break when their owner dies.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use ronde_control::Rank;

use super::layout::Layout;
use super::{Newcomer, Reception};
use crate::error::Error;
use crate::group::Arena;
use crate::transport::bell::Bell;
use crate::transport::handover::{give, take};
use crate::transport::shm::Segment;
use crate::transport::socket::{Socket, Waiting};
use crate::transport::vigil::Bells;
use crate::transport::wire::Wire;

/// What the ranks of an island share.
pub(super) struct Estate {
    pub(super) segment: Segment,
    pub(super) arena: OwnedFd,
    /// Everybody's bells, in the order of seats.
    pub(super) bells: Vec<Bells>,
    /// The sockets that show who is alive.
    pub(super) lifelines: Vec<(Rank, Socket)>,
}

impl Newcomer {
    /// Gives or takes the shared memory of this island, if any ranks of the world share memory.
    pub(super) fn share(
        &mut self,
        (layout, stretch): (&Layout, usize),
        leader: Option<(Rank, Wire)>,
        own: &Bells,
        reception: &mut Reception,
        deadline: Instant,
    ) -> Result<Option<Estate>, Error> {
        let island = layout.island();
        let mut wait = |socket: &Socket, flags| self.ear.wait(socket, flags, deadline);
        let estate = match leader {
            _ if !layout.is_shared() => return Ok(None),
            Some((leader, wire)) => take_estate((leader, wire), own, island.len(), &mut wait),
            None => give_estate((&island[1..], stretch), own, reception, &mut wait),
        };
        estate.map(Some).map_err(|error| failed(&error))
    }
}

fn give_estate(
    (guests, stretch): (&[Rank], usize),
    own: &Bells,
    reception: &mut Reception,
    wait: &mut Waiting<'_>,
) -> io::Result<Estate> {
    let (segment, fd) = Segment::create(1 + guests.len())?;
    let arena = Arena::create(1 + guests.len(), stretch)?;
    let (mut bells, mut lifelines) = (vec![own.duplicate()?], Vec::new());
    for rank in guests {
        let wire = reception.guests.remove(rank).ok_or(io::ErrorKind::NotFound)?;
        let socket = wire.into_socket()?;
        bells.push(Bells::from_fds(&mut take(&socket, 2, wait)?.into_iter())?);
        lifelines.push((*rank, socket));
    }
    let mut estate = vec![fd.as_fd(), arena.as_fd()];
    estate.extend(bells.iter().flat_map(Bells::fds));
    for (_, socket) in &lifelines {
        give(socket, &estate, wait)?;
    }
    Ok(Estate { segment, arena, bells, lifelines })
}

fn take_estate(
    (leader, wire): (Rank, Wire),
    own: &Bells,
    seats: usize,
    wait: &mut Waiting<'_>,
) -> io::Result<Estate> {
    let socket = wire.into_socket()?;
    give(&socket, &own.fds(), wait)?;
    let mut fds = take(&socket, 2 + 2 * seats, wait)?.into_iter();
    let segment = fds.next().ok_or(io::ErrorKind::UnexpectedEof)?;
    let arena = fds.next().ok_or(io::ErrorKind::UnexpectedEof)?;
    let segment = Segment::open(&segment, seats)?;
    let bells = (0..seats).map(|_| Bells::from_fds(&mut fds)).collect::<io::Result<_>>()?;
    Ok(Estate { segment, arena, bells, lifelines: vec![(leader, socket)] })
}

impl Bells {
    fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.driver.as_fd(), self.background.as_fd()]
    }

    fn from_fds(fds: &mut impl Iterator<Item = OwnedFd>) -> io::Result<Bells> {
        let mut next = || fds.next().map(Bell::of_peer).ok_or(io::ErrorKind::UnexpectedEof);
        Ok(Bells { driver: next()?, background: next()? })
    }

    fn duplicate(&self) -> io::Result<Bells> {
        let [driver, background] = self.fds();
        let copies = [driver.try_clone_to_owned()?, background.try_clone_to_owned()?];
        Bells::from_fds(&mut copies.into_iter())
    }
}

pub(super) fn failed(error: &io::Error) -> Error {
    Error::Setup(format!("the shared memory of this host could not be set up: {error}"))
}
