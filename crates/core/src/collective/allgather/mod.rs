//! Allgather: everybody ends with everybody's tensors, one behind the other.

mod pieces;
mod ring;

pub(super) use pieces::pieces;
pub(super) use ring::ring;
