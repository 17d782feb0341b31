//! Large buckets in shared memory: each rank reduces its slice of every piece.

use std::ops::Range;

use super::super::{Operands, cut, pieces};
use crate::buffer::Region;
use crate::error::Error;
use crate::group::Shared;
use crate::reduce::{Reduction, fold_regions};

/// Blocks in which a slice is reduced and copied on, so that the copy reads from the first cache.
const BLOCK: usize = 16 << 10;

/// The bucket travels in pieces that fit the caches; one step per piece:
///
/// 1. Each rank copies its part of the piece into its staging memory, all but its own slice, which
///    nobody else needs, and publishes.
/// 2. Each rank reduces its own slice from everybody's in rank order (its own straight from the
///    source), writes it to the target and to its staging memory, and says so.
/// 3. Each rank copies the other slices from the staging memory of those who reduced them.
///
/// Main memory sees the bucket once on its way in and once on its way out; everything between
/// happens in the caches.
pub(in super::super) fn sliced(
    shared: &mut Shared<'_>,
    operands: &Operands,
    reduction: &Reduction,
) -> Result<(), Error> {
    let (me, ranks) = (shared.me(), shared.ranks());
    for piece in pieces(operands.source.length(), shared.piece()) {
        let slice = |rank| {
            let cut = cut(piece.len(), ranks, rank, reduction.dtype.size());
            piece.start + cut.start..piece.start + cut.end
        };
        shared.enter()?;
        let staged = |rank: usize, range: &Range<usize>| {
            shared.staging(rank).part(range.start - piece.start..range.end - piece.start)
        };
        let (before, after) = (piece.start..slice(me).start, slice(me).end..piece.end);
        for range in [before, after] {
            operands.source.gather(range.clone(), staged(me, &range));
        }
        shared.publish();
        (0..ranks).try_for_each(|rank| shared.await_published(rank))?;
        for block in pieces(slice(me).len(), BLOCK) {
            let block = slice(me).start + block.start..slice(me).start + block.end;
            let result = staged(me, &block);
            reduce_block(
                operands,
                &block,
                result,
                reduction,
                |rank| (rank != me).then(|| staged(rank, &block)),
                ranks,
            );
            operands.target.scatter(block, result);
        }
        shared.reduced();
        for rank in (0..ranks).filter(|rank| *rank != me) {
            shared.await_reduced(rank)?;
            operands.target.scatter(slice(rank), staged(rank, &slice(rank)));
        }
        shared.finish();
    }
    Ok(())
}

/// Reduces one block into `result`, source region by source region.
fn reduce_block(
    operands: &Operands,
    block: &Range<usize>,
    result: Region,
    reduction: &Reduction,
    theirs: impl Fn(usize) -> Option<Region>,
    ranks: usize,
) {
    for (at, own) in operands.source.parts(block.clone()) {
        let range = at - block.start..at - block.start + own.length();
        let of = |rank| theirs(rank).map_or(own, |region| region.part(range.clone()));
        let sources: Vec<Region> = (0..ranks).map(of).collect();
        fold_regions(result.part(range.clone()), &sources, reduction);
    }
}
