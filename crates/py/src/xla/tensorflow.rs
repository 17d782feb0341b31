//! Registers the handlers in TensorFlow's XLA, for functions with `jit_compile=True`.
//!
//! JAX has a Python function that registers a handler. TensorFlow has none, but its library exports
//! the function that returns XLA's table, which contains one that registers; both exist in the
//! required form since 2.18. Which programs call the handlers is up to Python.
#![expect(unsafe_code, reason = "calls functions of TensorFlow and of XLA's table")]

use std::ffi::{CStr, c_void};
use std::mem::offset_of;
use std::sync::OnceLock;

use pyo3::prelude::*;

use super::api::{MessageArguments, RegisterArguments, XlaApi};
use super::{HANDLERS, Handler, Handlers};
use crate::native::Library;

/// The mangled name of `xla::ffi::GetXlaFfiApi()`.
const TABLE: &CStr = c"_ZN3xla3ffi12GetXlaFfiApiEv";

static REGISTERED: OnceLock<Result<(), String>> = OnceLock::new();
static ADDRESS: OnceLock<usize> = OnceLock::new();

/// Whether a table belongs to TensorFlow's XLA, which may be older than JAX's in the same process.
pub(super) fn has_table(api: &XlaApi) -> bool {
    ADDRESS.get() == Some(&std::ptr::from_ref(api).addr())
}

/// Registers the handlers, once; returns the reason if that failed.
#[pyfunction]
pub(crate) fn tensorflow_xla_problem() -> Option<String> {
    REGISTERED.get_or_init(register).clone().err()
}

fn register() -> Result<(), String> {
    let names = [c"libtensorflow_cc.so.2", c"libtensorflow_framework.so.2"];
    let library = Library::loaded(&names).ok_or("TensorFlow is not loaded in this process")?;
    // SAFETY: this is its type in all releases that have it.
    let table = unsafe { library.function::<unsafe extern "C" fn() -> *const XlaApi>(TABLE) };
    let table = table.map_err(|symbol| format!("this TensorFlow has no function `{symbol}`"))?;
    // SAFETY: the function takes no arguments and has no preconditions.
    let address = unsafe { table() };
    // SAFETY: it returns the address of a static, or null.
    let api = unsafe { address.as_ref() }.ok_or("XLA has no table of functions")?;
    // The table of 2.17 has no version, and another layout.
    if api.version.major != 0 || api.size < offset_of!(XlaApi, handler_register) + 8 {
        return Err("this version of XLA's foreign function interface is not supported".into());
    }
    ADDRESS.get_or_init(|| std::ptr::from_ref(api).addr());
    HANDLERS.iter().try_for_each(|Handlers { name, host, .. }| add(api, name, *host))
}

fn add(api: &XlaApi, name: &'static str, handler: Handler) -> Result<(), String> {
    let mut arguments = RegisterArguments::new(name, "Host", handler as *mut c_void);
    // SAFETY: the function is from XLA's table, and copies the contents of the structure.
    let error = unsafe { (api.handler_register)(&raw mut arguments) };
    if error.is_null() {
        return Ok(());
    }
    let mut arguments = MessageArguments::new(error);
    // SAFETY: the function is from XLA's table, and so is the error.
    unsafe { (api.error_message)(&raw mut arguments) };
    // SAFETY: XLA has stored the address of a null-terminated text that lives as long as the error.
    let text = unsafe { CStr::from_ptr(arguments.message) };
    Err(text.to_string_lossy().into_owned())
}
