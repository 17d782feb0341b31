//! A rank that knows the others and is connecting to them.

use std::os::fd::AsFd;
use std::time::Instant;

use ronde_control::settings::{RankInfo, RendezvousInfo, Settings, Transport};
use ronde_control::wire::{Callee, DriverToRank, Greeting, JobKey, Peer, RankToDriver};
use ronde_control::{Epoch, Rank};
use rustix::event::PollFlags;

use super::retry_hangups;
use super::session::{JoinSession, unexpected};
use crate::error::Error;
use crate::transport::dial::reach_unix;
use crate::transport::rank_listener::{Arrival, BoundListener, RankListener};
use crate::transport::socket::{Socket, sleep};
use crate::transport::wire::SealedWire;

/// A world as announced by the launcher, and this rank's place in it.
pub(super) struct WorldInfo {
    pub(super) epoch: Epoch,
    pub(super) place: RankInfo,
    pub(super) peers: Vec<Peer>,
}

/// A rank that is joining the world.
pub(in super::super) struct JoiningRank {
    pub(super) me: Rank,
    pub(super) epoch: Epoch,
    pub(super) key: JobKey,
    pub(super) peers: Vec<Peer>,
    pub(super) local_size: usize,
    pub(super) session: JoinSession,
}

impl JoiningRank {
    pub(super) fn new(
        world: WorldInfo,
        rendezvous_info: &RendezvousInfo,
        session: JoinSession,
    ) -> JoiningRank {
        let WorldInfo { epoch, place, peers } = world;
        let local_size = place.local_size as usize;
        JoiningRank {
            me: place.rank,
            epoch,
            key: rendezvous_info.key.clone(),
            peers,
            local_size,
            session,
        }
    }

    pub(super) fn open(&self, bound_listener: BoundListener) -> Result<RankListener, Error> {
        bound_listener
            .open(self.me, &self.peers[self.me.index()].host, self.key.clone())
            .map_err(|error| Error::Setup(format!("cannot open the listening sockets: {error}")))
    }

    /// The lowest rank whose unix socket can be reached from here, unless that is this rank itself.
    pub(super) fn locate(
        &mut self,
        settings: &Settings,
        deadline: Instant,
    ) -> Result<Option<(Rank, SealedWire)>, Error> {
        if settings.transport == Transport::Tcp {
            return Ok(None);
        }
        let me = self.me;
        let first = settings.shared_ranks.map_or(0, |most| (me.0 / most * most) as usize);
        let greeting = Greeting::Segment { epoch: self.epoch, rank: me };
        let JoiningRank { peers, key, session, .. } = self;
        for (rank, peer) in peers[..me.index()].iter().enumerate().skip(first) {
            let Some(name) = &peer.unix else { continue };
            let reached = retry_hangups(deadline, || {
                let mut wait = |socket: &Socket, flags| session.wait(socket, flags, deadline);
                let socket = reach_unix(name, &mut wait)?;
                let call = (&*key, Callee::Rank(Rank(rank as u32)));
                SealedWire::dial_with(socket, call, &greeting, &mut wait)
            });
            match reached {
                Ok(wire) => return Ok(Some((Rank(rank as u32), wire))),
                Err(_) => session.check()?,
            }
        }
        Ok(None)
    }

    pub(super) fn exchange_leaders(
        &mut self,
        leader: Rank,
        deadline: Instant,
    ) -> Result<Vec<Rank>, Error> {
        self.session.send(&RankToDriver::Located { leader }, deadline)?;
        match self.session.receive(Some(deadline))? {
            DriverToRank::Layout { leaders } if leaders.len() == self.peers.len() => Ok(leaders),
            other => Err(unexpected(&other)),
        }
    }

    /// Waits for a connection from another rank, while also listening to the launcher.
    pub(super) fn await_arrival(
        &mut self,
        rank_listener: &RankListener,
        deadline: Instant,
    ) -> Result<Arrival, Error> {
        loop {
            if let Some(arrival) = rank_listener.arrival() {
                return Ok(arrival);
            }
            self.session.check()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Setup("not all ranks connected in time".into()));
            }
            let fds = [rank_listener.bell().as_fd(), self.session.as_fd()];
            sleep(&fds.map(|fd| (fd, PollFlags::IN)), left);
        }
    }
}
