//! The atomic words of the protocols between threads and processes. The models in `tests/models` put
//! words of their own in this place, and then go through everything that could happen to them.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
