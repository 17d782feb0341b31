//! Large memory that was given back, for whoever asks for as much next.
//!
//! A result of many megabytes in fresh memory costs more for the kernel to make pages than for the
//! ranks to fill them, and a training step asks for the same sizes again and again. So what is given
//! back stays, up to [`MOST`] bytes, the oldest leaving first.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Mutex;

use super::own::ALIGNMENT;

/// Memory shorter than this is the allocator's business.
const LARGE: usize = 64 << 10;
/// What may lie here unused, in a process.
const MOST: usize = 256 << 20;

static POOL: Mutex<Pool> = Mutex::new(Pool { free: VecDeque::new(), bytes: 0 });

/// Memory of our own, all of it written at least once, and as much as was asked for at first.
#[derive(Debug)]
pub(super) struct Block {
    /// What the allocator gave; the first aligned address in it is where the block starts.
    memory: NonNull<u8>,
    capacity: usize,
}

// SAFETY: the block owns its memory alone.
unsafe impl Send for Block {}
// SAFETY: a shared reference gives out nothing but the address.
unsafe impl Sync for Block {}

struct Pool {
    /// The oldest first.
    free: VecDeque<Block>,
    bytes: usize,
}

impl Block {
    /// Memory for at least so many bytes, whose content is whatever was there.
    pub(super) fn new(length: usize) -> Block {
        if length >= LARGE
            && let Some(block) = lock().take(length)
        {
            return block;
        }
        let layout = layout(length);
        // SAFETY: the layout is never of size zero.
        let memory = unsafe { alloc_zeroed(layout) };
        let memory = NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout));
        Block { memory, capacity: length }
    }

    /// Where it starts.
    pub(super) fn start(&self) -> *mut u8 {
        let memory = self.memory.as_ptr();
        let skipped = (memory as usize).next_multiple_of(ALIGNMENT) - memory as usize;
        memory.wrapping_add(skipped)
    }

    /// Gives the memory back.
    pub(super) fn give_back(self) {
        let left_over = match self.capacity {
            LARGE..=MOST => lock().keep(self),
            _ => vec![self],
        };
        for block in left_over {
            // SAFETY: the memory came from the allocator with this layout and nobody has freed it.
            unsafe { dealloc(block.memory.as_ptr(), layout(block.capacity)) };
        }
    }
}

impl Pool {
    /// The block that fits best, unless a quarter of it would lie idle.
    fn take(&mut self, length: usize) -> Option<Block> {
        let fitting = |block: &Block| {
            (length..=length + length / 4).contains(&block.capacity).then_some(block.capacity)
        };
        let fits =
            self.free.iter().enumerate().filter_map(|(at, block)| Some((fitting(block)?, at)));
        let (_, at) = fits.min()?;
        let block = self.free.remove(at)?;
        self.bytes -= block.capacity;
        Some(block)
    }

    /// Keeps a block; gives what has to leave for it.
    fn keep(&mut self, block: Block) -> Vec<Block> {
        self.bytes += block.capacity;
        self.free.push_back(block);
        let mut leaving = Vec::new();
        while self.bytes > MOST
            && let Some(oldest) = self.free.pop_front()
        {
            self.bytes -= oldest.capacity;
            leaving.push(oldest);
        }
        leaving
    }
}

/// Asked for so much alignment, the allocator would write all the zeros itself, also those of pages
/// that the system gives out full of them. So the block is aligned inside of what it gives.
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

    fn block(capacity: usize) -> Block {
        Block { memory: NonNull::dangling(), capacity }
    }

    #[test]
    fn the_best_fit_is_taken_and_nothing_that_would_lie_idle() {
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
    fn the_oldest_leaves_when_there_is_too_much() {
        let mut pool = Pool { free: VecDeque::new(), bytes: 0 };
        for index in 0..10 {
            let leaving = pool.keep(block((30 << 20) + index));
            let expected = if index < 8 { vec![] } else { vec![(30 << 20) + index - 8] };
            assert_eq!(leaving.iter().map(|block| block.capacity).collect::<Vec<_>>(), expected);
        }
        assert!(pool.bytes <= MOST);
    }

    #[test]
    fn what_is_given_back_is_given_out_again() {
        let first = Block::new(77 << 20);
        let start = first.start();
        first.give_back();
        let again = Block::new(77 << 20);
        assert_eq!(again.start(), start);
        again.give_back();
    }
}
