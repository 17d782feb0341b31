//! MXNet's operations: MXNet's own engine runs each one when its arrays are ready; it submits them
//! to our engine, and completes when ours has finished. No thread of MXNet waits meanwhile.
#![expect(unsafe_code, reason = "MXNet's engine passes our pointers back to us")]

mod api;

use std::ffi::c_int;
use std::sync::OnceLock;

use pyo3::exceptions::{PyImportError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use ronde_control::DType;
use ronde_core::engine::Tensors;

use self::api::{MxApi, MxHandle, OnComplete};
use crate::native::{
    self, CollectiveCall, CollectiveRequest, Failure, NativeCallback, Reduce, SubmittedTensors,
};
use crate::tensor::{View, operands};

static API: OnceLock<Result<MxApi, String>> = OnceLock::new();

/// Looks up the functions of the MXNet that this process has loaded from `path`.
#[pyfunction]
pub(crate) fn mxnet_open(path: &str) -> PyResult<()> {
    match API.get_or_init(|| MxApi::load(path)) {
        Ok(_) => Ok(()),
        Err(problem) => Err(PyImportError::new_err(format!(
            "horovod.mxnet needs MXNet 1.8 or 1.9 and cannot use this one: {problem}"
        ))),
    }
}

/// An array as Python describes it: its handle, its shape and MXNet's number for its type.
type Described = (usize, Vec<u64>, i32);

/// Makes MXNet's engine run an allreduce or a broadcast. `how` contains the number of the reduction
/// (`None` for a broadcast), the factors to apply before and after it, and the root. Arrays reduced
/// in place are in `outputs` only; all arrays have the same element type.
#[pyfunction]
pub(crate) fn mxnet_push(
    name: String,
    process_set: u32,
    how: (Option<i64>, f64, f64, i64),
    inputs: Vec<Described>,
    outputs: Vec<Described>,
    priority: i32,
) -> PyResult<()> {
    let api = api().ok_or_else(|| PyRuntimeError::new_err("call mxnet_open first"))?;
    let (op, prescale, postscale, root) = how;
    let collective_request = match op {
        Some(op) => CollectiveRequest::Allreduce(Reduce { op, prescale, postscale }),
        None => CollectiveRequest::Broadcast { root },
    };
    let call = CollectiveCall { name, set: process_set, collective_request };
    let failed = |problem: String| PyRuntimeError::new_err(problem);
    let sources = Array::list(api, inputs)?;
    let targets = Array::list(api, outputs)?;
    let operation = Operation { call, sources, targets };
    let (reads, writes) = (handles(&operation.sources), handles(&operation.targets));
    let operation = Box::into_raw(Box::new(operation)).cast();
    api.push(run, (operation, forget), &reads, &writes, priority as c_int).map_err(failed)
}

fn api() -> Option<&'static MxApi> {
    API.get().and_then(|api| api.as_ref().ok())
}

struct Operation {
    call: CollectiveCall,
    sources: Vec<Array>,
    targets: Vec<Array>,
}

/// Our own handle, so that the array lives as long as the operation.
struct Array {
    api: &'static MxApi,
    handle: MxHandle,
    shape: Vec<u64>,
    dtype: DType,
}

impl Array {
    fn list(api: &'static MxApi, described: Vec<Described>) -> PyResult<Vec<Array>> {
        let each = |(handle, shape, number): Described| {
            let dtype = dtype(number).ok_or_else(|| {
                PyValueError::new_err(format!("MXNet's element type {number} is not supported."))
            })?;
            let handle = api.copy(handle as MxHandle).map_err(PyRuntimeError::new_err)?;
            Ok(Array { api, handle, shape, dtype })
        };
        described.into_iter().map(each).collect()
    }

    fn view(&self) -> Result<View, Failure> {
        let start = self.api.data(self.handle).map_err(|problem| Failure::invalid(&problem))?;
        Ok(View::at(start, self.shape.clone(), self.dtype))
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        self.api.free(self.handle);
    }
}

/// MXNet's numbers for element types.
fn dtype(number: i32) -> Option<DType> {
    Some(match number {
        0 => DType::F32,
        1 => DType::F64,
        2 => DType::F16,
        3 => DType::U8,
        4 => DType::I32,
        5 => DType::I8,
        6 => DType::I64,
        7 => DType::Bool,
        8 => DType::I16,
        9 => DType::U16,
        12 => DType::BF16,
        _ => return None,
    })
}

fn handles(arrays: &[Array]) -> Vec<MxHandle> {
    arrays.iter().map(|array| array.handle).collect()
}

/// Called by MXNet's engine when the arrays are ready.
extern "C" fn run(_context: MxHandle, on_complete: *const OnComplete, operation: MxHandle) {
    // SAFETY: the engine passes a valid address; its content is copied.
    let on_complete = unsafe { *on_complete };
    // SAFETY: `mxnet_push` passed it, and the engine keeps it until the operation is done.
    let operation = unsafe { &*operation.cast::<Operation>() };
    let Some(api) = api() else { return };
    let done: NativeCallback = Box::new(move |answer| {
        api.complete(on_complete, answer.err().map(|failure| failure.text).as_deref());
    });
    let views = |arrays: &[Array]| arrays.iter().map(Array::view).collect::<Result<Vec<_>, _>>();
    let Operation { call, sources, targets } = operation;
    let in_place = sources.is_empty();
    let submitted = views(if in_place { targets } else { sources }).and_then(|sources| {
        let targets = views(targets)?;
        // SAFETY: MXNet's engine runs nothing else with these arrays, and keeps the operation with
        // their handles, until `done` has reported its completion.
        let operands = unsafe { operands(&sources, &targets, None) };
        SubmittedTensors::new(&sources, Tensors::Given(operands.map_err(Failure::invalid)?))
    });
    match submitted {
        Ok(submitted) => {
            let call = CollectiveCall {
                name: call.name.clone(),
                set: call.set,
                collective_request: call.collective_request.clone(),
            };
            native::submit(call, submitted, done);
        }
        Err(failure) => done(Err(failure)),
    }
}

/// Called by MXNet's engine when it is done with the operation.
extern "C" fn forget(operation: MxHandle) {
    // SAFETY: `mxnet_push` leaked it, and the engine passes it back once.
    drop(unsafe { Box::from_raw(operation.cast::<Operation>()) });
}
