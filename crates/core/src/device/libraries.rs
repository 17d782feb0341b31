//! Finds and opens the driver and NCCL.
//!
//! A library that the process has already loaded comes first, because two copies of NCCL in one
//! process do not mix: torch and JAX bring their own. Then the packages of the environment, then
//! whatever the system's loader finds.

use std::error::Error;
use std::ffi::{CStr, OsStr, c_int};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::DeviceError;
use super::driver::{CudaDriver, Stream};
use super::nccl::Nccl;

/// Where to look for the libraries besides the places that the system's loader knows.
#[derive(Clone, Debug, Default)]
pub struct LibraryPaths {
    /// The driver to open instead of the system's.
    pub driver: Option<PathBuf>,
    /// The NCCL to open instead of all others: the value of `RONDE_NCCL`.
    pub nccl: Option<PathBuf>,
    /// Folders with installed Python packages.
    pub packages: Vec<PathBuf>,
    /// Whether NCCL has been told to connect ranks when a communicator is made, not in the first
    /// collective (`NCCL_RUNTIME_CONNECT=0`).
    pub connects_early: bool,
}

/// The driver and NCCL of this process.
pub struct GpuLibraries {
    pub(super) driver: CudaDriver,
    nccl: OnceLock<Result<Arc<Nccl>, DeviceError>>,
    paths: LibraryPaths,
}

impl GpuLibraries {
    /// Opens the driver; NCCL is opened when it is first needed.
    pub fn open(paths: LibraryPaths) -> Result<Arc<GpuLibraries>, DeviceError> {
        let driver = CudaDriver::open(&paths)?;
        Ok(Arc::new(GpuLibraries { driver, nccl: OnceLock::new(), paths }))
    }

    /// NCCL, or why there is none.
    pub fn nccl(&self) -> Result<Arc<Nccl>, DeviceError> {
        self.nccl.get_or_init(|| Nccl::open(&self.paths).map(Arc::new)).clone()
    }

    /// The index of the GPU that a framework's stream belongs to, whatever index the framework has
    /// for it. The default stream belongs to the GPU that is current in this thread.
    pub fn index_of_stream(&self, stream: usize) -> Result<u32, DeviceError> {
        let functions = &self.driver.functions;
        let mut context = std::ptr::null_mut();
        // SAFETY: it writes one handle; the caller passes a stream that exists.
        let found = unsafe { (functions.stream_context)(stream as Stream, &raw mut context) };
        self.driver.check(found, "cuStreamGetCtx")?;
        // SAFETY: the context exists as long as its stream.
        self.driver.check(unsafe { (functions.push_context)(context) }, "cuCtxPushCurrent")?;
        let mut index = 0;
        // SAFETY: it writes one number.
        let asked = unsafe { (functions.context_device)(&raw mut index) };
        // SAFETY: it writes one handle, of the context that was pushed above.
        unsafe { (functions.pop_context)(&raw mut context) };
        self.driver.check(asked, "cuCtxGetDevice")?;
        u32::try_from(index).map_err(|_| DeviceError(format!("the driver names GPU {index}")))
    }
}

const DRIVER: &str = "libcuda.so.1";
const NCCL: &str = "libnccl.so.2";
/// Where the packages `nvidia-nccl-cu12` and `nvidia-nccl-cu13` put the library.
const NCCL_IN_PACKAGES: &str = "nvidia/nccl/lib/libnccl.so.2";

impl LibraryPaths {
    pub(super) fn open_driver(&self) -> Result<(Library, String), DeviceError> {
        let wanted = self.driver.as_ref().map(|path| path.to_string_lossy().into_owned());
        let names = wanted.map_or_else(|| vec![DRIVER.to_owned()], |path| vec![path]);
        open(&names)
            .map_err(|tried| DeviceError(format!("the NVIDIA driver cannot be opened: {tried}")))
    }

    pub(super) fn open_nccl(&self) -> Result<(Library, String), DeviceError> {
        let names: Vec<String> = match &self.nccl {
            Some(path) => vec![path.to_string_lossy().into_owned()],
            None => {
                let packages = self.packages.iter().map(|folder| folder.join(NCCL_IN_PACKAGES));
                let there = packages.filter(|path| path.exists());
                let there = there.map(|path| path.to_string_lossy().into_owned());
                let loaded = loaded(NCCL).map(|library| (library, NCCL.to_owned()));
                if let Some(found) = loaded {
                    return Ok(found);
                }
                there.chain([NCCL.to_owned()]).collect()
            }
        };
        open(&names).map_err(|tried| DeviceError(format!("NCCL cannot be opened: {tried}")))
    }
}

/// Calls a library's function that writes its version; also returns the file that the function is
/// in, if that is known.
pub(super) fn ask_version(library: &Library, function: &CStr) -> Option<(u32, Option<String>)> {
    type AskVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
    // SAFETY: the type is the one that both headers document for these functions.
    let ask = *unsafe { library.get::<AskVersion>(function.to_bytes_with_nul()) }.ok()?;
    let mut version = 0;
    // SAFETY: it writes one number.
    unsafe { ask(&raw mut version) };
    let mut place = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: it looks the address up, and writes one structure.
    let found = unsafe { libc::dladdr(ask as *const _, place.as_mut_ptr()) } != 0;
    // SAFETY: zeros are valid for it.
    let place = unsafe { place.assume_init() };
    let file = (found && !place.dli_fname.is_null()).then(|| {
        // SAFETY: the loader keeps the name for as long as the library is loaded.
        unsafe { CStr::from_ptr(place.dli_fname) }.to_string_lossy().into_owned()
    });
    Some((u32::try_from(version).ok()?, file))
}

/// A library that the process has loaded.
fn loaded(name: &str) -> Option<Library> {
    // SAFETY: this flag only finds a library, and runs none of its code.
    unsafe { Library::open(Some(OsStr::new(name)), RTLD_NOW | libc::RTLD_NOLOAD) }.ok()
}

/// The first of these that can be opened; the error says why each cannot.
fn open(names: &[String]) -> Result<(Library, String), String> {
    let mut problems = Vec::new();
    for name in names {
        // SAFETY: these are the driver and NCCL, whose code a GPU program trusts; or a file that
        // the user has named.
        match unsafe { Library::open(Some(name.as_str()), RTLD_NOW | RTLD_LOCAL) } {
            Ok(library) => return Ok((library, name.clone())),
            // Only the source of the error names the file and the reason.
            Err(error) => {
                let why = error.source().map(ToString::to_string);
                problems.push(why.unwrap_or_else(|| name.clone()));
            }
        }
    }
    Err(problems.join("; "))
}
