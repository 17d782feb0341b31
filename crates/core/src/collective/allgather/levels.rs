//! Gathering among ranks on several hosts, some of them on the same.

use std::ops::Range;

use super::super::{Operands, cut, row};
use super::{pieces, ring};
use crate::buffer::Segments;
use crate::error::Error;
use crate::group::Islands;

/// 1. Inside each island everybody gathers the tensors of the island, in shared memory.
/// 2. What an island has is cut into one slice per carrier; the carriers of the same slice, one of
///    each island, pass their slices round through sockets.
/// 3. Inside each island the carriers give everybody what they got.
pub(in super::super) fn levels(
    islands: &mut Islands<'_>,
    operands: &Operands,
    cuts: &[Range<usize>],
) -> Result<(), Error> {
    let homes = islands.islands().to_vec();
    let (island, seat, carriers) = (islands.island(), islands.seat(), islands.carriers());
    let home_cuts: Vec<Range<usize>> =
        homes[island].iter().map(|place| cuts[*place].clone()).collect();
    pieces(&mut islands.home(), operands, &home_cuts)?;

    // What each island has, as a row over the parts of the target where it goes.
    let target = &operands.target;
    let blocks: Vec<Segments> = homes
        .iter()
        .map(|home| Segments::join(home.iter().map(|place| target.slice(cuts[*place].clone()))))
        .collect();
    let slice =
        |block: &Segments, carrier: usize| block.slice(cut(block.length(), carriers, carrier, 1));
    if seat < carriers
        && let Some(mut links) = islands.bridge(|home| home[seat])
    {
        let slices: Vec<Segments> = blocks.iter().map(|block| slice(block, seat)).collect();
        let slice_cuts = row(slices.iter().map(Segments::length));
        let source = slices[island].clone();
        let between = Operands { source, target: Segments::join(slices.into_iter()) };
        ring(&mut links, &between, &slice_cuts)?;
    }
    let foreign = |carrier: usize| {
        let others = blocks.iter().enumerate().filter(|(index, _)| *index != island);
        Segments::join(others.map(|(_, block)| slice(block, carrier)))
    };
    let fetched: Vec<Segments> = (0..homes[island].len())
        .map(|seat| if seat < carriers { foreign(seat) } else { Segments::default() })
        .collect();
    let fetched_cuts = row(fetched.iter().map(Segments::length));
    let source = fetched[seat].clone();
    let inside = Operands { source, target: Segments::join(fetched.into_iter()) };
    pieces(&mut islands.home(), &inside, &fetched_cuts)
}
