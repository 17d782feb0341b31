//! What a caller holds while its tensor is on its way, or what it wants called when it has come.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use ronde_control::{Rank, SetId};

use crate::buffer::{Buffer, Region};
use crate::error::Error;

/// What is called with the outcome, once: by whichever thread drives at that moment, or by the one
/// that submitted if that finds it there. It must neither block nor wait for another ticket: nobody
/// may be driving meanwhile. It may submit.
pub type Done = Box<dyn FnOnce(Result<Outcome, Error>) + Send>;

/// Gives memory for the result number so-and-so of a submission, when it is known how many rows it
/// gets from each member, or how many this rank gets. It must be as long as those rows; whoever has
/// none says why. Called by the same threads as [`Done`], and before it.
pub type Room = Box<dyn Fn(usize, &[u64]) -> Result<Region, String> + Send>;

/// Where results go.
pub enum Targets {
    /// To memory that the caller has.
    Regions(Vec<Region>),
    /// To memory that the caller will have when its size is known.
    Room(Room),
}

impl Targets {
    /// The memory that the caller has.
    pub(super) fn regions(&self) -> &[Region] {
        match self {
            Targets::Regions(regions) => regions,
            Targets::Room(_) => &[],
        }
    }
}

/// What came of a submission.
#[derive(Debug)]
pub enum Outcome {
    /// The result lies in the target.
    Done,
    /// The results lie in memory of our own, one for each tensor.
    Made(Vec<Made>),
    /// The results lie in the memory that [`Room`] gave; the rows of each tensor, as in [`Made`].
    Placed(Vec<Vec<u64>>),
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
#[derive(Default)]
pub struct Ticket {
    done: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
enum State {
    #[default]
    Open,
    /// Nobody will ask for the outcome: it goes there.
    Awaited(Done),
    Ended(Result<Outcome, Error>),
    /// The outcome has been taken.
    Empty,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("done", &self.is_done()).finish_non_exhaustive()
    }
}

impl Ticket {
    /// Whether the outcome is there.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Has `done` called with the outcome: at once if it is there, else by whoever completes this.
    pub(super) fn then(&self, done: Done) {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Empty) {
            State::Ended(outcome) => {
                drop(state);
                done(outcome);
            }
            _ => *state = State::Awaited(done),
        }
    }

    pub(super) fn complete(&self, outcome: Result<Outcome, Error>) {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Empty) {
            State::Awaited(done) => {
                drop(state);
                done(outcome);
            }
            _ => *state = State::Ended(outcome),
        }
        self.done.store(true, Ordering::Release);
    }

    /// The outcome, once.
    pub fn take(&self) -> Option<Result<Outcome, Error>> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Empty) {
            State::Ended(outcome) => Some(outcome),
            other => {
                *state = other;
                None
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds this lock")
    }
}
