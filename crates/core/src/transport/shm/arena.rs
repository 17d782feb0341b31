//! The arena: memory for tensors that every rank of the host can access.
//!
//! One anonymous file per world has a region for each rank, and every rank maps all of it. A rank
//! allocates from its own region only. The regions are reserved, not filled: a page costs memory
//! from its first write until the last block on it is dropped. Counters decide who may touch which
//! block of another rank, and when (see `shared_group`).
//!
//! A block keeps the mapping alive, so that a tensor stays valid after its world has ended.
#![expect(unsafe_code, reason = "shared memory is raw memory")]

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::process::{Resource, getrlimit};

use super::allocator::Allocator;
use crate::buffer::Owner;

/// The unit in which memory is returned to the system, and to which regions are rounded.
const PAGE: usize = 4096;
/// The kernel may have filled this much around a written page.
const HUGE_PAGE: usize = 2 << 20;

pub(crate) struct Arena {
    start: *mut u8,
    /// Size of one rank's region, in bytes.
    region: usize,
    ranks: usize,
    me: usize,
    allocator: Mutex<Allocator>,
    /// Bytes of this rank that were reduced in place.
    in_place: AtomicU64,
    /// A forked child inherits the mapping and the blocks, but must not release the memory.
    pid: u32,
}

// SAFETY: blocks do not overlap, and addresses in the memory of other ranks are dereferenced only
// by code whose counters show that it may.
unsafe impl Send for Arena {}
// SAFETY: as above; the bookkeeping has a lock.
unsafe impl Sync for Arena {}

/// A piece of this rank's region of the arena; dropping it frees the memory.
pub struct ArenaBlock {
    arena: Arc<Arena>,
    place: Range<usize>,
    length: usize,
}

impl Arena {
    /// Makes the file for `ranks` ranks with `region` bytes each; an empty file means no arena.
    pub(crate) fn create(ranks: usize, region: usize) -> io::Result<OwnedFd> {
        let fd = memfd_create("ronde-arena", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let region = region / PAGE * PAGE;
        let length = region.checked_mul(ranks).filter(|_| is_unlimited(Resource::Fsize));
        // A world can do without an arena if the kernel refuses a file of this length.
        if ftruncate(&fd, length.unwrap_or(0) as u64).is_err() {
            ftruncate(&fd, 0)?;
        }
        // A file that cannot shrink cannot take memory away from a reader.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(fd)
    }

    /// Maps the arena of a world of `ranks` ranks for rank `me`; `None` if it is empty, or if this
    /// process does not have enough address space.
    pub(crate) fn open(fd: &OwnedFd, ranks: usize, me: usize) -> io::Result<Option<Arc<Arena>>> {
        let length = fstat(fd)?.st_size as usize;
        if length == 0 {
            return Ok(None);
        }
        if !length.is_multiple_of(ranks * PAGE) {
            return Err(io::Error::other(format!("an arena of {length} bytes has the wrong size")));
        }
        // Where address space is limited, the program needs it itself.
        if !is_unlimited(Resource::As) {
            return Ok(None);
        }
        let Ok(start) = map(fd, length) else { return Ok(None) };
        let region = length / ranks;
        let (allocator, pid) = (Mutex::new(Allocator::new(region)), std::process::id());
        let in_place = AtomicU64::new(0);
        Ok(Some(Arc::new(Arena { start, region, ranks, me, allocator, in_place, pid })))
    }

    /// Allocates `length` bytes with arbitrary content; `None` if the region is full.
    pub(crate) fn allocate(self: &Arc<Arena>, length: usize) -> Option<ArenaBlock> {
        let place = self.lock().take(length)?;
        Some(ArenaBlock { arena: self.clone(), place, length })
    }

    /// The offset of some bytes in this rank's region, if they are in it; empty slices count as
    /// inside.
    pub(super) fn offset(&self, bytes: &[u8]) -> Option<usize> {
        if bytes.is_empty() {
            return Some(0);
        }
        let offset = (bytes.as_ptr() as usize).checked_sub(self.own() as usize)?;
        (offset + bytes.len() <= self.region).then_some(offset)
    }

    /// Whether this address is in this rank's region.
    pub(crate) fn holds(&self, address: usize) -> bool {
        address.checked_sub(self.own() as usize).is_some_and(|offset| offset < self.region)
    }

    /// The address of memory of any rank, by its offset there; `None` if it would be outside. For
    /// who may touch it, and when, see `shared_group`.
    pub(super) fn address(&self, rank: usize, offset: usize, length: usize) -> Option<*mut u8> {
        let end = offset.checked_add(length)?;
        if rank >= self.ranks || end > self.region {
            return None;
        }
        // SAFETY: just checked to be inside the mapping.
        Some(unsafe { self.start.add(rank * self.region + offset) })
    }

    /// Bytes of this rank that were reduced in place.
    pub(crate) fn in_place(&self) -> &AtomicU64 {
        &self.in_place
    }

    fn own(&self) -> *mut u8 {
        // SAFETY: every rank's region is inside the mapping.
        unsafe { self.start.add(self.me * self.region) }
    }

    /// Frees a block, and returns every page without blocks to the system.
    fn release(&self, block: Range<usize>) {
        if self.pid != std::process::id() {
            return;
        }
        // Under the lock: afterwards another thread may already write to these pages.
        let mut allocator = self.lock();
        let gap = allocator.give_back(block.clone());
        let first = gap.start.next_multiple_of(PAGE).max(block.start / HUGE_PAGE * HUGE_PAGE);
        let last = (gap.end / PAGE * PAGE).min(block.end.next_multiple_of(HUGE_PAGE));
        if first < last {
            // SAFETY: the pages are in this rank's region.
            let start = unsafe { self.own().add(first) };
            // SAFETY: no block is on these pages, so their content is not needed. If the kernel
            // refuses, it only costs memory.
            let _ = unsafe { madvise(start.cast(), last - first, Advice::LinuxRemove) };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Allocator> {
        self.allocator.lock().expect("nothing panics while it holds this lock")
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, it is ours, and no block is left that uses it.
        let _ = unsafe { munmap(self.start.cast(), self.region * self.ranks) };
    }
}

impl ArenaBlock {
    /// Size in bytes, as requested.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The address of the first byte, for code that takes the block over by its address.
    pub fn start(&self) -> *mut u8 {
        let start = self.arena.address(self.arena.me, self.place.start, self.length);
        start.expect("a block is inside its arena")
    }

    /// The contents of the block.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: no other block has these bytes, and the block keeps the mapping alive. Other
        // ranks touch them only while they are submitted and offered, and then the block has been
        // handed over.
        unsafe { std::slice::from_raw_parts(self.start(), self.length) }
    }

    /// The contents of the block, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the block is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.length) }
    }
}

// SAFETY: the bytes belong to the block alone, in a mapping that does not move.
unsafe impl Owner for ArenaBlock {
    fn bytes_mut(&mut self) -> &mut [u8] {
        ArenaBlock::bytes_mut(self)
    }
}

impl Drop for ArenaBlock {
    fn drop(&mut self) {
        self.arena.release(self.place.clone());
    }
}

fn map(fd: impl AsFd, length: usize) -> io::Result<*mut u8> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice affects no existing memory.
    let start = unsafe { mmap(std::ptr::null_mut(), length, protection, flags, fd, 0) }?;
    for advice in [Advice::LinuxDontDump, Advice::LinuxHugepage] {
        // SAFETY: neither changes the contents of the memory; a kernel may ignore them.
        let _ = unsafe { madvise(start, length, advice) };
    }
    Ok(start.cast())
}

