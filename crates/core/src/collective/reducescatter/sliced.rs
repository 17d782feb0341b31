//! Reduction of parts in shared memory.

use std::ops::Range;

use super::super::Operands;
use crate::buffer::Region;
use crate::error::Error;
use crate::group::Shared;
use crate::reduce::{Reduction, fold_regions};

/// The staging memory of each rank is cut into one slot per receiver. In step `s` each rank puts the
/// `s`-th piece of everybody's part into that one's slot, all but its own, and reduces the `s`-th
/// piece of its own part from everybody's slots, in rank order, straight into the target.
pub(in super::super) fn sliced(
    shared: &mut Shared<'_>,
    operands: &Operands,
    reduction: &Reduction,
    cuts: &[Range<usize>],
) -> Result<(), Error> {
    let (me, ranks) = (shared.me(), shared.ranks());
    let element = reduction.dtype.size();
    let slot = shared.piece() / ranks / element * element;
    let longest = cuts.iter().map(Range::len).max().unwrap_or(0);
    for step in 0..longest.div_ceil(slot) {
        let piece = |place: usize| {
            let Range { start, end } = cuts[place];
            let cut = |at: usize| start + (at * slot).min(end - start);
            cut(step)..cut(step + 1)
        };
        shared.enter()?;
        for place in (0..ranks).filter(|place| *place != me) {
            let (piece, start) = (piece(place), place * slot);
            let staged = shared.staging(me).part(start..start + piece.len());
            operands.source.gather(piece, staged);
        }
        shared.publish();
        (0..ranks).try_for_each(|place| shared.await_published(place))?;
        let mine = piece(me);
        for (at, own) in operands.source.parts(mine.clone()) {
            let offset = me * slot + at - mine.start;
            let theirs = |place: usize| match place == me {
                true => own,
                false => shared.staging(place).part(offset..offset + own.length()),
            };
            let sources: Vec<Region> = (0..ranks).map(theirs).collect();
            fold_into(operands, at - cuts[me].start, &sources, reduction);
        }
        shared.finish();
    }
    Ok(())
}

/// Reduces sources of equal length into the target from `at` on.
pub(super) fn fold_into(operands: &Operands, at: usize, sources: &[Region], reduction: &Reduction) {
    let length = sources.first().map_or(0, |source| source.length());
    for (place, target) in operands.target.parts(at..at + length) {
        let range = place - at..place - at + target.length();
        let sources: Vec<Region> =
            sources.iter().map(|source| source.part(range.clone())).collect();
        fold_regions(target, &sources, reduction);
    }
}
