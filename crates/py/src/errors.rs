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
        _ => match internal_error(py) {
            Ok(class) => PyErr::from_type(class, text),
            Err(_) => PyRuntimeError::new_err(text),
        },
    }
}

fn internal_error(py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
    let class = py.import("horovod.common.exceptions")?.getattr("HorovodInternalError")?;
    Ok(class.cast_into()?)
}
