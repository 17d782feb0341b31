//! What a caller holds while its tensor is on its way, or what it wants called when it has come.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use ronde_control::negotiate::{Kind, Request};
use ronde_control::{Rank, SetId};

use crate::buffer::{Buffer, Input, Operand, Output};
use crate::error::Error;

/// What is called with the outcome, once: by whichever thread drives at that moment, or by the one
/// that submitted if that finds it there. It must neither block nor wait for another ticket: nobody
/// may be driving meanwhile. It may submit.
pub type Done = Box<dyn FnOnce(Result<Outcome, Error>) + Send>;

/// Gives memory for the result number so-and-so of a submission, when it is known how many rows it
/// gets from each member, or how many this rank gets. It must be as long as those rows; whoever has
/// none says why. Called by the same threads as [`Done`], and before it.
pub type Room = Box<dyn Fn(usize, &[u64]) -> Result<Output, String> + Send>;

/// The memory of a submission. The engine has it from then on, and drops it before the ticket
/// completes.
pub enum Tensors {
    /// Results are as long as their tensors and go to memory that the caller has.
    Given(Vec<Operand>),
    /// Results have sizes that are not known yet and go to memory of our own.
    Made(Vec<Input>),
    /// They go to memory that the caller will have when their sizes are known.
    Placed(Vec<Input>, Room),
}

impl Tensors {
    /// For what has no tensors.
    pub const NONE: Tensors = Tensors::Given(Vec::new());

    /// What is read, where results do not go to memory that the caller has.
    pub(super) fn inputs(&self) -> &[Input] {
        match self {
            Tensors::Given(_) => &[],
            Tensors::Made(inputs) | Tensors::Placed(inputs, _) => inputs,
        }
    }

    /// Who gives memory for results when their sizes are known, if anybody does.
    pub(super) fn room(&self) -> Option<&Room> {
        match self {
            Tensors::Placed(_, room) => Some(room),
            Tensors::Given(_) | Tensors::Made(_) => None,
        }
    }

    /// Tensors and their results, where these go to memory that the caller has.
    pub(super) fn operands(&mut self) -> &mut [Operand] {
        match self {
            Tensors::Given(operands) => operands,
            Tensors::Made(_) | Tensors::Placed(..) => &mut [],
        }
    }

    /// Refuses memory that is not what the request speaks of.
    pub(super) fn check(&self, request: &Request) -> Result<(), Error> {
        let size = request.dtype.size() as u64;
        let bytes = |shape: &Vec<u64>| {
            let bytes = shape.iter().try_fold(size, |bytes, each| bytes.checked_mul(*each));
            bytes.and_then(|bytes| usize::try_from(bytes).ok())
        };
        let needed = request.shapes.iter().map(bytes);
        let fits = match (&request.kind, self) {
            (Kind::Allreduce { .. } | Kind::Broadcast { .. }, Tensors::Given(operands)) => {
                let both = |length: Option<usize>| length.map(|length| (length, length));
                operands.iter().map(|operand| Some(operand.lengths())).eq(needed.map(both))
            }
            (
                Kind::Allgather | Kind::Alltoall { .. } | Kind::Reducescatter { .. },
                Tensors::Made(inputs) | Tensors::Placed(inputs, _),
            ) => inputs.iter().map(|input| Some(input.length())).eq(needed),
            (
                Kind::Barrier | Kind::AddSet { .. } | Kind::RemoveSet { .. },
                Tensors::Given(operands),
            ) => operands.is_empty(),
            _ => false,
        };
        match fits {
            true => Ok(()),
            false => Err(Error::Invalid(format!(
                "the memory for `{}` is not as long as its shapes say",
                request.name
            ))),
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

/// A submission on its way: its memory, and the ticket that completes when that has gone back.
pub(super) struct Pending {
    pub(super) tensors: Tensors,
    pub(super) ticket: Arc<Ticket>,
}

impl Pending {
    /// Gives the memory back, and only then says so.
    pub(super) fn complete(self, outcome: Result<Outcome, Error>) {
        let Pending { tensors, ticket } = self;
        drop(tensors);
        ticket.complete(outcome);
    }
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

    /// What has memory is completed by [`Pending`].
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
