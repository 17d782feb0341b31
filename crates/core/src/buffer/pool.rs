//! A pool of large blocks that were released, for later requests of the same size.
//!
//! For a result of many megabytes in fresh memory, the kernel spends more time on creating pages
//! than the ranks spend on filling them, and a training step asks for the same sizes again and
//! again. So released blocks are kept, up to [`MAX_KEPT`] bytes; the oldest ones are freed first.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Mutex;

use super::own::ALIGNMENT;

/// Smaller blocks are left to the allocator.
const LARGE: usize = 64 << 10;
/// The most bytes that a process keeps unused.
const MAX_KEPT: usize = 256 << 20;

static POOL: Mutex<Pool> = Mutex::new(Pool { free: VecDeque::new(), bytes: 0 });

/// An initialized block of memory, as long as was first asked for.
#[derive(Debug)]
pub(super) struct PoolBlock {
    /// What the allocator returned; the block starts at the first aligned address in it.
    memory: NonNull<u8>,
    capacity: usize,
}

// SAFETY: the block is the only owner of its memory.
unsafe impl Send for PoolBlock {}
// SAFETY: a shared reference exposes nothing but the address.
unsafe impl Sync for PoolBlock {}

struct Pool {
    /// Free blocks, oldest first.
    free: VecDeque<PoolBlock>,
    bytes: usize,
}

impl PoolBlock {
    /// A block of at least `length` bytes, with arbitrary initialized content.
    pub(super) fn new(length: usize) -> PoolBlock {
        if length >= LARGE
            && let Some(block) = lock().take(length)
        {
            return block;
        }
        let layout = layout(length);
        // SAFETY: the size of the layout is never zero.
        let memory = unsafe { alloc_zeroed(layout) };
        let memory = NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout));
        PoolBlock { memory, capacity: length }
    }

    /// The start address, which is aligned.
    pub(super) fn start(&self) -> *mut u8 {
        let memory = self.memory.as_ptr();
        let skipped = (memory as usize).next_multiple_of(ALIGNMENT) - memory as usize;
        memory.wrapping_add(skipped)
    }

    /// Returns the block to the pool, or frees it.
    pub(super) fn release(self) {
        let left_over = match self.capacity {
            LARGE..=MAX_KEPT => lock().keep(self),
            _ => vec![self],
        };
        for block in left_over {
            // SAFETY: the memory came from the allocator with this layout and has not been freed.
            unsafe { dealloc(block.memory.as_ptr(), layout(block.capacity)) };
        }
    }
}

impl Pool {
    /// The best-fitting block, unless more than a quarter of the requested size would be wasted.
    fn take(&mut self, length: usize) -> Option<PoolBlock> {
        let fitting = |block: &PoolBlock| {
            (length..=length + length / 4).contains(&block.capacity).then_some(block.capacity)
        };
        let fits =
            self.free.iter().enumerate().filter_map(|(at, block)| Some((fitting(block)?, at)));
        let (_, at) = fits.min()?;
        let block = self.free.remove(at)?;
        self.bytes -= block.capacity;
        Some(block)
    }

    /// Keeps a block; returns the blocks to free in exchange.
    fn keep(&mut self, block: PoolBlock) -> Vec<PoolBlock> {
        self.bytes += block.capacity;
        self.free.push_back(block);
        let mut evicted = Vec::new();
        while self.bytes > MAX_KEPT
            && let Some(oldest) = self.free.pop_front()
        {
            self.bytes -= oldest.capacity;
            evicted.push(oldest);
        }
        evicted
    }
}

/// If asked for this alignment, the allocator would write all the zeros itself, even to pages that
/// the system provides zeroed. So the block is aligned within what the allocator returns.
fn layout(length: usize) -> Layout {
    let size = length.checked_add(ALIGNMENT).expect("no tensor is that large");
    Layout::from_size_align(size, 1).expect("no tensor is that large")
}

fn lock() -> std::sync::MutexGuard<'static, Pool> {
    POOL.lock().expect("nothing panics while it holds this lock")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(capacity: usize) -> PoolBlock {
        PoolBlock { memory: NonNull::dangling(), capacity }
    }

    #[test]
    fn the_best_fit_is_taken_unless_it_wastes_too_much() {
        let mut pool = Pool { free: VecDeque::new(), bytes: 0 };
        for capacity in [8 << 20, 5 << 20, 4 << 20, 16 << 20] {
            assert!(pool.keep(block(capacity)).is_empty());
        }
        let mut take = |length: usize| pool.take(length).map(|block| block.capacity);
        assert_eq!(take(4 << 20), Some(4 << 20));
        assert_eq!(take(4 << 20), Some(5 << 20));
        assert_eq!(take(4 << 20), None);
        assert_eq!(take(20 << 20), None);
        assert_eq!(pool.bytes, 24 << 20);
    }

    #[test]
    fn the_oldest_block_is_evicted_when_there_is_too_much() {
        let mut pool = Pool { free: VecDeque::new(), bytes: 0 };
        for index in 0..10 {
            let evicted = pool.keep(block((30 << 20) + index));
            let expected = if index < 8 { vec![] } else { vec![(30 << 20) + index - 8] };
            assert_eq!(evicted.iter().map(|block| block.capacity).collect::<Vec<_>>(), expected);
        }
        assert!(pool.bytes <= MAX_KEPT);
    }

    #[test]
    fn released_blocks_are_reused() {
        let first = PoolBlock::new(77 << 20);
        let start = first.start();
        first.release();
        let again = PoolBlock::new(77 << 20);
        assert_eq!(again.start(), start);
        again.release();
    }
}
