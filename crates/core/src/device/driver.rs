//! The functions of the CUDA driver that we use, as one table.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libloading::os::unix::Library;
use ronde_control::CudaVersion;

use super::DeviceError;
use super::libraries::{LibraryPaths, ask_version};

pub(super) type Context = *mut c_void;
pub(super) type Stream = *mut c_void;
pub(super) type EventHandle = *mut c_void;
pub(super) type DeviceAddress = u64;

/// The call has not completed yet.
pub(super) const NOT_READY: c_int = 600;
const OUT_OF_MEMORY: c_int = 2;
const DEINITIALIZED: c_int = 4;
const NO_DEVICE: c_int = 100;
const CONTEXT_IS_DESTROYED: c_int = 709;

/// Declares a table of C functions and loads all of them, or names the first that is missing.
macro_rules! functions {
    ($table:ident, $($symbol:literal $field:ident: fn($($argument:ty),*);)*) => {
        pub(super) struct $table {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl $table {
            fn of(library: &Library) -> Result<$table, &'static str> {
                Ok($table {
                    $($field: {
                        // SAFETY: the type is the one that the header documents for this function.
                        let function = unsafe { library.get($symbol.as_bytes()) };
                        *function.map_err(|_| $symbol)?
                    },)*
                })
            }
        }
    };
}
pub(super) use functions;

functions! { DriverFunctions,
    "cuInit" init: fn(c_uint);
    "cuDeviceGetCount" count: fn(*mut c_int);
    "cuDeviceGetName" name: fn(*mut c_char, c_int, c_int);
    "cuDeviceTotalMem_v2" total_memory: fn(*mut usize, c_int);
    "cuDeviceGetUuid_v2" uuid: fn(*mut [u8; 16], c_int);
    "cuDevicePrimaryCtxRetain" retain_context: fn(*mut Context, c_int);
    "cuCtxPushCurrent_v2" push_context: fn(Context);
    "cuCtxPopCurrent_v2" pop_context: fn(*mut Context);
    "cuCtxGetDevice" context_device: fn(*mut c_int);
    "cuMemAllocAsync" allocate: fn(*mut DeviceAddress, usize, Stream);
    "cuMemFreeAsync" free: fn(DeviceAddress, Stream);
    "cuMemHostAlloc" allocate_pinned: fn(*mut *mut c_void, usize, c_uint);
    "cuMemFreeHost" free_pinned: fn(*mut c_void);
    "cuMemHostRegister_v2" pin: fn(*mut c_void, usize, c_uint);
    "cuMemHostUnregister" unpin: fn(*mut c_void);
    "cuMemcpyDtoHAsync_v2" copy_to_host: fn(*mut c_void, DeviceAddress, usize, Stream);
    "cuMemcpyHtoDAsync_v2" copy_to_device: fn(DeviceAddress, *const c_void, usize, Stream);
    "cuMemcpyDtoDAsync_v2" copy: fn(DeviceAddress, DeviceAddress, usize, Stream);
    "cuMemsetD8Async" set: fn(DeviceAddress, u8, usize, Stream);
    "cuStreamCreateWithPriority" create_stream: fn(*mut Stream, c_uint, c_int);
    "cuStreamWaitEvent" wait_event: fn(Stream, EventHandle, c_uint);
    "cuStreamQuery" query_stream: fn(Stream);
    "cuStreamGetCtx" stream_context: fn(Stream, *mut Context);
    "cuEventCreate" create_event: fn(*mut EventHandle, c_uint);
    "cuEventRecord" record_event: fn(EventHandle, Stream);
    "cuEventQuery" query_event: fn(EventHandle);
    "cuEventElapsedTime" elapsed: fn(*mut f32, EventHandle, EventHandle);
    "cuEventDestroy_v2" destroy_event: fn(EventHandle);
    "cuModuleLoadData" load_module: fn(*mut *mut c_void, *const c_void);
    "cuModuleGetFunction" module_function: fn(*mut *mut c_void, *mut c_void, *const c_char);
    "cuLaunchKernel" launch: fn(
        *mut c_void, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Stream,
        *mut *mut c_void, *mut *mut c_void
    );
    "cuGetErrorString" error_string: fn(c_int, *mut *const c_char);
}

