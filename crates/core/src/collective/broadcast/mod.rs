//! Broadcast: each rank ends with the tensor of one rank.

mod chain;
mod levels;
mod pieces;
mod tree;

pub(super) use chain::chain;
pub(super) use levels::levels;
pub(super) use pieces::pieces;
pub(super) use tree::tree;
