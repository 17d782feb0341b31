//! Libraries of frameworks that this process has loaded already, and the functions in them.
//!
//! Nothing is linked and nothing is loaded here: a framework that the program did not import is not
//! there, and a function that a release of it lacks is an error with the function's name.
#![expect(unsafe_code, reason = "the dynamic loader gives addresses")]

use std::ffi::{CStr, c_void};

/// A library that somebody else has loaded, and that stays.
#[derive(Clone, Copy)]
pub(crate) struct Library(*mut c_void);

impl Library {
    /// The first of these that is loaded.
    pub(crate) fn loaded(names: &[&CStr]) -> Option<Library> {
        let found = names.iter().map(|name| {
            // SAFETY: the name is a C string; this flag only finds, and runs no code of the library.
            unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) }
        });
        found.into_iter().find(|handle| !handle.is_null()).map(Library)
    }

    /// A function of it; the error names it.
    ///
    /// # Safety
    /// `F` is a function pointer of the type that the function of this name has.
    pub(crate) unsafe fn function<F: Copy>(self, name: &CStr) -> Result<F, String> {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>(), "a function pointer is asked for");
        // SAFETY: the handle came from the loader, and the name is a C string.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if address.is_null() {
            return Err(name.to_string_lossy().into_owned());
        }
        // SAFETY: sizes are equal, and the caller promises the type.
        Ok(unsafe { std::mem::transmute_copy(&address) })
    }
}
