//! Tensors of large buckets that lie in the arena on every rank: nothing is copied in or out.

use std::ops::Range;

use super::super::{cut, pieces};
use crate::buffer::{Operands, RowMut};
use crate::error::Error;
use crate::group::Shared;
use crate::reduce::{Reduction, Term, combine};

/// The blocks of all ranks are read, reduced and written before the next ones are touched: they
/// stay in the caches meanwhile, and main memory sees each tensor once each way.
const BLOCK: usize = 16 << 10;
/// Blocks between two looks at what has become of the world.
const LOOK: usize = 64;

/// Reduces what can be reduced in place and says which tensors that was, if any.
///
/// 1. Each rank tells the others which of its tensors lie in the arena, and where. What lies there
///    on every rank and is its own target makes up everybody's rows.
/// 2. Each rank reduces its slice of them from everybody's row in rank order, and writes the
///    result into everybody's row; then it says so.
/// 3. When all have said so, the rows are reduced, and nobody touches the memory of another.
///
/// Before a rank has offered its row it may still be busy with it, and after the last rank has
/// reduced its slice the owner may be: in between, each byte belongs to the one rank that reduces it.
pub(in super::super) fn in_place(
    shared: &mut Shared<'_>,
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
    shared: &Shared<'_>,
    rows: &mut [RowMut<'_>],
    reduction: &Reduction,
) -> Result<(), Error> {
    let (before, rest) = rows.split_at_mut(shared.me());
    let Some((own, behind)) = rest.split_first_mut() else { return Ok(()) };
    for (number, block) in pieces(own.length(), BLOCK).enumerate() {
        if number % LOOK == LOOK - 1 {
            shared.check()?;
        }
        for (at, own) in own.parts_mut(block) {
            let range = at..at + own.len();
            // All rows are cut alike.
            let of = |row| Term::Of(part(row, &range));
            let terms = before.iter().map(of).chain([Term::Target]);
            combine(own, terms.chain(behind.iter().map(of)), reduction);
            let others = before.iter_mut().chain(&mut *behind);
            others.for_each(|row| row.scatter(range.clone(), own));
        }
    }
    Ok(())
}

fn part<'a>(row: &'a RowMut<'_>, range: &Range<usize>) -> &'a [u8] {
    row.parts(range.clone()).next().map_or(&[], |(_, part)| part)
}
