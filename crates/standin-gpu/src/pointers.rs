//! Reads and writes through the pointers that C callers pass.
//!
//! Everything here trusts the callers of the C interface to pass valid pointers. Null is checked
//! where there is a way to report it.
#![expect(unsafe_code, reason = "C callers pass addresses")]

use std::ffi::{CStr, c_char};
use std::slice;

/// Writes a result; `false` if the pointer is null.
#[must_use]
pub(crate) fn put<T>(to: *mut T, value: T) -> bool {
    if to.is_null() {
        return false;
    }
    // SAFETY: the caller passes the address of a variable of this type for the result.
    unsafe { to.write_unaligned(value) };
    true
}

/// The value at an address; `None` if it is null.
pub(crate) fn value<T: Copy>(from: *const T) -> Option<T> {
    if from.is_null() {
        return None;
    }
    // SAFETY: the caller passes the address of a value of this type.
    Some(unsafe { from.read_unaligned() })
}

/// The text at an address; `None` if it is null or not UTF-8.
pub(crate) fn text<'a>(from: *const c_char) -> Option<&'a str> {
    if from.is_null() {
        return None;
    }
    // SAFETY: the caller passes text that ends with a zero and outlives the call.
    unsafe { CStr::from_ptr(from) }.to_str().ok()
}

/// A copy of the bytes at an address.
pub(crate) fn bytes(from: usize, size: usize) -> Vec<u8> {
    if size == 0 {
        return Vec::new();
    }
    // SAFETY: `from` starts a live allocation of at least `size` bytes, as the caller has checked
    // or C's caller has promised.
    unsafe { slice::from_raw_parts(from as *const u8, size) }.to_vec()
}

/// Writes bytes to an address.
pub(crate) fn put_bytes(to: usize, bytes: &[u8]) {
    copy(bytes.as_ptr() as usize, to, bytes.len());
}

/// Copies between two addresses, whose ranges may overlap.
pub(crate) fn copy(from: usize, to: usize, size: usize) {
    if size > 0 {
        // SAFETY: both ranges are live, as the caller has checked or C's caller has promised.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, size) };
    }
}

/// Sets all bytes of a range.
pub(crate) fn fill(to: usize, byte: u8, size: usize) {
    if size > 0 {
        // SAFETY: the range is live, as the caller has checked.
        unsafe { std::ptr::write_bytes(to as *mut u8, byte, size) };
    }
}
