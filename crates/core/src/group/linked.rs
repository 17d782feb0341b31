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
            let outgoing = outgoing.into_iter().map(|Flow { peer, row }| (peer, row));
            let incoming = incoming.into_iter().map(|Flow { peer, row }| (peer, row));
            return self.flow(outgoing, incoming.map(landing), |_, _, _| ());
        }
        let outgoing = outgoing.into_iter().flat_map(|Flow { peer, row }| {
            let stripes = self.stripes(row.length()).into_iter();
            stripes.map(move |stripe| (peer, row.slice(stripe)))
        });
        let outgoing: Vec<(usize, Row<'_>)> = outgoing.collect();
        let (from, mut into) = match incoming {
            Some(Flow { peer, row }) => (peer, row),
            None => return self.flow(outgoing, [], |_, _, _| ()),
        };
        let stripes = self.stripes(into.length());
        let incoming = into.split(&stripes).into_iter().map(|row| landing((from, row)));
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
        let outgoing = outgoing.into_iter().map(|Flow { peer, row }| (peer, row));
        let incoming = incoming.into_iter().map(|Flow { peer, row }| (peer, Landing::Scratch(row)));
        self.flow(outgoing, incoming, arrived)
    }

    /// Flows to places become flows to ranks of the world.
    fn flow<'b>(
        &mut self,
        outgoing: impl IntoIterator<Item = (usize, Row<'b>)>,
        incoming: impl IntoIterator<Item = (usize, Landing<'b>)>,
        arrived: impl FnMut(usize, usize, &[u8]),
    ) -> Result<(), Error> {
        let ranks = &self.members.ranks;
        let outgoing = outgoing.into_iter().map(|(peer, row)| Flow { peer: ranks[peer], row });
        let incoming = incoming.into_iter().map(|(peer, row)| Flow { peer: ranks[peer], row });
        self.links.exchange(outgoing.collect(), incoming.collect(), arrived)
    }
}

fn landing((peer, row): (usize, RowMut<'_>)) -> (usize, Landing<'_>) {
    (peer, Landing::Row(row))
}
