//! The functions of NCCL that we use, as one table.

use std::ffi::{CStr, c_char, c_int, c_void};

use libloading::os::unix::Library;
use ronde_control::{DType, NcclVersion};

use super::DeviceError;
use super::driver::{Stream, functions};
use super::libraries::{LibraryPaths, ask_version};

pub(super) type CommunicatorHandle = *mut c_void;

/// The call continues in the background.
pub(super) const IN_PROGRESS: c_int = 7;

/// Length of the id by which the ranks of a communicator find each other.
pub(crate) const ID_BYTES: usize = 128;

/// The id by which the ranks of a communicator find each other.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UniqueId(pub(crate) [u8; ID_BYTES]);

/// The beginning of NCCL's configuration, as in 2.14; later versions read no more than `size`.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

/// More of it, as in 2.18.
#[repr(C)]
pub(super) struct SplitConfig {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

const MAGIC: u32 = 0xcafe_beef;
/// Leaves a number to NCCL.
const UNDEFINED: c_int = c_int::MIN;

impl Config {
    /// Communicators whose calls return before they are done.
    pub(super) const NON_BLOCKING: Config = Config {
        size: size_of::<Config>(),
        magic: MAGIC,
        version: NcclVersion::OLDEST.0,
        blocking: 0,
    };
}

impl SplitConfig {
    /// Communicators whose calls return when they are launched, with the buffers of their parent.
    pub(super) const BLOCKING: SplitConfig = SplitConfig {
        size: size_of::<SplitConfig>(),
        magic: MAGIC,
        version: NcclVersion::SPLITS.0,
        blocking: 1,
        cga_cluster_size: UNDEFINED,
        min_ctas: UNDEFINED,
        max_ctas: UNDEFINED,
        net_name: std::ptr::null(),
        split_share: 1,
    };
}

functions! { NcclFunctions,
    "ncclGetUniqueId" unique_id: fn(*mut UniqueId);
    "ncclCommInitRankConfig" init: fn(*mut CommunicatorHandle, c_int, UniqueId, c_int, *const Config);
    "ncclCommGetAsyncError" async_error: fn(CommunicatorHandle, *mut c_int);
    "ncclCommFinalize" finalize: fn(CommunicatorHandle);
    "ncclCommAbort" abort: fn(CommunicatorHandle);
    "ncclAllReduce" all_reduce:
        fn(*const c_void, *mut c_void, usize, c_int, c_int, CommunicatorHandle, Stream);
    "ncclBroadcast" broadcast:
        fn(*const c_void, *mut c_void, usize, c_int, c_int, CommunicatorHandle, Stream);
    "ncclAllGather" all_gather:
        fn(*const c_void, *mut c_void, usize, c_int, CommunicatorHandle, Stream);
    "ncclReduceScatter" reduce_scatter:
        fn(*const c_void, *mut c_void, usize, c_int, c_int, CommunicatorHandle, Stream);
    "ncclSend" send: fn(*const c_void, usize, c_int, c_int, CommunicatorHandle, Stream);
    "ncclRecv" receive: fn(*mut c_void, usize, c_int, c_int, CommunicatorHandle, Stream);
    "ncclGroupStart" group_start: fn();
    "ncclGroupEnd" group_end: fn();
    "ncclRedOpCreatePreMulSum" create_scaled_sum:
        fn(*mut c_int, *mut c_void, c_int, c_int, CommunicatorHandle);
    "ncclRedOpDestroy" destroy_operation: fn(c_int, CommunicatorHandle);
}

type Split = unsafe extern "C" fn(
    CommunicatorHandle,
    c_int,
    c_int,
    *mut CommunicatorHandle,
    *const SplitConfig,
) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;
type LastNcclError = unsafe extern "C" fn(CommunicatorHandle) -> *const c_char;

/// The NCCL of this process.
pub struct Nccl {
    pub(super) functions: NcclFunctions,
    /// `ncclCommSplit`, which older versions lack; none if collectives may have to connect ranks.
    pub(super) split: Option<Split>,
    error_string: ErrorString,
    last_error: LastNcclError,
    version: NcclVersion,
    _library: Library,
}

impl Nccl {
    /// Opens NCCL and checks its version.
    pub fn open(paths: &LibraryPaths) -> Result<Nccl, DeviceError> {
        let (library, path) = paths.open_nccl()?;
        let (version, path) = Nccl::version_of(&library, &path)?;
        if version < NcclVersion::OLDEST {
            return Err(DeviceError(format!(
                "NCCL {version} (`{path}`) is too old: Ronde needs {} or newer; install \
                 `nvidia-nccl-cu12` or `nvidia-nccl-cu13`, or name another one with RONDE_NCCL",
                NcclVersion::OLDEST
            )));
        }
        let missing = |name: &str| DeviceError(format!("NCCL (`{path}`) has no function `{name}`"));
        let functions = NcclFunctions::of(&library).map_err(missing)?;
        // SAFETY: the type is the one that the header documents for this function.
        let error_string = unsafe { library.get::<ErrorString>(b"ncclGetErrorString") };
        let error_string = *error_string.map_err(|_| missing("ncclGetErrorString"))?;
        // SAFETY: as above.
        let last_error = unsafe { library.get::<LastNcclError>(b"ncclGetLastError") };
        let last_error = *last_error.map_err(|_| missing("ncclGetLastError"))?;
        // SAFETY: as above.
        let split = unsafe { library.get::<Split>(b"ncclCommSplit") };
        let is_safe = paths.connects_early && version >= NcclVersion::SPLITS;
        let split = split.ok().map(|split| *split).filter(|_| is_safe);
        Ok(Nccl { functions, split, error_string, last_error, version, _library: library })
    }

