//! Alltoall in shared memory.

use std::ops::Range;

use super::super::Parts;
use crate::buffer::{Row, RowMut};
use crate::error::Error;
use crate::group::SharedGroup;

/// The staging memory of each rank is cut into one slot per receiver. In step `s`, each rank puts
/// the `s`-th piece of its part for every other rank into that rank's slot, and copies out the
/// pieces that the others have for it. A rank's part for itself is copied directly.
pub(in super::super) fn pieces(
    shared: &mut SharedGroup<'_>,
    source: &Row<'_>,
    target: &mut RowMut<'_>,
    parts: &Parts,
) -> Result<(), Error> {
    let (me, ranks) = (shared.me(), shared.ranks());
    let slot = shared.piece() / ranks;
    let longest = parts.all.iter().flatten().copied().max().unwrap_or(0);
    let (outgoing, incoming) = (parts.outgoing(me), parts.incoming(me));
    target.copy_from(incoming[me].start, &source.slice(outgoing[me].clone()));
    for step in 0..longest.div_ceil(slot) {
        let piece = |part: &Range<usize>| {
            let cut = |at: usize| part.start + (at * slot).min(part.len());
            cut(step)..cut(step + 1)
        };
        let staging = shared.enter()?;
        for (place, part) in outgoing.iter().enumerate().filter(|(place, _)| *place != me) {
            let (piece, start) = (piece(part), place * slot);
            let staged = &mut staging[start..start + piece.len()];
            source.gather(piece, staged);
        }
        shared.publish();
        for (place, part) in incoming.iter().enumerate().filter(|(place, _)| *place != me) {
            let (piece, start) = (piece(part), me * slot);
            let staged = shared.published(place, start..start + piece.len())?;
            target.scatter(piece, staged);
        }
        shared.finish();
    }
    Ok(())
}
