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
/// Three pieces are on their way at a time, one at each stage: what a stage waits for the others
/// have done while this rank worked on two other pieces, so that it seldom waits at all.
///
/// Main memory sees the bucket once on its way in and once on its way out; everything between
/// happens in the caches.
pub(in super::super) fn sliced(
    shared: &mut Shared<'_>,
    operands: &Operands,
    reduction: &Reduction,
) -> Result<(), Error> {
    let pieces: Vec<_> = pieces(operands.source.length(), shared.piece()).collect();
    let first = shared.step();
    for turn in 0..pieces.len() + STAGES.len() - 1 {
        for stage in STAGES {
            let number = turn.checked_sub(stage as usize);
            let Some(range) = number.and_then(|number| pieces.get(number)) else { continue };
            shared.turn_to(first + (turn - stage as usize) as u64);
            let piece = Piece { shared, range: range.clone(), operands, reduction };
            match stage {
                Stage::CopyIn => piece.copy_in()?,
                Stage::Reduce => piece.reduce()?,
                Stage::CopyOut => piece.copy_out()?,
            }
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Stage {
    CopyIn,
    Reduce,
    CopyOut,
}

/// What happens to a piece, in this order.
const STAGES: [Stage; 3] = [Stage::CopyIn, Stage::Reduce, Stage::CopyOut];

/// One piece at one of its stages.
struct Piece<'a, 'b> {
    shared: &'a mut Shared<'b>,
    range: Range<usize>,
    operands: &'a Operands,
    reduction: &'a Reduction,
}

impl Piece<'_, '_> {
    fn copy_in(self) -> Result<(), Error> {
        self.shared.enter()?;
        let (me, own) = (self.shared.me(), self.slice(self.shared.me()));
        for range in [self.range.start..own.start, own.end..self.range.end] {
            self.operands.source.gather(range.clone(), self.staged(me, &range));
        }
        self.shared.publish();
        Ok(())
    }

    fn reduce(self) -> Result<(), Error> {
        (0..self.shared.ranks()).try_for_each(|rank| self.shared.await_published(rank))?;
        let own = self.slice(self.shared.me());
        for block in pieces(own.len(), BLOCK) {
            self.reduce_block(own.start + block.start..own.start + block.end);
        }
        self.shared.reduced();
        Ok(())
    }

    fn copy_out(self) -> Result<(), Error> {
        for rank in (0..self.shared.ranks()).filter(|rank| *rank != self.shared.me()) {
            self.shared.await_reduced(rank)?;
            let slice = self.slice(rank);
            self.operands.target.scatter(slice.clone(), self.staged(rank, &slice));
        }
        self.shared.finish();
        Ok(())
    }

    /// Reduces one block, source region by source region.
    fn reduce_block(&self, block: Range<usize>) {
        let me = self.shared.me();
        let result = self.staged(me, &block);
        for (at, own) in self.operands.source.parts(block.clone()) {
            let range = at..at + own.length();
            let of = |rank| if rank == me { own } else { self.staged(rank, &range) };
            let sources: Vec<Region> = (0..self.shared.ranks()).map(of).collect();
            fold_regions(self.staged(me, &range), &sources, self.reduction);
        }
        self.operands.target.scatter(block, result);
    }

    /// The part of the piece that a rank reduces.
    fn slice(&self, rank: usize) -> Range<usize> {
        let element = self.reduction.dtype.size();
        let cut = cut(self.range.len(), self.shared.ranks(), rank, element);
        self.range.start + cut.start..self.range.start + cut.end
    }

    /// Where a range of the bucket lies in the staging memory of a rank.
    fn staged(&self, rank: usize, range: &Range<usize>) -> Region {
        let staging = self.shared.staging(rank);
        staging.part(range.start - self.range.start..range.end - self.range.start)
    }
}
