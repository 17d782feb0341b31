//! A group of ranks connected by sockets.

use std::ops::Range;

use ronde_control::Tuning;

use super::Members;
use crate::buffer::{Row, RowMut};
use crate::error::Error;
use crate::transport::link::{Flow, Landing, Links, Scratch};

/// The least number of bytes per connection that makes another connection worthwhile.
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

    /// The ranges of `bytes` bytes that each connection carries; both ends compute the same ranges.
    pub(crate) fn stripes(&self, bytes: usize) -> Vec<Range<usize>> {
        let count = (bytes / STRIPE).clamp(1, self.tuning.connections as usize);
        // A multiple of 64 bytes holds whole elements of every type.
        let at =
            |index: usize| if index == count { bytes } else { bytes / count * index / 64 * 64 };
        (0..count).map(|index| at(index)..at(index + 1)).collect()
    }

    /// Sends to one member while receiving from another, or the same one; large flows use several
    /// connections.
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

    /// The same as [`Linked::exchange`], but received data goes through scratch buffers, from which
    /// `arrived` takes it. The `i`-th flow in either direction uses the `i`-th connection; see
    /// [`Links::exchange`].
    pub(crate) fn stream(
        &mut self,
        outgoing: Vec<Flow<Row<'_>>>,
        incoming: Vec<Flow<Scratch<'_>>>,
        arrived: impl FnMut(usize, usize, &[u8]),
    ) -> Result<(), Error> {
        let incoming = incoming.into_iter().map(|flow| flow.map(Landing::Scratch)).collect();
        self.flow(outgoing, incoming, arrived)
    }

    /// Translates places to ranks of the world.
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
