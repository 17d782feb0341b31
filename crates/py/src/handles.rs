//! Handles: numbers for operations in flight, and the Python objects that they keep alive.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use ronde_control::negotiate::Request;
use ronde_core::buffer::KeepAlive;
use ronde_core::engine::{AfterSubmit, Engine, Outcome, OwnedResult, Ticket};

use super::capsule::{self, CapsuleMemory};
use super::process::{SIGNAL_CHECK, engine, park_at_exit};
use super::tensor::{BorrowedTensors, PlacedResults};
use super::{child, errors, gpu};

/// What `wait` returns for a handle.
pub(crate) enum WaitResult {
    /// The tensor that the result was written to.
    Output(Py<PyAny>),
    /// The tensors of a group.
    Outputs(Vec<Py<PyAny>>),
    /// Our memory.
    Made,
    /// Our memory for each tensor of a group.
    MadeGroup,
    /// No value, as for a barrier.
    Nothing,
}

struct HandleEntry {
    /// The engine that runs it; `None` once the engine has ended and the ticket is certainly done.
    engine: Option<Arc<Engine>>,
    ticket: Arc<Ticket>,
    answer: WaitResult,
    placed: PlacedResults,
    /// Keeps the tensors longer than the engine does, so that they are dropped under the
    /// interpreter lock.
    _keeper: KeepAlive,
}

static HANDLES: Mutex<Option<Table>> = Mutex::new(None);

#[derive(Default)]
struct Table {
    entries: HashMap<u64, HandleEntry>,
    next: u64,
}

pub(crate) fn submit(
    request: Request,
    BorrowedTensors { tensors, keeper, placed }: BorrowedTensors,
    answer: WaitResult,
    next: AfterSubmit,
) -> PyResult<u64> {
    let engine = engine()?;
    let ticket = engine
        .submit(request, tensors, next)
        .map_err(|error| Python::attach(|py| errors::raise(py, &error)))?;
    Ok(insert(HandleEntry { engine: Some(engine), ticket, answer, placed, _keeper: keeper }))
}

/// Submits a join.
pub(crate) fn submit_join(next: AfterSubmit) -> PyResult<u64> {
    let engine = engine()?;
    let ticket =
        engine.join_in(next).map_err(|error| Python::attach(|py| errors::raise(py, &error)))?;
    let BorrowedTensors { keeper, placed, .. } = BorrowedTensors::nothing();
    let answer = WaitResult::Nothing;
    Ok(insert(HandleEntry { engine: Some(engine), ticket, answer, placed, _keeper: keeper }))
}

fn insert(entry: HandleEntry) -> u64 {
    let mut table = lock();
    let table = table.get_or_insert_default();
    let handle = table.next;
    table.next += 1;
    table.entries.insert(handle, entry);
    handle
}

/// Whether the handles here belong to the process that this one was forked from, whose engine must
/// not be driven from here.
static FOREIGN: AtomicBool = AtomicBool::new(false);

/// Called in a forked child before anything else.
#[pyfunction]
pub(crate) fn forked() {
    FOREIGN.store(true, Ordering::Relaxed);
}

/// From now on this process has its own handles.
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
    match table.as_ref().and_then(|table| table.entries.get(&handle)) {
        Some(entry) => Ok(entry.ticket.is_ready()),
        None => Err(PyValueError::new_err(format!(
            "Handle {handle} was not created or has been cleared."
        ))),
    }
}

