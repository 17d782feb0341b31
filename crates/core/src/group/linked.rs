//! Some ranks that reach each other through sockets.

use std::ops::Range;

use ronde_control::Tuning;

use super::Members;
use crate::buffer::{Row, RowMut};
use crate::error::Error;
use crate::transport::link::{Flow, Landing, Links, Scratch};

/// A flow shorter than this per connection is not worth another one.
const STRIPE: usize = 1 << 20;

pub(crate) struct Linked<'a> {
    links: &'a mut Links,
    members: Members,
    tuning: Tuning,
}

impl<'a> Linked<'a> {
    pub(super) fn new(links: &'a mut Links, members: Members, tuning: Tuning) -> Linked<'a> {
        Linked { links, members, tuning }
    }

    pub(crate) fn me(&self) -> usize {
        self.members.me
    }

    pub(crate) fn size(&self) -> usize {
        self.members.ranks.len()
    }

    pub(crate) fn tuning(&self) -> Tuning {
        self.tuning
    }

    /// Cuts so many bytes into what each connection carries; both ends cut alike.
    pub(crate) fn stripes(&self, bytes: usize) -> Vec<Range<usize>> {
        let count = (bytes / STRIPE).clamp(1, self.tuning.connections as usize);
        // Whole cache lines hold whole elements of every type.
        let at =
            |index: usize| if index == count { bytes } else { bytes / count * index / 64 * 64 };
        (0..count).map(|index| at(index)..at(index + 1)).collect()
    }

    /// Sends to one place of the circle while receiving from another (or the same); large flows take
    /// several connections.
    pub(crate) fn exchange(
        &mut self,
        outgoing: Option<Flow<Row<'_>>>,
        incoming: Option<Flow<RowMut<'_>>>,
    ) -> Result<(), Error> {
        if self.tuning.connections == 1 {
            let incoming = incoming.into_iter().map(|flow| flow.map(Landing::Row)).collect();
            return self.flow(outgoing.into_iter().collect(), incoming, |_, _, _| ());
        }
        let mut incoming = incoming;
        let outgoing = outgoing.iter().flat_map(|Flow { peer, row }| {
            let stripes = self.stripes(row.length()).into_iter();
            stripes.map(|stripe| Flow { peer: *peer, row: row.slice(stripe) })
        });
        let incoming = incoming.iter_mut().flat_map(|Flow { peer, row }| {
            let rows = row.split(&self.stripes(row.length())).into_iter();
            rows.map(|row| Flow { peer: *peer, row: Landing::Row(row) })
        });
        let (outgoing, incoming) = (outgoing.collect(), incoming.collect());
        self.flow(outgoing, incoming, |_, _, _| ())
    }

    /// The same through scratches, of which `arrived` takes what has come: the `i`-th flow of either
    /// kind takes the `i`-th connection; see [`Links::exchange`].
    pub(crate) fn stream(
        &mut self,
        outgoing: Vec<Flow<Row<'_>>>,
        incoming: Vec<Flow<Scratch<'_>>>,
        arrived: impl FnMut(usize, usize, &[u8]),
    ) -> Result<(), Error> {
        let incoming = incoming.into_iter().map(|flow| flow.map(Landing::Scratch)).collect();
        self.flow(outgoing, incoming, arrived)
    }

    /// Flows to places become flows to ranks of the world.
    fn flow(
        &mut self,
        mut outgoing: Vec<Flow<Row<'_>>>,
        mut incoming: Vec<Flow<Landing<'_>>>,
        arrived: impl FnMut(usize, usize, &[u8]),
    ) -> Result<(), Error> {
        let ranks = &self.members.ranks;
        outgoing.iter_mut().for_each(|flow| flow.peer = ranks[flow.peer]);
        incoming.iter_mut().for_each(|flow| flow.peer = ranks[flow.peer]);
        self.links.exchange(outgoing, incoming, arrived)
    }
}
