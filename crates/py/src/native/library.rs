//! Libraries that are found at run time, and the functions in them: nothing is linked.
//!
//! A framework that the program did not import is not there, and a function that a release of it lacks is
//! an error with the function's name.
#![expect(unsafe_code, reason = "the dynamic loader gives addresses")]

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;

use libloading::os::unix::{Library as Opened, RTLD_NOW};

/// A library of this process.
pub(crate) struct Library(Opened);

impl Library {
    /// The first of these that somebody else has loaded, and that stays.
    pub(crate) fn loaded(names: &[&CStr]) -> Option<Library> {
        names.iter().find_map(|name| {
            let name = OsStr::from_bytes(name.to_bytes());
            // SAFETY: this flag only finds, and runs no code of the library.
            unsafe { Opened::open(Some(name), RTLD_NOW | libc::RTLD_NOLOAD) }.ok().map(Library)
        })
    }

    /// Loads the one at a path, with further flags.
    ///
    /// # Safety
    /// What a library does when it is loaded is up to whoever has installed it.
    pub(crate) unsafe fn open(path: &str, flags: c_int) -> Result<Library, String> {
        // SAFETY: the caller's promise.
        let opened = unsafe { Opened::open(Some(path), RTLD_NOW | flags) };
        opened.map(Library).map_err(|error| format!("`{path}` cannot be opened: {error}"))
    }

    /// A function of it; the error names it.
    ///
    /// # Safety
    /// `F` is a function pointer of the type that the function of this name has.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &CStr) -> Result<F, String> {
        // SAFETY: the caller promises the type.
        let symbol = unsafe { self.0.get::<F>(name) };
        symbol.map(|function| *function).map_err(|_| name.to_string_lossy().into_owned())
    }

    /// Where something of it lies.
    pub(crate) fn address(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the type holds any address, and nothing is read there.
        unsafe { self.0.get::<*mut c_void>(name) }.ok().map(|symbol| symbol.as_raw_ptr())
    }

    /// Leaves it in the process for good.
    pub(crate) fn stay(self) {
        std::mem::forget(self.0);
    }
}
