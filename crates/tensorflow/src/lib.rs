//! What `tf.load_op_library` loads. TensorFlow makes Python functions of the ops that are registered
//! while a library is being loaded, and `horovod._native` has been loaded long before; so this one,
//! while it is loaded, finds that module and has it register.
//!
//! It holds no op and no engine. A library that is being loaded cannot raise an error: where there is
//! no such module it does nothing, and Python, which finds no ops, says so.
#![expect(unsafe_code, reason = "code that runs while a library is loaded, and the dynamic loader")]

use std::ffi::{CStr, c_int, c_void};

/// Where the loader looks for what is to run.
// SAFETY: a pointer to a function without arguments is what this section holds.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = register;

extern "C" fn register() {
    // SAFETY: the callback is called with what it expects, and only until this returns.
    unsafe { libc::dl_iterate_phdr(Some(try_one), std::ptr::null_mut()) };
}

/// Looks at one loaded library; ends the search when it was the one.
unsafe extern "C" fn try_one(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description.
    let name = unsafe { (*info).dlpi_name };
    if name.is_null() {
        return 0;
    }
    // SAFETY: a name of the loader's, which ends with a zero.
    let text = unsafe { CStr::from_ptr(name) };
    let text = text.to_bytes();
    let is_ours = text.windows(16).any(|part| part == b"horovod/_native.");
    if !is_ours {
        return 0;
    }
    // SAFETY: the name is a C string; this flag only finds what is loaded.
    let library = unsafe { libc::dlopen(name, libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return 0;
    }
    // SAFETY: the handle came from the loader, and the name is a C string.
    let function = unsafe { libc::dlsym(library, c"ronde_tensorflow_register".as_ptr()) };
    if function.is_null() {
        return 0;
    }
    // SAFETY: the module of this version defines the function so.
    let function = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(function) };
    function();
    1
}
