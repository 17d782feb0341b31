//! Allreduce: each rank ends with the combination of all ranks' elements.
//!
//! Every algorithm here combines each element once, on one rank, or in the same order on all ranks:
//! so all ranks get the same bits. In shared memory the order is that of the ranks, and the bits
//! are the same in every run with the same number of ranks. Over sockets, `doubling` and `halving`
//! use one order for all elements; that of `ring` depends on an element's position in its bucket.

mod doubling;
mod halving;
mod in_place;
mod levels;
mod one_shot;
mod ring;
mod sliced;

pub(super) use doubling::doubling;
pub(super) use halving::halving;
pub(super) use in_place::in_place;
pub(super) use levels::levels;
pub(super) use one_shot::one_shot;
pub(super) use ring::ring;
pub(super) use sliced::sliced;

use crate::buffer::Operands;
use crate::reduce::{Reduction, combine};

/// The same reduction with the prescaling already applied to this rank's elements: over sockets
/// sums are passed on, and must not be scaled again at every hop.
fn prescaled(operands: &mut Operands<'_>, reduction: &Reduction) -> Reduction {
    if reduction.prescale == 1.0 {
        return *reduction;
    }
    let scale = Reduction { postscale: 1.0, ..*reduction };
    for (_, own, target) in operands.pairs_mut(0..operands.length()) {
        combine(target, [own.into()], &scale);
    }
    operands.settle();
    Reduction { prescale: 1.0, ..*reduction }
}
