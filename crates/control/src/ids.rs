//! The numbers that name things. Each is its own type so that none can stand for another.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A process of the world, counted from zero over all hosts.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank as an index into a table that has one entry per rank.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// One process of a job, in the order in which they were started. It keeps its number for life, while
/// its rank is its place in one world. In a job that ends with its first loss the two never differ.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Worker(pub u32);

impl fmt::Display for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {}", self.0)
    }
}

/// One forming of the world; the next forming has the next number, and nothing outlives its epoch.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

/// Some of the ranks that do something among themselves; number 0 is all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SetId(pub u32);

impl SetId {
    /// All ranks of the world.
    pub const WORLD: SetId = SetId(0);
}

/// One authenticated connection, in the order they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection(pub u64);

/// A moment, counted from when the driver started.
pub type Time = Duration;
