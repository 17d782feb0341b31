//! Our one kernel: it copies many ranges of GPU memory in one launch, to pack a bucket into one
//! tensor and to unpack it.

use std::ffi::{CString, c_void};
use std::ptr::{from_mut, null_mut};

use super::DeviceError;
use super::gpu::Gpu;

/// Parsed and compiled by the driver, so it runs on every GPU.
const SOURCE: &str = include_str!("copy_ranges.ptx");
const NAME: &str = "ronde_copy_ranges";

/// Ranges in one launch: parameters of a kernel have at most 4096 bytes.
const RANGES: usize = 168;
const THREADS: u32 = 256;
/// Bytes that a thread copies at least, if there are enough.
const BYTES_PER_THREAD: u64 = 64;
/// Blocks for one range, at most.
const BLOCKS: u64 = 256;

/// Some bytes to copy; the numbers are addresses on the GPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopyRange {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) length: u64,
}

#[repr(C)]
struct RangeTable([CopyRange; RANGES]);

/// The compiled kernel, for the life of the process.
#[derive(Clone, Copy)]
pub(super) struct CopyKernel(*mut c_void);

// SAFETY: it is a handle that the driver lets any thread use.
unsafe impl Send for CopyKernel {}
// SAFETY: as above.
unsafe impl Sync for CopyKernel {}

impl CopyKernel {
    pub(super) fn compile(gpu: &Gpu) -> Result<CopyKernel, DeviceError> {
        let driver = gpu.driver();
        let source = CString::new(SOURCE).expect("the source has no zeros");
        let name = CString::new(NAME).expect("the name has no zeros");
        gpu.inside(|| {
            let (mut module, mut function) = (null_mut(), null_mut());
            let load = driver.functions.load_module;
            // SAFETY: the source is a text that ends with a zero; it writes one handle.
            let status = unsafe { load(&raw mut module, source.as_ptr().cast()) };
            driver.check(status, "cuModuleLoadData")?;
            let find = driver.functions.module_function;
            // SAFETY: as above.
            let status = unsafe { find(&raw mut function, module, name.as_ptr()) };
            driver.check(status, "cuModuleGetFunction")?;
            Ok(CopyKernel(function))
        })
    }

    /// Enqueues copies on our stream.
    ///
    /// The caller keeps all of the memory alive and untouched until an event behind them is done.
    pub(super) fn copy(self, gpu: &Gpu, ranges: &[CopyRange]) -> Result<(), DeviceError> {
        let driver = gpu.driver();
        for part in ranges.chunks(RANGES) {
            let mut table = RangeTable([CopyRange::default(); RANGES]);
            table.0[..part.len()].copy_from_slice(part);
            let mut count = part.len() as u32;
            let longest = part.iter().map(|range| range.length).max().unwrap_or_default();
            let threads = longest.div_ceil(BYTES_PER_THREAD);
            let blocks = threads.div_ceil(u64::from(THREADS)).clamp(1, BLOCKS) as u32;
            let mut parameters =
                [from_mut(&mut table).cast::<c_void>(), from_mut(&mut count).cast()];
            gpu.inside(|| {
                // SAFETY: the parameters have the types in the source, and are copied before this
                // returns; the caller keeps the memory.
                let status = unsafe {
                    (driver.functions.launch)(
                        self.0,
                        blocks,
                        count,
                        1,
                        THREADS,
                        1,
                        1,
                        0,
                        gpu.stream(),
                        parameters.as_mut_ptr(),
                        null_mut(),
                    )
                };
                driver.check(status, "cuLaunchKernel")
            })?;
        }
        Ok(())
    }
}
