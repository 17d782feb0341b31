//! Gathering over sockets.

use std::ops::Range;

use super::super::Operands;
use crate::buffer::Region;
use crate::error::Error;
use crate::group::{Flow, Linked};

/// Once round the ring: in turn `t` a rank passes the tensor of rank `me - t` to its right and
/// receives that of rank `me - t - 1` from its left, each straight into its place.
pub(in super::super) fn ring(
    links: &mut Linked<'_>,
    operands: &Operands,
    cuts: &[Range<usize>],
) -> Result<(), Error> {
    let (me, size) = (links.me(), links.size());
    let (right, left) = ((me + 1) % size, (me + size - 1) % size);
    for (at, part) in operands.source.parts(0..operands.source.length()) {
        let start = cuts[me].start + at;
        operands.target.scatter(start..start + part.length(), part);
    }
    for turn in 0..size - 1 {
        let regions = |rank: usize| -> Vec<Region> {
            operands.target.parts(cuts[rank % size].clone()).map(|(_, part)| part).collect()
        };
        let (outgoing, incoming) = (regions(me + size - turn), regions(me + size - turn - 1));
        links.exchange(
            Some(Flow { peer: right, regions: &outgoing }),
            Some(Flow { peer: left, regions: &incoming }),
        )?;
    }
    Ok(())
}
