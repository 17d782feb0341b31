//! Handlers for XLA's foreign function interface: the collectives inside of programs that JAX and
//! TensorFlow compile.
//!
//! A call takes any number of arrays of any element types. Those of one type go together, as one
//! submission; the call is done when all are. A handler returns at once and completes a future, so
//! that the threads of XLA go on meanwhile.
#![expect(unsafe_code, reason = "XLA calls these functions, whose addresses Python hands over")]

mod api;
mod done;
mod frame;
mod tensorflow;

use std::ffi::c_void;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use ronde_control::DType;
use ronde_core::buffer::Input;
use ronde_core::engine::{Room, Tensors};

use self::api::{Frame, Handle};
use self::done::Pending;
use self::frame::{Tensor, Wanted};
pub(crate) use self::tensorflow::tensorflow_xla_problem;
use crate::native::{self, Call, Done, Failure, Handed, Wish};
use crate::tensor::{View, operands};

type Handler = extern "C" fn(*mut Frame) -> Handle;

/// All of them, by the names that programs call them by.
const HANDLERS: [(&str, Handler); 5] = [
    ("ronde_allgather", allgather),
    ("ronde_allreduce", allreduce),
    ("ronde_alltoall", alltoall),
    ("ronde_broadcast", broadcast),
    ("ronde_reducescatter", reducescatter),
];

/// The handler of a collective, as `jax.ffi.register_ffi_target` wants it.
#[pyfunction]
pub(crate) fn xla_handler<'py>(py: Python<'py>, collective: &str) -> PyResult<Bound<'py, PyAny>> {
    let found = HANDLERS.iter().find(|(name, _)| name.strip_prefix("ronde_") == Some(collective));
    let Some((_, handler)) = found else {
        return Err(PyValueError::new_err(format!("there is no handler for `{collective}`")));
    };
    let address = *handler as *mut c_void;
    // SAFETY: the address is a function's, which stays; the capsule neither owns nor names it.
    let capsule = unsafe { ffi::PyCapsule_New(address, std::ptr::null(), None) };
    // SAFETY: the object is new and ours, or there is an exception.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}

/// Says that handlers may complete futures although the table of XLA does not show it.
#[pyfunction]
pub(crate) fn xla_expect_futures() {
    done::expect_futures();
}

extern "C" fn allreduce(frame: *mut Frame) -> Handle {
    handle(frame, |wanted| Ok(Wish::Allreduce(wanted.reduce()?)))
}

extern "C" fn allgather(frame: *mut Frame) -> Handle {
    handle(frame, |_| Ok(Wish::Allgather))
}

extern "C" fn broadcast(frame: *mut Frame) -> Handle {
    handle(frame, |wanted| Ok(Wish::Broadcast { root: wanted.integer("root")? }))
}

extern "C" fn alltoall(frame: *mut Frame) -> Handle {
    handle(frame, |wanted| {
        let members = wanted.integer("members")?.max(1) as usize;
        Ok(Wish::Alltoall { splits: vec![0; members] })
    })
}

extern "C" fn reducescatter(frame: *mut Frame) -> Handle {
    handle(frame, |wanted| Ok(Wish::Reducescatter(wanted.reduce()?)))
}

fn handle(frame: *mut Frame, wish: impl FnOnce(&Wanted) -> Result<Wish, Failure>) -> Handle {
    // SAFETY: XLA calls with a frame that is this call's own.
    let frame = unsafe { &mut *frame };
    if frame::answer_metadata(frame) || !frame::computes(frame) {
        return std::ptr::null_mut();
    }
    let Some(api) = frame::api(frame) else { return std::ptr::null_mut() };
    let parts = match parts(frame, wish) {
        Ok(parts) => parts,
        Err(failure) => return done::error(api, &failure),
    };
    let pending = Arc::new(Pending::of(parts.len()));
    for part in parts {
        let pending = pending.clone();
        part.submit(Box::new(move |answer| pending.count(answer.err())));
    }
    pending.outcome(api, frame)
}

/// What is submitted together: arrays of one element type.
struct Part {
    call: Call,
    sources: Vec<View>,
    targets: Vec<View>,
}

