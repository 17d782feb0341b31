//! Our memory, handed to a framework without a copy: a DLPack capsule that owns a result or a block
//! of the arena. Frameworks without DLPack can exchange it for the memory.
#![expect(unsafe_code, reason = "DLPack is a C structure with a destructor")]

use std::ffi::{c_char, c_void};

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use ronde_core::buffer::Buffer;
use ronde_core::engine::ArenaBlock;

use super::array;
use super::process::engine;
use super::tensor::{DLDataType, DLDevice, DLTensor};

const CPU: i32 = 1;
const UNSIGNED: u8 = 1;
const NAME: *const c_char = c"dltensor".as_ptr();
/// The name of a capsule after its content has been taken.
const USED: *const c_char = c"used_dltensor".as_ptr();

/// DLPack's structure for a tensor with an owner, as every framework reads it.
#[repr(C)]
struct Managed {
    tensor: DLTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

struct CapsuleOwner {
    managed: Managed,
    shape: [i64; 1],
    memory: CapsuleMemory,
}

/// The memory that a capsule can own.
pub(crate) enum CapsuleMemory {
    Result(Buffer),
    Arena(ArenaBlock),
}

impl CapsuleMemory {
    /// The address of the first byte; valid only while its owner is alive.
    pub(crate) fn start(&self) -> *mut u8 {
        match self {
            CapsuleMemory::Result(buffer) => buffer.start(),
            CapsuleMemory::Arena(block) => block.start(),
        }
    }

    pub(crate) fn length(&self) -> usize {
        match self {
            CapsuleMemory::Result(buffer) => buffer.length(),
            CapsuleMemory::Arena(block) => block.length(),
        }
    }
}

/// Memory that all ranks of this host can access, as a capsule of bytes; `None` if it is full.
#[pyfunction]
pub(crate) fn arena(py: Python<'_>, length: usize) -> PyResult<Option<Py<PyAny>>> {
    let block = engine()?.allocate(length);
    block.map(|block| export(py, CapsuleMemory::Arena(block))).transpose()
}

/// Whether the tensor at this address is in the arena of the current world.
#[pyfunction]
pub(crate) fn in_arena(address: usize) -> PyResult<bool> {
    Ok(engine()?.is_in_arena(address))
}

/// A capsule of one-dimensional bytes.
pub(crate) fn export(py: Python<'_>, memory: CapsuleMemory) -> PyResult<Py<PyAny>> {
    let (start, length) = (memory.start(), memory.length() as i64);
    let tensor = DLTensor {
        data: start.cast(),
        device: DLDevice { kind: CPU, id: 0 },
        ndim: 1,
        dtype: DLDataType { code: UNSIGNED, bits: 8, lanes: 1 },
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = Managed { tensor, context: std::ptr::null_mut(), deleter: Some(delete) };
    let owner = Box::leak(Box::new(CapsuleOwner { managed, shape: [length], memory }));
    owner.managed.tensor.shape = owner.shape.as_mut_ptr();
    owner.managed.context = (&raw mut *owner).cast();
    let managed = (&raw mut owner.managed).cast();
    // SAFETY: the pointer stays valid until the deleter frees it, which happens once: by the
    // framework that consumed the capsule, or by the capsule's destructor.
    let capsule = unsafe { ffi::PyCapsule_New(managed, NAME, Some(destroy)) };
    // SAFETY: a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }.map(Bound::unbind)
}

/// Takes the memory out of a capsule that `wait` returned.
#[pyfunction]
pub(crate) fn claim(capsule: &Bound<'_, PyAny>) -> PyResult<array::Memory> {
    // SAFETY: a wrong object or name gives null and an exception.
    let managed = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), NAME) };
    if managed.is_null() {
        return Err(PyErr::fetch(capsule.py()));
    }
    let managed = managed.cast::<Managed>();
    // SAFETY: a capsule of this name contains such a structure.
    let deleter = unsafe { (*managed).deleter };
    if deleter.is_none_or(|deleter| !std::ptr::fn_addr_eq(deleter, DELETE)) {
        return Err(PyTypeError::new_err("this capsule is not one of ours"));
    }
    // SAFETY: the capsule is valid; under its new name nobody frees its content.
    if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), USED) } != 0 {
        return Err(PyErr::fetch(capsule.py()));
    }
    // SAFETY: the deleter shows that `export` created it.
    let context = unsafe { (*managed).context };
    // SAFETY: `export` leaked this box, and after the renaming it is ours again.
    let owner = unsafe { Box::from_raw(context.cast::<CapsuleOwner>()) };
    Ok(array::Memory::new(owner.memory))
}

const DELETE: unsafe extern "C" fn(*mut Managed) = delete;

unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: DLPack calls this once, with the structure that `export` created.
    let context = unsafe { (*managed).context };
    // SAFETY: `export` leaked this box, and nobody else frees it.
    drop(unsafe { Box::from_raw(context.cast::<CapsuleOwner>()) });
}

/// A capsule that a framework has consumed has another name; then the framework frees the memory.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule that is being destroyed.
    let unused = unsafe { ffi::PyCapsule_IsValid(capsule, NAME) } == 1;
    if unused {
        // SAFETY: the capsule is valid under this name.
        let managed = unsafe { ffi::PyCapsule_GetPointer(capsule, NAME) };
        // SAFETY: it was never consumed, so this is the only call.
        unsafe { delete(managed.cast()) };
    }
}
