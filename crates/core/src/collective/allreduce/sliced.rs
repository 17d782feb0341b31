//! Large buckets in shared memory: each rank reduces its slice of every piece.

use std::ops::Range;

use super::super::{cut, pieces};
use crate::buffer::Operands;
use crate::error::Error;
use crate::group::SharedGroup;
use crate::reduce::{Reduction, Term, combine};

/// A slice is reduced and copied on in blocks of this size, so that the copy reads from the L1
/// cache.
const BLOCK: usize = 16 << 10;

/// The bucket is processed in pieces that fit into the caches, one step per piece:
///
/// 1. Each rank copies its part of the piece into its staging memory and publishes it, except for
///    its own slice, which no other rank needs.
/// 2. Each rank reduces its own slice from all ranks in rank order (its own data straight from the
///    source), writes it to the target and to its staging memory, and announces that.
/// 3. Each rank copies the other slices from the staging memory of the ranks that reduced them.
///
/// Three pieces are in flight at a time, one at each stage. The other ranks finish what a stage
/// waits for while this rank works on two other pieces, so it rarely waits at all.
///
/// Main memory is read once and written once; everything in between happens in the caches.
pub(in super::super) fn sliced(
    shared: &mut SharedGroup<'_>,
    operands: &mut Operands<'_>,
    reduction: &Reduction,
) -> Result<(), Error> {
    let pieces: Vec<_> = pieces(operands.length(), shared.piece()).collect();
    let first = shared.step();
    for turn in 0..pieces.len() + STAGES.len() - 1 {
        for stage in STAGES {
            let number = turn.checked_sub(stage as usize);
            let Some(range) = number.and_then(|number| pieces.get(number)) else { continue };
            shared.turn_to(first + (turn - stage as usize) as u64);
            let piece = Piece { shared, range: range.clone(), operands, reduction };
            match stage {
                PieceStage::CopyIn => piece.copy_in()?,
                PieceStage::Reduce => piece.reduce()?,
                PieceStage::CopyOut => piece.copy_out()?,
            }
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum PieceStage {
    CopyIn,
    Reduce,
    CopyOut,
}

/// The stages of a piece, in order.
const STAGES: [PieceStage; 3] = [PieceStage::CopyIn, PieceStage::Reduce, PieceStage::CopyOut];

/// One piece at one of its stages.
struct Piece<'a, 'b, 'c> {
    shared: &'a mut SharedGroup<'b>,
    range: Range<usize>,
    operands: &'a mut Operands<'c>,
    reduction: &'a Reduction,
}

impl Piece<'_, '_, '_> {
    fn copy_in(self) -> Result<(), Error> {
        let own = self.slice(self.shared.me());
        let staging = self.shared.enter()?;
        for range in [self.range.start..own.start, own.end..self.range.end] {
            let place = inside(&range, self.range.start);
            self.operands.gather(range, &mut staging[place]);
        }
        self.shared.publish_but(inside(&own, self.range.start));
        Ok(())
    }

    fn reduce(self) -> Result<(), Error> {
        let (me, own) = (self.shared.me(), self.slice(self.shared.me()));
        let (theirs, result) = self.shared.reducing()?;
        for block in pieces(own.len(), BLOCK) {
            let range = own.start + block.start..own.start + block.end;
            for (at, source) in self.operands.source_parts(range.clone()) {
                let part = inside(&(at..at + source.len()), own.start);
                let terms = theirs.iter().enumerate().map(|(rank, theirs)| match rank == me {
                    true => Term::Of(source),
                    false => Term::Of(&theirs[part.clone()]),
                });
                combine(&mut result[part.clone()], terms, self.reduction);
            }
            self.operands.target_mut().scatter(range, &result[block]);
        }
        self.shared.reduced();
        Ok(())
    }

    fn copy_out(self) -> Result<(), Error> {
        for rank in (0..self.shared.ranks()).filter(|rank| *rank != self.shared.me()) {
            let slice = self.slice(rank);
            let result = self.shared.result(rank, inside(&slice, self.range.start))?;
            self.operands.target_mut().scatter(slice, result);
        }
        self.shared.finish();
        Ok(())
    }

    /// The part of the piece that a rank reduces.
    fn slice(&self, rank: usize) -> Range<usize> {
        let element = self.reduction.dtype.size();
        let cut = cut(self.range.len(), self.shared.ranks(), rank, element);
        self.range.start + cut.start..self.range.start + cut.end
    }
}

/// A range of the bucket, relative to `start`.
fn inside(range: &Range<usize>, start: usize) -> Range<usize> {
    range.start - start..range.end - start
}
