//! Allreduce: everybody ends with the combination of everybody's elements.
//!
//! Every algorithm here has each element combined once, by one rank, or by all ranks alike: so the bits
//! are the same on every rank. In shared memory the order is that of the ranks, and the bits are the same in
//! every run with as many ranks. Over sockets the order also depends on where in its bucket an element lies.

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

/// The same task without a factor in front: over sockets sums travel, and a factor must not be
/// applied to them again at every stop, so it is applied to this rank's elements beforehand.
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
