//! A tensor of a framework as the engine needs it: address, shape, element type.
//!
//! Where the type of the object offers DLPack's C exchange table, one call of a C function fills in
//! all of it; NumPy arrays are asked for their interface, and all else the way torch tensors answer.
#![expect(unsafe_code, reason = "addresses of tensors, and DLPack's C table")]

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{LazyLock, Mutex};

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;
use ronde_control::DType;
use ronde_core::buffer::Region;

use super::array;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DLDevice {
    pub(crate) kind: i32,
    pub(crate) id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DLDataType {
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
}

#[repr(C)]
pub(crate) struct DLTensor {
    pub(crate) data: *mut c_void,
    pub(crate) device: DLDevice,
    pub(crate) ndim: i32,
    pub(crate) dtype: DLDataType,
    pub(crate) shape: *mut i64,
    pub(crate) strides: *mut i64,
    pub(crate) byte_offset: u64,
}

type FromPython = unsafe extern "C" fn(*mut c_void, *mut DLTensor) -> c_int;

/// The beginning of DLPack's exchange table, version 1.
#[repr(C)]
struct Exchange {
    major: u32,
    _minor: u32,
    _previous: *mut c_void,
    _allocator: *mut c_void,
    _managed_from_python: *mut c_void,
    _managed_to_python: *mut c_void,
    tensor_from_python: Option<FromPython>,
}

/// What a framework's tensor type offers.
#[derive(Clone, Copy)]
enum Way {
    Table(FromPython),
    Array,
    Attributes,
}

/// The ways by the type's address; the reference keeps the type, so that the address stays its own.
type Known = HashMap<usize, (Way, Py<PyType>)>;
static TYPES: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

const CPU: i32 = 1;

/// A tensor's memory and what lies in it.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) region: Region,
    pub(crate) shape: Vec<u64>,
    pub(crate) dtype: DType,
    pub(crate) is_read_only: bool,
}

impl View {
    pub(crate) fn of(tensor: &Bound<'_, PyAny>) -> PyResult<View> {
        match way(tensor)? {
            Way::Table(from_python) => View::by_table(tensor, from_python),
            Way::Array => array::view(tensor),
            Way::Attributes => View::by_attributes(tensor),
        }
    }

    /// The same of a tensor that a result is written to.
    pub(crate) fn of_target(tensor: &Bound<'_, PyAny>) -> PyResult<View> {
        let view = View::of(tensor)?;
        match view.is_read_only {
            true => Err(PyValueError::new_err(
                "the array for the result is read-only; give one that can be written, such as a \
                 copy of it",
            )),
            false => Ok(view),
        }
    }

    /// Input and output must be alike, or memory would be overrun.
    pub(crate) fn check_same(&self, other: &View) -> PyResult<()> {
        if self.dtype == other.dtype && self.shape == other.shape {
            return Ok(());
        }
        Err(PyValueError::new_err(format!(
            "input and output differ: {} {:?} against {} {:?}",
            self.dtype, self.shape, other.dtype, other.shape
        )))
    }

    pub(crate) fn check_group(sources: &[View], targets: &[View]) -> PyResult<()> {
        if sources.len() != targets.len() {
            return Err(PyValueError::new_err("a group needs as many outputs as inputs"));
        }
        sources.iter().zip(targets).try_for_each(|(source, target)| source.check_same(target))?;
        match sources.iter().any(|view| view.dtype != sources[0].dtype) {
            true => Err(PyValueError::new_err("the tensors of a group must have one element type")),
            false => Ok(()),
        }
    }

