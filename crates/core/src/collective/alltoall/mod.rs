//! Alltoall: everybody has a part for everybody.

mod levels;
mod pairs;
mod pieces;

pub(super) use levels::levels;
pub(super) use pairs::pairs;
pub(super) use pieces::pieces;
