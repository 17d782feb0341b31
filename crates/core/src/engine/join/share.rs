//! The last steps into a world whose ranks all share memory.
//!
//! Each rank hands the first one its two bells over the unix socket; the first one makes the segment
//! and hands everybody the segment and everybody's bells. The sockets then stay open and silent: they
//! break when their owner dies.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use ronde_control::Rank;
use ronde_control::settings::Settings;
use ronde_control::wire::Greeting;

use super::super::background::Standby;
use super::super::plane::{FollowPlane, LeadPlane};
use super::super::progress::{Progress, Role};
use super::{Joined, Mail, Newcomer, coordinator, new_bells};
use crate::error::Error;
use crate::group::{Fabric, Groups, Stage};
use crate::transport::bell::Bell;
use crate::transport::door::Door;
use crate::transport::handover::{give, take};
use crate::transport::shm::Segment;
use crate::transport::socket::Socket;
use crate::transport::vigil::{Bells, House};
use crate::transport::wire::Wire;

/// The segment, everybody's bells in rank order, and the sockets that show who is alive.
type Estate = (Segment, Vec<Bells>, Vec<(Rank, Socket)>);

impl Newcomer {
    pub(super) fn share(
        mut self,
        settings: &Settings,
        door: Door,
        leader: Option<Wire>,
        mail: Mail,
        deadline: Instant,
    ) -> Result<Joined, Error> {
        let (rank, me, size) = (self.me, self.me.index(), self.peers.len());
        let own = new_bells().map_err(|error| failed(&error))?;
        let (segment, bells, lifelines) = match leader {
            None => self.give_estate(&own, &door, deadline)?,
            Some(wire) => take_estate(wire, &own, self.peers.len(), deadline)
                .map_err(|error| failed(&error))?,
        };
        drop(door);
        let segment = Arc::new(segment);
        let role = match me {
            0 => coordinator(settings, &self.peers, LeadPlane::shared(&segment)),
            _ => Role::Member { plane: FollowPlane::shared(&segment, me) },
        };
        let house = House { segment: segment.clone(), me, bells };
        let vigil = self.into_vigil(lifelines, own, Some(house)).map_err(|error| failed(&error))?;
        let stage = Stage::new(segment, vigil.clone());
        let groups = Groups::new(Fabric::Shared(stage), rank, size);
        let progress = Progress::new(rank, groups, role, vigil.clone(), mail);
        Ok((progress, vigil, Standby::none()))
    }

    fn give_estate(
        &mut self,
        own: &Bells,
        door: &Door,
        deadline: Instant,
    ) -> Result<Estate, Error> {
        let size = self.peers.len();
        let mut guests: Vec<Option<(Socket, Bells)>> = (0..size).map(|_| None).collect();
        let mut missing = size - 1;
        while missing > 0 {
            let (wire, greeting) = self.await_arrival(door, deadline)?;
            let Greeting::Segment { epoch, rank } = greeting else { continue };
            if epoch != self.epoch || rank.0 == 0 || rank.index() >= size {
                continue;
            }
            let guest = welcome(wire, deadline).map_err(|error| failed(&error))?;
            missing -= usize::from(guests[rank.index()].replace(guest).is_none());
        }
        let (segment, fd) = Segment::create(size).map_err(|error| failed(&error))?;
        let own = own.duplicate().map_err(|error| failed(&error))?;
        let (mut bells, mut lifelines) = (vec![own], Vec::new());
        for (rank, guest) in guests.into_iter().enumerate().skip(1) {
            let (socket, theirs) = guest.expect("nobody is missing");
            bells.push(theirs);
            lifelines.push((Rank(rank as u32), socket));
        }
        let mut estate = vec![fd.as_fd()];
        estate.extend(bells.iter().flat_map(Bells::fds));
        for (_, socket) in &lifelines {
            give(socket, &estate, deadline).map_err(|error| failed(&error))?;
        }
        Ok((segment, bells, lifelines))
    }
}

/// Takes the bells of a rank that came for the segment.
fn welcome(wire: Wire, deadline: Instant) -> io::Result<(Socket, Bells)> {
    let socket = wire.into_socket()?;
    let mut fds = take(&socket, 2, deadline)?.into_iter();
    let bells = Bells::from_fds(&mut fds)?;
    Ok((socket, bells))
}

fn take_estate(wire: Wire, own: &Bells, size: usize, deadline: Instant) -> io::Result<Estate> {
    let socket = wire.into_socket()?;
    give(&socket, &own.fds(), deadline)?;
    let mut fds = take(&socket, 1 + 2 * size, deadline)?.into_iter();
    let segment = fds.next().ok_or(io::ErrorKind::UnexpectedEof)?;
    let segment = Segment::open(&segment, size)?;
    let bells = (0..size).map(|_| Bells::from_fds(&mut fds)).collect::<io::Result<_>>()?;
    Ok((segment, bells, vec![(Rank(0), socket)]))
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

fn failed(error: &io::Error) -> Error {
    Error::Setup(format!("the shared memory of this host could not be set up: {error}"))
}
