//! Allgather over sockets.

use std::ops::Range;

use crate::buffer::{Row, RowMut};
use crate::error::Error;
use crate::group::{Flow, Linked};

/// Once around the ring: in turn `t`, a rank passes the tensor of rank `me - t` to its right and
/// receives that of rank `me - t - 1` from its left, each straight into its place. A rank copies
/// its own tensor to its place first, unless there is no source because the tensor is there
/// already.
pub(in super::super) fn ring(
    links: &mut Linked<'_>,
    source: Option<&Row<'_>>,
    target: &mut RowMut<'_>,
    cuts: &[Range<usize>],
) -> Result<(), Error> {
    let (me, size) = (links.me(), links.size());
    let (right, left) = ((me + 1) % size, (me + size - 1) % size);
    if let Some(source) = source {
        target.copy_from(cuts[me].start, source);
    }
    let mut parts = target.split(cuts);
    for turn in 0..size - 1 {
        let (out, into) = ((me + size - turn) % size, (me + size - turn - 1) % size);
        let both = parts.get_disjoint_mut([out, into]);
        let [out, into] = both.expect("neighbors in a ring of two or more");
        links.exchange(
            Some(Flow { peer: right, row: out.as_row() }),
            Some(Flow { peer: left, row: into.reborrow() }),
        )?;
    }
    Ok(())
}
