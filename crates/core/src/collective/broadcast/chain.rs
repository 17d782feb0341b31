//! Large broadcasts over sockets: from rank to rank, many pieces on their way at once.

use super::super::{Operands, pieces};
use crate::buffer::{Region, Segments};
use crate::error::Error;
use crate::group::{Flow, Linked};

/// Small enough that a long chain fills quickly, large enough that a system call is worth it.
const PIECE: usize = 256 << 10;

/// The ranks form a chain that starts at the root. Each rank receives piece `p` from the one before
/// it while it sends piece `p - 1` to the one behind it; so the whole takes one tensor's time plus
/// one piece's time per rank.
pub(in super::super) fn chain(
    links: &mut Linked<'_>,
    operands: &Operands,
    root: usize,
) -> Result<(), Error> {
    let (me, size) = (links.me(), links.size());
    let place = (me + size - root) % size;
    let (before, behind) = ((me + size - 1) % size, (me + 1) % size);
    let row: &Segments = if place == 0 { &operands.source } else { &operands.target };
    let regions: Vec<Vec<Region>> = pieces(row.length(), PIECE)
        .map(|range| row.parts(range).map(|(_, part)| part).collect())
        .collect();
    for turn in 0..=regions.len() {
        // The root has every piece from the start; the others send what they received a turn ago.
        let to_send = if place == 0 { Some(turn) } else { turn.checked_sub(1) };
        let outgoing = to_send.and_then(|index| regions.get(index)).filter(|_| place + 1 < size);
        let incoming = regions.get(turn).filter(|_| place > 0);
        links.exchange(
            outgoing.map(|regions| Flow { peer: behind, regions }),
            incoming.map(|regions| Flow { peer: before, regions }),
        )?;
    }
    if place == 0 {
        operands.source.copy_to(&operands.target);
    }
    Ok(())
}
