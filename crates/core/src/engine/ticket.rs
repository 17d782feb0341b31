//! What a caller holds while its tensor is on its way.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use ronde_control::{Rank, SetId};

use crate::buffer::Buffer;
use crate::error::Error;

/// What came of a submission.
#[derive(Debug)]
pub enum Outcome {
    /// The result lies in the target.
    Done,
    /// The results lie in memory of our own, one for each tensor.
    Made(Vec<Made>),
    /// Everybody has joined.
    Joined {
        /// The last one to.
        last: Rank,
    },
    /// A set of ranks has been made.
    SetAdded {
        /// Its number.
        id: SetId,
    },
}

/// A result in memory of our own.
#[derive(Debug)]
pub struct Made {
    /// The rows, one behind the other.
    pub buffer: Buffer,
    /// How many rows came from each member, or how many this rank got.
    pub rows: Vec<u64>,
}

/// A submission that will complete.
#[derive(Debug, Default)]
pub struct Ticket {
    done: AtomicBool,
    outcome: Mutex<Option<Result<Outcome, Error>>>,
}

impl Ticket {
    /// Whether the outcome is there.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    pub(super) fn complete(&self, outcome: Result<Outcome, Error>) {
        *self.outcome.lock().expect("nothing panics while it holds this lock") = Some(outcome);
        self.done.store(true, Ordering::Release);
    }

    /// The outcome, once.
    pub fn take(&self) -> Option<Result<Outcome, Error>> {
        self.outcome.lock().expect("nothing panics while it holds this lock").take()
    }
}
