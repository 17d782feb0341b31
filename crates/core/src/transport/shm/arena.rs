//! The arena: memory for tensors that every rank of the host can see.
//!
//! One anonymous file per world has a stretch for each rank, and every rank maps all of it. A rank
//! gives out blocks of its own stretch only. The stretches are reserved, not filled: a page costs
//! memory from its first write until the last block on it is dropped. Who may touch which block of
//! another rank when is agreed on through the counters (see `stage`).
//!
//! A block keeps the mapping, so that a tensor stays valid when its world has ended.
#![expect(unsafe_code, reason = "shared memory is raw memory")]

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::process::{Resource, getrlimit};

use super::ledger::Ledger;
use crate::buffer::Owner;

/// The unit in which memory is given back to the system, and to which stretches are rounded.
const PAGE: usize = 4096;
/// The system may have filled this much around a page that was written.
const HUGE_PAGE: usize = 2 << 20;

pub(crate) struct Arena {
    start: *mut u8,
    /// The bytes of one rank.
    stretch: usize,
    ranks: usize,
    me: usize,
    ledger: Mutex<Ledger>,
    /// Bytes of this rank that were reduced where they lie.
    in_place: AtomicU64,
    /// A forked child inherits the mapping and the blocks, but has no say over the memory.
    pid: u32,
}

// SAFETY: what is given out are blocks that do not overlap, and addresses in the memory of other ranks,
// which are followed only by whoever shows by counters that it may.
unsafe impl Send for Arena {}
// SAFETY: as above; the book-keeping has a lock.
unsafe impl Sync for Arena {}

/// A piece of this rank's part of the arena; dropping it gives the memory back.
pub struct Block {
    arena: Arc<Arena>,
    place: Range<usize>,
    length: usize,
}

impl Arena {
    /// Makes the file for `ranks` ranks with `stretch` bytes each; an empty one stands for none.
    pub(crate) fn create(ranks: usize, stretch: usize) -> io::Result<OwnedFd> {
        let fd = memfd_create("ronde-arena", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let stretch = stretch / PAGE * PAGE;
        let length = stretch.checked_mul(ranks).filter(|_| is_unlimited(Resource::Fsize));
        // A kernel that has no room for a file of this length is no reason to have no world.
        if ftruncate(&fd, length.unwrap_or(0) as u64).is_err() {
            ftruncate(&fd, 0)?;
        }
        // A file that cannot shrink cannot take the memory away under a reader.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(fd)
    }

    /// Maps the arena of a world of `ranks` ranks for rank `me`; none if it is empty, or if this
    /// process cannot have so many addresses.
    pub(crate) fn open(fd: &OwnedFd, ranks: usize, me: usize) -> io::Result<Option<Arc<Arena>>> {
        let length = fstat(fd)?.st_size as usize;
        if length == 0 {
            return Ok(None);
        }
        if !length.is_multiple_of(ranks * PAGE) {
            return Err(io::Error::other(format!("an arena of {length} bytes is not ours")));
        }
        // Where addresses are rationed, the program needs them itself.
        if !is_unlimited(Resource::As) {
            return Ok(None);
        }
        let Ok(start) = map(fd, length) else { return Ok(None) };
        let stretch = length / ranks;
        let (ledger, pid) = (Mutex::new(Ledger::new(stretch)), std::process::id());
        let in_place = AtomicU64::new(0);
        Ok(Some(Arc::new(Arena { start, stretch, ranks, me, ledger, in_place, pid })))
    }

    /// Takes memory for `length` bytes, whose content is whatever was there; none if it is full.
    pub(crate) fn allocate(self: &Arc<Arena>, length: usize) -> Option<Block> {
        let place = self.lock().take(length)?;
        Some(Block { arena: self.clone(), place, length })
    }

    /// Where in this rank's stretch some bytes lie, if they do; none at all may lie anywhere.
    pub(super) fn offset(&self, bytes: &[u8]) -> Option<usize> {
        if bytes.is_empty() {
            return Some(0);
        }
        let offset = (bytes.as_ptr() as usize).checked_sub(self.own() as usize)?;
        (offset + bytes.len() <= self.stretch).then_some(offset)
    }

    /// Whether something at this address lies in this rank's stretch.
    pub(crate) fn holds(&self, address: usize) -> bool {
        address.checked_sub(self.own() as usize).is_some_and(|offset| offset < self.stretch)
    }

    /// Where memory of any rank starts, by its offset there; none if it would lie outside. Who may
    /// touch it when, `stage` says.
    pub(super) fn address(&self, rank: usize, offset: usize, length: usize) -> Option<*mut u8> {
        let end = offset.checked_add(length)?;
        if rank >= self.ranks || end > self.stretch {
            return None;
        }
        // SAFETY: just checked to lie inside the mapping.
        Some(unsafe { self.start.add(rank * self.stretch + offset) })
    }

    /// Bytes of this rank that were reduced where they lie.
    pub(crate) fn in_place(&self) -> &AtomicU64 {
        &self.in_place
    }

    fn own(&self) -> *mut u8 {
        // SAFETY: every rank's stretch lies inside the mapping.
        unsafe { self.start.add(self.me * self.stretch) }
    }

    /// Gives a block back, and to the system every page on which nothing is left.
    fn release(&self, block: Range<usize>) {
        if self.pid != std::process::id() {
            return;
        }
        // Under the lock: afterwards somebody else may already write to these pages.
        let mut ledger = self.lock();
        let gap = ledger.give_back(block.clone());
        let first = gap.start.next_multiple_of(PAGE).max(block.start / HUGE_PAGE * HUGE_PAGE);
        let last = (gap.end / PAGE * PAGE).min(block.end.next_multiple_of(HUGE_PAGE));
        if first < last {
            // SAFETY: the pages lie in this rank's stretch.
            let start = unsafe { self.own().add(first) };
            // SAFETY: no block lies on these pages, so nobody misses what was there. A refusal
            // costs memory only.
            let _ = unsafe { madvise(start.cast(), last - first, Advice::LinuxRemove) };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("nothing panics while it holds this lock")
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, whole, and every block has kept it until now.
        let _ = unsafe { munmap(self.start.cast(), self.stretch * self.ranks) };
    }
}

impl Block {
    /// How many bytes it has.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Where it starts, for whoever takes the block over by its address.
    pub fn start(&self) -> *mut u8 {
        let start = self.arena.address(self.arena.me, self.place.start, self.length);
        start.expect("a block lies inside its arena")
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: no other block has these bytes, and the block keeps the mapping. Other ranks touch
        // them only while they are submitted and offered, and then the block has been handed over.
        unsafe { std::slice::from_raw_parts(self.start(), self.length) }
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else has borrowed the block.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.length) }
    }
}

