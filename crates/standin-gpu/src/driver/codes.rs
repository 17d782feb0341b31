//! Error codes of the driver, with their names and texts.
#![expect(unsafe_code, reason = "exports C symbols")]

use std::ffi::{CStr, c_char};

use crate::pointers;

/// A `CUresult` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CuCode(pub(crate) i32);

pub(crate) type CuResult<T = ()> = Result<T, CuCode>;

impl CuCode {
    pub(crate) const INVALID_VALUE: CuCode = CuCode(1);
    pub(crate) const OUT_OF_MEMORY: CuCode = CuCode(2);
    pub(crate) const NOT_INITIALIZED: CuCode = CuCode(3);
    pub(crate) const NO_DEVICE: CuCode = CuCode(100);
    pub(crate) const INVALID_DEVICE: CuCode = CuCode(101);
    pub(crate) const INVALID_CONTEXT: CuCode = CuCode(201);
    pub(crate) const INVALID_HANDLE: CuCode = CuCode(400);
    pub(crate) const NOT_FOUND: CuCode = CuCode(500);
    pub(crate) const NOT_READY: CuCode = CuCode(600);
    pub(crate) const ILLEGAL_ADDRESS: CuCode = CuCode(700);
    pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: CuCode = CuCode(712);
    pub(crate) const HOST_MEMORY_NOT_REGISTERED: CuCode = CuCode(713);
    pub(crate) const CONTEXT_IS_DESTROYED: CuCode = CuCode(709);
    pub(crate) const UNKNOWN: CuCode = CuCode(999);
}

const TEXTS: &[(i32, &CStr, &CStr)] = &[
    (0, c"CUDA_SUCCESS", c"no error"),
    (1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
    (101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (200, c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid"),
    (201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (218, c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
    (400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    (500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (600, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
    (701, c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", c"too many resources requested for launch"),
    (709, c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed"),
    (
        712,
        c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        c"part or all of the requested memory range is already mapped",
    ),
    (
        713,
        c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        c"pointer does not correspond to a registered memory region",
    ),
    (719, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
    (
        803,
        c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        c"system has unsupported display driver / cuda driver combination",
    ),
    (999, c"CUDA_ERROR_UNKNOWN", c"unknown error"),
];

/// Ignores a sticky error: callers need this function to name it.
fn tell(
    symbol: &'static str,
    code: i32,
    to: *mut *const c_char,
    text: impl Fn(usize) -> &'static CStr,
) -> i32 {
    if let Some(failure) = crate::config::call(symbol).failure {
        return failure.unwrap_or(CuCode::UNKNOWN.0);
    }
    let found = TEXTS.iter().position(|row| row.0 == code);
    let written = pointers::put(to, found.map_or(std::ptr::null(), |row| text(row).as_ptr()));
    if written && found.is_some() { 0 } else { CuCode::INVALID_VALUE.0 }
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: i32, name: *mut *const c_char) -> i32 {
    tell("cuGetErrorName", code, name, |row| TEXTS[row].1)
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: i32, text: *mut *const c_char) -> i32 {
    tell("cuGetErrorString", code, text, |row| TEXTS[row].2)
}