/// Writing a file beyond the limit would end the process with a signal; see also [`Arena::open`].
fn is_unlimited(resource: Resource) -> bool {
    getrlimit(resource).current.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(region: usize) -> [Arc<Arena>; 2] {
        let fd = Arena::create(2, region).unwrap();
        [0, 1].map(|me| Arena::open(&fd, 2, me).unwrap().unwrap())
    }

    fn pages_in_use(fd: &OwnedFd) -> i64 {
        fstat(fd).unwrap().st_blocks / (PAGE as i64 / 512)
    }

    #[test]
    fn another_rank_reads_a_block_at_its_offset() {
        let [a, b] = pair(1 << 30);
        let first = a.allocate(100).unwrap();
        let mut second = a.allocate(3).unwrap();
        second.bytes_mut().copy_from_slice(&[1, 2, 3]);
        let offset = a.offset(second.bytes()).unwrap();
        assert_ne!(a.offset(first.bytes()).unwrap(), offset);
        let address = b.address(0, offset, 3).unwrap().cast::<[u8; 3]>();
        // SAFETY: the bytes are in a mapping of the same file, and nobody writes to them.
        assert_eq!(unsafe { address.read() }, [1, 2, 3]);
        assert_eq!(
            b.offset(second.bytes()),
            None,
            "a different mapping, and another rank's memory"
        );
    }

    #[test]
    fn nothing_outside_the_arena_is_recognized_or_reached() {
        let [a, _] = pair(PAGE);
        assert_eq!(a.offset(&[0; 16]), None);
        assert_eq!(a.offset(&[]), Some(0));
        assert!(a.address(1, PAGE - 4, 4).is_some());
        for (rank, offset, length) in [(1, PAGE - 4, 5), (2, 0, 1), (0, usize::MAX, 2)] {
            assert!(a.address(rank, offset, length).is_none());
        }
        assert!(a.allocate(PAGE + 1).is_none());
    }

    #[test]
    fn only_used_pages_cost_memory_and_dropped_blocks_free_them() {
        let fd = Arena::create(3, 1 << 34).unwrap();
        let arena = Arena::open(&fd, 3, 1).unwrap().unwrap();
        assert_eq!(pages_in_use(&fd), 0);
        let mut blocks: Vec<ArenaBlock> = (0..40).map(|_| arena.allocate(1000).unwrap()).collect();
        blocks.iter_mut().for_each(|block| block.bytes_mut().fill(7));
        let mut large = arena.allocate(1 << 20).unwrap();
        large.bytes_mut().fill(7);
        // With huge pages it may be more than was written.
        assert!(pages_in_use(&fd) >= 256);
        drop((blocks, large));
        assert_eq!(pages_in_use(&fd), 0);
    }

    #[test]
    fn a_block_outlives_everything_else() {
        let mut block = {
            let [arena, _] = pair(1 << 20);
            arena.allocate(5).unwrap()
        };
        block.bytes_mut().fill(1);
        assert_eq!(block.bytes(), [1; 5]);
    }

    #[test]
    fn an_empty_arena_is_none_and_one_of_the_wrong_size_is_refused() {
        let fd = Arena::create(2, 0).unwrap();
        assert!(Arena::open(&fd, 2, 0).unwrap().is_none());
        let fd = Arena::create(2, PAGE).unwrap();
        assert!(Arena::open(&fd, 3, 0).is_err());
    }
}
