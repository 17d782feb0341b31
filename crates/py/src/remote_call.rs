//! What a rank of `horovod.run` needs besides the engine: its function, and the delivery of its
//! result.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ronde_control::Rank;
use ronde_control::launcher;
use ronde_control::settings::{self, RendezvousInfo};
use ronde_core::engine::remote_call::{self, ResultUpload};

use super::errors;
use super::process::interruptible;

/// The serialized function of this `horovod.run` job.
#[pyfunction]
pub(crate) fn fetch_function(py: Python<'_>) -> PyResult<Bound<'_, PyBytes>> {
    let (rendezvous_info, rank) = place()?;
    let fetched = interruptible(py, move || remote_call::fetch(&rendezvous_info, rank))?;
    let bytes = fetched.map_err(|error| errors::raise(py, &error))?;
    Ok(PyBytes::new(py, &bytes))
}

/// Sends this rank's serialized result to the caller of `horovod.run`; returns when it has arrived.
#[pyfunction]
pub(crate) fn deliver_result(py: Python<'_>, result: &[u8]) -> PyResult<()> {
    let (rendezvous_info, rank) = place()?;
    let begun = py.detach(|| ResultUpload::begin(&rendezvous_info, rank));
    let mut delivery = begun.map_err(|error| errors::raise(py, &error))?;
    for piece in result.chunks(ResultUpload::MOST) {
        py.detach(|| delivery.send(piece)).map_err(|error| errors::raise(py, &error))?;
        py.check_signals()?;
    }
    py.detach(|| delivery.end()).map_err(|error| errors::raise(py, &error))
}

fn place() -> PyResult<(RendezvousInfo, Rank)> {
    let variable = |name: &str| std::env::var(name).ok();
    let rendezvous_info = settings::call(variable).map_err(|error| {
        PyRuntimeError::new_err(format!("this works only in a job of `horovod.run`: {error}"))
    })?;
    // In an elastic job ranks change, so the launcher identifies a process by its worker number.
    let numbers = [settings::RONDE_WORKER, settings::HOROVOD_RANK];
    let number = numbers.iter().find_map(|setting| variable(setting.name)?.parse().ok());
    // Other launchers have their own variables for the rank.
    let launched = || launcher::detect(variable).ok().flatten().map(|started| started.rank);
    Ok((rendezvous_info, number.map(Rank).or_else(launched).unwrap_or(Rank(0))))
}
