//! Shared memory between the ranks of one host: one segment per world, created by its first rank.
//!
//! The segment is an anonymous file that exists only as descriptors and mappings, so a crash leaves
//! nothing behind. It contains, in this order: a header, the counters per process set and rank, one
//! queue per rank to the coordinator, the coordinator's log that all ranks read, the express lane,
//! and pieces of staging memory per rank. The arena, for tensors that need no copy, is a separate file.

mod allocator;
mod arena;
mod count;
mod express;
mod layout;
mod log;
mod queue;
mod ring;
mod round;
mod segment;
mod shared_group;

use super::atomic;

pub(crate) use arena::Arena;
pub use arena::ArenaBlock;
use count::{count, has_reached};
pub(crate) use express::{CorruptLength, ExpressLane, RoundAnswer};
pub(crate) use layout::LANES;
use layout::SLOTS;
pub(crate) use log::{LogReader, LogWriter};
pub(crate) use queue::Queue;
use segment::Counter;
pub(crate) use segment::{Segment, dead_rank, dead_word, memfd};
pub(crate) use shared_group::{LocalMembers, SegmentView, SharedGroup};
