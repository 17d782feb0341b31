//! Adasum: a sum that counts only once what two ranks agree on.
//!
//! Two tensors `a` and `b` become `(1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b`: the sum if they are
//! orthogonal, the average if they are equal. More than two are combined pairwise along a fixed
//! tree of ranks, so that all ranks get the same bits in every run, however they are connected.
//! Each tensor of a bucket has its own inner products.

mod halving;
mod pairs;

pub(super) use halving::halving;
