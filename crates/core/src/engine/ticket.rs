//! What a caller holds while its tensor is in flight, and the callbacks it can register instead.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use ronde_control::negotiate::{CollectiveKind, Request};
use ronde_control::{DeviceKind, Rank, SetId};

use super::gpu_tensors::{GpuMemory, GpuTensors};
use crate::buffer::{Buffer, Input, Operand, Output};
use crate::device::Event;
use crate::error::Error;

/// Called once with the outcome: by the thread that drives at that moment, or by the submitting
/// thread if the outcome is already there. It must neither block nor wait for another ticket,
/// because its thread may be the only one that drives. It may submit.
pub type CompletionCallback = Box<dyn FnOnce(Result<Outcome, Error>) + Send>;

/// Allocates memory for one result of a submission, given its index and its rows: how many come
/// from each member, or how many this rank gets. The memory must hold exactly those rows; a caller
/// that has none returns the reason. Called by the same threads as [`CompletionCallback`], and
/// before it.
pub type AllocateResult = Box<dyn Fn(usize, &[u64]) -> Result<Output, String> + Send>;

/// The memory of a submission. The engine owns it from the submission on, and drops it before the
/// ticket completes.
pub enum Tensors {
    /// Results are as long as their tensors and go to memory that the caller provides.
    Given(Vec<Operand>),
    /// Results have sizes that are not known yet and go to memory that the engine allocates.
    Made(Vec<Input>),
    /// Results go to memory that the caller allocates when their sizes are known.
    Placed(Vec<Input>, AllocateResult),
    /// Everything is on a GPU.
    OnGpu(GpuTensors),
}

impl Tensors {
    /// For operations without tensors.
    pub const NONE: Tensors = Tensors::Given(Vec::new());

    /// The inputs, unless the results go to memory that the caller provides.
    pub(super) fn inputs(&self) -> &[Input] {
        match self {
            Tensors::Given(_) | Tensors::OnGpu(_) => &[],
            Tensors::Made(inputs) | Tensors::Placed(inputs, _) => inputs,
        }
    }

    /// Allocates memory for results when their sizes are known, if the caller wants to.
    pub(super) fn allocator(&self) -> Option<&AllocateResult> {
        match self {
            Tensors::Placed(_, allocate) => Some(allocate),
            Tensors::Given(_) | Tensors::Made(_) | Tensors::OnGpu(_) => None,
        }
    }

    /// The tensors and their results, if these go to memory that the caller provides.
    pub(super) fn operands(&mut self) -> &mut [Operand] {
        match self {
            Tensors::Given(operands) => operands,
            Tensors::Made(_) | Tensors::Placed(..) | Tensors::OnGpu(_) => &mut [],
        }
    }

    /// Where the tensors are.
    pub fn device(&self) -> DeviceKind {
        match self {
            Tensors::OnGpu(_) => DeviceKind::Gpu,
            Tensors::Given(_) | Tensors::Made(_) | Tensors::Placed(..) => DeviceKind::Cpu,
        }
    }

    /// Whether these are tensors with results of the same lengths.
    fn has_pairs_of(&self, lengths: impl Iterator<Item = Option<usize>>) -> bool {
        let both = lengths.map(|length| length.map(|length| (length, length)));
        match self {
            Tensors::Given(operands) => operands.iter().map(|each| Some(each.lengths())).eq(both),
            Tensors::OnGpu(GpuTensors { memory: GpuMemory::Given(operands), .. }) => {
                operands.iter().map(|each| Some(each.lengths())).eq(both)
            }
            Tensors::Made(_) | Tensors::Placed(..) | Tensors::OnGpu(_) => false,
        }
    }

    /// Whether these are tensors of these lengths, with results of any.
    fn has_inputs_of(&self, lengths: impl Iterator<Item = Option<usize>>) -> bool {
        match self {
            Tensors::Made(inputs) | Tensors::Placed(inputs, _) => {
                inputs.iter().map(|input| Some(input.length())).eq(lengths)
            }
            Tensors::OnGpu(GpuTensors { memory: GpuMemory::Placed(inputs, _), .. }) => {
                inputs.iter().map(|input| Some(input.length())).eq(lengths)
            }
            Tensors::Given(_) | Tensors::OnGpu(_) => false,
        }
    }

