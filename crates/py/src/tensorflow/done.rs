//! Completion of an asynchronous kernel.
//!
//! TensorFlow passes the address of a `std::function` that is destroyed when the kernel's function
//! returns, so a callback for later must be copied out of it, as the copy constructor of GNU's C++
//! library does: two words of data, and a manager that clones (2) and destroys (3) them. A check
//! makes sure first that it is such a function: manager and invoker must be code of TensorFlow. If
//! they are not, the kernel waits for the collective instead, which is correct but allows only a
//! few in flight.
#![expect(unsafe_code, reason = "copies a C++ object")]

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::api::{TfHandle, api};
use crate::native;

const CLONE: c_int = 2;
const DESTROY: c_int = 3;

/// Called by a kernel when it has finished.
pub(super) type Finish = Box<dyn FnOnce() + Send>;

/// Starts an operation that ends later; TensorFlow is notified then.
pub(super) fn run(done: TfHandle, start: impl FnOnce(Finish)) {
    if let Some(copy) = CallbackCopy::of(done) {
        start(Box::new(move || copy.call()));
        return;
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let ending = is_over.clone();
    start(Box::new(move || ending.store(true, Ordering::Release)));
    native::wait_until(&|| is_over.load(Ordering::Acquire));
    api().run_done(done);
}

type Manager = unsafe extern "C" fn(*mut usize, *const usize, c_int) -> bool;

/// A `std::function` of GNU's C++ library.
#[repr(C)]
struct Function {
    data: [usize; 2],
    manager: Option<Manager>,
    invoker: usize,
}

/// A copy of TensorFlow's callback.
struct CallbackCopy(Box<Function>);

// SAFETY: TensorFlow's callbacks may run on any thread.
unsafe impl Send for CallbackCopy {}

impl CallbackCopy {
    fn of(done: TfHandle) -> Option<CallbackCopy> {
        // SAFETY: TensorFlow passes the address of a live function object of at least this size.
        let original = unsafe { &*done.cast::<Function>() };
        let manager = original.manager?;
        if !is_code(manager as usize) || !is_code(original.invoker) {
            return None;
        }
        let data = [0; 2];
        let mut copy =
            Box::new(Function { data, manager: Some(manager), invoker: original.invoker });
        // SAFETY: this is what the copy constructor does; both objects are alive.
        unsafe { manager(copy.data.as_mut_ptr(), original.data.as_ptr(), CLONE) };
        Some(CallbackCopy(copy))
    }

    fn call(mut self) {
        api().run_done((&raw mut *self.0).cast());
    }
}

impl Drop for CallbackCopy {
    fn drop(&mut self) {
        let data = self.0.data.as_mut_ptr();
        if let Some(manager) = self.0.manager.take() {
            // SAFETY: this is what the destructor does, and it happens once.
            unsafe { manager(data, data, DESTROY) };
        }
    }
}

/// Whether there is code of TensorFlow at this address. The ranges are looked up once: asking the
/// loader for the owner of an address takes a millisecond.
fn is_code(address: usize) -> bool {
    static PLACES: OnceLock<Vec<std::ops::Range<usize>>> = OnceLock::new();
    PLACES.get_or_init(code).iter().any(|place| place.contains(&address))
}

fn code() -> Vec<std::ops::Range<usize>> {
    let mut places: Vec<std::ops::Range<usize>> = Vec::new();
    // SAFETY: the callback gets the argument that it expects, and is called only until this
    // returns.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut places).cast()) };
    places
}

unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, places: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description.
    let info = unsafe { &*info };
    // SAFETY: `code` passes this, and outlives this call.
    let places = unsafe { &mut *places.cast::<Vec<std::ops::Range<usize>>>() };
    if info.dlpi_name.is_null() || info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the loader's names are null-terminated.
    let name = unsafe { CStr::from_ptr(info.dlpi_name) };
    if !name.to_string_lossy().contains("tensorflow") {
        return 0;
    }
    // SAFETY: the description contains the number of headers.
    let parts = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    for part in parts {
        if part.p_type == libc::PT_LOAD && part.p_flags & libc::PF_X != 0 {
            let start = info.dlpi_addr as usize + part.p_vaddr as usize;
            places.push(start..start + part.p_memsz as usize);
        }
    }
    0
}
