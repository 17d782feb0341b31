//! Exchange of parts over sockets.

use super::super::{Operands, Parts};
use crate::buffer::Region;
use crate::error::Error;
use crate::group::{Flow, Linked};

/// In turn `t` each rank sends its part for the one `t` to its right and receives from the one `t` to
/// its left, each straight from and into its place.
pub(in super::super) fn pairs(
    links: &mut Linked<'_>,
    operands: &Operands,
    parts: &Parts,
) -> Result<(), Error> {
    let (me, size) = (links.me(), links.size());
    let (outgoing, incoming) = (parts.outgoing(me), parts.incoming(me));
    operands.source.copy_range(outgoing[me].clone(), &operands.target, incoming[me].start);
    for turn in 1..size {
        let (right, left) = ((me + turn) % size, (me + size - turn) % size);
        let out: Vec<Region> =
            operands.source.parts(outgoing[right].clone()).map(|(_, part)| part).collect();
        let into: Vec<Region> =
            operands.target.parts(incoming[left].clone()).map(|(_, part)| part).collect();
        links.exchange(
            Some(Flow { peer: right, regions: &out }),
            Some(Flow { peer: left, regions: &into }),
        )?;
    }
    Ok(())
}