    fn by_table(tensor: &Bound<'_, PyAny>, from_python: FromPython) -> PyResult<View> {
        let mut raw = DLTensor {
            data: std::ptr::null_mut(),
            device: DLDevice { kind: 0, id: 0 },
            ndim: 0,
            dtype: DLDataType { code: 0, bits: 0, lanes: 0 },
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        };
        // SAFETY: the table is of the type of this object, and the structure is ours.
        if unsafe { from_python(tensor.as_ptr().cast(), &raw mut raw) } != 0 {
            return Err(PyErr::fetch(tensor.py()));
        }
        if raw.device.kind != CPU {
            return Err(not_on_cpu(&format!("device type {}", raw.device.kind)));
        }
        let dtype = match (raw.dtype.code, raw.dtype.bits) {
            (0, 8) => DType::I8,
            (0, 16) => DType::I16,
            (0, 32) => DType::I32,
            (0, 64) => DType::I64,
            (1, 8) => DType::U8,
            (1, 16) => DType::U16,
            (2, 16) => DType::F16,
            (2, 32) => DType::F32,
            (2, 64) => DType::F64,
            (4, 16) => DType::BF16,
            (6, 8) => DType::Bool,
            _ => return Err(unsupported(tensor)),
        };
        let dimensions = raw.ndim.max(0) as usize;
        let shape = numbers(raw.shape, dimensions);
        let strides = (!raw.strides.is_null()).then(|| numbers(raw.strides, dimensions));
        if strides.is_some_and(|strides| !is_contiguous(&shape, &strides)) {
            return Err(PyValueError::new_err("Tensor is required to be contiguous."));
        }
        let shape: Vec<u64> = shape.into_iter().map(|size| size as u64).collect();
        let start = raw.data as usize + raw.byte_offset as usize;
        Ok(View::at(start, shape, dtype))
    }

    fn by_attributes(tensor: &Bound<'_, PyAny>) -> PyResult<View> {
        let device: String = tensor.getattr("device")?.getattr("type")?.extract()?;
        if device != "cpu" {
            return Err(not_on_cpu(&device));
        }
        if !tensor.call_method0("is_contiguous")?.extract::<bool>()? {
            return Err(PyValueError::new_err("Tensor is required to be contiguous."));
        }
        let name = tensor.getattr("dtype")?.str()?.to_string();
        let name = name.rsplit('.').next().unwrap_or_default();
        let dtype = DType::from_name(name).ok_or_else(|| unsupported(tensor))?;
        let shape = tensor.getattr("shape")?.extract()?;
        let start = tensor.call_method0("data_ptr")?.extract()?;
        Ok(View::at(start, shape, dtype))
    }

    pub(crate) fn at(start: usize, shape: Vec<u64>, dtype: DType) -> View {
        let length = shape.iter().product::<u64>() as usize * dtype.size();
        // SAFETY: the framework says that the tensor lies there; its object is kept until the
        // operation has completed, and that nobody touches it meanwhile is the user's contract.
        let region = unsafe { Region::new(start as *mut u8, length) };
        View { region, shape, dtype, is_read_only: false }
    }
}

fn way(tensor: &Bound<'_, PyAny>) -> PyResult<Way> {
    let class = tensor.get_type();
    let address = class.as_ptr() as usize;
    let lock = || TYPES.lock().expect("nothing panics while it holds this lock");
    if let Some((known, _)) = lock().get(&address) {
        return Ok(*known);
    }
    let found = match class.getattr("__dlpack_c_exchange_api__") {
        Ok(capsule) => {
            // SAFETY: a wrong object gives null and an exception.
            let table = unsafe {
                ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"dlpack_exchange_api".as_ptr())
            };
            if table.is_null() {
                return Err(PyErr::fetch(tensor.py()));
            }
            // SAFETY: a capsule of this name holds such a table, which lives as long as the type.
            let table = unsafe { &*table.cast::<Exchange>() };
            let found = table.tensor_from_python.filter(|_| table.major == 1);
            found.map_or(Way::Attributes, Way::Table)
        }
        Err(_) if class.hasattr("__array_interface__")? => Way::Array,
        Err(_) => Way::Attributes,
    };
    lock().insert(address, (found, class.unbind()));
    Ok(found)
}

fn numbers(start: *const i64, count: usize) -> Vec<i64> {
    if count == 0 {
        return Vec::new();
    }
    // SAFETY: DLPack's arrays have one entry per dimension and live as long as the tensor.
    unsafe { std::slice::from_raw_parts(start, count) }.to_vec()
}

pub(crate) fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = 1;
    shape.iter().zip(strides).rev().all(|(size, stride)| {
        let fits = *size == 1 || *stride == expected;
        expected *= size;
        fits
    })
}

pub(crate) fn unsupported(tensor: &Bound<'_, PyAny>) -> PyErr {
    let name = tensor.getattr("dtype").and_then(|dtype| dtype.str().map(|name| name.to_string()));
    let name = name.unwrap_or_else(|_| "of this element type".into());
    PyValueError::new_err(format!("Tensor type {name} is not supported."))
}

fn not_on_cpu(device: &str) -> PyErr {
    PyValueError::new_err(format!(
        "this release works on CPU tensors only, this one is on {device}; move it with `.cpu()`"
    ))
}
