//! Alltoall: each rank sends a different part to every rank.

mod levels;
mod pairs;
mod pieces;

pub(super) use levels::levels;
pub(super) use pairs::pairs;
pub(super) use pieces::pieces;
