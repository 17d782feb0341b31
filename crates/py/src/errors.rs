//! The one place where errors of the engine become the exceptions that Horovod's users catch.
//!
//! Frameworks pass on the text of an error that ends one of their operations, and nothing else. So
//! what is known of the end of a world is also kept here, from when the first caller is told of it
//! until the next world is joined, and nobody has to look for it in a text.

use std::sync::{Mutex, MutexGuard};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use ronde_core::{Error, Loss};

/// The error by which a caller was first told of the end of the world.
static LAST: Mutex<Option<Error>> = Mutex::new(None);

/// The exception for an error of which a caller is told.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    note(error);
    exception(py, error)
}

/// Keeps an error of which a caller is told, if it is the first that ends the world.
pub(crate) fn note(error: &Error) {
    if error.loss().is_some() {
        last().get_or_insert_with(|| error.clone());
    }
}

/// Forgets what was kept: there is a new world.
pub(crate) fn forget() {
    *last() = None;
}

/// The exception for the end of the world, if a caller has been told of it.
#[pyfunction]
pub(crate) fn last_loss(py: Python<'_>) -> Option<Py<PyAny>> {
    let error = last().clone();
    error.map(|error| exception(py, &error).into_value(py).into_any())
}

fn last() -> MutexGuard<'static, Option<Error>> {
    LAST.lock().expect("nothing panics while it holds this lock")
}

fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Invalid(_) | Error::Setup(_) => PyValueError::new_err(text),
        Error::Removed { .. } => of_class(py, "WorkerRemovedError", &text, None),
        _ => of_class(py, "HorovodInternalError", &text, error.loss()),
    }
}

/// An exception of a class of `horovod.common.exceptions`.
fn of_class(py: Python<'_>, name: &str, text: &str, loss: Option<Loss>) -> PyErr {
    let made = || -> PyResult<PyErr> {
        let class = py.import("horovod.common.exceptions")?.getattr(name)?;
        let known = PyDict::new(py);
        if let Some(Loss { ranks, hosts, kind, tensor }) = loss {
            known.set_item("ranks", ranks.iter().map(|rank| rank.0).collect::<Vec<_>>())?;
            known.set_item("hosts", hosts)?;
            known.set_item("cause", kind.to_string())?;
            known.set_item("tensor", tensor)?;
        }
        Ok(PyErr::from_value(class.call((text,), Some(&known))?))
    };
    made().unwrap_or_else(|_| PyRuntimeError::new_err(text.to_owned()))
}
