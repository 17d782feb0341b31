//! Connects ranks that share no memory.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use ronde_control::Rank;
use ronde_control::wire::{Callee, Greeting};

use super::layout::IslandLayout;
use super::{JoiningRank, retry_hangups};
use crate::error::Error;
use crate::transport::dial::dial_with;
use crate::transport::rank_listener::{Arrival, RankListener};
use crate::transport::wire::SealedWire;

/// Peers that have connected to this rank, by purpose.
#[derive(Default)]
pub(super) struct IncomingPeers {
    /// Members of this island, which get the shared memory.
    pub(super) island_members: HashMap<Rank, SealedWire>,
    /// Ranks outside the coordinator's island, for the negotiation.
    pub(super) callers: HashMap<Rank, SealedWire>,
    /// Links that were opened before this rank needed them.
    pub(super) early: VecDeque<Arrival>,
}

impl JoiningRank {
    /// Waits for all ranks that must connect to this one before the world is complete.
    pub(super) fn accept_peers(
        &mut self,
        layout: &IslandLayout,
        rank_listener: &RankListener,
        incoming_peers: &mut IncomingPeers,
        deadline: Instant,
    ) -> Result<(), Error> {
        let members = if layout.leads() { layout.island().split_off(1) } else { Vec::new() };
        let callers = if self.me == Rank(0) { layout.remote_ranks() } else { Vec::new() };
        while incoming_peers.island_members.len() < members.len()
            || incoming_peers.callers.len() < callers.len()
        {
            let (wire, greeting) = self.await_arrival(rank_listener, deadline)?;
            match greeting {
                Greeting::Segment { epoch, rank }
                    if epoch == self.epoch && members.contains(&rank) =>
                {
                    incoming_peers.island_members.insert(rank, wire);
                }
                Greeting::Control { epoch, rank }
                    if epoch == self.epoch && callers.contains(&rank) =>
                {
                    incoming_peers.callers.insert(rank, wire);
                }
                Greeting::Link { .. } => incoming_peers.early.push_back((wire, greeting)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Connects to the coordinator, unless the two share memory.
    pub(super) fn call_coordinator(
        &mut self,
        layout: &IslandLayout,
        deadline: Instant,
    ) -> Result<Option<SealedWire>, Error> {
        if layout.is_at_coordinator(self.me) {
            return Ok(None);
        }
        let greeting = Greeting::Control { epoch: self.epoch, rank: self.me };
        let (host, addresses) = (&self.peers[0].host, &self.peers[0].addresses);
        let call = (&self.key, Callee::Rank(Rank(0)));
        let session = &mut self.session;
        retry_hangups(deadline, || {
            dial_with(addresses, call, &greeting, deadline, &mut |socket, flags, until| {
                session.wait(socket, flags, until)
            })
        })
        .map(Some)
        .map_err(|error| Error::Setup(format!("rank 0 ({host}) could not be reached: {error}")))
    }
}
