//! The one place where errors of the engine become the exceptions that Horovod's users catch.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyType;
use ronde_core::Error;

/// The exception for an error.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Invalid(_) | Error::Setup(_) => PyValueError::new_err(text),
        Error::Removed { .. } => of_class(py, "WorkerRemovedError", text),
        _ => of_class(py, "HorovodInternalError", text),
    }
}

/// An exception of a class of `horovod.common.exceptions`.
fn of_class(py: Python<'_>, name: &str, text: String) -> PyErr {
    let found = || -> PyResult<Bound<'_, PyType>> {
        Ok(py.import("horovod.common.exceptions")?.getattr(name)?.cast_into()?)
    };
    match found() {
        Ok(class) => PyErr::from_type(class, text),
        Err(_) => PyRuntimeError::new_err(text),
    }
}
