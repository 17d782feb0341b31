//! The numbers that identify things. Each has its own type so that they cannot be mixed up.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A process's number in its world, counted from zero across all hosts.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank as an index into a table with one entry per rank.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// A process of a job, numbered in start order. The number never changes, whereas a rank belongs
/// to one world. In a job that ends with its first loss the two are always equal.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Worker(pub u32);

impl fmt::Display for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {}", self.0)
    }
}

/// The number of a world: each new world gets the next one, and nothing outlives its epoch.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

/// A process set: a subset of the ranks that runs its own collectives; 0 is the whole world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SetId(pub u32);

impl SetId {
    /// All ranks of the world.
    pub const WORLD: SetId = SetId(0);
}

/// An authenticated connection, numbered in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A point in time, measured from the start of the driver.
pub type Time = Duration;
