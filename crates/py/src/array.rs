//! NumPy arrays, in both directions: their memory for the engine, and our memory for NumPy. Both
//! use `__array_interface__`, a plain dictionary that every version of NumPy supports and that
//! needs none of its C functions.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use ronde_control::DType;

use super::capsule;
use super::tensor::{View, is_contiguous, unsupported};

/// The memory of an array.
pub(crate) fn view(array: &Bound<'_, PyAny>) -> PyResult<View> {
    let py = array.py();
    // A NumPy scalar has the interface too, but it describes a temporary copy.
    if !array.hasattr(intern!(py, "__array_finalize__"))? {
        return Err(PyTypeError::new_err(format!(
            "this is a scalar of type `{}`; convert it to an array with `numpy.asarray`",
            array.get_type().name()?
        )));
    }
    let interface = array.getattr(intern!(py, "__array_interface__"))?.cast_into::<PyDict>()?;
    let dtype = array.getattr(intern!(py, "dtype"))?;
    if !dtype.getattr(intern!(py, "isnative"))?.extract::<bool>()? {
        return Err(PyValueError::new_err(format!(
            "this array is not in native byte order ({dtype}); convert it with \
             `.astype(array.dtype.newbyteorder('='))`"
        )));
    }
    let name: String = dtype.getattr(intern!(py, "name"))?.extract()?;
    let dtype: DType = name.parse().map_err(|_| unsupported(array))?;
    let shape: Vec<u64> = entry(&interface, "shape")?.extract()?;
    let strides: Option<Vec<i64>> = entry(&interface, "strides")?.extract()?;
    let (start, is_read_only): (usize, bool) = entry(&interface, "data")?.extract()?;
    if let Some(strides) = strides {
        let sizes: Vec<i64> = shape.iter().map(|size| *size as i64).collect();
        let elements: Vec<i64> = strides.iter().map(|bytes| bytes / dtype.size() as i64).collect();
        if !is_contiguous(&sizes, &elements) {
            return Err(PyValueError::new_err("Tensor is required to be contiguous."));
        }
    }
    let mut view = View::at(start, shape, dtype);
    view.is_read_only = is_read_only;
    Ok(view)
}

fn entry<'py>(interface: &Bound<'py, PyDict>, key: &str) -> PyResult<Bound<'py, PyAny>> {
    let missing = || PyValueError::new_err(format!("`__array_interface__` has no `{key}`"));
    interface.get_item(key)?.ok_or_else(missing)
}

/// A result in our memory, as one-dimensional bytes; `numpy.asarray` turns it into an array that
/// keeps it alive.
#[pyclass(frozen, module = "horovod._native")]
pub(crate) struct Memory {
    owned: capsule::CapsuleMemory,
}

impl Memory {
    pub(crate) fn new(owned: capsule::CapsuleMemory) -> Memory {
        Memory { owned }
    }
}

#[pymethods]
impl Memory {
    #[getter(__array_interface__)]
    fn array_interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("shape", PyTuple::new(py, [self.owned.length()])?)?;
        interface.set_item("data", (self.owned.start() as usize, false))?;
        Ok(interface)
    }
}
