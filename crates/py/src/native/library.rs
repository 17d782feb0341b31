//! Libraries that are found at run time, and the functions in them: nothing is linked.
//!
//! Only a framework that the program has imported is loaded, and a function that a release of it
//! does not have is reported by name.
#![expect(unsafe_code, reason = "the dynamic loader returns addresses")]

use std::error::Error as _;
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;

use libloading::os::unix::{Library as Opened, RTLD_NOW};

/// A library of this process.
pub(crate) struct Library(Opened);

impl Library {
    /// The first of these that is already loaded in this process; it stays loaded.
    pub(crate) fn loaded(names: &[&CStr]) -> Option<Library> {
        names.iter().find_map(|name| {
            let name = OsStr::from_bytes(name.to_bytes());
            // SAFETY: this flag only finds a library, and runs none of its code.
            unsafe { Opened::open(Some(name), RTLD_NOW | libc::RTLD_NOLOAD) }.ok().map(Library)
        })
    }

    /// Loads the library at a path, with additional flags.
    ///
    /// # Safety
    /// The caller trusts the code that the library runs when it is loaded.
    pub(crate) unsafe fn open(path: &str, flags: c_int) -> Result<Library, String> {
        // SAFETY: guaranteed by the caller.
        let opened = unsafe { Opened::open(Some(path), RTLD_NOW | flags) };
        opened.map(Library).map_err(|error| {
            // Only the cause says what is wrong with the file.
            let cause = error.source().map_or_else(|| error.to_string(), |cause| cause.to_string());
            format!("`{path}` cannot be opened: {cause}")
        })
    }

    /// A function of the library; the error is the function's name.
    ///
    /// # Safety
    /// `F` is a function pointer of the type that the function of this name has.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &CStr) -> Result<F, String> {
        // SAFETY: the caller guarantees the type.
        let symbol = unsafe { self.0.get::<F>(name) };
        symbol.map(|function| *function).map_err(|_| name.to_string_lossy().into_owned())
    }

    /// The address of a symbol.
    pub(crate) fn address(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the type can hold any address, and nothing is read there.
        unsafe { self.0.get::<*mut c_void>(name) }.ok().map(|symbol| symbol.as_raw_ptr())
    }

    /// Keeps the library loaded for the rest of the process.
    pub(crate) fn stay(self) {
        std::mem::forget(self.0);
    }
}
