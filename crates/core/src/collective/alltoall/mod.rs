//! Alltoall: everybody has a part for everybody.

mod pairs;
mod pieces;

pub(super) use pairs::pairs;
pub(super) use pieces::pieces;
