//! What a job is: how many workers it has, where they come from, and what becomes of it when it loses
//! one.

use std::time::Duration;

use crate::event::{JobKind, Source};

/// The terms of a job. A fixed one has the same workers from the beginning to the end, which comes with
/// the first loss; an elastic one has at least so many and at most so many, and outlives its losses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// How many workers there must be before training starts.
    pub start: u32,
    /// Below how many training does not go on.
    pub min: u32,
    /// Above how many there are none, if there is such a number.
    pub max: Option<u32>,
    /// How many hosts must be there before training starts.
    pub least_hosts: u32,
    /// Whether it ends with the first loss or outlives its losses.
    pub kind: JobKind,
    /// Who says which hosts there are.
    pub source: Source,
    /// How long to wait for enough workers.
    pub timeout: Duration,
    /// How long a worker may take from its start until it joins: importing, building its model. In a
    /// fixed job, how long the first that comes waits for the last.
    pub joining: Duration,
    /// How long a worker may be stopped: before it counts as dead, or in a fixed job while others wait
    /// for it. For ever if there is no limit.
    pub stopped: Option<Duration>,
    /// How many times the world may be formed anew.
    pub resets: Option<u32>,
    /// How long a host rests that has failed, at least and at most; for ever if there is none.
    pub cooldown: Option<(Duration, Duration)>,
    /// What rests when a worker fails.
    pub resting: Resting,
}

impl Terms {
    /// Those of a job of so many workers that are the same from the beginning to the end.
    pub fn fixed(workers: u32, joining: Duration, stopped: Option<Duration>) -> Terms {
        Terms {
            start: workers,
            min: workers,
            max: Some(workers),
            least_hosts: 1,
            timeout: joining,
            joining,
            stopped,
            ..Terms::default()
        }
    }

    /// Whether the job goes on without those it loses.
    pub fn outlives_losses(&self) -> bool {
        self.kind == JobKind::Elastic
    }
}

/// What rests when a worker fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resting {
    /// Its host with all its workers, as in Horovod, if there are enough workers elsewhere; else only
    /// its slot.
    #[default]
    Host,
    /// Its slot only.
    Slot,
}
