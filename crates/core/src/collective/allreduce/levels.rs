//! Ranks on several hosts, some of them on the same: memory inside, sockets between.

use std::ops::Range;

use super::super::{Collective, choose_between, cut, linked_allreduce};
use super::super::{allgather, reducescatter};
use crate::buffer::{Operands, Row};
use crate::error::Error;
use crate::group::Islands;
use crate::reduce::Reduction;

/// The bucket is cut into one slice per carrier; every island has as many carriers as the smallest
/// has ranks, or one if the bucket is small.
///
/// 1. Inside each island the ranks reduce in shared memory, so that each carrier holds its slice of
///    the island's sum.
/// 2. The carriers of the same slice, one of each island, reduce it through sockets.
/// 3. Inside each island the carriers give everybody their slices.
///
/// So between two hosts every byte travels as seldom as if each host had one rank, and every rank
/// works on it.
pub(in super::super) fn levels(
    islands: &mut Islands<'_>,
    operands: &mut Operands<'_>,
    reduction: &Reduction,
) -> Result<(), Error> {
    let length = operands.length();
    let is_small = length as u64 <= islands.tuning().one_carrier;
    let carriers = if is_small { 1 } else { islands.carriers() };
    let slice = |seat: usize| match seat < carriers {
        true => cut(length, carriers, seat, reduction.dtype.size()),
        false => length..length,
    };
    let (seat, seats) = (islands.seat(), islands.neighbours().len());
    let cuts: Vec<Range<usize>> = (0..seats).map(slice).collect();

    let mut slices = operands.split(&cuts);
    let mut own = std::mem::take(&mut slices[seat]);
    let parts: Vec<Row<'_>> = slices.iter().map(Operands::source).collect();
    let plain = Reduction { postscale: 1.0, ..*reduction };
    reducescatter::sliced(&mut islands.home(), &parts, &mut own, &plain)?;
    let carrier = |island: &[usize]| island[seat.min(carriers - 1)];
    if seat < carriers
        && let Some(mut links) = islands.bridge(carrier)
    {
        own.settle();
        let algorithm = choose_between(&links, Collective::Allreduce, own.length());
        let rest = Reduction { prescale: 1.0, ..*reduction };
        linked_allreduce(&mut links, algorithm, &mut own, &rest)?;
    }
    allgather::pieces(&mut islands.home(), None, operands.target_mut(), &cuts)
}
