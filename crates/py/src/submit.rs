//! The functions that submit: each turns its arguments into a request and returns a handle.
#![expect(clippy::too_many_arguments, reason = "these are the signatures that Python calls")]

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ronde_control::negotiate::{CollectiveKind, Request};
use ronde_control::{DType, DeviceKind, Rank, ReduceOp, SetId};
use ronde_core::engine::AfterSubmit;

use super::errors;
use super::handles::{self, WaitResult};
use super::native::{self, Reduce};
use super::process;
use super::tensor::{BorrowedTensors, PyTensor};

/// Submits an allreduce.
#[pyfunction]
#[pyo3(signature = (
    input, output, name, op, prescale = 1.0, postscale = 1.0, lazy = false, process_set = 0
))]
pub(crate) fn allreduce(
    input: &Bound<'_, PyAny>,
    output: &Bound<'_, PyAny>,
    name: String,
    op: i32,
    prescale: f64,
    postscale: f64,
    lazy: bool,
    process_set: u32,
) -> PyResult<u64> {
    let set = SetId(process_set);
    let (op, prescale, postscale) = reduction(op, prescale, postscale, set)?;
    let kind = CollectiveKind::Allreduce { op, prescale, postscale };
    one_to_one(input, output, name, kind, set, next(lazy))
}

/// Submits allreduces that are negotiated and run as one.
#[pyfunction]
#[pyo3(signature = (
    inputs, outputs, name, op, prescale = 1.0, postscale = 1.0, lazy = false, process_set = 0
))]
pub(crate) fn grouped_allreduce(
    inputs: &Bound<'_, PyAny>,
    outputs: &Bound<'_, PyAny>,
    name: String,
    op: i32,
    prescale: f64,
    postscale: f64,
    lazy: bool,
    process_set: u32,
) -> PyResult<u64> {
    let set = SetId(process_set);
    let (op, prescale, postscale) = reduction(op, prescale, postscale, set)?;
    let kind = CollectiveKind::Allreduce { op, prescale, postscale };
    let sources = group(inputs)?;
    let outputs: Vec<Bound<'_, PyAny>> = outputs.try_iter()?.collect::<PyResult<_>>()?;
    let targets = outputs.iter().map(PyTensor::of_target).collect::<PyResult<_>>()?;
    let request = request(name, set, kind, &sources);
    let answer = WaitResult::Outputs(outputs.into_iter().map(Bound::unbind).collect());
    handles::submit(request, BorrowedTensors::pairs(sources, targets)?, answer, next(lazy))
}

/// Submits an allgather along the first dimension.
#[pyfunction]
#[pyo3(signature = (input, name, lazy = false, process_set = 0))]
pub(crate) fn allgather(
    input: &Bound<'_, PyAny>,
    name: String,
    lazy: bool,
    process_set: u32,
) -> PyResult<u64> {
    one_to_made(input, name, CollectiveKind::Allgather, SetId(process_set), next(lazy))
}

/// Submits allgathers that are negotiated and run as one.
#[pyfunction]
#[pyo3(signature = (inputs, name, lazy = false, process_set = 0))]
pub(crate) fn grouped_allgather(
    inputs: &Bound<'_, PyAny>,
    name: String,
    lazy: bool,
    process_set: u32,
) -> PyResult<u64> {
    many_to_made(inputs, name, CollectiveKind::Allgather, SetId(process_set), next(lazy))
}

/// Submits a broadcast from `root` into `output`.
#[pyfunction]
#[pyo3(signature = (input, output, name, root, lazy = false, process_set = 0))]
pub(crate) fn broadcast(
    input: &Bound<'_, PyAny>,
    output: &Bound<'_, PyAny>,
    name: String,
    root: i64,
    lazy: bool,
    process_set: u32,
) -> PyResult<u64> {
    let root = native::rank(root).map_err(|error| errors::raise(input.py(), &error))?;
    one_to_one(
        input,
        output,
        name,
        CollectiveKind::Broadcast { root },
        SetId(process_set),
        next(lazy),
    )
}

/// Submits an alltoall of slices of the first dimension.
#[pyfunction]
#[pyo3(signature = (input, splits, name, lazy = false, process_set = 0))]
pub(crate) fn alltoall(
    input: &Bound<'_, PyAny>,
    splits: Vec<u64>,
    name: String,
    lazy: bool,
    process_set: u32,
) -> PyResult<u64> {
    one_to_made(input, name, CollectiveKind::Alltoall { splits }, SetId(process_set), next(lazy))
}

/// Submits a reducescatter: each rank gets its part of the first dimension.
#[pyfunction]
#[pyo3(signature = (
    input, name, op, prescale = 1.0, postscale = 1.0, lazy = false, process_set = 0
))]
pub(crate) fn reducescatter(
    input: &Bound<'_, PyAny>,
    name: String,
    op: i32,
    prescale: f64,
    postscale: f64,
    lazy: bool,
    process_set: u32,
) -> PyResult<u64> {
    let set = SetId(process_set);
    let (op, prescale, postscale) = reduction(op, prescale, postscale, set)?;
    let kind = CollectiveKind::Reducescatter { op, prescale, postscale };
    one_to_made(input, name, kind, set, next(lazy))
}

