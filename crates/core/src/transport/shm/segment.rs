//! The mapping of the shared segment, and the words in it.
//!
//! Every word that more than one process touches is an atomic. Staging memory is plain bytes:
//! counters decide who may touch which of them, and when (see `shared_group`).
#![expect(unsafe_code, reason = "shared memory is raw memory")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::layout::{EXPRESS, EXPRESS_WORDS, LINE, SegmentLayout};

/// The counters that each rank writes and the others wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counter {
    /// Steps whose input is in staging memory.
    Published = 0,
    /// Steps whose slice this rank has reduced.
    Reduced = 1,
    /// Steps after which this rank no longer reads the memory of others.
    Finished = 2,
    /// Steps for which this rank has said whether its tensors are in the arena; see `shared_group`.
    Offered = 3,
}

pub(crate) struct Segment {
    start: *mut u8,
    layout: SegmentLayout,
}

// SAFETY: all access goes through atomics, or through functions whose callers guarantee exclusion.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

/// Memory without a name. A container's seccomp profile may refuse it.
pub(crate) fn memfd() -> io::Result<OwnedFd> {
    Ok(memfd_create("ronde", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?)
}

impl Segment {
    /// Creates a segment for `ranks` ranks; the others open it through the descriptor.
    pub(crate) fn create(ranks: usize) -> io::Result<(Segment, OwnedFd)> {
        let layout = SegmentLayout::of(ranks);
        let fd = memfd()?;
        ftruncate(&fd, layout.length() as u64)?;
        // A file that cannot shrink cannot take memory away from a reader.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Segment::map(&fd, layout)?, fd))
    }

    /// Opens the segment of a world of `ranks` ranks.
    pub(crate) fn open(fd: &OwnedFd, ranks: usize) -> io::Result<Segment> {
        let layout = SegmentLayout::of(ranks);
        let length = fstat(fd)?.st_size;
        if length != layout.length() as i64 {
            return Err(io::Error::other(format!(
                "a segment of {length} bytes has the wrong size"
            )));
        }
        Segment::map(fd, layout)
    }

    fn map(fd: impl AsFd, layout: SegmentLayout) -> io::Result<Segment> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice affects no existing memory.
        let start = unsafe { mmap(null, layout.length(), protection, MapFlags::SHARED, fd, 0) }?;
        Ok(Segment { start: start.cast(), layout })
    }

    pub(crate) fn ranks(&self) -> usize {
        self.layout.ranks
    }

    /// Size of one piece of staging memory, in bytes.
    pub(crate) fn piece(&self) -> usize {
        self.layout.piece
    }

    pub(crate) fn counter(&self, lane: usize, rank: usize, counter: Counter) -> &AtomicU64 {
        self.word64(self.layout.counters(lane, rank) + LINE * counter as usize)
    }

    /// How deeply a rank sleeps; see `waiter`.
    pub(crate) fn depth(&self, rank: usize) -> &AtomicU32 {
        self.word32(self.layout.depth(rank))
    }

    /// How many ranks sleep and want to be woken by any progress.
    pub(crate) fn sleepers(&self) -> &AtomicU32 {
        self.word32(0)
    }

    /// The rank that was found dead, encoded by [`dead_word`]; zero while there is none.
    pub(crate) fn dead(&self) -> &AtomicU64 {
        self.word64(LINE / 2)
    }

    /// The address of one of a rank's pieces of staging memory; for who may touch it see
    /// `shared_group`.
    pub(super) fn staging(&self, rank: usize, slot: usize) -> *mut u8 {
        self.at(self.layout.staging(rank, slot), self.layout.piece)
    }

    /// One of the words of a rank's place in the express lane; see `express`.
    pub(super) fn express_word(&self, rank: usize, half: usize, word: usize) -> &AtomicU64 {
        self.word64(self.layout.express(rank, half) + 8 * word)
    }

    /// The address of the data in that place; for who may touch it see `round`.
    pub(super) fn express_body(&self, rank: usize, half: usize) -> *mut u8 {
        self.at(self.layout.express(rank, half) + 8 * EXPRESS_WORDS, EXPRESS)
    }

    pub(super) fn layout(&self) -> SegmentLayout {
        self.layout
    }

    /// Copies bytes in.
    ///
    /// # Safety
    /// Meanwhile no rank touches `bytes.len()` bytes from `place` on.
    pub(super) unsafe fn write(&self, place: usize, bytes: &[u8]) {
        let target = self.at(place, bytes.len());
        // SAFETY: the bytes are in the mapping, and nobody else touches them now.
        unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Copies bytes out.
    ///
    /// # Safety
    /// Meanwhile no rank writes to `bytes.len()` bytes from `place` on.
    pub(super) unsafe fn read(&self, place: usize, bytes: &mut [u8]) {
        let source = self.at(place, bytes.len());
        // SAFETY: the bytes are in the mapping, and nobody writes to them now.
        unsafe { source.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    }

    pub(super) fn word64(&self, place: usize) -> &AtomicU64 {
        let start = self.at(place, 8);
        // SAFETY: the word is in the mapping, aligned to its size, and only used as an atomic.
        unsafe { AtomicU64::from_ptr(start.cast()) }
    }

    fn word32(&self, place: usize) -> &AtomicU32 {
        let start = self.at(place, 4);
        // SAFETY: as for `word64`.
        unsafe { AtomicU32::from_ptr(start.cast()) }
    }

    fn at(&self, place: usize, length: usize) -> *mut u8 {
        assert!(place + length <= self.layout.length(), "outside the segment");
        // SAFETY: just checked.
        unsafe { self.start.add(place) }
    }
}

/// Encodes a dead rank so that no stray write looks like one: its number twice, once inverted.
pub(crate) fn dead_word(rank: u32) -> u64 {
    u64::from(rank) | u64::from(!rank) << 32
}

/// The rank in such a word, if the word is valid.
pub(crate) fn dead_rank(word: u64) -> Option<u32> {
    let rank = word as u32;
    (dead_word(rank) == word).then_some(rank)
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, it is ours, and nothing can use it after its owner.
        let _ = unsafe { munmap(self.start.cast(), self.layout.length()) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn one_mapping_reads_what_the_other_writes() {
        let (a, fd) = Segment::create(3).unwrap();
        let b = Segment::open(&fd, 3).unwrap();
        a.counter(5, 2, Counter::Reduced).store(7, Ordering::Release);
        a.depth(1).store(2, Ordering::Release);
        assert_eq!(b.counter(5, 2, Counter::Reduced).load(Ordering::Acquire), 7);
        assert_eq!(b.counter(4, 2, Counter::Reduced).load(Ordering::Acquire), 0);
        assert_eq!(b.depth(1).load(Ordering::Acquire), 2);
    }

    #[test]
    fn a_segment_of_another_world_is_refused() {
        let (_segment, fd) = Segment::create(3).unwrap();
        assert!(Segment::open(&fd, 4).is_err());
    }
}
