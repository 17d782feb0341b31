//! The functions of MXNet's C interface that are used here, looked up in the library that the
//! program has loaded; and the C++ exception that reports an error to MXNet's engine.
#![expect(unsafe_code, reason = "calls functions of MXNet and of the C++ library")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use crate::native::Library;

pub(super) type MxHandle = *mut c_void;
pub(super) type RunFn = extern "C" fn(MxHandle, *const OnComplete, MxHandle);
pub(super) type Forget = extern "C" fn(MxHandle);

/// MXNet's completion callback; copied, because the engine reuses the memory of the original.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct OnComplete {
    callback: unsafe extern "C" fn(MxHandle, MxHandle, *const c_void),
    engine: MxHandle,
    operation: MxHandle,
}

// SAFETY: the engine accepts completions from any thread.
unsafe impl Send for OnComplete {}

/// A device: the CPU.
#[repr(C)]
struct MxContext {
    kind: c_int,
    number: c_int,
}

type PushAsync = unsafe extern "C" fn(
    RunFn,
    MxHandle,
    Forget,
    *const MxContext,
    *const MxHandle,
    c_int,
    *const MxHandle,
    c_int,
    *const c_void,
    c_int,
    *const c_char,
    bool,
) -> c_int;
type Data = unsafe extern "C" fn(MxHandle, *mut MxHandle) -> c_int;
type CopyFn = unsafe extern "C" fn(MxHandle, *mut MxHandle) -> c_int;
type Free = unsafe extern "C" fn(MxHandle) -> c_int;
type LastError = unsafe extern "C" fn() -> *const c_char;
type Construct = unsafe extern "C" fn(*mut CxxException, *const c_char);
type Destroy = unsafe extern "C" fn(*mut CxxException);

/// Storage for a `std::runtime_error`, which has the same layout as MXNet's own exception class.
#[repr(C, align(16))]
struct CxxException([usize; 4]);

pub(super) struct MxApi {
    push: PushAsync,
    data: Data,
    copy: CopyFn,
    free: Free,
    last_error: LastError,
    construct: Construct,
    destroy: Destroy,
}

impl MxApi {
    /// The functions of the loaded library with this path; the error names the missing one.
    pub(super) fn load(path: &str) -> Result<MxApi, String> {
        let path = CString::new(path).map_err(|error| error.to_string())?;
        let names = [path.as_c_str(), c"libmxnet.so"];
        let mxnet = Library::loaded(&names).ok_or("`libmxnet.so` is not loaded")?;
        let cpp = Library::loaded(&[c"libstdc++.so.6"]).ok_or("`libstdc++.so.6` is not loaded")?;
        // SAFETY: the types are those of MXNet's header.
        let push = unsafe { mxnet.function(c"MXEnginePushAsyncND") }?;
        // SAFETY: likewise.
        let data = unsafe { mxnet.function(c"MXNDArrayGetData") }?;
        // SAFETY: likewise.
        let copy = unsafe { mxnet.function(c"MXShallowCopyNDArray") }?;
        // SAFETY: likewise.
        let free = unsafe { mxnet.function(c"MXNDArrayFree") }?;
        // SAFETY: likewise.
        let last_error = unsafe { mxnet.function(c"MXGetLastError") }?;
        // SAFETY: the constructor from a C string, with the mangling that all C++ compilers here
        // use.
        let construct = unsafe { cpp.function(c"_ZNSt13runtime_errorC1EPKc") }?;
        // SAFETY: the destructor of the same class.
        let destroy = unsafe { cpp.function(c"_ZNSt13runtime_errorD1Ev") }?;
        Ok(MxApi { push, data, copy, free, last_error, construct, destroy })
    }

    /// Makes MXNet's engine call `run` when nobody else reads or writes these arrays.
    pub(super) fn push(
        &self,
        run: RunFn,
        (operation, forget): (MxHandle, Forget),
        reads: &[MxHandle],
        writes: &[MxHandle],
        priority: c_int,
    ) -> Result<(), String> {
        let cpu = MxContext { kind: 1, number: 0 };
        let (name, wait) = (c"horovod".as_ptr(), false);
        let (read, written) = (reads.len() as c_int, writes.len() as c_int);
        let (reads, writes) = (reads.as_ptr(), writes.as_ptr());
        // SAFETY: the arrays are alive, and the engine owns the operation from now on.
        let status = unsafe {
            (self.push)(
                run,
                operation,
                forget,
                &raw const cpu,
                reads,
                read,
                writes,
                written,
                null(),
                priority,
                name,
                wait,
            )
        };
        self.check(status)
    }

    /// Another handle to the same array, which we must free.
    pub(super) fn copy(&self, array: MxHandle) -> Result<MxHandle, String> {
        let mut copy = null_mut();
        // SAFETY: the caller's array is alive.
        let status = unsafe { (self.copy)(array, &raw mut copy) };
        self.check(status).map(|()| copy)
    }

    pub(super) fn free(&self, array: MxHandle) {
        // SAFETY: `copy` returned it, and it is not used again.
        unsafe { (self.free)(array) };
    }

    /// The address of an array's elements; it is allocated when the engine runs something on it.
    pub(super) fn data(&self, array: MxHandle) -> Result<usize, String> {
        let mut data = null_mut();
        // SAFETY: the handle is a copy that lives as long as its operation.
        let status = unsafe { (self.data)(array, &raw mut data) };
        self.check(status).map(|()| data as usize)
    }

    /// Tells MXNet's engine that an operation has completed, or why it failed.
    pub(super) fn complete(&self, on_complete: OnComplete, problem: Option<&str>) {
        let OnComplete { callback, engine, operation } = on_complete;
        let Some(problem) = problem else {
            // SAFETY: the engine passed these three, and is called once.
            return unsafe { callback(engine, operation, null()) };
        };
        let text = CString::new(problem.replace('\0', " ")).unwrap_or_default();
        let mut exception = CxxException([0; 4]);
        // SAFETY: the storage is large enough, and the text is copied.
        unsafe { (self.construct)(&raw mut exception, text.as_ptr()) };
        // SAFETY: the engine passed these three, is called once, and copies the exception.
        unsafe { callback(engine, operation, (&raw const exception).cast()) };
        // SAFETY: it was constructed above, and nobody uses it any more.
        unsafe { (self.destroy)(&raw mut exception) };
    }

    fn check(&self, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: MXNet keeps the text of this thread's last error.
        let text = unsafe { (self.last_error)() };
        // SAFETY: it is a C string.
        Err(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}
