//! What kind of job it is: how many workers it has, where their hosts come from, and what happens
//! when it loses one.

use std::time::Duration;

use crate::event::{HostSourceKind, JobKind};

/// The specification of a job. A fixed job has the same workers from beginning to end and ends with
/// the first loss; an elastic job has a minimum and a maximum number of workers and survives
/// losses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobSpec {
    /// How many workers are needed before training starts.
    pub start: u32,
    /// Minimum number of workers; training does not continue with fewer.
    pub min: u32,
    /// Maximum number of workers, if there is one.
    pub max: Option<u32>,
    /// How many hosts are needed before training starts.
    pub least_hosts: u32,
    /// Whether it ends with the first loss or survives losses.
    pub kind: JobKind,
    /// Where the list of hosts comes from.
    pub source: HostSourceKind,
    /// How long to wait for enough workers.
    pub timeout: Duration,
    /// How long a worker may take from its start until it joins: to import and to build its model.
    /// In a fixed job, the time from the first worker that joins to the last.
    pub joining: Duration,
    /// How long a worker may be stopped before it counts as dead, or in a fixed job while others
    /// wait for it. Unlimited if `None`.
    pub stopped: Option<Duration>,
    /// How long the workers of a host have to leave at a commit once its agent was told to stop.
    pub leaving: Duration,
    /// How many times the world may be re-formed.
    pub resets: Option<u32>,
    /// Minimum and maximum cooldown of a failed host; unlimited if `None`.
    pub cooldown: Option<(Duration, Duration)>,
    /// What goes on cooldown when a worker fails.
    pub cooldown_scope: CooldownScope,
}

impl JobSpec {
    /// The specification of a fixed job with this many workers.
    pub fn fixed(workers: u32, joining: Duration, stopped: Option<Duration>) -> JobSpec {
        JobSpec {
            start: workers,
            min: workers,
            max: Some(workers),
            least_hosts: 1,
            timeout: joining,
            joining,
            stopped,
            ..JobSpec::default()
        }
    }

    /// Whether the job continues after losses.
    pub fn outlives_losses(&self) -> bool {
        self.kind == JobKind::Elastic
    }
}

/// What goes on cooldown when a worker fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CooldownScope {
    /// Its host with all its workers, as in Horovod, if there are enough workers elsewhere;
    /// otherwise only its slot.
    #[default]
    Host,
    /// Only its slot.
    Slot,
}
