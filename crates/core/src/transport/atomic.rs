//! The atomics of the protocols between threads and processes. The models in `tests/models` replace
//! them with their own and explore every interleaving.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
