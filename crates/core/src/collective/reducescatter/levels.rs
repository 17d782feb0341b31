//! Reducescatter on several hosts, some with more than one rank.

use std::ops::Range;

use super::super::{Parts, alltoall, cut, row};
use super::{ring, sliced};
use crate::buffer::{Buffer, Operands, Row, RowMut};
use crate::error::Error;
use crate::group::Islands;
use crate::reduce::Reduction;

/// The parts of an island's ranks make up its block; a block is cut into one slice per carrier.
///
/// 1. Within each island, the ranks reduce in shared memory; each carrier gets its slice of every
///    block.
/// 2. The carriers of the same slice, one per island, reduce through sockets, and each gets its
///    slice of its own island's block.
/// 3. Within each island, the carriers hand every rank the pieces of its part.
pub(in super::super) fn levels(
    islands: &mut Islands<'_>,
    source: &Row<'_>,
    target: &mut RowMut<'_>,
    reduction: &Reduction,
    cuts: &[Range<usize>],
) -> Result<(), Error> {
    let members = islands.islands().to_vec();
    let (island, local_index, carriers) =
        (islands.island(), islands.local_index(), islands.carriers());
    let local_ranks = members[island].len();
    let element = reduction.dtype.size();
    let length = |places: &Vec<usize>| places.iter().map(|place| cuts[*place].len()).sum::<usize>();
    let slice = |places: &Vec<usize>, local_index: usize| match local_index < carriers {
        true => cut(length(places), carriers, local_index, element),
        false => 0..0,
    };

    let block = |places: &Vec<usize>| {
        Row::join(places.iter().map(|place| source.slice(cuts[*place].clone())))
    };
    let blocks: Vec<Row<'_>> = members.iter().map(block).collect();
    let slices_of = |local_index: usize| {
        let slices = members
            .iter()
            .zip(&blocks)
            .map(|(places, block)| block.slice(slice(places, local_index)));
        Row::join(slices)
    };
    let rows: Vec<Row<'_>> = (0..local_ranks).map(slices_of).collect();
    let mut partial = Buffer::new(rows[local_index].length());
    let mut inside = Operands::apart(&rows[local_index], RowMut::new(vec![partial.bytes_mut()]));
    let plain = Reduction { postscale: 1.0, ..*reduction };
    sliced(&mut islands.local_group(), &rows, &mut inside, &plain)?;

    let mut own = Buffer::new(slice(&members[island], local_index).len());
    if local_index < carriers
        && let Some(mut links) = islands.bridge(|places| places[local_index])
    {
        let slice_cuts = row(members.iter().map(|places| slice(places, local_index).len()));
        let (from, mut to) = (Row::new(vec![partial.bytes()]), RowMut::new(vec![own.bytes_mut()]));
        let rest = Reduction { prescale: 1.0, ..*reduction };
        ring(&mut links, &from, &mut to, &rest, &slice_cuts)?;
    }

    let parts_in_block = row(members[island].iter().map(|place| cuts[*place].len()));
    let share = |from: usize, to: usize| {
        let (slice, part) = (slice(&members[island], from), &parts_in_block[to]);
        slice.end.min(part.end).saturating_sub(slice.start.max(part.start))
    };
    let all =
        (0..local_ranks).map(|from| (0..local_ranks).map(|to| share(from, to)).collect()).collect();
    let own = Row::new(vec![own.bytes()]);
    alltoall::pieces(&mut islands.local_group(), &own, target, &Parts { all })
}
