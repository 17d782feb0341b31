//! Where native code of a framework submits to the engine of this process: no Python, no interpreter
//! lock, no wait. Kernels of TensorFlow, handlers of XLA and functions of MXNet's engine come here.
//!
//! A [`Call`] says what is wanted, [`Handed`] brings the tensors, and `done` is called once, by a
//! thread of the engine or, where the call is refused or the world has one rank, by the caller's own.
//! It must not block. The memory belongs to the engine until just before then.

mod failure;
mod library;

pub(crate) use self::failure::{Failure, Fault};
pub(crate) use self::library::Library;

use std::time::{Duration, Instant};

use ronde_control::negotiate::{Kind, Request};
use ronde_control::{DType, Rank, ReduceOp, SetId};
use ronde_core::Error;
use ronde_core::engine::{Engine, Outcome, Tensors};

use super::tensor::View;
use super::{errors, process};

/// How long a wait goes on before it looks which engine there is.
const WHILE: Duration = Duration::from_secs(1);

/// A collective and the name that ranks match it by.
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) set: u32,
    pub(crate) wish: Wish,
}

/// What is to be done; the numbers are those that Horovod's users know.
#[derive(Clone)]
pub(crate) enum Wish {
    Allreduce(Reduce),
    Allgather,
    Broadcast { root: i64 },
    Alltoall { splits: Vec<u64> },
    Reducescatter(Reduce),
    Barrier,
}

/// A reduction by its number (Average 0, Sum 1, Adasum 2, Min 3, Max 4, Product 5), with factors
/// before and behind it.
#[derive(Clone, Copy)]
pub(crate) struct Reduce {
    pub(crate) op: i64,
    pub(crate) prescale: f64,
    pub(crate) postscale: f64,
}

/// What came of a call.
pub(crate) enum Answer {
    /// The results lie in their targets.
    Done,
    /// They lie in the memory that was given for them. For each tensor, how many rows came from
    /// each member, or how many this rank got.
    Placed(Vec<Vec<u64>>),
    /// All have joined, this one last.
    Joined(u32),
}

pub(crate) type Done = Box<dyn FnOnce(Result<Answer, Failure>) + Send>;

/// Tensors of one element type, and their memory.
pub(crate) struct Handed {
    dtype: DType,
    shapes: Vec<Vec<u64>>,
    tensors: Tensors,
}

impl Handed {
    /// Nothing.
    pub(crate) fn nothing() -> Handed {
        Handed { dtype: DType::U8, shapes: Vec::new(), tensors: Tensors::NONE }
    }

    /// What these say the tensors are, with their memory.
    pub(crate) fn new(views: &[View], tensors: Tensors) -> Result<Handed, Failure> {
        let dtype = views.first().map_or(DType::U8, |view| view.dtype);
        if views.iter().any(|view| view.dtype != dtype) {
            return Err(Failure::invalid("the tensors of a group must have one element type"));
        }
        Ok(Handed { dtype, shapes: views.iter().map(|view| view.shape.clone()).collect(), tensors })
    }
}

/// Submits a collective.
pub(crate) fn submit(call: Call, handed: Handed, done: Done) {
    let Some(engine) = process::arrived() else { return done(Err(Failure::not_initialized())) };
    let Call { name, set, wish } = call;
    let set = SetId(set);
    let kind = match kind(&engine, set, wish) {
        Ok(kind) => kind,
        Err(error) => return done(Err(Failure::from(&error))),
    };
    let Handed { dtype, shapes, tensors } = handed;
    let request = Request { name, set, kind, dtype, shapes };
    let done = Box::new(|outcome| done(answer(outcome)));
    engine.submit_then(request, tensors, done);
}

/// Contributes nothing until everybody has joined.
pub(crate) fn join(done: Done) {
    match process::arrived() {
        Some(engine) => engine.join_in_then(Box::new(|outcome| done(answer(outcome)))),
        None => done(Err(Failure::not_initialized())),
    }
}

/// Waits until calls have brought something about, and drives the engine meanwhile: for frameworks
/// that have no way to be told later.
pub(crate) fn wait_until(is_done: &dyn Fn() -> bool) {
    while !is_done() {
        match process::arrived() {
            Some(engine) => engine.wait_until(is_done, Instant::now() + WHILE),
            // The world has just ended, which ends all calls.
            None => std::thread::yield_now(),
        }
    }
}

fn kind(engine: &Engine, set: SetId, wish: Wish) -> Result<Kind, Error> {
    Ok(match wish {
        Wish::Allreduce(reduce) => {
            let (op, prescale, postscale) = reduction(engine, reduce, set)?;
            Kind::Allreduce { op, prescale, postscale }
        }
        Wish::Reducescatter(reduce) => {
            let (op, prescale, postscale) = reduction(engine, reduce, set)?;
            Kind::Reducescatter { op, prescale, postscale }
        }
        Wish::Allgather => Kind::Allgather,
        Wish::Broadcast { root } => Kind::Broadcast { root: rank(root)? },
        Wish::Alltoall { splits } => Kind::Alltoall { splits },
        Wish::Barrier => Kind::Barrier,
    })
}

/// A root rank as programs give it; whether the set has it is seen when the request is submitted.
pub(crate) fn rank(number: i64) -> Result<Rank, Error> {
    u32::try_from(number).map(Rank).map_err(|_| {
        Error::Invalid(format!(
            "broadcast received invalid root rank {number}; ranks are counted from 0"
        ))
    })
}

/// Horovod's number of an operation as the engine knows it; an average is a sum with a factor.
pub(crate) fn reduction(
    engine: &Engine,
    Reduce { op, prescale, postscale }: Reduce,
    set: SetId,
) -> Result<(ReduceOp, f64, f64), Error> {
    let (op, postscale) = match op {
        0 => {
            // A set that does not exist is refused when the request is submitted.
            let size = engine.members(set).map_or(1, |members| members.len());
            (ReduceOp::Sum, postscale / size as f64)
        }
        1 => (ReduceOp::Sum, postscale),
        2 => (ReduceOp::Adasum, postscale),
        3 => (ReduceOp::Min, postscale),
        4 => (ReduceOp::Max, postscale),
        5 => (ReduceOp::Product, postscale),
        other => {
            let text = format!("there is no reduction with the number {other}");
            return Err(Error::Invalid(text));
        }
    };
    Ok((op, prescale, postscale))
}

fn answer(outcome: Result<Outcome, Error>) -> Result<Answer, Failure> {
    match outcome {
        Ok(Outcome::Placed(rows)) => Ok(Answer::Placed(rows)),
        Ok(Outcome::Joined { last }) => Ok(Answer::Joined(last.0)),
        // Nothing that is submitted here makes memory of its own, or sets.
        Ok(Outcome::Done | Outcome::Made(_) | Outcome::SetAdded { .. }) => Ok(Answer::Done),
        Err(error) => {
            errors::note(&error);
            Err(Failure::from(&error))
        }
    }
}
