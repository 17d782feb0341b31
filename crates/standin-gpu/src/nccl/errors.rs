//! Error codes of NCCL and their texts.
#![expect(unsafe_code, reason = "exports C symbols")]

use std::ffi::{CStr, CString, c_char};
use std::sync::Mutex;

use crate::driver::CuCode;
use crate::handles::lock;

pub(super) const SUCCESS: i32 = 0;
pub(super) const UNHANDLED_CUDA_ERROR: i32 = 1;
pub(super) const SYSTEM_ERROR: i32 = 2;
pub(super) const INTERNAL_ERROR: i32 = 3;
pub(super) const INVALID_ARGUMENT: i32 = 4;
pub(super) const INVALID_USAGE: i32 = 5;
pub(super) const REMOTE_ERROR: i32 = 6;
pub(super) const IN_PROGRESS: i32 = 7;

/// A result other than success; "in progress" is one without a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NcclFailure {
    pub(super) code: i32,
    pub(super) text: String,
}

pub(super) type NcclResult<T = ()> = Result<T, NcclFailure>;

/// Leaked at each error, because callers may keep the pointer.
static LAST: Mutex<&'static CStr> = Mutex::new(c"");

impl NcclFailure {
    pub(super) fn in_progress() -> Self {
        Self { code: IN_PROGRESS, text: String::new() }
    }

    pub(super) fn argument(text: impl Into<String>) -> Self {
        Self { code: INVALID_ARGUMENT, text: text.into() }
    }

    pub(super) fn usage(text: impl Into<String>) -> Self {
        Self { code: INVALID_USAGE, text: text.into() }
    }

    pub(super) fn system(text: impl Into<String>) -> Self {
        Self { code: SYSTEM_ERROR, text: text.into() }
    }

    /// Keeps the text for `ncclGetLastError`, prints it if `NCCL_DEBUG` is set, and returns the
    /// code.
    pub(super) fn tell(&self) -> i32 {
        if !self.text.is_empty() {
            if std::env::var_os("NCCL_DEBUG").is_some() {
                eprintln!("stand-in NCCL WARN {}", self.text);
            }
            *lock(&LAST) =
                Box::leak(CString::new(&*self.text).unwrap_or_default().into_boxed_c_str());
        }
        self.code
    }
}

impl From<CuCode> for NcclFailure {
    fn from(code: CuCode) -> Self {
        let text = format!("Cuda failure {}", code.0);
        Self { code: UNHANDLED_CUDA_ERROR, text }
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(code: i32) -> *const c_char {
    let text = match code {
        SUCCESS => c"no error",
        UNHANDLED_CUDA_ERROR => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        SYSTEM_ERROR => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        INTERNAL_ERROR => c"internal error - please report this issue to the NCCL developers",
        INVALID_ARGUMENT => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        INVALID_USAGE => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_communicator: usize) -> *const c_char {
    lock(&LAST).as_ptr()
}
