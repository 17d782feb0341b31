//! Large broadcasts over sockets: from rank to rank, with many pieces in flight.

use super::super::pieces;
use crate::buffer::Operands;
use crate::error::Error;
use crate::group::{Flow, Linked};

/// Small enough that a long chain fills quickly, large enough that a system call is worth it.
const PIECE: usize = 256 << 10;

/// The ranks form a chain that starts at the root. Each rank receives piece `p` from the previous
/// one while it sends piece `p - 1` to the next one; so the whole takes the time of one tensor plus
/// that of one piece per rank.
pub(in super::super) fn chain(
    links: &mut Linked<'_>,
    operands: &mut Operands<'_>,
    root: usize,
) -> Result<(), Error> {
    let (me, size) = (links.me(), links.size());
    let place = (me + size - root) % size;
    let (previous, next) = ((me + size - 1) % size, (me + 1) % size);
    let ranges: Vec<_> = pieces(operands.length(), PIECE).collect();
    if place == 0 {
        let source = operands.source();
        for range in ranges.into_iter().filter(|_| size > 1) {
            links.exchange(Some(Flow { peer: next, row: source.slice(range) }), None)?;
        }
        operands.copy();
        return Ok(());
    }
    let mut rows = operands.target_mut().split(&ranges);
    for turn in 0..=rows.len() {
        // Pass on what arrived in the previous turn.
        let (received, expected) = rows.split_at_mut(turn);
        let outgoing = received.last().filter(|_| place + 1 < size);
        let incoming = expected.first_mut();
        links.exchange(
            outgoing.map(|row| Flow { peer: next, row: row.as_row() }),
            incoming.map(|row| Flow { peer: previous, row: row.reborrow() }),
        )?;
    }
    Ok(())
}
