//! Reduction of parts among ranks on several hosts, some of them on the same.

use std::ops::Range;

use super::super::{Operands, Parts, alltoall, cut, row};
use super::{ring, sliced};
use crate::buffer::{Buffer, Segments};
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
    operands: &Operands,
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

    let block = |home: &Vec<usize>| {
        Segments::join(home.iter().map(|place| operands.source.slice(cuts[*place].clone())))
    };
    let blocks: Vec<Segments> = homes.iter().map(block).collect();
    let slices_of = |seat: usize| {
        let slices = homes.iter().zip(&blocks).map(|(home, block)| block.slice(slice(home, seat)));
        Segments::join(slices)
    };
    let rows: Vec<Segments> = (0..seats).map(slices_of).collect();
    let row_cuts = row(rows.iter().map(Segments::length));
    let partial = Buffer::new(row_cuts[seat].len());
    let partial = Segments::new(vec![partial.region()]);
    let inside = Operands { source: Segments::join(rows.into_iter()), target: partial.clone() };
    let plain = Reduction { postscale: 1.0, ..*reduction };
    sliced(&mut islands.home(), &inside, &plain, &row_cuts)?;

    let own = Buffer::new(slice(&homes[island], seat).len());
    let own = Segments::new(vec![own.region()]);
    if seat < carriers
        && let Some(mut links) = islands.bridge(|home| home[seat])
    {
        let slice_cuts = row(homes.iter().map(|home| slice(home, seat).len()));
        let between = Operands { source: partial, target: own.clone() };
        let rest = Reduction { prescale: 1.0, ..*reduction };
        ring(&mut links, &between, &rest, &slice_cuts)?;
    }

    let parts_in_block = row(homes[island].iter().map(|place| cuts[*place].len()));
    let share = |from: usize, to: usize| {
        let (slice, part) = (slice(&homes[island], from), &parts_in_block[to]);
        slice.end.min(part.end).saturating_sub(slice.start.max(part.start))
    };
    let all = (0..seats).map(|from| (0..seats).map(|to| share(from, to)).collect()).collect();
    let outside = Operands { source: own, target: operands.target.clone() };
    alltoall::pieces(&mut islands.home(), &outside, &Parts { all })
}