    /// Refuses memory whose lengths do not match the request.
    pub(super) fn check(&self, request: &Request) -> Result<(), Error> {
        let size = request.dtype.size() as u64;
        let bytes = |shape: &Vec<u64>| {
            let bytes = shape.iter().try_fold(size, |bytes, each| bytes.checked_mul(*each));
            bytes.and_then(|bytes| usize::try_from(bytes).ok())
        };
        let needed = request.shapes.iter().map(bytes);
        let fits = match (&request.kind, self) {
            _ if request.device != self.device() => false,
            (CollectiveKind::Allreduce { .. } | CollectiveKind::Broadcast { .. }, tensors) => {
                tensors.has_pairs_of(needed)
            }
            (
                CollectiveKind::Allgather
                | CollectiveKind::Alltoall { .. }
                | CollectiveKind::Reducescatter { .. },
                tensors,
            ) => tensors.has_inputs_of(needed),
            (
                CollectiveKind::Barrier
                | CollectiveKind::AddSet { .. }
                | CollectiveKind::RemoveSet { .. },
                Tensors::Given(operands),
            ) => operands.is_empty(),
            _ => false,
        };
        match fits {
            true => Ok(()),
            false => Err(Error::Invalid(format!(
                "the memory for `{}` does not match its shapes",
                request.name
            ))),
        }
    }
}

/// The outcome of a submission.
#[derive(Debug)]
pub enum Outcome {
    /// The result is in the memory that the caller provided.
    Done,
    /// The results are in memory that the engine allocated, one for each tensor.
    Made(Vec<OwnedResult>),
    /// The results are in the memory that [`AllocateResult`] returned; the rows of each tensor, as
    /// in [`OwnedResult`].
    Placed(Vec<Vec<u64>>),
    /// The collective is on its way on the GPU. The results are there behind this event, and the
    /// tensors must stay valid until then.
    Launched {
        /// What the caller's stream waits for.
        done: Arc<Event>,
        /// The rows of each result whose memory the caller has allocated, as in [`OwnedResult`].
        rows: Vec<Vec<u64>>,
    },
    /// Every rank has joined.
    Joined {
        /// The rank that joined last.
        last: Rank,
    },
    /// A process set has been created.
    SetAdded {
        /// Number of the new set.
        id: SetId,
    },
}

impl Outcome {
    /// The outcome of the other submissions in the same bucket.
    pub(super) fn of_others(&self) -> Outcome {
        match self {
            Outcome::Launched { done, .. } => {
                Outcome::Launched { done: done.clone(), rows: Vec::new() }
            }
            _ => Outcome::Done,
        }
    }
}

/// A result in memory that the engine allocated.
#[derive(Debug)]
pub struct OwnedResult {
    /// The rows, one after another.
    pub buffer: Buffer,
    /// How many rows came from each member, or how many this rank got.
    pub rows: Vec<u64>,
}

/// A submission that will complete.
#[derive(Default)]
pub struct Ticket {
    done: AtomicBool,
    state: Mutex<TicketState>,
}

/// A submission in flight: its memory, and the ticket that completes once the memory is released.
pub(super) struct PendingSubmission {
    pub(super) tensors: Tensors,
    pub(super) ticket: Arc<Ticket>,
}

impl PendingSubmission {
    /// Releases the memory, and only then completes the ticket.
    pub(super) fn complete(self, outcome: Result<Outcome, Error>) {
        let PendingSubmission { tensors, ticket } = self;
        drop(tensors);
        ticket.complete(outcome);
    }
}

#[derive(Default)]
enum TicketState {
    #[default]
    Open,
    /// Nobody will take the outcome: the callback gets it.
    Awaited(CompletionCallback),
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
    /// Whether the submission has completed.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Whether the result can be read: like [`Ticket::is_done`], but on a GPU the collective has
    /// also come to its end.
    pub fn is_ready(&self) -> bool {
        self.is_done()
            && match &*self.lock() {
                // An error is for the one who waits.
                TicketState::Ended(Ok(Outcome::Launched { done, .. })) => {
                    done.is_done().unwrap_or(true)
                }
                _ => true,
            }
    }

    /// Arranges for `done` to be called with the outcome: immediately if it is there, otherwise by
    /// the thread that completes the ticket.
    pub(super) fn then(&self, done: CompletionCallback) {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, TicketState::Empty) {
            TicketState::Ended(outcome) => {
                drop(state);
                done(outcome);
            }
            _ => *state = TicketState::Awaited(done),
        }
    }

    /// Completes a ticket that has no memory; [`PendingSubmission`] completes the others.
    pub(super) fn complete(&self, outcome: Result<Outcome, Error>) {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, TicketState::Empty) {
            TicketState::Awaited(done) => {
                drop(state);
                done(outcome);
            }
            _ => *state = TicketState::Ended(outcome),
        }
        self.done.store(true, Ordering::Release);
    }

    /// Takes the outcome; returns it only once.
    pub fn take(&self) -> Option<Result<Outcome, Error>> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, TicketState::Empty) {
            TicketState::Ended(outcome) => Some(outcome),
            other => {
                *state = other;
                None
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, TicketState> {
        self.state.lock().expect("nothing panics while it holds this lock")
    }
}
