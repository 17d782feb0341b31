//! Shared memory between the ranks of one host: one segment per world, made by its first rank.
//!
//! The segment is an anonymous file that exists only as descriptors and mappings, so a crash leaves
//! nothing behind. In it lie, in this order: a header, the counters per set and rank, one queue per
//! rank to the coordinator, the coordinator's log that all ranks read, and some pieces of staging
//! memory per rank. The arena, for tensors that nobody has to copy, is a file of its own.

mod arena;
mod count;
mod layout;
mod ledger;
mod log;
mod queue;
mod ring;
mod segment;
mod stage;

use super::atomic;

pub(crate) use arena::Arena;
pub use arena::Block;
use count::{count, has_reached};
pub(crate) use layout::LANES;
use layout::SLOTS;
pub(crate) use log::{LogReader, LogWriter};
pub(crate) use queue::Queue;
use segment::Counter;
pub(crate) use segment::{Segment, dead_rank, dead_word};
pub(crate) use stage::{Home, Shared, Stage};
