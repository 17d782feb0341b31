//! The ranks that do something together, and what connects them.

mod shared;

pub(crate) use crate::transport::link::{Flow, Links};
pub(crate) use shared::Shared;

/// A group of ranks, by what connects them.
pub(crate) enum Group {
    /// All ranks share memory.
    Shared(Shared),
    /// Ranks reach each other through sockets.
    Linked(Links),
}