/// The driver of this process.
pub(super) struct CudaDriver {
    pub(super) functions: DriverFunctions,
    _library: Library,
}

impl CudaDriver {
    /// Opens the driver, without any work on a GPU: a process that has not used one yet may fork.
    pub(super) fn open(paths: &LibraryPaths) -> Result<CudaDriver, DeviceError> {
        let (library, path) = paths.open_driver()?;
        let (version, _) = CudaDriver::version_of(&library, &path)?;
        if version < CudaVersion::OLDEST {
            return Err(DeviceError(format!(
                "the NVIDIA driver is too old: it supports CUDA {version}, and Ronde needs {}; \
                 update it",
                CudaVersion::OLDEST
            )));
        }
        let functions = DriverFunctions::of(&library).map_err(|missing| {
            DeviceError(format!("the NVIDIA driver `{path}` has no function `{missing}`"))
        })?;
        Ok(CudaDriver { functions, _library: library })
    }

    /// The newest CUDA that a driver supports, and the file that it is in.
    pub(super) fn version_of(
        library: &Library,
        name: &str,
    ) -> Result<(CudaVersion, String), DeviceError> {
        let found = ask_version(library, c"cuDriverGetVersion");
        let (version, file) =
            found.ok_or_else(|| DeviceError(format!("`{name}` is not the NVIDIA driver")))?;
        Ok((CudaVersion(version), file.unwrap_or_else(|| name.to_owned())))
    }

    /// Initializes the driver for this process; may be repeated.
    pub(super) fn initialize(&self) -> Result<(), DeviceError> {
        // SAFETY: initializing takes no memory of ours.
        self.check(unsafe { (self.functions.init)(0) }, "cuInit")
    }

    /// Initializes the driver, and tells whether there is any GPU.
    pub(super) fn finds_gpus(&self) -> Result<bool, DeviceError> {
        // SAFETY: initializing takes no memory of ours.
        match unsafe { (self.functions.init)(0) } {
            NO_DEVICE => Ok(false),
            status => self.check(status, "cuInit").map(|()| true),
        }
    }

    /// How many GPUs this process sees.
    pub(super) fn count(&self) -> Result<c_int, DeviceError> {
        let mut count = 0;
        // SAFETY: it writes one number.
        self.check(unsafe { (self.functions.count)(&raw mut count) }, "cuDeviceGetCount")?;
        Ok(count)
    }

    /// The name of a GPU, for people.
    pub(super) fn name(&self, number: c_int) -> Result<String, DeviceError> {
        let mut name = [0u8; 96];
        let (start, length) = (name.as_mut_ptr().cast::<c_char>(), name.len() as c_int);
        // SAFETY: it writes at most that many bytes, the last of which is zero.
        self.check(unsafe { (self.functions.name)(start, length, number) }, "cuDeviceGetName")?;
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(name).into_owned())
    }

    /// Turns the status of a call into an error that says what to do.
    pub(super) fn check(&self, status: c_int, call: &str) -> Result<(), DeviceError> {
        if status == 0 {
            return Ok(());
        }
        let hint = match status {
            OUT_OF_MEMORY => {
                "; use a smaller batch, or HOROVOD_FUSION_THRESHOLD for smaller buckets"
            }
            DEINITIALIZED | CONTEXT_IS_DESTROYED => {
                "; the program has reset or shut down CUDA while Ronde was using it"
            }
            NO_DEVICE => "; check `nvidia-smi` and CUDA_VISIBLE_DEVICES",
            _ => "",
        };
        Err(DeviceError(format!("CUDA error {status} in {call}: {}{hint}", self.message(status))))
    }

    fn message(&self, status: c_int) -> String {
        let mut text = std::ptr::null();
        // SAFETY: it writes one address.
        unsafe { (self.functions.error_string)(status, &raw mut text) };
        if text.is_null() {
            return "unknown error".into();
        }
        // SAFETY: the driver's messages are static.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}
