//! Tensors of large buckets that are in the arena on every rank: nothing is copied in or out.

use std::ops::Range;

use super::super::{cut, pieces};
use crate::buffer::{Operands, RowMut};
use crate::error::Error;
use crate::group::SharedGroup;
use crate::reduce::{Reduction, Term, combine};

/// The same block of all ranks is read, reduced and written before the next one is touched: it
/// stays in the caches meanwhile, and main memory is read once and written once.
const BLOCK: usize = 16 << 10;
/// Blocks between two checks of the world's state.
const CHECK_EVERY: usize = 64;

/// Reduces the tensors that can be reduced in place and returns which ones, if any.
///
/// 1. Each rank offers the others its tensors in the arena, with their positions. Those that are in
///    the arena on every rank, and are their own targets, form each rank's row.
/// 2. Each rank reduces its slice of the rows, in rank order, writes the result into every row, and
///    announces that.
/// 3. When all ranks have announced it, the rows are reduced, and no rank touches another's memory
///    any more.
///
/// A rank may still use its row until it offers it, and again after the last rank has reduced its
/// slice. In between, each byte belongs to the one rank that reduces it.
pub(in super::super) fn in_place(
    shared: &mut SharedGroup<'_>,
    operands: &mut Operands<'_>,
    reduction: &Reduction,
) -> Result<Option<Vec<bool>>, Error> {
    let Some(mut common) = shared.offer(operands.own_targets())? else { return Ok(None) };
    let (me, ranks, length) = (shared.me(), shared.ranks(), common.length());
    let slice = cut(length, ranks, me, reduction.dtype.size());
    reduce_slice(shared, &mut common.slice(&slice), reduction)?;
    shared.reduced();
    (0..ranks).try_for_each(|rank| shared.await_reduced(rank))?;
    shared.finish();
    shared.note_in_place(length);
    Ok(Some(common.end()))
}

/// Reduces the same slice of all ranks, in rank order, into all of them.
fn reduce_slice(
    shared: &SharedGroup<'_>,
    rows: &mut [RowMut<'_>],
    reduction: &Reduction,
) -> Result<(), Error> {
    let (before, rest) = rows.split_at_mut(shared.me());
    let Some((own, after)) = rest.split_first_mut() else { return Ok(()) };
    for (number, block) in pieces(own.length(), BLOCK).enumerate() {
        if number % CHECK_EVERY == CHECK_EVERY - 1 {
            shared.check()?;
        }
        for (at, own) in own.parts_mut(block) {
            let range = at..at + own.len();
            // All rows have the same boundaries.
            let of = |row| Term::Of(part(row, &range));
            let terms = before.iter().map(of).chain([Term::Target]);
            combine(own, terms.chain(after.iter().map(of)), reduction);
            let others = before.iter_mut().chain(&mut *after);
            others.for_each(|row| row.scatter(range.clone(), own));
        }
    }
    Ok(())
}

fn part<'a>(row: &'a RowMut<'_>, range: &Range<usize>) -> &'a [u8] {
    row.parts(range.clone()).next().map_or(&[], |(_, part)| part)
}