    /// Its version as a number, as `hvd.nccl_built()` returns it: 22809 for 2.28.9.
    pub fn version(&self) -> u32 {
        self.version.0
    }

    /// The version of an NCCL, and the file that it is in.
    pub(super) fn version_of(
        library: &Library,
        name: &str,
    ) -> Result<(NcclVersion, String), DeviceError> {
        let found = ask_version(library, c"ncclGetVersion");
        let (version, file) = found.ok_or_else(|| DeviceError(format!("`{name}` is not NCCL")))?;
        Ok((NcclVersion(version), file.unwrap_or_else(|| name.to_owned())))
    }

    /// A new id, for the ranks of one communicator.
    pub(crate) fn unique_id(&self) -> Result<UniqueId, DeviceError> {
        let mut id = UniqueId([0; ID_BYTES]);
        // SAFETY: it writes one id.
        self.check(unsafe { (self.functions.unique_id)(&raw mut id) }, "ncclGetUniqueId")?;
        Ok(id)
    }

    /// Turns the status of a call into an error, unless it has succeeded or continues.
    pub(super) fn check(&self, status: c_int, call: &str) -> Result<(), DeviceError> {
        if status == 0 || status == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: it takes any number.
        let text = unsafe { (self.error_string)(status) };
        // SAFETY: its messages are static.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        // SAFETY: the message belongs to NCCL and is copied before anything else is called.
        let last = unsafe { (self.last_error)(std::ptr::null_mut()) };
        let detail = match last.is_null() {
            true => String::new(),
            // SAFETY: as above.
            false => unsafe { CStr::from_ptr(last) }.to_string_lossy().trim().to_owned(),
        };
        let detail = if detail.is_empty() { detail } else { format!(" ({detail})") };
        Err(DeviceError(format!("NCCL error {status} in {call}: {text}{detail}")))
    }
}

/// NCCL's number for an element type, if it computes with it.
pub(super) fn number(dtype: DType) -> Option<c_int> {
    Some(match dtype {
        DType::I8 => 0,
        DType::U8 => 1,
        DType::I32 => 2,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
        DType::U16 | DType::I16 | DType::Bool => return None,
    })
}
#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// As in the header: a field in the wrong place crashes NCCL.
    #[test]
    fn the_configurations_have_the_layout_of_the_header() {
        assert_eq!(offset_of!(Config, blocking), 16);
        let fields = [
            offset_of!(SplitConfig, blocking),
            offset_of!(SplitConfig, cga_cluster_size),
            offset_of!(SplitConfig, max_ctas),
            offset_of!(SplitConfig, net_name),
            offset_of!(SplitConfig, split_share),
            size_of::<SplitConfig>(),
        ];
        assert_eq!(fields, [16, 20, 28, 32, 40, 48]);
    }
}
