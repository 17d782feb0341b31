//! Where native code of a framework submits to the engine of this process: without Python, without
//! the interpreter lock, without blocking. Kernels of TensorFlow, handlers of XLA and functions of
//! MXNet's engine use it.
//!
//! A [`CollectiveCall`] describes the operation, [`SubmittedTensors`] has the tensors, and `done`
//! is called once, by a thread of the engine or, if the call is refused or the world has one rank,
//! by the calling thread. It must not block. The memory belongs to the engine until just before
//! that call.

mod failure;
mod library;

pub(crate) use self::failure::{ErrorClass, Failure};
pub(crate) use self::library::Library;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ronde_control::negotiate::{CollectiveKind, Request};
use ronde_control::{DType, Rank, ReduceOp, SetId};
use ronde_core::Error;
use ronde_core::device::Event;
use ronde_core::engine::{Engine, Outcome, Tensors};

use super::tensor::View;
use super::{errors, process};

/// How long a wait takes before it checks which engine there is.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A collective and the name that ranks match it by.
pub(crate) struct CollectiveCall {
    pub(crate) name: String,
    pub(crate) set: u32,
    pub(crate) collective_request: CollectiveRequest,
}

/// The operation; the numbers in it are those of Horovod's API.
#[derive(Clone)]
pub(crate) enum CollectiveRequest {
    Allreduce(Reduce),
    Allgather,
    Broadcast { root: i64 },
    Alltoall { splits: Vec<u64> },
    Reducescatter(Reduce),
    Barrier,
}

/// A reduction by its number (Average 0, Sum 1, Adasum 2, Min 3, Max 4, Product 5), with factors to
/// apply before and after it.
#[derive(Clone, Copy)]
pub(crate) struct Reduce {
    pub(crate) op: i64,
    pub(crate) prescale: f64,
    pub(crate) postscale: f64,
}

/// The outcome of a call.
pub(crate) enum CallOutcome {
    /// The results are in their targets.
    Done,
    /// The results are in the memory that was allocated for them. For each tensor: the number of
    /// rows from each member, or the number that this rank got.
    Placed(Vec<Vec<u64>>),
    /// The collective is on its way on the GPU; its results are there behind this event.
    Launched(Arc<Event>),
    /// All ranks have joined; this is the last one.
    Joined(u32),
}

pub(crate) type NativeCallback = Box<dyn FnOnce(Result<CallOutcome, Failure>) + Send>;

/// Tensors of one element type, and their memory.
pub(crate) struct SubmittedTensors {
    dtype: DType,
    shapes: Vec<Vec<u64>>,
    tensors: Tensors,
}

impl SubmittedTensors {
    /// No tensors, as for a barrier.
    pub(crate) fn nothing() -> SubmittedTensors {
        SubmittedTensors { dtype: DType::U8, shapes: Vec::new(), tensors: Tensors::NONE }
    }

    /// The types and shapes of these views, with their memory.
    pub(crate) fn new(views: &[View], tensors: Tensors) -> Result<SubmittedTensors, Failure> {
        let dtype = views.first().map_or(DType::U8, |view| view.dtype);
        if views.iter().any(|view| view.dtype != dtype) {
            return Err(Failure::invalid("the tensors of a group must have one element type"));
        }
        Ok(SubmittedTensors {
            dtype,
            shapes: views.iter().map(|view| view.shape.clone()).collect(),
            tensors,
        })
    }
}

/// Submits a collective.
pub(crate) fn submit(call: CollectiveCall, submitted: SubmittedTensors, done: NativeCallback) {
    let Some(engine) = process::native_engine() else {
        return done(Err(Failure::not_initialized()));
    };
    let CollectiveCall { name, set, collective_request } = call;
    let set = SetId(set);
    let kind = match kind(&engine, set, collective_request) {
        Ok(kind) => kind,
        Err(error) => return done(Err(Failure::from(&error))),
    };
    let SubmittedTensors { dtype, shapes, tensors } = submitted;
    let request = Request { name, set, kind, dtype, shapes, device: tensors.device() };
    let done = Box::new(|outcome| done(answer(outcome)));
    engine.submit_then(request, tensors, done);
}

