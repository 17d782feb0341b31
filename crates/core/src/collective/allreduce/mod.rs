//! Allreduce: everybody ends with the combination of everybody's elements.
//!
//! Every algorithm here fixes the order in which elements are combined by the ranks' numbers alone,
//! and has each element combined once, by one rank, or by all ranks alike. So the bits are the same
//! on every rank, and on every run with the same number of ranks.

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

use super::Operands;
use crate::reduce::{Reduction, fold_regions};

/// The same task without a factor in front: over sockets sums travel, and a factor must not be
/// applied to them again at every stop, so it is applied to this rank's elements beforehand.
fn prescaled(operands: &Operands, reduction: &Reduction) -> (Operands, Reduction) {
    let Operands { source, target } = operands;
    if reduction.prescale == 1.0 {
        return (Operands { source: source.clone(), target: target.clone() }, *reduction);
    }
    let scale = Reduction { postscale: 1.0, ..*reduction };
    for (at, part) in source.parts(0..source.length()) {
        for (inner, target) in target.parts(at..at + part.length()) {
            let range = inner - at..inner - at + target.length();
            fold_regions(target, &[part.part(range)], &scale);
        }
    }
    let operands = Operands { source: target.clone(), target: target.clone() };
    (operands, Reduction { prescale: 1.0, ..*reduction })
}
