//! The one place where errors of the engine become the exceptions that Horovod's users catch.
//!
//! Frameworks pass on only the text of an error that ends one of their operations. So the error
//! that ended a world is also kept here, from when it is first raised until the next world is
//! joined, and nobody has to parse a text.

use std::sync::{Mutex, MutexGuard};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use ronde_core::{Error, Loss};

/// The first error raised for the end of the world.
static LAST: Mutex<Option<Error>> = Mutex::new(None);

/// The exception for an error, which is remembered.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    remember(error);
    exception(py, error)
}

/// Remembers an error that is reported to a caller, if it is the first that ends the world.
pub(crate) fn remember(error: &Error) {
    if error.loss().is_some() {
        last().get_or_insert_with(|| error.clone());
    }
}

/// Forgets the remembered error: there is a new world.
pub(crate) fn forget() {
    *last() = None;
}

/// The exception for the end of the world, if one has been raised.
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
