//! Points in the order of a stream.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use super::DeviceError;
use super::driver::{EventHandle, NOT_READY, Stream};
use super::gpu::Gpu;

/// Without timing, which would cost more.
const DISABLE_TIMING: u32 = 2;
const WITH_TIMING: u32 = 0;

/// A point in the order of a stream: everything enqueued before it.
pub struct Event {
    gpu: Arc<Gpu>,
    handle: EventHandle,
}

// SAFETY: the driver's functions may be called from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Records everything that is enqueued on a stream of this GPU so far. The stream is a
    /// `CUstream` of the framework; zero is the default stream.
    pub fn on_stream(gpu: &Arc<Gpu>, stream: usize) -> Result<Event, DeviceError> {
        Event::record(gpu, stream as *mut c_void, DISABLE_TIMING)
    }

    /// The same, and when it is reached can be asked later.
    pub(super) fn with_time(gpu: &Arc<Gpu>, stream: Stream) -> Result<Event, DeviceError> {
        Event::record(gpu, stream, WITH_TIMING)
    }

    fn record(gpu: &Arc<Gpu>, stream: Stream, flags: u32) -> Result<Event, DeviceError> {
        let (driver, mut handle) = (gpu.driver(), std::ptr::null_mut());
        gpu.inside(|| {
            let functions = &driver.functions;
            // SAFETY: it writes one handle.
            let created = unsafe { (functions.create_event)(&raw mut handle, flags) };
            driver.check(created, "cuEventCreate")?;
            let event = Event { gpu: gpu.clone(), handle };
            // SAFETY: the event is new, and the stream belongs to this context.
            driver.check(unsafe { (functions.record_event)(handle, stream) }, "cuEventRecord")?;
            Ok(event)
        })
    }

    /// Whether everything before it is done.
    pub fn is_done(&self) -> Result<bool, DeviceError> {
        let driver = self.gpu.driver();
        // SAFETY: the event exists until this handle is dropped.
        match unsafe { (driver.functions.query_event)(self.handle) } {
            NOT_READY => Ok(false),
            status => driver.check(status, "cuEventQuery").map(|()| true),
        }
    }

    /// The time between two events that are done and were recorded with their time.
    pub(super) fn milliseconds_since(&self, earlier: &Event) -> Result<f64, DeviceError> {
        let (driver, mut milliseconds) = (self.gpu.driver(), 0_f32);
        // SAFETY: both events exist until their handles are dropped; it writes one number.
        let status = unsafe {
            (driver.functions.elapsed)(&raw mut milliseconds, earlier.handle, self.handle)
        };
        driver.check(status, "cuEventElapsedTime")?;
        Ok(f64::from(milliseconds))
    }

    /// Makes a stream of the framework wait for this point. The host does not wait.
    pub fn make_stream_wait(&self, stream: usize) -> Result<(), DeviceError> {
        self.hold_back(stream as *mut c_void)
    }

    pub(super) fn hold_back(&self, stream: Stream) -> Result<(), DeviceError> {
        let driver = self.gpu.driver();
        self.gpu.inside(|| {
            // SAFETY: both exist, and belong to contexts of this process.
            let status = unsafe { (driver.functions.wait_event)(stream, self.handle, 0) };
            driver.check(status, "cuStreamWaitEvent")
        })
    }

    /// The GPU that it is on.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("gpu", &self.gpu.index()).finish_non_exhaustive()
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let destroy = self.gpu.driver().functions.destroy_event;
        // SAFETY: the handle is dropped once; the driver frees the event when it is reached.
        let _ = self.gpu.inside(|| Ok(unsafe { destroy(self.handle) }));
    }
}
