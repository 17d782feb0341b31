//! Memory of our own.

use super::memory::Owner;
use super::pool::Block;

/// Memory of our own, aligned for every element type and for whole cache lines.
#[derive(Debug)]
pub struct Buffer {
    /// There until the buffer is dropped.
    block: Option<Block>,
    length: usize,
}

pub(super) const ALIGNMENT: usize = 64;

impl Buffer {
    /// Memory for `length` bytes, whose content is whatever was written there before, or zeros.
    pub fn new(length: usize) -> Buffer {
        Buffer { block: Some(Block::new(length)), length }
    }

    /// Memory for `length` bytes, all zero.
    pub fn zeros(length: usize) -> Buffer {
        let mut buffer = Buffer::new(length);
        buffer.bytes_mut().fill(0);
        buffer
    }

    /// How many bytes it has.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Where it starts, for whoever takes the buffer over by its address.
    pub fn start(&self) -> *mut u8 {
        self.block().start()
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the block has at least so many bytes, all of which have been written, and they can
        // be changed only through the buffer, which is borrowed.
        unsafe { std::slice::from_raw_parts(self.start(), self.length) }
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else has borrowed the buffer.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.length) }
    }

    fn block(&self) -> &Block {
        self.block.as_ref().expect("it is there until the buffer is dropped")
    }
}

// SAFETY: the bytes are those of a block, which is not part of the buffer itself and has no other owner.
unsafe impl Owner for Buffer {
    fn bytes_mut(&mut self) -> &mut [u8] {
        Buffer::bytes_mut(self)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            block.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_memory_is_aligned_even_when_empty_and_was_written_before_it_is_read() {
        for length in [0, 1, 1000, 100_000, 1 << 20] {
            let buffer = Buffer::new(length);
            assert_eq!(buffer.start() as usize % ALIGNMENT, 0);
            assert_eq!(buffer.bytes().len(), length);
            assert_eq!(Buffer::zeros(length).bytes(), vec![0; length]);
        }
    }
}
