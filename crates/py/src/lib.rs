//! The one native module, `horovod._native`: the engine of this process as Python sees it.
//!
//! Thin on purpose: arguments become requests, outcomes become objects, errors become the exceptions
//! that Horovod's users catch. The interpreter lock is released around every wait.

mod capsule;
mod errors;
mod handles;
mod process;
mod tensor;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use ronde_control::negotiate::{Kind, Request};
use ronde_control::{DType, Rank, ReduceOp};
use ronde_core::engine::Next;

use self::handles::Answer;
use self::tensor::View;

/// The engine of this process and what the framework adapters call.
#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::process::{
        cross_rank, cross_size, init, is_homogeneous, is_initialized, local_rank, local_size, rank,
        shutdown, size,
    };

    #[pymodule_export]
    use super::handles::{poll, wait};

    #[pymodule_init]
    fn start(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", ronde_control::VERSION)
    }

    /// Submits a reduction and returns its handle.
    #[pyfunction]
    #[pyo3(signature = (input, output, name, op, prescale = 1.0, postscale = 1.0, lazy = false))]
    #[expect(clippy::too_many_arguments, reason = "the signature that Python calls")]
    fn allreduce(
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        name: String,
        op: i32,
        prescale: f64,
        postscale: f64,
        lazy: bool,
    ) -> PyResult<u64> {
        let (source, target) = (View::of(input)?, View::of(output)?);
        source.check_same(&target)?;
        let kind = reduction(op, prescale, postscale)?;
        let request = Request { name, kind, dtype: source.dtype, shapes: vec![source.shape] };
        let result = Answer::Output(output.clone().unbind());
        let keep = vec![input.clone().unbind()];
        handles::submit(request, vec![source.region], vec![target.region], result, keep, next(lazy))
    }

    /// Submits reductions that are negotiated and run as one.
    #[pyfunction]
    #[pyo3(signature = (inputs, outputs, name, op, prescale = 1.0, postscale = 1.0, lazy = false))]
    #[expect(clippy::too_many_arguments, reason = "the signature that Python calls")]
    fn grouped_allreduce(
        inputs: &Bound<'_, PyAny>,
        outputs: &Bound<'_, PyAny>,
        name: String,
        op: i32,
        prescale: f64,
        postscale: f64,
        lazy: bool,
    ) -> PyResult<u64> {
        let (sources, keep) = group(inputs)?;
        let (targets, outputs) = group(outputs)?;
        View::check_group(&sources, &targets)?;
        let kind = reduction(op, prescale, postscale)?;
        let dtype = sources.first().map_or(DType::F32, |view| view.dtype);
        let shapes = sources.iter().map(|view| view.shape.clone()).collect();
        let request = Request { name, kind, dtype, shapes };
        let regions = |views: Vec<View>| views.into_iter().map(|view| view.region).collect();
        let (sources, targets) = (regions(sources), regions(targets));
        handles::submit(request, sources, targets, Answer::Outputs(outputs), keep, next(lazy))
    }

    /// Submits a gathering along the first dimension.
    #[pyfunction]
    #[pyo3(signature = (input, name, lazy = false))]
    fn allgather(input: &Bound<'_, PyAny>, name: String, lazy: bool) -> PyResult<u64> {
        let source = View::of(input)?;
        let shapes = vec![source.shape];
        let request = Request { name, kind: Kind::Allgather, dtype: source.dtype, shapes };
        let keep = vec![input.clone().unbind()];
        handles::submit(request, vec![source.region], vec![], Answer::Gathered, keep, next(lazy))
    }

    /// Submits a broadcast from `root` into `output`.
    #[pyfunction]
    #[pyo3(signature = (input, output, name, root, lazy = false))]
    fn broadcast(
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        name: String,
        root: i64,
        lazy: bool,
    ) -> PyResult<u64> {
        let (source, target) = (View::of(input)?, View::of(output)?);
        source.check_same(&target)?;
        // A negative root is as far outside as the largest number.
        let root = Rank(u32::try_from(root).unwrap_or(u32::MAX));
        let (dtype, shapes) = (source.dtype, vec![source.shape]);
        let request = Request { name, kind: Kind::Broadcast { root }, dtype, shapes };
        let result = Answer::Output(output.clone().unbind());
        let keep = vec![input.clone().unbind()];
        handles::submit(request, vec![source.region], vec![target.region], result, keep, next(lazy))
    }

    /// Submits a barrier.
    #[pyfunction]
    #[pyo3(signature = (name, lazy = false))]
    fn barrier(name: String, lazy: bool) -> PyResult<u64> {
        let request = Request { name, kind: Kind::Barrier, dtype: DType::U8, shapes: vec![] };
        handles::submit(request, vec![], vec![], Answer::Nothing, vec![], next(lazy))
    }
}

fn next(lazy: bool) -> Next {
    if lazy { Next::Waits } else { Next::GoesOn }
}

/// Horovod's number of an operation as the engine knows it; an average is a sum with a factor.
fn reduction(op: i32, prescale: f64, postscale: f64) -> PyResult<Kind> {
    let (op, postscale) = match op {
        0 => (ReduceOp::Sum, postscale / f64::from(process::size()?)),
        1 => (ReduceOp::Sum, postscale),
        3 => (ReduceOp::Min, postscale),
        4 => (ReduceOp::Max, postscale),
        5 => (ReduceOp::Product, postscale),
        other => {
            let text = format!("there is no reduction with the number {other}");
            return Err(PyValueError::new_err(text));
        }
    };
    Ok(Kind::Allreduce { op, prescale, postscale })
}

/// The tensors of a group, and the objects that keep them alive.
fn group(tensors: &Bound<'_, PyAny>) -> PyResult<(Vec<View>, Vec<Py<PyAny>>)> {
    let tensors: Vec<Bound<'_, PyAny>> = tensors.try_iter()?.collect::<PyResult<_>>()?;
    let views = tensors.iter().map(View::of).collect::<PyResult<_>>()?;
    Ok((views, tensors.into_iter().map(Bound::unbind).collect()))
}

/// The outputs of a group as the list that `wait` gives.
fn list(py: Python<'_>, outputs: Vec<Py<PyAny>>) -> PyResult<Py<PyAny>> {
    Ok(PyList::new(py, outputs)?.into_any().unbind())
}
