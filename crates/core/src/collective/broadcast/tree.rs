//! Small broadcasts over sockets: as few messages one after the other as possible.

use super::super::Operands;
use crate::buffer::Region;
use crate::error::Error;
use crate::group::{Flow, Linked};

/// A binomial tree over places counted from the root: in the turn of bit `b` every place below `b`,
/// which has the tensor by then, sends it to the place `b` further on.
pub(in super::super) fn tree(
    links: &mut Linked<'_>,
    operands: &Operands,
    root: usize,
) -> Result<(), Error> {
    let (me, size) = (links.me(), links.size());
    let place = (me + size - root) % size;
    let rank = |place: usize| (place + root) % size;
    if place == 0 {
        operands.source.copy_to(&operands.target);
    }
    let regions: Vec<Region> =
        operands.target.parts(0..operands.target.length()).map(|(_, part)| part).collect();
    let mut bit = 1;
    while bit < size {
        if place < bit && place + bit < size {
            let peer = rank(place + bit);
            links.exchange(Some(Flow { peer, regions: &regions }), None)?;
        } else if place >= bit && place < 2 * bit {
            let peer = rank(place - bit);
            links.exchange(None, Some(Flow { peer, regions: &regions }))?;
        }
        bit *= 2;
    }
    Ok(())
}
