//! Tensors of large buckets that lie in the arena on every rank: nothing is copied in or out.

use super::super::{Operands, cut, pieces};
use crate::buffer::{Region, Segments};
use crate::error::Error;
use crate::group::{Common, Shared};
use crate::reduce::{Reduction, fold_regions};

/// The blocks of all ranks are read, reduced and written before the next ones are touched: they
/// stay in the caches meanwhile, and main memory sees each tensor once each way.
const BLOCK: usize = 16 << 10;
/// Blocks between two looks at what has become of the world.
const LOOK: usize = 64;

/// Reduces what can be reduced in place and gives the rest, or nothing if that is everything.
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
    operands: &Operands,
    reduction: &Reduction,
) -> Result<Option<Operands>, Error> {
    let Operands { source, target } = operands;
    let pairs = source.regions().iter().zip(target.regions());
    let own: Vec<Option<Region>> =
        pairs.map(|(from, to)| (from.start() == to.start()).then_some(*to)).collect();
    let Some(Common { rows, here }) = shared.offer(&own)? else { return Ok(None) };
    reduce_slice(shared, &rows, reduction)?;
    shared.reduced();
    (0..rows.len()).try_for_each(|rank| shared.await_reduced(rank))?;
    shared.finish();
    shared.note_in_place(rows[shared.me()].length());
    let rest = |row: &Segments| {
        let regions = row.regions().iter().zip(&here);
        Segments::new(regions.filter(|(_, here)| !**here).map(|(region, _)| *region).collect())
    };
    Ok(Some(Operands { source: rest(source), target: rest(target) }))
}

fn reduce_slice(
    shared: &Shared<'_>,
    rows: &[Segments],
    reduction: &Reduction,
) -> Result<(), Error> {
    let me = shared.me();
    let slice = cut(rows[me].length(), rows.len(), me, reduction.dtype.size());
    let mut sources = Vec::with_capacity(rows.len());
    for (number, block) in pieces(slice.len(), BLOCK).enumerate() {
        if number % LOOK == LOOK - 1 {
            shared.check()?;
        }
        for (at, own) in rows[me].parts(slice.start + block.start..slice.start + block.end) {
            let part = |row: &Segments| row.parts(at..at + own.length()).next();
            sources.clear();
            sources.extend(rows.iter().filter_map(part).map(|(_, region)| region));
            fold_regions(own, &sources, reduction);
            sources.iter().for_each(|source| own.copy_to(*source));
        }
    }
    Ok(())
}
