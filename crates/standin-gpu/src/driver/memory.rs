//! Device memory and pinned host memory: ordinary memory that is registered here.
//!
//! An operation looks up its addresses when it runs, and keeps the memory alive until it ends:
//! using memory after it was freed gives "illegal address", never a crash. New memory is filled
//! with a pattern, to expose reads of uninitialized memory.
#![expect(unsafe_code, reason = "allocates memory and exports C symbols")]

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex};

use super::{CuCode, CuResult, answer, devices, driver, streams};
use crate::config;
use crate::handles::lock;
use crate::pointers::{self, put};

/// The alignment that the real driver guarantees.
const ALIGNMENT: usize = 256;
const FRESH: u8 = 0xCB;

static LIVE: Mutex<BTreeMap<usize, Arc<FakeAllocation>>> = Mutex::new(BTreeMap::new());

pub(crate) struct FakeAllocation {
    pub(crate) start: usize,
    pub(crate) size: usize,
    pub(crate) kind: FakeMemoryKind,
    /// The ordinal of the device whose context it belongs to.
    pub(crate) device: usize,
    /// Whether it belongs to the program, which has registered it.
    is_registered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FakeMemoryKind {
    /// The numbers of `CUmemorytype`.
    Host = 1,
    Device = 2,
}

impl FakeAllocation {
    fn layout(size: usize) -> CuResult<Layout> {
        Layout::from_size_align(size, ALIGNMENT).map_err(|_| CuCode::OUT_OF_MEMORY)
    }
}

impl Drop for FakeAllocation {
    fn drop(&mut self) {
        if let Ok(layout) = Self::layout(self.size)
            && !self.is_registered
        {
            // SAFETY: `allocate` got this memory with the same layout, and this is its only owner.
            unsafe { dealloc(self.start as *mut u8, layout) };
        }
    }
}

/// The allocation that contains an address.
pub(crate) fn find(address: usize) -> Option<Arc<FakeAllocation>> {
    let live = lock(&LIVE);
    let (_, allocation) = live.range(..=address).next_back()?;
    (address < allocation.start + allocation.size).then(|| Arc::clone(allocation))
}

/// The allocation that contains a whole range; keep it for as long as the range is in use.
pub(crate) fn hold(address: usize, size: usize) -> CuResult<Option<Arc<FakeAllocation>>> {
    if size == 0 {
        return Ok(None);
    }
    let allocation = find(address).ok_or(CuCode::ILLEGAL_ADDRESS)?;
    if size > allocation.start + allocation.size - address {
        return Err(CuCode::ILLEGAL_ADDRESS);
    }
    Ok(Some(allocation))
}

pub(super) fn free_all_of(device: usize) {
    lock(&LIVE).retain(|_, allocation| allocation.device != device);
}

fn allocate(device: usize, size: usize, kind: FakeMemoryKind) -> CuResult<usize> {
    if size == 0 {
        return Err(CuCode::INVALID_VALUE);
    }
    let layout = FakeAllocation::layout(size)?;
    if kind == FakeMemoryKind::Device && size > free_of(device) {
        return Err(CuCode::OUT_OF_MEMORY);
    }
    // SAFETY: the size is not zero.
    let start = unsafe { alloc(layout) } as usize;
    if start == 0 {
        return Err(CuCode::OUT_OF_MEMORY);
    }
    pointers::fill(start, FRESH, size);
    let is_registered = false;
    let allocation = FakeAllocation { start, size, kind, device, is_registered };
    lock(&LIVE).insert(start, Arc::new(allocation));
    Ok(start)
}

fn free_of(device: usize) -> usize {
    let total = config::read().memory;
    let live = lock(&LIVE);
    let used = live.values().filter(|it| it.kind == FakeMemoryKind::Device && it.device == device);
    total.saturating_sub(used.map(|it| it.size).sum())
}

/// Only the address at which an allocation starts can be freed.
fn starting_at(address: usize, kind: FakeMemoryKind) -> CuResult<Arc<FakeAllocation>> {
    if devices::current() == Err(CuCode::CONTEXT_IS_DESTROYED) {
        return Err(CuCode::CONTEXT_IS_DESTROYED);
    }
    let found = lock(&LIVE).get(&address).cloned();
    found.filter(|allocation| allocation.kind == kind).ok_or(CuCode::INVALID_VALUE)
}

/// Frees memory once the device has finished all its work, as the real driver does: while a
/// collective hangs, this hangs too.
fn free(address: usize, kind: FakeMemoryKind) -> CuResult {
    if address == 0 {
        return Ok(());
    }
    streams::drain_all_of(starting_at(address, kind)?.device)?;
    lock(&LIVE).remove(&address);
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: *mut usize, size: usize) -> i32 {
    driver("cuMemAlloc_v2", |_| {
        answer(address, allocate(devices::current()?, size, FakeMemoryKind::Device)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: usize) -> i32 {
    driver("cuMemFree_v2", |_| free(address, FakeMemoryKind::Device))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync(address: *mut usize, size: usize, stream: usize) -> i32 {
    driver("cuMemAllocAsync", |_| {
        let stream = streams::find(stream)?;
        answer(address, allocate(stream.device, size, FakeMemoryKind::Device)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(address: usize, stream: usize) -> i32 {
    driver("cuMemFreeAsync", |call| {
        let stream = streams::find(stream)?;
        starting_at(address, FakeMemoryKind::Device)?;
        stream.work(call, move || {
            lock(&LIVE).remove(&address).map(|_| ()).ok_or(CuCode::ILLEGAL_ADDRESS)
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(address: *mut usize, size: usize, _flags: c_uint) -> i32 {
    driver("cuMemHostAlloc", |_| {
        answer(address, allocate(devices::current()?, size, FakeMemoryKind::Host)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(address: usize) -> i32 {
    driver("cuMemFreeHost", |_| free(address, FakeMemoryKind::Host))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(start: usize, size: usize, _flags: c_uint) -> i32 {
    driver("cuMemHostRegister_v2", |_| {
        let (device, kind, is_registered) = (devices::current()?, FakeMemoryKind::Host, true);
        if start == 0 || size == 0 {
            return Err(CuCode::INVALID_VALUE);
        }
        if find(start).is_some() {
            return Err(CuCode::HOST_MEMORY_ALREADY_REGISTERED);
        }
        let allocation = FakeAllocation { start, size, kind, device, is_registered };
        lock(&LIVE).insert(start, Arc::new(allocation));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(start: usize) -> i32 {
    driver("cuMemHostUnregister", |_| {
        let allocation = starting_at(start, FakeMemoryKind::Host)?;
        if !allocation.is_registered {
            return Err(CuCode::HOST_MEMORY_NOT_REGISTERED);
        }
        streams::drain_all_of(allocation.device)?;
        lock(&LIVE).remove(&start);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> i32 {
    driver("cuMemGetInfo_v2", |_| {
        let device = devices::current()?;
        answer(free, free_of(device))?;
        answer(total, config::read().memory)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuPointerGetAttribute(to: *mut c_void, attribute: c_int, address: usize) -> i32 {
    driver("cuPointerGetAttribute", |_| {
        let found = find(address).ok_or(CuCode::INVALID_VALUE)?;
        // Numbers and types as documented for `CUpointer_attribute`.
        let written = match attribute {
            1 => put(to.cast(), devices::handle_of(found.device)),
            2 => put(to.cast(), found.kind as c_uint),
            3 => put(to.cast(), address),
            4 if found.kind == FakeMemoryKind::Host => put(to.cast(), address),
            8 => put(to.cast(), 0_u8),
            9 => put(to.cast(), found.device as c_int),
            11 => put(to.cast(), found.start),
            12 => put(to.cast(), found.size),
            13 => put(to.cast(), 1_u8),
            _ => false,
        };
        if written { Ok(()) } else { Err(CuCode::INVALID_VALUE) }
    })
}
