//! Which port of a range to listen on.

use std::hash::{BuildHasher, RandomState};
use std::io;

use ronde_control::PortRange;

/// Calls `bind` with the ports of the range in a random order until one is free.
pub(crate) fn find<T>(range: &PortRange, bind: impl FnMut(u16) -> io::Result<T>) -> io::Result<T> {
    range.find(RandomState::new().hash_one(std::process::id()), bind)
}
