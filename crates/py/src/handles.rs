//! Handles: numbers for what is in flight, and the Python objects that must live until then.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ronde_control::negotiate::Request;
use ronde_core::buffer::Region;
use ronde_core::engine::{Next, Outcome, Ticket};

use super::process::{SIGNAL_CHECK, engine};
use super::{capsule, errors, list};

/// What `wait` gives for a handle.
pub(crate) enum Answer {
    /// The tensor that the result was written to.
    Output(Py<PyAny>),
    /// The tensors of a group.
    Outputs(Vec<Py<PyAny>>),
    /// Memory of our own.
    Gathered,
    /// Nothing.
    Nothing,
}

struct Flight {
    ticket: Arc<Ticket>,
    result: Answer,
    /// Inputs that must not be freed while the engine reads them.
    _keep: Vec<Py<PyAny>>,
}

static FLIGHTS: Mutex<Option<Table>> = Mutex::new(None);

#[derive(Default)]
struct Table {
    flights: HashMap<u64, Flight>,
    next: u64,
}

pub(crate) fn submit(
    request: Request,
    sources: Vec<Region>,
    targets: Vec<Region>,
    result: Answer,
    keep: Vec<Py<PyAny>>,
    next: Next,
) -> PyResult<u64> {
    let engine = engine()?;
    let ticket = engine
        .submit(request, sources, targets, next)
        .map_err(|error| Python::attach(|py| errors::raise(py, &error)))?;
    let mut table = lock();
    let table = table.get_or_insert_default();
    let handle = table.next;
    table.next += 1;
    table.flights.insert(handle, Flight { ticket, result, _keep: keep });
    Ok(handle)
}

/// Whether `wait` would return at once.
#[pyfunction]
pub(crate) fn poll(handle: u64) -> PyResult<bool> {
    let table = lock();
    match table.as_ref().and_then(|table| table.flights.get(&handle)) {
        Some(flight) => Ok(flight.ticket.is_done()),
        None => Err(PyValueError::new_err(format!(
            "Handle {handle} was not created or has been cleared."
        ))),
    }
}

/// Waits for a handle and forgets it; gives nothing for a handle that is not known.
#[pyfunction]
pub(crate) fn wait(py: Python<'_>, handle: u64) -> PyResult<Option<Py<PyAny>>> {
    let flight = lock().as_mut().and_then(|table| table.flights.remove(&handle));
    let Some(flight) = flight else { return Ok(None) };
    let outcome = loop {
        let deadline = Instant::now() + SIGNAL_CHECK;
        if !flight.ticket.is_done() {
            // A shutdown completes every ticket, so what is not done has an engine.
            let engine = engine()?;
            py.detach(|| engine.wait(&flight.ticket, deadline));
        }
        if let Some(outcome) = flight.ticket.take() {
            break outcome;
        }
        if let Err(interrupt) = py.check_signals() {
            // The engine still owns the memory: the handle stays, and so do its tensors.
            lock().get_or_insert_default().flights.insert(handle, flight);
            return Err(interrupt);
        }
    };
    match (outcome, flight.result) {
        (Err(error), _) => Err(errors::raise(py, &error)),
        (Ok(Outcome::Gathered { buffer, rows }), _) => {
            let capsule = capsule::export(py, buffer)?;
            Ok(Some((capsule, rows).into_pyobject(py)?.into_any().unbind()))
        }
        (Ok(Outcome::Done), Answer::Output(output)) => Ok(Some(output)),
        (Ok(Outcome::Done), Answer::Outputs(outputs)) => list(py, outputs).map(Some),
        (Ok(Outcome::Done), Answer::Gathered | Answer::Nothing) => Ok(None),
    }
}

/// Handles of an earlier world mean nothing in this one; their numbers are not used again.
pub(crate) fn forget_all() {
    if let Some(table) = lock().as_mut() {
        table.flights.clear();
    }
}

fn lock() -> MutexGuard<'static, Option<Table>> {
    FLIGHTS.lock().expect("nothing panics while it holds this lock")
}