/// Submits reducescatters that are negotiated and run as one.
#[pyfunction]
#[pyo3(signature = (
    inputs, name, op, prescale = 1.0, postscale = 1.0, lazy = false, process_set = 0
))]
pub(crate) fn grouped_reducescatter(
    inputs: &Bound<'_, PyAny>,
    name: String,
    op: i32,
    prescale: f64,
    postscale: f64,
    lazy: bool,
    process_set: u32,
) -> PyResult<u64> {
    let set = SetId(process_set);
    let (op, prescale, postscale) = reduction(op, prescale, postscale, set)?;
    let kind = CollectiveKind::Reducescatter { op, prescale, postscale };
    many_to_made(inputs, name, kind, set, next(lazy))
}

/// Submits a barrier.
#[pyfunction]
#[pyo3(signature = (name, lazy = false, process_set = 0))]
pub(crate) fn barrier(name: String, lazy: bool, process_set: u32) -> PyResult<u64> {
    command(name, CollectiveKind::Barrier, SetId(process_set), next(lazy))
}

/// Contributes nothing until all ranks have joined.
#[pyfunction]
#[pyo3(signature = (lazy = false))]
pub(crate) fn join(lazy: bool) -> PyResult<u64> {
    handles::submit_join(next(lazy))
}

/// Submits the creation of a process set.
#[pyfunction]
pub(crate) fn add_process_set(ranks: Vec<i64>) -> PyResult<u64> {
    // A negative rank is as invalid as the largest number.
    let rank = |rank: i64| Rank(u32::try_from(rank).unwrap_or(u32::MAX));
    let mut ranks: Vec<Rank> = ranks.into_iter().map(rank).collect();
    ranks.sort_unstable();
    command(
        "process_set.noname.add".into(),
        CollectiveKind::AddSet { ranks },
        SetId::WORLD,
        AfterSubmit::Waits,
    )
}

/// Submits the removal of a process set.
#[pyfunction]
pub(crate) fn remove_process_set(id: u32) -> PyResult<u64> {
    let kind = CollectiveKind::RemoveSet { set: SetId(id) };
    command("process_set.noname.remove".into(), kind, SetId::WORLD, AfterSubmit::Waits)
}

fn next(lazy: bool) -> AfterSubmit {
    if lazy { AfterSubmit::Waits } else { AfterSubmit::GoesOn }
}

fn reduction(op: i32, prescale: f64, postscale: f64, set: SetId) -> PyResult<(ReduceOp, f64, f64)> {
    let reduce = Reduce { op: op.into(), prescale, postscale };
    native::reduction(&*process::engine()?, reduce, set)
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

fn one_to_one(
    input: &Bound<'_, PyAny>,
    output: &Bound<'_, PyAny>,
    name: String,
    kind: CollectiveKind,
    set: SetId,
    next: AfterSubmit,
) -> PyResult<u64> {
    let (source, target) = (PyTensor::of(input)?, PyTensor::of_target(output)?);
    let request = request(name, set, kind, std::slice::from_ref(&source));
    let answer = WaitResult::Output(output.clone().unbind());
    handles::submit(request, BorrowedTensors::pair(source, target)?, answer, next)
}

fn one_to_made(
    input: &Bound<'_, PyAny>,
    name: String,
    kind: CollectiveKind,
    set: SetId,
    next: AfterSubmit,
) -> PyResult<u64> {
    let source = PyTensor::of(input)?;
    let request = request(name, set, kind, std::slice::from_ref(&source));
    handles::submit(request, BorrowedTensors::sources(vec![source])?, WaitResult::Made, next)
}

fn many_to_made(
    inputs: &Bound<'_, PyAny>,
    name: String,
    kind: CollectiveKind,
    set: SetId,
    next: AfterSubmit,
) -> PyResult<u64> {
    let sources = group(inputs)?;
    let request = request(name, set, kind, &sources);
    handles::submit(request, BorrowedTensors::sources(sources)?, WaitResult::MadeGroup, next)
}

fn command(name: String, kind: CollectiveKind, set: SetId, next: AfterSubmit) -> PyResult<u64> {
    let request =
        Request { name, set, kind, dtype: DType::U8, shapes: vec![], device: DeviceKind::Cpu };
    handles::submit(request, BorrowedTensors::nothing(), WaitResult::Nothing, next)
}

fn request(name: String, set: SetId, kind: CollectiveKind, tensors: &[PyTensor]) -> Request {
    let dtype = tensors.first().map_or(DType::F32, PyTensor::dtype);
    let shapes = tensors.iter().map(|tensor| tensor.shape().to_vec()).collect();
    let device = tensors.first().map_or(DeviceKind::Cpu, PyTensor::device);
    Request { name, set, kind, dtype, shapes, device }
}

fn group(tensors: &Bound<'_, PyAny>) -> PyResult<Vec<PyTensor>> {
    tensors.try_iter()?.map(|tensor| PyTensor::of(&tensor?)).collect()
}
