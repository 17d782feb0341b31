//! Handlers for XLA's foreign function interface: the collectives in programs that JAX and
//! TensorFlow compile.
//!
//! A call takes any number of arrays of any element types. Arrays of the same type form one
//! submission; the call is done when all submissions are. In a program on CPUs, a handler returns at
//! once and completes a future later, so that XLA's threads can go on meanwhile. In a program on an
//! NVIDIA GPU, it returns when the collectives are launched, in the order of the program's stream.
#![expect(unsafe_code, reason = "XLA calls these functions by addresses that Python passes on")]

mod api;
mod done;
mod frame;
mod stream;
mod tensorflow;

use std::ffi::c_void;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use ronde_control::DType;
use ronde_core::buffer::{Input, Operand, Output, Space};
use ronde_core::engine::Tensors;

use self::api::{Frame, XlaHandle};
use self::done::PendingCall;
use self::frame::{CallAttributes, XlaTensor};
use self::stream::XlaStream;
pub(crate) use self::tensorflow::tensorflow_xla_problem;
use crate::gpu;
use crate::native::{
    self, CollectiveCall, CollectiveRequest, Failure, NativeCallback, SubmittedTensors,
};
use crate::tensor::{View, operands};

type Handler = extern "C" fn(*mut Frame) -> XlaHandle;

/// The devices that a program runs on.
#[derive(Clone, Copy)]
enum Platform {
    Host,
    Cuda,
}

/// The handlers of a collective, by the name that programs call them by.
struct Handlers {
    name: &'static str,
    host: Handler,
    cuda: Handler,
}

macro_rules! handlers {
    ($($name:literal, $host:ident, $cuda:ident: $collective_request:expr;)*) => {
        const HANDLERS: &[Handlers] = &[$(Handlers { name: $name, host: $host, cuda: $cuda },)*];

        $(
            extern "C" fn $host(frame: *mut Frame) -> XlaHandle {
                handle(frame, Platform::Host, $collective_request)
            }

            extern "C" fn $cuda(frame: *mut Frame) -> XlaHandle {
                handle(frame, Platform::Cuda, $collective_request)
            }
        )*
    };
}

handlers! {
    "ronde_allgather", allgather, allgather_on_cuda: |_| Ok(CollectiveRequest::Allgather);
    "ronde_allreduce", allreduce, allreduce_on_cuda: |wanted| {
        Ok(CollectiveRequest::Allreduce(wanted.reduce()?))
    };
    "ronde_alltoall", alltoall, alltoall_on_cuda: |wanted| {
        let members = wanted.integer("members")?.max(1) as usize;
        Ok(CollectiveRequest::Alltoall { splits: vec![0; members] })
    };
    "ronde_broadcast", broadcast, broadcast_on_cuda: |wanted| {
        Ok(CollectiveRequest::Broadcast { root: wanted.integer("root")? })
    };
    "ronde_reducescatter", reducescatter, reducescatter_on_cuda: |wanted| {
        Ok(CollectiveRequest::Reducescatter(wanted.reduce()?))
    };
}

/// The handlers for programs on a platform, "cpu" or "CUDA", by name, each as
/// `jax.ffi.register_ffi_target` expects it.
#[pyfunction]
pub(crate) fn xla_handlers<'py>(py: Python<'py>, platform: &str) -> PyResult<Bound<'py, PyDict>> {
    let platform = match platform {
        "cpu" => Platform::Host,
        "CUDA" => Platform::Cuda,
        other => return Err(PyValueError::new_err(format!("no handlers for `{other}`"))),
    };
    gpu::remember_paths(py);
    let all = PyDict::new(py);
    for Handlers { name, host, cuda } in HANDLERS {
        let handler = match platform {
            Platform::Host => *host,
            Platform::Cuda => *cuda,
        };
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

fn handle(
    frame: *mut Frame,
    platform: Platform,
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
    let stream = match platform {
        Platform::Host => None,
        Platform::Cuda => match XlaStream::of(api, frame) {
            Ok(stream) => Some(stream),
            Err(error) => return error,
        },
    };
    let pending = Arc::new(PendingCall::of(parts.len()));
    for part in parts {
        let pending = pending.clone();
        part.submit(stream.as_ref(), Box::new(move |answer| pending.count(answer)));
    }
    match stream {
        Some(stream) => pending.outcome_on(api, &stream),
        None => pending.outcome(api, frame),
    }
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
    // The last operands may only establish the order of calls, and so may results that correspond
    // to them.
    let tokens = wanted.integer("tokens")?.max(0) as usize;
    sources.truncate(sources.len().saturating_sub(tokens));
    targets.truncate(sources.len());
    if sources.len() != targets.len() {
        return Err(Failure::invalid("a call needs as many results as operands"));
    }
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

    fn submit(self, stream: Option<&XlaStream>, done: NativeCallback) {
        let XlaBatch { call, sources, targets } = self;
        let memory = match call.collective_request {
            CollectiveRequest::Allreduce(_) | CollectiveRequest::Broadcast { .. } => {
                BatchMemory::Given { sources: &sources, targets: &targets }
            }
            _ => BatchMemory::Placed { sources: &sources, targets },
        };
        let tensors = match stream {
            Some(stream) => stream.tensors(memory),
            None => memory.on_host(),
        };
        match tensors.and_then(|tensors| SubmittedTensors::new(&sources, tensors)) {
            Ok(submitted) => native::submit(call, submitted, done),
            Err(failure) => done(Err(failure)),
        }
    }
}

/// The memory of a batch, wherever it is. XLA keeps operands and results, and nobody else touches
/// them, until the call has completed and, on a GPU, the program's stream has come to its end.
enum BatchMemory<'a> {
    /// Results are as long as their operands.
    Given { sources: &'a [View], targets: &'a [View] },
    /// Whether results are as long as the program expects turns out later.
    Placed { sources: &'a [View], targets: Vec<View> },
}

impl BatchMemory<'_> {
    fn on_host(self) -> Result<Tensors, Failure> {
        match self {
            BatchMemory::Given { sources, targets } => given(sources, targets).map(Tensors::Given),
            BatchMemory::Placed { sources, targets } => {
                let allocate = move |index, rows: &[u64]| place(&targets, index, rows);
                Ok(Tensors::Placed(inputs(sources), Box::new(allocate)))
            }
        }
    }
}

fn given<S: Space>(sources: &[View], targets: &[View]) -> Result<Vec<Operand<S>>, Failure> {
    // SAFETY: XLA guarantees what `BatchMemory` says.
    unsafe { operands(sources, targets, None) }.map_err(Failure::invalid)
}

fn inputs<S: Space>(sources: &[View]) -> Vec<Input<S>> {
    // SAFETY: XLA guarantees what `BatchMemory` says.
    sources.iter().map(|source| unsafe { source.input(None) }).collect()
}

/// The memory that the program has for a result; it was compiled for its size.
fn place<S: Space>(targets: &[View], index: usize, rows: &[u64]) -> Result<Output<S>, String> {
    let target = &targets[index];
    let (arrived, expected) = (rows.iter().sum::<u64>(), target.shape.first().copied());
    if Some(arrived) == expected {
        // SAFETY: XLA guarantees what `BatchMemory` says; each result is requested once.
        return Ok(unsafe { target.output(None) });
    }
    let expected = expected.unwrap_or_default();
    Err(format!(
        "a compiled program has fixed shapes for its results: this one expects {expected} rows \
         from all ranks together, but {rows:?} arrived; give every rank the same number of rows, \
         or call the collective outside of jax.jit"
    ))
}
