//! A rank that has met the others and looks for its place among them.

use std::os::fd::AsFd;
use std::time::Instant;

use ronde_control::settings::{Meeting, Place, Settings, Transport};
use ronde_control::wire::{Callee, DriverToRank, Greeting, JobKey, Peer, RankToDriver};
use ronde_control::{Epoch, Rank};
use rustix::event::PollFlags;

use super::ear::{Ear, out_of_turn};
use super::insist;
use crate::error::Error;
use crate::transport::dial::reach_unix;
use crate::transport::door::{Arrival, Door, Doorway};
use crate::transport::socket::{Socket, sleep};
use crate::transport::wire::Wire;

/// A world as the launcher has told of it, and this rank's place in it.
pub(super) struct World {
    pub(super) epoch: Epoch,
    pub(super) place: Place,
    pub(super) peers: Vec<Peer>,
}

/// A rank on its way into the world.
pub(in super::super) struct Newcomer {
    pub(super) me: Rank,
    pub(super) epoch: Epoch,
    pub(super) key: JobKey,
    pub(super) peers: Vec<Peer>,
    pub(super) local_size: usize,
    pub(super) ear: Ear,
}

impl Newcomer {
    pub(super) fn new(world: World, meeting: &Meeting, ear: Ear) -> Newcomer {
        let World { epoch, place, peers } = world;
        let local_size = place.local_size as usize;
        Newcomer { me: place.rank, epoch, key: meeting.key.clone(), peers, local_size, ear }
    }

    pub(super) fn open(&self, doorway: Doorway) -> Result<Door, Error> {
        doorway
            .open(self.me, &self.peers[self.me.index()].host, self.key.clone())
            .map_err(|error| Error::Setup(format!("the door could not be opened: {error}")))
    }

    /// The lowest rank whose unix socket can be reached from here, if it is not this rank itself.
    pub(super) fn locate(
        &mut self,
        settings: &Settings,
        deadline: Instant,
    ) -> Result<Option<(Rank, Wire)>, Error> {
        if settings.transport == Transport::Tcp {
            return Ok(None);
        }
        let me = self.me;
        let first = settings.shared_ranks.map_or(0, |most| (me.0 / most * most) as usize);
        let greeting = Greeting::Segment { epoch: self.epoch, rank: me };
        let Newcomer { peers, key, ear, .. } = self;
        for (rank, peer) in peers[..me.index()].iter().enumerate().skip(first) {
            let Some(name) = &peer.unix else { continue };
            let reached = insist(deadline, || {
                let mut wait = |socket: &Socket, flags| ear.wait(socket, flags, deadline);
                let socket = reach_unix(name, &mut wait)?;
                let call = (&*key, Callee::Rank(Rank(rank as u32)));
                Wire::dial_with(socket, call, &greeting, &mut wait)
            });
            match reached {
                Ok(wire) => return Ok(Some((Rank(rank as u32), wire))),
                Err(_) => ear.check()?,
            }
        }
        Ok(None)
    }

    pub(super) fn exchange_leaders(
        &mut self,
        leader: Rank,
        deadline: Instant,
    ) -> Result<Vec<Rank>, Error> {
        self.ear.tell(&RankToDriver::Located { leader }, deadline)?;
        match self.ear.hear(Some(deadline))? {
            DriverToRank::Layout { leaders } if leaders.len() == self.peers.len() => Ok(leaders),
            other => Err(out_of_turn(&other)),
        }
    }

    /// Waits for somebody at the door, with an ear to the launcher.
    pub(super) fn await_arrival(
        &mut self,
        door: &Door,
        deadline: Instant,
    ) -> Result<Arrival, Error> {
        loop {
            if let Some(arrival) = door.arrival() {
                return Ok(arrival);
            }
            self.ear.check()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Setup("not all ranks came in time".into()));
            }
            let fds = [door.bell().as_fd(), self.ear.as_fd()];
            sleep(&fds.map(|fd| (fd, PollFlags::IN)), left);
        }
    }
}
