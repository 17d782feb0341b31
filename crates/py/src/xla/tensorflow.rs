//! The handlers in the XLA that is part of TensorFlow, for functions with `jit_compile=True`.
//!
//! JAX has a Python function to register a handler. TensorFlow has none, but its library has the
//! function that gives XLA's table, and that table has one that registers; both as they are needed
//! here since 2.18. Which programs call the handlers is Python's business.
#![expect(unsafe_code, reason = "functions of TensorFlow and of XLA's table are called")]

use std::ffi::{CStr, c_void};
use std::mem::offset_of;
use std::sync::OnceLock;

use pyo3::prelude::*;

use super::api::{Api, MessageArguments, RegisterArguments};
use super::{HANDLERS, Handler};
use crate::native::Library;

/// Its name as compilers write `xla::ffi::GetXlaFfiApi()`.
const TABLE: &CStr = c"_ZN3xla3ffi12GetXlaFfiApiEv";

static REGISTERED: OnceLock<Result<(), String>> = OnceLock::new();
static ADDRESS: OnceLock<usize> = OnceLock::new();

/// Whether a table is that of TensorFlow's XLA, which may be older than JAX's in the same process.
pub(super) fn has_table(api: &Api) -> bool {
    ADDRESS.get() == Some(&std::ptr::from_ref(api).addr())
}

/// Registers the handlers, once; says why there are none, if there are none.
#[pyfunction]
pub(crate) fn tensorflow_xla_problem() -> Option<String> {
    REGISTERED.get_or_init(register).clone().err()
}

fn register() -> Result<(), String> {
    let names = [c"libtensorflow_cc.so.2", c"libtensorflow_framework.so.2"];
    let library = Library::loaded(&names).ok_or("TensorFlow is not loaded in this process")?;
    // SAFETY: this is its type in all releases that have it.
    let table = unsafe { library.function::<unsafe extern "C" fn() -> *const Api>(TABLE) };
    let table = table.map_err(|symbol| format!("this TensorFlow has no function `{symbol}`"))?;
    // SAFETY: it takes nothing, and has no conditions.
    let address = unsafe { table() };
    // SAFETY: what it gives is the address of a static, or nothing.
    let api = unsafe { address.as_ref() }.ok_or("XLA gives no table of functions")?;
    // The table of 2.17 has no version, and another order.
    if api.version.major != 0 || api.size < offset_of!(Api, handler_register) + 8 {
        return Err("the foreign function interface of its XLA is not known here".into());
    }
    ADDRESS.get_or_init(|| std::ptr::from_ref(api).addr());
    HANDLERS.iter().try_for_each(|(name, handler)| add(api, name, *handler))
}

fn add(api: &Api, name: &'static str, handler: Handler) -> Result<(), String> {
    let mut arguments = RegisterArguments::new(name, "Host", handler as *mut c_void);
    // SAFETY: the function is of XLA's table; it copies what the structure says.
    let error = unsafe { (api.handler_register)(&raw mut arguments) };
    if error.is_null() {
        return Ok(());
    }
    let mut arguments = MessageArguments::new(error);
    // SAFETY: the function is of XLA's table, and the error is its own.
    unsafe { (api.error_message)(&raw mut arguments) };
    // SAFETY: XLA has put the address of a text that ends with a zero and lives as the error does.
    let text = unsafe { CStr::from_ptr(arguments.message) };
    Err(text.to_string_lossy().into_owned())
}
