//! Handles: numbers for what is in flight, and the Python objects that must live until then.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use ronde_control::negotiate::Request;
use ronde_core::buffer::Keeper;
use ronde_core::engine::{Engine, Made, Next, Outcome, Ticket};

use super::capsule::{self, Memory};
use super::process::{SIGNAL_CHECK, engine, stay_out_at_exit};
use super::tensor::Lent;
use super::{child, errors};

/// What `wait` gives for a handle.
pub(crate) enum Answer {
    /// The tensor that the result was written to.
    Output(Py<PyAny>),
    /// The tensors of a group.
    Outputs(Vec<Py<PyAny>>),
    /// Memory of our own.
    Made,
    /// Memory of our own for each tensor of a group.
    MadeGroup,
    /// Nothing.
    Nothing,
}

struct Flight {
    /// The engine that it flies in, until that has ended and the ticket is done for certain.
    engine: Option<Arc<Engine>>,
    ticket: Arc<Ticket>,
    answer: Answer,
    /// Keeps the tensors longer than the engine does, so that they die under the interpreter's lock.
    _keeper: Keeper,
}

static FLIGHTS: Mutex<Option<Table>> = Mutex::new(None);

#[derive(Default)]
struct Table {
    flights: HashMap<u64, Flight>,
    next: u64,
}

pub(crate) fn submit(
    request: Request,
    Lent { tensors, keeper }: Lent,
    answer: Answer,
    next: Next,
) -> PyResult<u64> {
    let engine = engine()?;
    let ticket = engine
        .submit(request, tensors, next)
        .map_err(|error| Python::attach(|py| errors::raise(py, &error)))?;
    Ok(keep_flight(Flight { engine: Some(engine), ticket, answer, _keeper: keeper }))
}

/// Submits a joining.
pub(crate) fn submit_join(next: Next) -> PyResult<u64> {
    let engine = engine()?;
    let ticket =
        engine.join_in(next).map_err(|error| Python::attach(|py| errors::raise(py, &error)))?;
    let (answer, keeper) = (Answer::Nothing, Lent::nothing().keeper);
    Ok(keep_flight(Flight { engine: Some(engine), ticket, answer, _keeper: keeper }))
}

fn keep_flight(flight: Flight) -> u64 {
    let mut table = lock();
    let table = table.get_or_insert_default();
    let handle = table.next;
    table.next += 1;
    table.flights.insert(handle, flight);
    handle
}

/// Whether the handles here are those of the process that this one was forked from, whose engine is
/// not to be driven from here.
static FOREIGN: AtomicBool = AtomicBool::new(false);

/// Called in a forked child before anything else.
#[pyfunction]
pub(crate) fn forked() {
    FOREIGN.store(true, Ordering::Relaxed);
}

/// From now on this process has handles of its own.
pub(crate) fn after_joining() {
    FOREIGN.store(false, Ordering::Relaxed);
}

fn check_own() -> PyResult<()> {
    match FOREIGN.load(Ordering::Relaxed) {
        true => child::refusal().map_or(Ok(()), Err),
        false => Ok(()),
    }
}

/// Whether `wait` would return at once.
#[pyfunction]
pub(crate) fn poll(handle: u64) -> PyResult<bool> {
    check_own()?;
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
    check_own()?;
    let flight = lock().as_mut().and_then(|table| table.flights.remove(&handle));
    let Some(flight) = flight else { return Ok(None) };
    let outcome = loop {
        let deadline = Instant::now() + SIGNAL_CHECK;
        if let Some(engine) = &flight.engine
            && !flight.ticket.is_done()
        {
            py.detach(|| {
                engine.wait(&flight.ticket, deadline);
                stay_out_at_exit();
            });
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
    match (outcome, flight.answer) {
        (Err(error), _) => Err(errors::raise(py, &error)),
        (Ok(Outcome::Made(made)), answer) => {
            let give = |Made { buffer, rows }| -> PyResult<Py<PyAny>> {
                let capsule = capsule::export(py, Memory::Result(buffer))?;
                Ok((capsule, rows).into_pyobject(py)?.into_any().unbind())
            };
            let mut made = made.into_iter().map(give).collect::<PyResult<Vec<_>>>()?;
            match answer {
                Answer::MadeGroup => list(py, made).map(Some),
                _ => Ok(made.pop()),
            }
        }
        (Ok(Outcome::Joined { last }), _) => number(py, last.0),
        (Ok(Outcome::SetAdded { id }), _) => number(py, id.0),
        (Ok(Outcome::Done), Answer::Output(output)) => Ok(Some(output)),
        (Ok(Outcome::Done), Answer::Outputs(outputs)) => list(py, outputs).map(Some),
        (Ok(Outcome::Done), Answer::Made | Answer::MadeGroup | Answer::Nothing)
        | (Ok(Outcome::Placed(_)), _) => Ok(None),
    }
}

fn list(py: Python<'_>, objects: Vec<Py<PyAny>>) -> PyResult<Py<PyAny>> {
    Ok(PyList::new(py, objects)?.into_any().unbind())
}

fn number(py: Python<'_>, number: u32) -> PyResult<Option<Py<PyAny>>> {
    Ok(Some(number.into_pyobject(py)?.into_any().unbind()))
}

/// After an engine's end every ticket of it is done, and nothing needs it any more.
pub(crate) fn let_go_of(engine: &Arc<Engine>) {
    if let Some(table) = lock().as_mut() {
        for flight in table.flights.values_mut() {
            flight.engine.take_if(|theirs| Arc::ptr_eq(theirs, engine));
        }
    }
}

/// Handles of an earlier world mean nothing in this one; their numbers are not used again.
pub(crate) fn forget_done() {
    let mut forgotten = Vec::new();
    if let Some(table) = lock().as_mut() {
        let done = table.flights.extract_if(|_, flight| flight.ticket.is_done());
        forgotten.extend(done);
    }
    // Dropping them may run Python code, which must find the table unlocked.
    drop(forgotten);
}

fn lock() -> MutexGuard<'static, Option<Table>> {
    FLIGHTS.lock().expect("nothing panics while it holds this lock")
}