fn parts(
    frame: &Frame,
    wish: impl FnOnce(&Wanted) -> Result<Wish, Failure>,
) -> Result<Vec<Part>, Failure> {
    let wanted = Wanted(&frame.attributes);
    let (name, wish) = (wanted.text("name")?, wish(&wanted)?);
    let set = u32::try_from(wanted.integer("set")?).unwrap_or(u32::MAX);
    let mut sources = frame::tensors(&frame.operands)?;
    let mut targets = frame::tensors(&frame.results)?;
    if sources.len() != targets.len() {
        return Err(Failure::invalid("a call needs as many results as operands"));
    }
    // The last ones may only be there for the order of calls; programs without them do not say so.
    let tokens = wanted.integer("tokens").unwrap_or(0).max(0) as usize;
    sources.truncate(sources.len().saturating_sub(tokens));
    targets.truncate(targets.len().saturating_sub(tokens));
    let mut parts: Vec<Part> = Vec::new();
    for (source, target) in sources.into_iter().zip(targets) {
        check(&wish, &source)?;
        let dtype = source.view.dtype;
        let together = |part: &&mut Part| part.takes(dtype);
        if let Some(part) = parts.iter_mut().find(together) {
            part.sources.push(source.view);
            part.targets.push(target.view);
            continue;
        }
        let name = format!("{name}.{}.{dtype}", parts.len());
        let call = Call { name, set, wish: divided(&wish, &source.view) };
        parts.push(Part { call, sources: vec![source.view], targets: vec![target.view] });
    }
    Ok(parts)
}

fn check(wish: &Wish, source: &Tensor) -> Result<(), Failure> {
    match wish {
        Wish::Allreduce(reduce) | Wish::Reducescatter(reduce) => source.numbers.check(*reduce),
        _ => Ok(()),
    }
}

/// The wish for an array; rows are exchanged in equal shares.
fn divided(wish: &Wish, source: &View) -> Wish {
    match wish {
        Wish::Alltoall { splits } => {
            let rows = source.shape.first().copied().unwrap_or_default();
            Wish::Alltoall { splits: vec![rows / splits.len() as u64; splits.len()] }
        }
        other => other.clone(),
    }
}

impl Part {
    /// Whether an array of this type goes along; an exchange is one array's.
    fn takes(&self, dtype: DType) -> bool {
        !matches!(self.call.wish, Wish::Alltoall { .. }) && self.sources[0].dtype == dtype
    }

    fn submit(self, done: Done) {
        let Part { call, sources, targets } = self;
        let tensors = match call.wish {
            Wish::Allreduce(_) | Wish::Broadcast { .. } => {
                // SAFETY: XLA keeps operands and results, and nobody else touches them, until the
                // call has completed, which is after `done`.
                let operands = unsafe { operands(&sources, &targets, None) };
                operands.map(Tensors::Given).map_err(Failure::invalid)
            }
            _ => {
                // SAFETY: as above.
                let input = |source: &View| unsafe { source.input(None) };
                let inputs: Vec<Input> = sources.iter().map(input).collect();
                Ok(Tensors::Placed(inputs, room(targets)))
            }
        };
        match tensors.and_then(|tensors| Handed::new(&sources, tensors)) {
            Ok(handed) => native::submit(call, handed, done),
            Err(failure) => done(Err(failure)),
        }
    }
}

/// The memory that the program has for results; the program was made for their sizes.
fn room(targets: Vec<View>) -> Room {
    Box::new(move |index, rows| {
        let target = &targets[index];
        let (came, expected) = (rows.iter().sum::<u64>(), target.shape.first().copied());
        if Some(came) == expected {
            // SAFETY: as for the operands; each result is asked for once.
            return Ok(unsafe { target.output(None) });
        }
        let expected = expected.unwrap_or_default();
        Err(format!(
            "a compiled program knows the shapes of its results: this one expects {expected} rows \
             from all ranks together, but {rows:?} came; give every rank the same number of rows, \
             or call the collective outside of jax.jit"
        ))
    })
}