// SAFETY: the bytes are the block's alone, and lie in a mapping that does not move.
unsafe impl Owner for Block {
    fn bytes_mut(&mut self) -> &mut [u8] {
        Block::bytes_mut(self)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.release(self.place.clone());
    }
}

fn map(fd: impl AsFd, length: usize) -> io::Result<*mut u8> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing of ours.
    let start = unsafe { mmap(std::ptr::null_mut(), length, protection, flags, fd, 0) }?;
    for advice in [Advice::LinuxDontDump, Advice::LinuxHugepage] {
        // SAFETY: neither changes what is in the memory; a kernel without them loses nothing.
        let _ = unsafe { madvise(start, length, advice) };
    }
    Ok(start.cast())
}

/// A file beyond the limit would end the process with a signal; see also [`Arena::open`].
fn is_unlimited(resource: Resource) -> bool {
    getrlimit(resource).current.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(stretch: usize) -> [Arc<Arena>; 2] {
        let fd = Arena::create(2, stretch).unwrap();
        [0, 1].map(|me| Arena::open(&fd, 2, me).unwrap().unwrap())
    }

    fn pages_in_use(fd: &OwnedFd) -> i64 {
        fstat(fd).unwrap().st_blocks / (PAGE as i64 / 512)
    }

    #[test]
    fn what_one_rank_writes_to_its_block_another_finds_by_the_offset() {
        let [a, b] = pair(1 << 30);
        let first = a.allocate(100).unwrap();
        let mut second = a.allocate(3).unwrap();
        second.bytes_mut().copy_from_slice(&[1, 2, 3]);
        let offset = a.offset(second.bytes()).unwrap();
        assert_ne!(a.offset(first.bytes()).unwrap(), offset);
        let address = b.address(0, offset, 3).unwrap().cast::<[u8; 3]>();
        // SAFETY: the bytes lie in a mapping of the same file, and nobody writes to them.
        assert_eq!(unsafe { address.read() }, [1, 2, 3]);
        assert_eq!(b.offset(second.bytes()), None, "another mapping, and another rank's memory");
    }

    #[test]
    fn nothing_outside_the_arena_is_recognised_or_reached() {
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
    fn only_what_is_used_costs_memory_and_what_is_dropped_goes_back() {
        let fd = Arena::create(3, 1 << 34).unwrap();
        let arena = Arena::open(&fd, 3, 1).unwrap().unwrap();
        assert_eq!(pages_in_use(&fd), 0);
        let mut blocks: Vec<Block> = (0..40).map(|_| arena.allocate(1000).unwrap()).collect();
        blocks.iter_mut().for_each(|block| block.bytes_mut().fill(7));
        let mut large = arena.allocate(1 << 20).unwrap();
        large.bytes_mut().fill(7);
        // With huge pages it may be more than what was written.
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
    fn an_empty_arena_is_none_and_a_strange_one_is_refused() {
        let fd = Arena::create(2, 0).unwrap();
        assert!(Arena::open(&fd, 2, 0).unwrap().is_none());
        let fd = Arena::create(2, PAGE).unwrap();
        assert!(Arena::open(&fd, 3, 0).is_err());
    }
}
