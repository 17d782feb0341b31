//! What a rank of `horovod.run` needs beside the engine: the function, and the way back for its result.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ronde_control::Rank;
use ronde_control::launcher;
use ronde_control::settings::{self, Meeting};
use ronde_core::engine::errand::{self, Delivery};

use super::errors;
use super::process::interruptible;

/// The bytes that the caller of `horovod.run` gave for this job.
#[pyfunction]
pub(crate) fn fetch_function(py: Python<'_>) -> PyResult<Bound<'_, PyBytes>> {
    let (meeting, rank) = place()?;
    let fetched = interruptible(py, move || errand::fetch(&meeting, rank))?;
    let bytes = fetched.map_err(|error| errors::raise(py, &error))?;
    Ok(PyBytes::new(py, &bytes))
}

/// Gives the caller of `horovod.run` bytes from this rank; returns when they are there.
#[pyfunction]
pub(crate) fn deliver_result(py: Python<'_>, result: &[u8]) -> PyResult<()> {
    let (meeting, rank) = place()?;
    let begun = py.detach(|| Delivery::begin(&meeting, rank));
    let mut delivery = begun.map_err(|error| errors::raise(py, &error))?;
    for piece in result.chunks(Delivery::MOST) {
        py.detach(|| delivery.send(piece)).map_err(|error| errors::raise(py, &error))?;
        py.check_signals()?;
    }
    py.detach(|| delivery.end()).map_err(|error| errors::raise(py, &error))
}

fn place() -> PyResult<(Meeting, Rank)> {
    let variable = |name: &str| std::env::var(name).ok();
    let meeting = settings::call(variable).map_err(|error| {
        PyRuntimeError::new_err(format!("only `horovod.run` starts this: {error}"))
    })?;
    // In an elastic job ranks change, so there the launcher knows a process by its number for life.
    let names = ["RONDE_WORKER", "HOROVOD_RANK"];
    let number = names.iter().find_map(|name| variable(name)?.parse().ok());
    // Another launcher names ranks in its own way.
    let launched = || launcher::detect(variable).ok().flatten().map(|started| started.rank);
    Ok((meeting, number.map(Rank).or_else(launched).unwrap_or(Rank(0))))
}
