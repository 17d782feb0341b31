//! Adasum: a sum in which what two ranks agree on counts once.
//!
//! Two tensors `a` and `b` become `(1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b`: the sum if they are at
//! right angles, the average if they are equal. More than two are combined pairwise along one fixed
//! tree over the ranks, so that all ranks get the same bits on every run, whatever connects them.
//! Each tensor of a bucket has inner products of its own.

mod halving;
mod pairs;

pub(super) use halving::halving;
