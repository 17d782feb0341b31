//! Allreduce on several hosts, some with more than one rank: shared memory within hosts, sockets
//! between them.

use std::ops::Range;

use ronde_control::Collective;

use super::super::{allgather, reducescatter};
use super::super::{choose_between, cut, linked_allreduce};
use crate::buffer::{Operands, Row};
use crate::error::Error;
use crate::group::Islands;
use crate::reduce::Reduction;

/// The bucket is cut into one slice per carrier; every island has as many carriers as the smallest
/// island has ranks, or one if the bucket is small.
///
/// 1. Within each island, the ranks reduce in shared memory, so that each carrier holds its slice
///    of the island's sum.
/// 2. The carriers of the same slice, one per island, reduce it through sockets.
/// 3. Within each island, the carriers hand their slices to every rank.
///
/// So no more bytes travel between two hosts than if each host had one rank, and every rank takes
/// part in the work.
pub(in super::super) fn levels(
    islands: &mut Islands<'_>,
    operands: &mut Operands<'_>,
    reduction: &Reduction,
) -> Result<(), Error> {
    let length = operands.length();
    let is_small = length as u64 <= islands.tuning().one_carrier;
    let carriers = if is_small { 1 } else { islands.carriers() };
    let slice = |local_index: usize| match local_index < carriers {
        true => cut(length, carriers, local_index, reduction.dtype.size()),
        false => length..length,
    };
    let (local_index, local_ranks) = (islands.local_index(), islands.neighbors().len());
    let cuts: Vec<Range<usize>> = (0..local_ranks).map(slice).collect();

    let mut slices = operands.split(&cuts);
    let mut own = std::mem::take(&mut slices[local_index]);
    let parts: Vec<Row<'_>> = slices.iter().map(Operands::source).collect();
    let plain = Reduction { postscale: 1.0, ..*reduction };
    reducescatter::sliced(&mut islands.local_group(), &parts, &mut own, &plain)?;
    let carrier = |island: &[usize]| island[local_index.min(carriers - 1)];
    if local_index < carriers
        && let Some(mut links) = islands.bridge(carrier)
    {
        own.settle();
        let algorithm = choose_between(&links, Collective::Allreduce, own.length());
        let rest = Reduction { prescale: 1.0, ..*reduction };
        linked_allreduce(&mut links, algorithm, &mut own, &rest)?;
    }
    allgather::pieces(&mut islands.local_group(), None, operands.target_mut(), &cuts)
}