/// Contributes nothing until all ranks have joined.
pub(crate) fn join(done: NativeCallback) {
    match process::native_engine() {
        Some(engine) => engine.join_in_then(Box::new(|outcome| done(answer(outcome)))),
        None => done(Err(Failure::not_initialized())),
    }
}

/// Waits for a condition that calls bring about, and drives the engine meanwhile: for frameworks
/// that cannot be notified later.
pub(crate) fn wait_until(is_done: &dyn Fn() -> bool) {
    while !is_done() {
        match process::native_engine() {
            Some(engine) => engine.wait_until(is_done, Instant::now() + CHECK_INTERVAL),
            // The world has just ended, which ends all calls.
            None => std::thread::yield_now(),
        }
    }
}

fn kind(
    engine: &Engine,
    set: SetId,
    collective_request: CollectiveRequest,
) -> Result<CollectiveKind, Error> {
    Ok(match collective_request {
        CollectiveRequest::Allreduce(reduce) => {
            let (op, prescale, postscale) = reduction(engine, reduce, set)?;
            CollectiveKind::Allreduce { op, prescale, postscale }
        }
        CollectiveRequest::Reducescatter(reduce) => {
            let (op, prescale, postscale) = reduction(engine, reduce, set)?;
            CollectiveKind::Reducescatter { op, prescale, postscale }
        }
        CollectiveRequest::Allgather => CollectiveKind::Allgather,
        CollectiveRequest::Broadcast { root } => CollectiveKind::Broadcast { root: rank(root)? },
        CollectiveRequest::Alltoall { splits } => CollectiveKind::Alltoall { splits },
        CollectiveRequest::Barrier => CollectiveKind::Barrier,
    })
}

/// A root rank as programs pass it; the submission checks that the process set has it.
pub(crate) fn rank(number: i64) -> Result<Rank, Error> {
    u32::try_from(number).map(Rank).map_err(|_| {
        Error::Invalid(format!(
            "broadcast received invalid root rank {number}; ranks are counted from 0"
        ))
    })
}

/// The engine's reduction for Horovod's number of it; an average is a sum with a factor.
pub(crate) fn reduction(
    engine: &Engine,
    Reduce { op, prescale, postscale }: Reduce,
    set: SetId,
) -> Result<(ReduceOp, f64, f64), Error> {
    let (op, postscale) = match op {
        0 => {
            // A process set that does not exist is refused at submission.
            let size = engine.members(set).map_or(1, |members| members.len());
            (ReduceOp::Sum, postscale / size as f64)
        }
        1 => (ReduceOp::Sum, postscale),
        2 => (ReduceOp::Adasum, postscale),
        3 => (ReduceOp::Min, postscale),
        4 => (ReduceOp::Max, postscale),
        5 => (ReduceOp::Product, postscale),
        other => {
            let text = format!("there is no reduction number {other}");
            return Err(Error::Invalid(text));
        }
    };
    Ok((op, prescale, postscale))
}

fn answer(outcome: Result<Outcome, Error>) -> Result<CallOutcome, Failure> {
    match outcome {
        Ok(Outcome::Placed(rows)) => Ok(CallOutcome::Placed(rows)),
        Ok(Outcome::Joined { last }) => Ok(CallOutcome::Joined(last.0)),
        Ok(Outcome::Launched { done, .. }) => Ok(CallOutcome::Launched(done)),
        // Nothing that is submitted here has the engine allocate results, or creates process sets.
        Ok(Outcome::Done | Outcome::Made(_) | Outcome::SetAdded { .. }) => Ok(CallOutcome::Done),
        Err(error) => {
            errors::remember(&error);
            Err(Failure::from(&error))
        }
    }
}
