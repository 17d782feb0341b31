//! Allgather: everybody ends with everybody's tensors, one behind the other.

mod levels;
mod pieces;
mod ring;

pub(super) use levels::levels;
pub(super) use pieces::pieces;
pub(super) use ring::ring;
