//! Handlers for XLA's foreign function interface: the collectives in programs that JAX and
//! TensorFlow compile.
//!
//! A call takes any number of arrays of any element types. Arrays of the same type form one
//! submission; the call is done when all submissions are. A handler returns at once and completes a
//! future later, so that XLA's threads can go on meanwhile.
#![expect(unsafe_code, reason = "XLA calls these functions by addresses that Python passes on")]

mod api;
mod done;
mod frame;
mod tensorflow;

use std::ffi::c_void;
use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use ronde_control::DType;
use ronde_core::buffer::Input;
use ronde_core::engine::{AllocateResult, Tensors};

use self::api::{Frame, XlaHandle};
use self::done::PendingCall;
use self::frame::{CallAttributes, XlaTensor};
pub(crate) use self::tensorflow::tensorflow_xla_problem;
use crate::native::{
    self, CollectiveCall, CollectiveRequest, Failure, NativeCallback, SubmittedTensors,
};
use crate::tensor::{View, operands};

type Handler = extern "C" fn(*mut Frame) -> XlaHandle;

/// All handlers, by the names that programs call them by.
const HANDLERS: [(&str, Handler); 5] = [
    ("ronde_allgather", allgather),
    ("ronde_allreduce", allreduce),
    ("ronde_alltoall", alltoall),
    ("ronde_broadcast", broadcast),
    ("ronde_reducescatter", reducescatter),
];

/// The handlers by name, each as `jax.ffi.register_ffi_target` expects it.
#[pyfunction]
pub(crate) fn xla_handlers(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    for (name, handler) in HANDLERS {
        let address = handler as *mut c_void;
        // SAFETY: it is the address of a function, which never moves; the capsule neither owns nor names it.
        let capsule = unsafe { ffi::PyCapsule_New(address, std::ptr::null(), None) };
        // SAFETY: the object is new and ours, or an exception is set.
        all.set_item(name, unsafe { Bound::from_owned_ptr_or_err(py, capsule) }?)?;
    }
    Ok(all)
}

/// Declares that handlers may complete futures although XLA's table does not show it.
#[pyfunction]
pub(crate) fn xla_expect_futures() {
    done::expect_futures();
}

extern "C" fn allreduce(frame: *mut Frame) -> XlaHandle {
    handle(frame, |wanted| Ok(CollectiveRequest::Allreduce(wanted.reduce()?)))
}

extern "C" fn allgather(frame: *mut Frame) -> XlaHandle {
    handle(frame, |_| Ok(CollectiveRequest::Allgather))
}

extern "C" fn broadcast(frame: *mut Frame) -> XlaHandle {
    handle(frame, |wanted| Ok(CollectiveRequest::Broadcast { root: wanted.integer("root")? }))
}

extern "C" fn alltoall(frame: *mut Frame) -> XlaHandle {
    handle(frame, |wanted| {
        let members = wanted.integer("members")?.max(1) as usize;
        Ok(CollectiveRequest::Alltoall { splits: vec![0; members] })
    })
}

extern "C" fn reducescatter(frame: *mut Frame) -> XlaHandle {
    handle(frame, |wanted| Ok(CollectiveRequest::Reducescatter(wanted.reduce()?)))
}

fn handle(
    frame: *mut Frame,
    collective_request: impl FnOnce(&CallAttributes) -> Result<CollectiveRequest, Failure>,
) -> XlaHandle {
    // SAFETY: XLA passes a frame that belongs to this call.
    let frame = unsafe { &mut *frame };
    if frame::answer_metadata(frame) || !frame::computes(frame) {
        return std::ptr::null_mut();
    }
    let Some(api) = frame::api(frame) else { return std::ptr::null_mut() };
    let parts = match parts(frame, collective_request) {
        Ok(parts) => parts,
        Err(failure) => return done::error(api, &failure),
    };
    let pending = Arc::new(PendingCall::of(parts.len()));
    for part in parts {
        let pending = pending.clone();
        part.submit(Box::new(move |answer| pending.count(answer.err())));
    }
    pending.outcome(api, frame)
}

/// Arrays of the same element type, which are submitted together.
struct XlaBatch {
    call: CollectiveCall,
    sources: Vec<View>,
    targets: Vec<View>,
}

