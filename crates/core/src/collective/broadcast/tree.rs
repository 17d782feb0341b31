//! Small broadcasts over sockets: as few consecutive messages as possible.

use crate::buffer::Operands;
use crate::error::Error;
use crate::group::{Flow, Linked};

/// A binomial tree over places counted from the root: in the turn of bit `b`, every place below
/// `b`, which has the tensor by then, sends it to the place `b` further on.
pub(in super::super) fn tree(
    links: &mut Linked<'_>,
    operands: &mut Operands<'_>,
    root: usize,
) -> Result<(), Error> {
    let (me, size) = (links.me(), links.size());
    let place = (me + size - root) % size;
    let rank = |place: usize| (place + root) % size;
    if place == 0 {
        operands.copy();
    }
    let row = operands.target_mut();
    let mut bit = 1;
    while bit < size {
        if place < bit && place + bit < size {
            let peer = rank(place + bit);
            links.exchange(Some(Flow { peer, row: row.as_row() }), None)?;
        } else if place >= bit && place < 2 * bit {
            let peer = rank(place - bit);
            links.exchange(None, Some(Flow { peer, row: row.reborrow() }))?;
        }
        bit *= 2;
    }
    Ok(())
}