/// Waits for a handle and forgets it; returns `None` for an unknown handle.
#[pyfunction]
pub(crate) fn wait(py: Python<'_>, handle: u64) -> PyResult<Option<Py<PyAny>>> {
    check_own()?;
    let entry = lock().as_mut().and_then(|table| table.entries.remove(&handle));
    let Some(entry) = entry else { return Ok(None) };
    let outcome = loop {
        let deadline = Instant::now() + SIGNAL_CHECK;
        if let Some(engine) = &entry.engine
            && !entry.ticket.is_done()
        {
            py.detach(|| {
                engine.wait(&entry.ticket, deadline);
                park_at_exit();
            });
        }
        if let Some(outcome) = entry.ticket.take() {
            break outcome;
        }
        if let Err(interrupt) = py.check_signals() {
            // The engine still owns the memory: the handle stays, and so do its tensors.
            lock().get_or_insert_default().entries.insert(handle, entry);
            return Err(interrupt);
        }
    };
    match (outcome, entry.answer) {
        (Err(error), _) => Err(errors::raise(py, &error)),
        (Ok(Outcome::Made(made)), answer) => {
            let give = |OwnedResult { buffer, rows }| -> PyResult<Py<PyAny>> {
                let capsule = capsule::export(py, CapsuleMemory::Result(buffer))?;
                Ok((capsule, rows).into_pyobject(py)?.into_any().unbind())
            };
            let mut made = made.into_iter().map(give).collect::<PyResult<Vec<_>>>()?;
            match answer {
                WaitResult::MadeGroup => list(py, made).map(Some),
                _ => Ok(made.pop()),
            }
        }
        (Ok(Outcome::Launched { done, rows }), answer) => {
            if let Some(error) = entry.engine.as_deref().and_then(gpu::broken) {
                return Err(errors::raise(py, &error));
            }
            gpu::wait_for(py, done)?;
            let mut placed = entry.placed.lock().expect("nothing panics with this lock");
            let give = |(tensor, rows): (Py<PyAny>, Vec<u64>)| -> PyResult<Py<PyAny>> {
                Ok((tensor, rows).into_pyobject(py)?.into_any().unbind())
            };
            let mut made =
                placed.drain(..).zip(rows).map(give).collect::<PyResult<Vec<Py<PyAny>>>>()?;
            match answer {
                WaitResult::Output(output) => Ok(Some(output)),
                WaitResult::Outputs(outputs) => list(py, outputs).map(Some),
                WaitResult::MadeGroup => list(py, made).map(Some),
                WaitResult::Made | WaitResult::Nothing => Ok(made.pop()),
            }
        }
        (Ok(Outcome::Joined { last }), _) => number(py, last.0),
        (Ok(Outcome::SetAdded { id }), _) => number(py, id.0),
        (Ok(Outcome::Done), WaitResult::Output(output)) => Ok(Some(output)),
        (Ok(Outcome::Done), WaitResult::Outputs(outputs)) => list(py, outputs).map(Some),
        (Ok(Outcome::Done), WaitResult::Made | WaitResult::MadeGroup | WaitResult::Nothing)
        | (Ok(Outcome::Placed(_)), _) => Ok(None),
    }
}

fn list(py: Python<'_>, objects: Vec<Py<PyAny>>) -> PyResult<Py<PyAny>> {
    Ok(PyList::new(py, objects)?.into_any().unbind())
}

fn number(py: Python<'_>, number: u32) -> PyResult<Option<Py<PyAny>>> {
    Ok(Some(number.into_pyobject(py)?.into_any().unbind()))
}

/// Releases an engine that has ended: all its tickets are done.
pub(crate) fn release_engine(engine: &Arc<Engine>) {
    if let Some(table) = lock().as_mut() {
        for entry in table.entries.values_mut() {
            entry.engine.take_if(|theirs| Arc::ptr_eq(theirs, engine));
        }
    }
}

/// Forgets handles of an earlier world; their numbers are not reused.
pub(crate) fn forget_done() {
    let mut forgotten = Vec::new();
    if let Some(table) = lock().as_mut() {
        let done = table.entries.extract_if(|_, entry| entry.ticket.is_done());
        forgotten.extend(done);
    }
    // Dropping them may run Python code, which must find the table unlocked.
    drop(forgotten);
}

fn lock() -> MutexGuard<'static, Option<Table>> {
    HANDLES.lock().expect("nothing panics while it holds this lock")
}
