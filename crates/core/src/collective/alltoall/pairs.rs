//! Alltoall over sockets.

use super::super::Parts;
use crate::buffer::{Row, RowMut};
use crate::error::Error;
use crate::group::{Flow, Linked};

/// In turn `t`, each rank sends its part for the rank `t` to its right and receives from the rank
/// `t` to its left, straight from the source and into the target.
pub(in super::super) fn pairs(
    links: &mut Linked<'_>,
    source: &Row<'_>,
    target: &mut RowMut<'_>,
    parts: &Parts,
) -> Result<(), Error> {
    let (me, size) = (links.me(), links.size());
    let (outgoing, incoming) = (parts.outgoing(me), parts.incoming(me));
    target.copy_from(incoming[me].start, &source.slice(outgoing[me].clone()));
    let mut into = target.split(&incoming);
    for turn in 1..size {
        let (right, left) = ((me + turn) % size, (me + size - turn) % size);
        links.exchange(
            Some(Flow { peer: right, row: source.slice(outgoing[right].clone()) }),
            Some(Flow { peer: left, row: into[left].reborrow() }),
        )?;
    }
    Ok(())
}
