//! The last steps into a world whose ranks reach each other through sockets.

use std::io;
use std::time::Instant;

use ronde_control::Rank;
use ronde_control::settings::Settings;
use ronde_control::wire::Greeting;

use super::super::background::Standby;
use super::super::plane::{FollowPlane, LeadPlane};
use super::super::progress::{Progress, Role};
use super::{Joined, Mail, Newcomer, coordinator, new_bells};
use crate::error::Error;
use crate::group::{Fabric, Groups, Links};
use crate::transport::door::Door;
use crate::transport::link::dial;
use crate::transport::wire::Wire;

impl Newcomer {
    pub(super) fn link(
        mut self,
        settings: &Settings,
        door: Door,
        mail: Mail,
        deadline: Instant,
    ) -> Result<Joined, Error> {
        let failed =
            |error: io::Error| Error::Setup(format!("sockets could not be set up: {error}"));
        let (me, epoch, key, peers) = (self.me, self.epoch, self.key.clone(), self.peers.clone());
        let (role, standby) = if me == Rank(0) {
            let wires = self.gather_members(&door, deadline)?;
            let standby = Standby::over(wires.iter().map(|(_, wire)| wire.socket()));
            (coordinator(settings, &peers, LeadPlane::Linked { wires }), standby)
        } else {
            let greeting = Greeting::Control { epoch, rank: me };
            let wire = dial(&peers[0].addresses, &key, &greeting, deadline).map_err(|error| {
                let (host, addresses) = (&peers[0].host, &peers[0].addresses);
                Error::Setup(format!(
                    "rank 0 ({host}) could not be reached at {addresses:?}: {error}"
                ))
            })?;
            let standby = Standby::over([wire.socket()].into_iter());
            (Role::Member { plane: FollowPlane::Linked { wire } }, standby)
        };
        let standby = standby.map_err(failed)?;
        let bells = new_bells().map_err(failed)?;
        let vigil = self.into_vigil(Vec::new(), bells, None).map_err(failed)?;
        let size = peers.len();
        let links = Links::new((me, epoch), key, peers, door, vigil.clone());
        let groups = Groups::new(Fabric::Linked(links), me, size);
        let progress = Progress::new(me, groups, role, vigil.clone(), mail);
        Ok((progress, vigil, standby))
    }

    fn gather_members(
        &mut self,
        door: &Door,
        deadline: Instant,
    ) -> Result<Vec<(Rank, Wire)>, Error> {
        let mut wires: Vec<Option<Wire>> = self.peers.iter().map(|_| None).collect();
        let mut missing = self.peers.len() - 1;
        while missing > 0 {
            let (wire, greeting) = self.await_arrival(door, deadline)?;
            let Greeting::Control { epoch, rank } = greeting else { continue };
            if epoch == self.epoch
                && rank != Rank(0)
                && let Some(slot) = wires.get_mut(rank.index())
            {
                missing -= usize::from(slot.replace(wire).is_none());
            }
        }
        let wires = wires.into_iter().enumerate();
        Ok(wires.filter_map(|(rank, wire)| Some((Rank(rank as u32), wire?))).collect())
    }
}
