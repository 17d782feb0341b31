//! A set of ranks that reach each other through sockets.

use super::Circle;
use crate::error::Error;
use crate::transport::link::{Flow, Links};

pub(crate) struct Linked<'a> {
    links: &'a mut Links,
    circle: &'a Circle,
}

impl<'a> Linked<'a> {
    pub(super) fn new(links: &'a mut Links, circle: &'a Circle) -> Linked<'a> {
        Linked { links, circle }
    }

    pub(crate) fn me(&self) -> usize {
        self.circle.me
    }

    pub(crate) fn size(&self) -> usize {
        self.circle.ranks.len()
    }

    /// Sends to one place of the circle while receiving from another; see [`Links::exchange`].
    pub(crate) fn exchange(
        &mut self,
        outgoing: Option<Flow<'_>>,
        incoming: Option<Flow<'_>>,
        arrived: impl FnMut(usize),
    ) -> Result<(), Error> {
        let ranks = &self.circle.ranks;
        let outgoing = outgoing.map(|flow| Flow { peer: ranks[flow.peer], ..flow });
        let incoming = incoming.map(|flow| Flow { peer: ranks[flow.peer], ..flow });
        self.links.exchange(outgoing, incoming, arrived)
    }
}
