//! Allgather on several hosts, some with more than one rank.

use std::ops::Range;

use super::super::{cut, row};
use super::{pieces, ring};
use crate::buffer::{Row, RowMut};
use crate::error::Error;
use crate::group::Islands;

/// 1. Within each island, every rank gathers the tensors of the island, in shared memory.
/// 2. The data of an island is cut into one slice per carrier; the carriers of the same slice, one
///    per island, pass their slices around through sockets.
/// 3. Within each island, the carriers hand what they received to every rank.
pub(in super::super) fn levels(
    islands: &mut Islands<'_>,
    source: &Row<'_>,
    target: &mut RowMut<'_>,
    cuts: &[Range<usize>],
) -> Result<(), Error> {
    let members = islands.islands().to_vec();
    let (island, local_index, carriers) =
        (islands.island(), islands.local_index(), islands.carriers());
    let local_cuts: Vec<Range<usize>> =
        members[island].iter().map(|place| cuts[*place].clone()).collect();
    pieces(&mut islands.local_group(), Some(source), target, &local_cuts)?;

    // The data of each island, as a row over the parts of the target that it fills, cut into
    // slices.
    let mut parts = target.split(cuts);
    let mut block = |places: &Vec<usize>| {
        RowMut::join(places.iter().map(|place| std::mem::take(&mut parts[*place])))
    };
    let mut blocks: Vec<RowMut<'_>> = members.iter().map(&mut block).collect();
    let slices = |block| -> Vec<RowMut<'_>> {
        let block: &mut RowMut<'_> = block;
        let cut = |carrier| cut(block.length(), carriers, carrier, 1);
        block.split(&(0..carriers).map(cut).collect::<Vec<_>>())
    };
    let mut slices: Vec<Vec<RowMut<'_>>> = blocks.iter_mut().map(slices).collect();
    if local_index < carriers
        && let Some(mut links) = islands.bridge(|places| places[local_index])
    {
        let slice_cuts = row(slices.iter().map(|slices| slices[local_index].length()));
        let mut between =
            RowMut::join(slices.iter_mut().map(|slices| slices[local_index].reborrow()));
        ring(&mut links, None, &mut between, &slice_cuts)?;
    }
    slices.remove(island);
    let fetched = |local_index: usize| {
        slices.iter().filter_map(|s| s.get(local_index)).map(RowMut::length).sum()
    };
    let fetched_cuts = row((0..members[island].len()).map(fetched));
    let by_carrier = (0..carriers).flat_map(|carrier| (0..slices.len()).map(move |i| (i, carrier)));
    let mut remote = Vec::new();
    for (other, carrier) in by_carrier.collect::<Vec<_>>() {
        remote.push(std::mem::take(&mut slices[other][carrier]));
    }
    let mut remote = RowMut::join(remote.into_iter());
    pieces(&mut islands.local_group(), None, &mut remote, &fetched_cuts)
}
