//! Memory of our own: on the GPU, and pinned host memory that the GPU copies from and to.

use std::sync::Arc;

use super::DeviceError;
use super::driver::DeviceAddress;
use super::gpu::Gpu;
use crate::buffer::{DeviceMemory, Output, Owner};

/// The unit in which host memory is pinned.
pub(crate) const PAGE: usize = 4096;

/// Memory of the GPU, allocated and freed in the order of our stream.
pub(crate) struct DeviceBuffer {
    gpu: Arc<Gpu>,
    address: DeviceAddress,
    length: usize,
}

impl DeviceBuffer {
    /// Memory whose content is undefined.
    pub(crate) fn new(gpu: &Arc<Gpu>, length: usize) -> Result<DeviceBuffer, DeviceError> {
        let (driver, mut address) = (gpu.driver(), 0);
        gpu.inside(|| {
            // The driver refuses to allocate nothing.
            let bytes = length.max(1);
            // SAFETY: it writes one address.
            let status =
                unsafe { (driver.functions.allocate)(&raw mut address, bytes, gpu.stream()) };
            driver.check(status, "cuMemAllocAsync")
        })?;
        Ok(DeviceBuffer { gpu: gpu.clone(), address, length })
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The first bytes of it, for work on our stream that is enqueued before this buffer is
    /// dropped.
    pub(crate) fn part(&mut self, length: usize) -> Output<DeviceMemory> {
        assert!(length <= self.length, "it is that long");
        // SAFETY: freeing is enqueued behind all work that uses the memory.
        unsafe { Output::new(self.address as *mut u8, length, None) }
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        let free = self.gpu.driver().functions.free;
        // SAFETY: everything that uses the memory is on the same stream, before this.
        let _ = self.gpu.inside(|| Ok(unsafe { free(self.address, self.gpu.stream()) }));
    }
}

/// Enqueues a copy of GPU memory on our stream: `length` bytes from `source`.
///
/// The caller keeps both alive and untouched until an event behind the copy is done.
pub(crate) fn copy(
    gpu: &Gpu,
    source: *const u8,
    target: &Output<DeviceMemory>,
    length: usize,
) -> Result<(), DeviceError> {
    assert!(length <= target.length(), "it fits");
    let driver = gpu.driver();
    gpu.inside(|| {
        let (source, target) = (source as u64, target.start() as u64);
        // SAFETY: the caller keeps both, which are at least that long.
        let status = unsafe { (driver.functions.copy)(target, source, length, gpu.stream()) };
        driver.check(status, "cuMemcpyDtoDAsync")
    })
}

/// Host memory that the GPU copies from and to without the processor.
pub(crate) struct PinnedBuffer {
    gpu: Arc<Gpu>,
    start: *mut u8,
    length: usize,
    /// What owns the memory, unless it was allocated by the driver.
    owner: Option<Box<dyn Owner>>,
}

// SAFETY: it is plain memory that this buffer owns.
unsafe impl Send for PinnedBuffer {}

impl PinnedBuffer {
    pub(crate) fn new(gpu: &Arc<Gpu>, length: usize) -> Result<PinnedBuffer, DeviceError> {
        let (driver, mut start) = (gpu.driver(), std::ptr::null_mut());
        gpu.inside(|| {
            // SAFETY: it writes one address.
            let status =
                unsafe { (driver.functions.allocate_pinned)(&raw mut start, length.max(1), 0) };
            driver.check(status, "cuMemHostAlloc")
        })?;
        let start = start.cast::<u8>();
        // SAFETY: the memory is ours and that long; the driver does not promise its content.
        unsafe { start.write_bytes(0, length) };
        Ok(PinnedBuffer { gpu: gpu.clone(), start, length, owner: None })
    }

    /// Pins `length` bytes of memory that has an owner, from its first whole page on.
    pub(crate) fn of(
        gpu: &Arc<Gpu>,
        mut owner: Box<dyn Owner>,
        length: usize,
    ) -> Result<PinnedBuffer, DeviceError> {
        let (driver, memory) = (gpu.driver(), owner.bytes_mut());
        let skipped = memory.as_ptr().align_offset(PAGE);
        let memory = memory.get_mut(skipped..skipped + length);
        let memory = memory.ok_or_else(|| DeviceError("too little memory to pin".into()))?;
        let start = memory.as_mut_ptr();
        gpu.inside(|| {
            // SAFETY: the memory is the owner's alone, and unpinned before the owner is dropped.
            let status = unsafe { (driver.functions.pin)(start.cast(), length, 0) };
            driver.check(status, "cuMemHostRegister")
        })?;
        Ok(PinnedBuffer { gpu: gpu.clone(), start, length, owner: Some(owner) })
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The content. No copy that was enqueued may still be running.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory is ours, initialized, and that long.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }

    /// Enqueues a copy from a GPU tensor into this memory, at an offset.
    ///
    /// The caller keeps both alive and untouched until an event behind the copy is done.
    pub(crate) fn fetch(
        &mut self,
        offset: usize,
        (from, at): (*const u8, usize),
        length: usize,
    ) -> Result<(), DeviceError> {
        assert!(offset + length <= self.length, "it fits");
        let (driver, stream) = (self.gpu.driver(), self.gpu.stream());
        let (source, target) = (from as u64 + at as u64, self.start.wrapping_add(offset));
        self.gpu.inside(|| {
            // SAFETY: both ranges are within their memory, which the caller keeps.
            let status =
                unsafe { (driver.functions.copy_to_host)(target.cast(), source, length, stream) };
            driver.check(status, "cuMemcpyDtoHAsync")
        })
    }

    /// Enqueues a copy from this memory to a GPU tensor, under the same conditions.
    pub(crate) fn send(
        &self,
        offset: usize,
        (to, at): (&Output<DeviceMemory>, usize),
        length: usize,
    ) -> Result<(), DeviceError> {
        assert!(offset + length <= self.length && at + length <= to.length(), "within both");
        let (driver, stream) = (self.gpu.driver(), self.gpu.stream());
        let (source, target) = (self.start.wrapping_add(offset), to.start() as u64 + at as u64);
        self.gpu.inside(|| {
            // SAFETY: as above.
            let status = unsafe {
                (driver.functions.copy_to_device)(
                    target,
                    source.cast_const().cast(),
                    length,
                    stream,
                )
            };
            driver.check(status, "cuMemcpyHtoDAsync")
        })
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let functions = &self.gpu.driver().functions;
        let release = match self.owner {
            Some(_) => functions.unpin,
            None => functions.free_pinned,
        };
        // SAFETY: the driver waits for copies that still use it.
        let _ = self.gpu.inside(|| Ok(unsafe { release(self.start.cast()) }));
    }
}
