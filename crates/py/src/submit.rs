//! The functions that submit: each turns its arguments into a request and gives a handle.
#![expect(clippy::too_many_arguments, reason = "these are the signatures that Python calls")]

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ronde_control::negotiate::{Kind, Request};
use ronde_control::{DType, Rank, ReduceOp, SetId};
use ronde_core::buffer::Region;
use ronde_core::engine::Next;

use super::errors;
use super::handles::{self, Answer};
use super::native::{self, Reduce};
use super::process;
use super::tensor::View;

/// Submits a reduction and returns its handle.
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
    let kind = Kind::Allreduce { op, prescale, postscale };
    one_to_one(input, output, name, kind, set, next(lazy))
}

/// Submits reductions that are negotiated and run as one.
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
    let kind = Kind::Allreduce { op, prescale, postscale };
    let (sources, keep) = group(inputs, View::of)?;
    let (targets, outputs) = group(outputs, View::of_target)?;
    View::check_group(&sources, &targets)?;
    let request = request(name, set, kind, &sources);
    let (sources, targets) = (regions(&sources), regions(&targets));
    handles::submit(request, sources, targets, Answer::Outputs(outputs), keep, next(lazy))
}

/// Submits a gathering along the first dimension.
#[pyfunction]
#[pyo3(signature = (input, name, lazy = false, process_set = 0))]
pub(crate) fn allgather(
    input: &Bound<'_, PyAny>,
    name: String,
    lazy: bool,
    process_set: u32,
) -> PyResult<u64> {
    one_to_made(input, name, Kind::Allgather, SetId(process_set), next(lazy))
}

/// Submits gatherings that are negotiated and run as one.
#[pyfunction]
#[pyo3(signature = (inputs, name, lazy = false, process_set = 0))]
pub(crate) fn grouped_allgather(
    inputs: &Bound<'_, PyAny>,
    name: String,
    lazy: bool,
    process_set: u32,
) -> PyResult<u64> {
    many_to_made(inputs, name, Kind::Allgather, SetId(process_set), next(lazy))
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
    one_to_one(input, output, name, Kind::Broadcast { root }, SetId(process_set), next(lazy))
}

/// Submits an exchange of parts of the first dimension.
#[pyfunction]
#[pyo3(signature = (input, splits, name, lazy = false, process_set = 0))]
pub(crate) fn alltoall(
    input: &Bound<'_, PyAny>,
    splits: Vec<u64>,
    name: String,
    lazy: bool,
    process_set: u32,
) -> PyResult<u64> {
    one_to_made(input, name, Kind::Alltoall { splits }, SetId(process_set), next(lazy))
}

/// Submits a reduction of which each rank gets its part of the first dimension.
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
    let kind = Kind::Reducescatter { op, prescale, postscale };
    one_to_made(input, name, kind, set, next(lazy))
}

/// Submits such reductions that are negotiated and run as one.
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
    let kind = Kind::Reducescatter { op, prescale, postscale };
    many_to_made(inputs, name, kind, set, next(lazy))
}

/// Submits a barrier.
#[pyfunction]
#[pyo3(signature = (name, lazy = false, process_set = 0))]
pub(crate) fn barrier(name: String, lazy: bool, process_set: u32) -> PyResult<u64> {
    command(name, Kind::Barrier, SetId(process_set), next(lazy))
}

/// Contributes nothing until everybody has joined.
#[pyfunction]
#[pyo3(signature = (lazy = false))]
pub(crate) fn join(lazy: bool) -> PyResult<u64> {
    handles::submit_join(next(lazy))
}

/// Submits the making of a set of ranks.
#[pyfunction]
pub(crate) fn add_process_set(ranks: Vec<i64>) -> PyResult<u64> {
    // A negative rank is as far outside as the largest number.
    let rank = |rank: i64| Rank(u32::try_from(rank).unwrap_or(u32::MAX));
    let mut ranks: Vec<Rank> = ranks.into_iter().map(rank).collect();
    ranks.sort_unstable();
    command("process_set.noname.add".into(), Kind::AddSet { ranks }, SetId::WORLD, Next::Waits)
}

/// Submits the removal of a set of ranks.
#[pyfunction]
pub(crate) fn remove_process_set(id: u32) -> PyResult<u64> {
    let kind = Kind::RemoveSet { set: SetId(id) };
    command("process_set.noname.remove".into(), kind, SetId::WORLD, Next::Waits)
}

fn next(lazy: bool) -> Next {
    if lazy { Next::Waits } else { Next::GoesOn }
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
    kind: Kind,
    set: SetId,
    next: Next,
) -> PyResult<u64> {
    let (source, target) = (View::of(input)?, View::of_target(output)?);
    source.check_same(&target)?;
    let (sources, targets) = (vec![source.region], vec![target.region]);
    let request = Request { name, set, kind, dtype: source.dtype, shapes: vec![source.shape] };
    let answer = Answer::Output(output.clone().unbind());
    handles::submit(request, sources, targets, answer, vec![input.clone().unbind()], next)
}

fn one_to_made(
    input: &Bound<'_, PyAny>,
    name: String,
    kind: Kind,
    set: SetId,
    next: Next,
) -> PyResult<u64> {
    let source = View::of(input)?;
    let sources = vec![source.region];
    let request = Request { name, set, kind, dtype: source.dtype, shapes: vec![source.shape] };
    handles::submit(request, sources, vec![], Answer::Made, vec![input.clone().unbind()], next)
}

fn many_to_made(
    inputs: &Bound<'_, PyAny>,
    name: String,
    kind: Kind,
    set: SetId,
    next: Next,
) -> PyResult<u64> {
    let (sources, keep) = group(inputs, View::of)?;
    View::check_group(&sources, &sources)?;
    let request = request(name, set, kind, &sources);
    handles::submit(request, regions(&sources), vec![], Answer::MadeGroup, keep, next)
}

fn command(name: String, kind: Kind, set: SetId, next: Next) -> PyResult<u64> {
    let request = Request { name, set, kind, dtype: DType::U8, shapes: vec![] };
    handles::submit(request, vec![], vec![], Answer::Nothing, vec![], next)
}

fn request(name: String, set: SetId, kind: Kind, views: &[View]) -> Request {
    let dtype = views.first().map_or(DType::F32, |view| view.dtype);
    let shapes = views.iter().map(|view| view.shape.clone()).collect();
    Request { name, set, kind, dtype, shapes }
}

fn regions(views: &[View]) -> Vec<Region> {
    views.iter().map(|view| view.region).collect()
}

/// The tensors of a group, and the objects that keep them alive.
fn group(
    tensors: &Bound<'_, PyAny>,
    view: impl Fn(&Bound<'_, PyAny>) -> PyResult<View>,
) -> PyResult<(Vec<View>, Vec<Py<PyAny>>)> {
    let tensors: Vec<Bound<'_, PyAny>> = tensors.try_iter()?.collect::<PyResult<_>>()?;
    let views = tensors.iter().map(view).collect::<PyResult<_>>()?;
    Ok((views, tensors.into_iter().map(Bound::unbind).collect()))
}
