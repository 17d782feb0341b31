//! Reduction of parts among ranks on several hosts, some of them on the same.

use std::ops::Range;

use super::super::{Parts, alltoall, cut, row};
use super::{ring, sliced};
use crate::buffer::{Buffer, Operands, Row, RowMut};
use crate::error::Error;
use crate::group::Islands;
use crate::reduce::Reduction;

/// What the ranks of an island will get makes its block; a block is cut into one slice per carrier.
///
/// 1. Inside each island the ranks reduce in shared memory; each carrier gets its slice of every
///    block.
/// 2. The carriers of the same slice, one of each island, reduce through sockets, and each gets its
///    slice of its own island's block.
/// 3. Inside each island the carriers hand everybody the pieces of its part.
pub(in super::super) fn levels(
    islands: &mut Islands<'_>,
    source: &Row<'_>,
    target: &mut RowMut<'_>,
    reduction: &Reduction,
    cuts: &[Range<usize>],
) -> Result<(), Error> {
    let homes = islands.islands().to_vec();
    let (island, seat, carriers) = (islands.island(), islands.seat(), islands.carriers());
    let seats = homes[island].len();
    let element = reduction.dtype.size();
    let length = |home: &Vec<usize>| home.iter().map(|place| cuts[*place].len()).sum::<usize>();
    let slice = |home: &Vec<usize>, seat: usize| match seat < carriers {
        true => cut(length(home), carriers, seat, element),
        false => 0..0,
    };

    let block =
        |home: &Vec<usize>| Row::join(home.iter().map(|place| source.slice(cuts[*place].clone())));
    let blocks: Vec<Row<'_>> = homes.iter().map(block).collect();
    let slices_of = |seat: usize| {
        let slices = homes.iter().zip(&blocks).map(|(home, block)| block.slice(slice(home, seat)));
        Row::join(slices)
    };
    let rows: Vec<Row<'_>> = (0..seats).map(slices_of).collect();
    let mut partial = Buffer::new(rows[seat].length());
    let mut inside = Operands::apart(&rows[seat], RowMut::new(vec![partial.bytes_mut()]));
    let plain = Reduction { postscale: 1.0, ..*reduction };
    sliced(&mut islands.home(), &rows, &mut inside, &plain)?;

    let mut own = Buffer::new(slice(&homes[island], seat).len());
    if seat < carriers
        && let Some(mut links) = islands.bridge(|home| home[seat])
    {
        let slice_cuts = row(homes.iter().map(|home| slice(home, seat).len()));
        let (from, mut to) = (Row::new(vec![partial.bytes()]), RowMut::new(vec![own.bytes_mut()]));
        let rest = Reduction { prescale: 1.0, ..*reduction };
        ring(&mut links, &from, &mut to, &rest, &slice_cuts)?;
    }

    let parts_in_block = row(homes[island].iter().map(|place| cuts[*place].len()));
    let share = |from: usize, to: usize| {
        let (slice, part) = (slice(&homes[island], from), &parts_in_block[to]);
        slice.end.min(part.end).saturating_sub(slice.start.max(part.start))
    };
    let all = (0..seats).map(|from| (0..seats).map(|to| share(from, to)).collect()).collect();
    let own = Row::new(vec![own.bytes()]);
    alltoall::pieces(&mut islands.home(), &own, target, &Parts { all })
}
