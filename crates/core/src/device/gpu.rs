//! This rank's GPU: its context, and our stream on it.

use std::ffi::c_int;
use std::sync::{Arc, OnceLock};

use super::driver::{Context, CudaDriver, NOT_READY, Stream};
use super::kernel::{CopyKernel, CopyRange};
use super::libraries::GpuLibraries;
use super::nccl::Nccl;
use super::{DeviceError, Event};
use crate::buffer::{DeviceMemory, Output};

/// A stream that does not wait for the default stream.
const NON_BLOCKING: u32 = 1;
/// Collectives before other work: the sooner one has started, the more of it is hidden.
const PRIORITY: c_int = -1;

/// What identifies a GPU: two ranks with the same one share it.
pub type GpuId = [u8; 16];

/// A GPU of this process.
pub struct Gpu {
    libraries: Arc<GpuLibraries>,
    index: u32,
    id: GpuId,
    name: String,
    context: Context,
    stream: Stream,
    /// Has nothing to do but to tell the time.
    idle_stream: Stream,
    kernel: OnceLock<Result<CopyKernel, DeviceError>>,
}

// SAFETY: contexts and streams are handles that the driver lets any thread use.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// The GPU with this index in this process, with a new stream of ours.
    pub fn open(libraries: &Arc<GpuLibraries>, index: u32) -> Result<Gpu, DeviceError> {
        let driver = &libraries.driver;
        let functions = &driver.functions;
        driver.initialize()?;
        let count = driver.count()?;
        let number = c_int::try_from(index).ok().filter(|number| *number < count);
        let Some(number) = number else {
            return Err(DeviceError(format!(
                "there is no GPU {index}: this process sees {count}; check CUDA_VISIBLE_DEVICES"
            )));
        };
        let mut id = [0; 16];
        // SAFETY: it writes 16 bytes.
        driver.check(unsafe { (functions.uuid)(&raw mut id, number) }, "cuDeviceGetUuid")?;
        let name = driver.name(number)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: it writes one handle; frameworks use the same context.
        let retained = unsafe { (functions.retain_context)(&raw mut context, number) };
        driver.check(retained, "cuDevicePrimaryCtxRetain")?;
        let (libraries, kernel) = (libraries.clone(), OnceLock::new());
        let (stream, idle_stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mut gpu = Gpu { libraries, index, id, name, context, stream, idle_stream, kernel };
        (gpu.stream, gpu.idle_stream) = (gpu.new_stream()?, gpu.new_stream()?);
        Ok(gpu)
    }

    fn new_stream(&self) -> Result<Stream, DeviceError> {
        let (driver, mut stream) = (self.driver(), std::ptr::null_mut());
        self.inside(|| {
            let create = driver.functions.create_stream;
            // SAFETY: it writes one handle, of a stream in this context.
            let created = unsafe { create(&raw mut stream, NON_BLOCKING, PRIORITY) };
            driver.check(created, "cuStreamCreateWithPriority")
        })?;
        Ok(stream)
    }

    /// Its index in this process.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// What identifies it on its host.
    pub fn id(&self) -> GpuId {
        self.id
    }

    /// Its name, for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// NCCL, or why there is none.
    pub(crate) fn nccl(&self) -> Result<Arc<Nccl>, DeviceError> {
        self.libraries.nccl()
    }

    pub(super) fn driver(&self) -> &CudaDriver {
        &self.libraries.driver
    }

    pub(super) fn stream(&self) -> Stream {
        self.stream
    }

    /// Runs something in this GPU's context, and restores the caller's.
    pub(super) fn inside<T>(
        &self,
        work: impl FnOnce() -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let functions = &self.driver().functions;
        // SAFETY: the context is retained for the life of the process.
        let pushed = unsafe { (functions.push_context)(self.context) };
        self.driver().check(pushed, "cuCtxPushCurrent")?;
        let result = work();
        let mut ours = std::ptr::null_mut();
        // SAFETY: it writes one handle, of the context that was pushed above.
        unsafe { (functions.pop_context)(&raw mut ours) };
        result
    }

    /// Enqueues copies on our stream, in one launch.
    ///
    /// The caller keeps all of the memory alive and untouched until an event behind them is done.
    pub(crate) fn copy_ranges(&self, ranges: &[CopyRange]) -> Result<(), DeviceError> {
        let kernel = self.kernel.get_or_init(|| CopyKernel::compile(self)).clone()?;
        kernel.copy(self, ranges)
    }

    /// Enqueues zeros for GPU memory on our stream, under the same conditions.
    pub(crate) fn fill_with_zeros(&self, memory: &Output<DeviceMemory>) -> Result<(), DeviceError> {
        let (driver, address) = (self.driver(), memory.start() as u64);
        self.inside(|| {
            // SAFETY: the caller keeps the memory, which is that long.
            let status =
                unsafe { (driver.functions.set)(address, 0, memory.length(), self.stream) };
            driver.check(status, "cuMemsetD8Async")
        })
    }

    /// Makes our stream wait for an event.
    pub(crate) fn wait_for(&self, event: &Event) -> Result<(), DeviceError> {
        event.hold_back(self.stream)
    }

    /// Everything that is enqueued on our stream so far.
    pub(crate) fn mark(self: &Arc<Gpu>) -> Result<Event, DeviceError> {
        Event::with_time(self, self.stream)
    }

    /// A point that the GPU reaches at once, whatever our stream has to do.
    pub(super) fn mark_beside(self: &Arc<Gpu>) -> Result<Event, DeviceError> {
        Event::with_time(self, self.idle_stream)
    }

    /// Whether our stream has nothing left to do.
    pub(crate) fn is_idle(&self) -> Result<bool, DeviceError> {
        // SAFETY: the stream exists for the life of the process.
        match unsafe { (self.driver().functions.query_stream)(self.stream) } {
            NOT_READY => Ok(false),
            status => self.driver().check(status, "cuStreamQuery").map(|()| true),
        }
    }
}
