//! Some ranks that reach each other through sockets.

use std::ops::Range;

use ronde_control::Tuning;

use super::Members;
use crate::buffer::{Region, Segments};
use crate::error::Error;
use crate::transport::link::{Flow, Links};

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
        outgoing: Option<Flow<'_>>,
        incoming: Option<Flow<'_>>,
    ) -> Result<(), Error> {
        if self.tuning.connections == 1 {
            return self.stream(outgoing.as_slice(), incoming.as_slice(), |_, _| ());
        }
        let cut = |flow: Option<Flow<'_>>| -> Vec<(usize, Vec<Region>)> {
            let Some(Flow { peer, regions }) = flow else { return Vec::new() };
            let row = Segments::new(regions.to_vec());
            let part = |range| (peer, row.parts(range).map(|(_, part)| part).collect());
            self.stripes(row.length()).into_iter().map(part).collect()
        };
        let (outgoing, incoming) = (cut(outgoing), cut(incoming));
        self.stream(&flows(&outgoing), &flows(&incoming), |_, _| ())
    }

    /// The `i`-th flow of either kind takes the `i`-th connection; see [`Links::exchange`].
    pub(crate) fn stream(
        &mut self,
        outgoing: &[Flow<'_>],
        incoming: &[Flow<'_>],
        arrived: impl FnMut(usize, usize),
    ) -> Result<(), Error> {
        let ranks = &self.members.ranks;
        self.links.exchange(&by_rank(outgoing, ranks), &by_rank(incoming, ranks), arrived)
    }
}

/// Flows to places become flows to ranks of the world.
fn by_rank<'a>(flows: &[Flow<'a>], ranks: &[usize]) -> Vec<Flow<'a>> {
    flows.iter().map(|flow| Flow { peer: ranks[flow.peer], ..*flow }).collect()
}

fn flows(stripes: &[(usize, Vec<Region>)]) -> Vec<Flow<'_>> {
    stripes.iter().map(|(peer, regions)| Flow { peer: *peer, regions }).collect()
}