fn parts(
    frame: &Frame,
    collective_request: impl FnOnce(&CallAttributes) -> Result<CollectiveRequest, Failure>,
) -> Result<Vec<XlaBatch>, Failure> {
    let wanted = CallAttributes(&frame.attributes);
    let (name, collective_request) = (wanted.text("name")?, collective_request(&wanted)?);
    let set = u32::try_from(wanted.integer("set")?).unwrap_or(u32::MAX);
    let mut sources = frame::tensors(&frame.operands)?;
    let mut targets = frame::tensors(&frame.results)?;
    if sources.len() != targets.len() {
        return Err(Failure::invalid("a call needs as many results as operands"));
    }
    // The last ones may only establish the order of calls; programs without them do not have this
    // attribute.
    let tokens = wanted.integer("tokens").unwrap_or(0).max(0) as usize;
    sources.truncate(sources.len().saturating_sub(tokens));
    targets.truncate(targets.len().saturating_sub(tokens));
    let mut parts: Vec<XlaBatch> = Vec::new();
    for (source, target) in sources.into_iter().zip(targets) {
        check(&collective_request, &source)?;
        let dtype = source.view.dtype;
        let together = |part: &&mut XlaBatch| part.takes(dtype);
        if let Some(part) = parts.iter_mut().find(together) {
            part.sources.push(source.view);
            part.targets.push(target.view);
            continue;
        }
        let name = format!("{name}.{}", parts.len());
        let call = CollectiveCall {
            name,
            set,
            collective_request: divided(&collective_request, &source.view),
        };
        parts.push(XlaBatch { call, sources: vec![source.view], targets: vec![target.view] });
    }
    Ok(parts)
}

fn check(collective_request: &CollectiveRequest, source: &XlaTensor) -> Result<(), Failure> {
    match collective_request {
        CollectiveRequest::Allreduce(reduce) | CollectiveRequest::Reducescatter(reduce) => {
            source.numbers.check(*reduce)
        }
        _ => Ok(()),
    }
}

/// The request for an array; alltoall splits the rows evenly.
fn divided(collective_request: &CollectiveRequest, source: &View) -> CollectiveRequest {
    match collective_request {
        CollectiveRequest::Alltoall { splits } => {
            let rows = source.shape.first().copied().unwrap_or_default();
            CollectiveRequest::Alltoall { splits: vec![rows / splits.len() as u64; splits.len()] }
        }
        other => other.clone(),
    }
}

impl XlaBatch {
    /// Whether an array of this type can be added; an alltoall has only one array.
    fn takes(&self, dtype: DType) -> bool {
        !matches!(self.call.collective_request, CollectiveRequest::Alltoall { .. })
            && self.sources[0].dtype == dtype
    }

    fn submit(self, done: NativeCallback) {
        let XlaBatch { call, sources, targets } = self;
        let tensors = match call.collective_request {
            CollectiveRequest::Allreduce(_) | CollectiveRequest::Broadcast { .. } => {
                // SAFETY: XLA keeps operands and results, and nobody else touches them, until the
                // call has completed, which is after `done`.
                let operands = unsafe { operands(&sources, &targets, None) };
                operands.map(Tensors::Given).map_err(Failure::invalid)
            }
            _ => {
                // SAFETY: as above.
                let input = |source: &View| unsafe { source.input(None) };
                let inputs: Vec<Input> = sources.iter().map(input).collect();
                Ok(Tensors::Placed(inputs, allocate(targets)))
            }
        };
        match tensors.and_then(|tensors| SubmittedTensors::new(&sources, tensors)) {
            Ok(submitted) => native::submit(call, submitted, done),
            Err(failure) => done(Err(failure)),
        }
    }
}

/// The memory that the program has for results; it was compiled for their sizes.
fn allocate(targets: Vec<View>) -> AllocateResult {
    Box::new(move |index, rows| {
        let target = &targets[index];
        let (arrived, expected) = (rows.iter().sum::<u64>(), target.shape.first().copied());
        if Some(arrived) == expected {
            // SAFETY: as for the operands; each result is requested once.
            return Ok(unsafe { target.output(None) });
        }
        let expected = expected.unwrap_or_default();
        Err(format!(
            "a compiled program has fixed shapes for its results: this one expects {expected} rows \
             from all ranks together, but {rows:?} arrived; give every rank the same number of \
             rows, or call the collective outside of jax.jit"
        ))
    })
}
