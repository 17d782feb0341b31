//! Allgather: each rank ends with the tensors of all ranks, one after another.

mod levels;
mod pieces;
mod ring;

pub(super) use levels::levels;
pub(super) use pieces::pieces;
pub(super) use ring::ring;
