//! The steps by which ranks that share no memory reach each other.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use ronde_control::Rank;
use ronde_control::wire::{Callee, Greeting};

use super::layout::Layout;
use super::{Newcomer, insist};
use crate::error::Error;
use crate::transport::dial::dial_with;
use crate::transport::door::{Arrival, Door};
use crate::transport::wire::Wire;

/// Who has come to this rank's door, by what they came for.
#[derive(Default)]
pub(super) struct Reception {
    /// For the shared memory of this island.
    pub(super) guests: HashMap<Rank, Wire>,
    /// For the coordinator.
    pub(super) callers: HashMap<Rank, Wire>,
    /// For links, before anybody here has asked for them.
    pub(super) early: VecDeque<Arrival>,
}

impl Newcomer {
    /// Waits for everybody who must come to this rank before the world is complete.
    pub(super) fn receive_guests(
        &mut self,
        layout: &Layout,
        door: &Door,
        reception: &mut Reception,
        deadline: Instant,
    ) -> Result<(), Error> {
        let guests = if layout.leads() { layout.island().split_off(1) } else { Vec::new() };
        let callers = if self.me == Rank(0) { layout.abroad() } else { Vec::new() };
        while reception.guests.len() < guests.len() || reception.callers.len() < callers.len() {
            let (wire, greeting) = self.await_arrival(door, deadline)?;
            match greeting {
                Greeting::Segment { epoch, rank }
                    if epoch == self.epoch && guests.contains(&rank) =>
                {
                    reception.guests.insert(rank, wire);
                }
                Greeting::Control { epoch, rank }
                    if epoch == self.epoch && callers.contains(&rank) =>
                {
                    reception.callers.insert(rank, wire);
                }
                Greeting::Link { .. } => reception.early.push_back((wire, greeting)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Connects to the coordinator, unless the two share memory.
    pub(super) fn call_coordinator(
        &mut self,
        layout: &Layout,
        deadline: Instant,
    ) -> Result<Option<Wire>, Error> {
        if layout.is_at_coordinator(self.me) {
            return Ok(None);
        }
        let greeting = Greeting::Control { epoch: self.epoch, rank: self.me };
        let (host, addresses) = (&self.peers[0].host, &self.peers[0].addresses);
        let call = (&self.key, Callee::Rank(Rank(0)));
        let ear = &mut self.ear;
        insist(deadline, || {
            dial_with(addresses, call, &greeting, deadline, &mut |socket, flags, until| {
                ear.wait(socket, flags, until)
            })
        })
        .map(Some)
        .map_err(|error| Error::Setup(format!("rank 0 ({host}) could not be reached: {error}")))
    }
}
