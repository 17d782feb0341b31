//! Gathering among ranks on several hosts, some of them on the same.

use std::ops::Range;

use super::super::{cut, row};
use super::{pieces, ring};
use crate::buffer::{Row, RowMut};
use crate::error::Error;
use crate::group::Islands;

/// 1. Inside each island everybody gathers the tensors of the island, in shared memory.
/// 2. What an island has is cut into one slice per carrier; the carriers of the same slice, one of
///    each island, pass their slices round through sockets.
/// 3. Inside each island the carriers give everybody what they got.
pub(in super::super) fn levels(
    islands: &mut Islands<'_>,
    source: &Row<'_>,
    target: &mut RowMut<'_>,
    cuts: &[Range<usize>],
) -> Result<(), Error> {
    let homes = islands.islands().to_vec();
    let (island, seat, carriers) = (islands.island(), islands.seat(), islands.carriers());
    let home_cuts: Vec<Range<usize>> =
        homes[island].iter().map(|place| cuts[*place].clone()).collect();
    pieces(&mut islands.home(), Some(source), target, &home_cuts)?;

    // What each island has, as a row over the parts of the target where it goes, cut into slices.
    let mut parts = target.split(cuts);
    let mut block = |home: &Vec<usize>| {
        RowMut::join(home.iter().map(|place| std::mem::take(&mut parts[*place])))
    };
    let mut blocks: Vec<RowMut<'_>> = homes.iter().map(&mut block).collect();
    let slices = |block| -> Vec<RowMut<'_>> {
        let block: &mut RowMut<'_> = block;
        let cut = |carrier| cut(block.length(), carriers, carrier, 1);
        block.split(&(0..carriers).map(cut).collect::<Vec<_>>())
    };
    let mut slices: Vec<Vec<RowMut<'_>>> = blocks.iter_mut().map(slices).collect();
    if seat < carriers
        && let Some(mut links) = islands.bridge(|home| home[seat])
    {
        let slice_cuts = row(slices.iter().map(|slices| slices[seat].length()));
        let mut between = RowMut::join(slices.iter_mut().map(|slices| slices[seat].reborrow()));
        ring(&mut links, None, &mut between, &slice_cuts)?;
    }
    slices.remove(island);
    let fetched = |seat: usize| slices.iter().filter_map(|s| s.get(seat)).map(RowMut::length).sum();
    let fetched_cuts = row((0..homes[island].len()).map(fetched));
    let by_carrier = (0..carriers).flat_map(|carrier| (0..slices.len()).map(move |i| (i, carrier)));
    let mut foreign = Vec::new();
    for (other, carrier) in by_carrier.collect::<Vec<_>>() {
        foreign.push(std::mem::take(&mut slices[other][carrier]));
    }
    let mut foreign = RowMut::join(foreign.into_iter());
    pieces(&mut islands.home(), None, &mut foreign, &fetched_cuts)
}
