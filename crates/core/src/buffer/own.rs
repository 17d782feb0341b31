//! Memory that the engine owns.

use super::memory::Owner;
use super::pool::PoolBlock;

/// Memory that the engine owns, aligned for every element type and to whole cache lines.
#[derive(Debug)]
pub struct Buffer {
    /// Present until the buffer is dropped.
    block: Option<PoolBlock>,
    length: usize,
}

pub(super) const ALIGNMENT: usize = 64;

impl Buffer {
    /// Memory for `length` bytes, with arbitrary initialized content.
    pub fn new(length: usize) -> Buffer {
        Buffer { block: Some(PoolBlock::new(length)), length }
    }

    /// Memory for `length` bytes, all zero.
    pub fn zeros(length: usize) -> Buffer {
        let mut buffer = Buffer::new(length);
        buffer.bytes_mut().fill(0);
        buffer
    }

    /// The number of bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The start address, for code that takes over the buffer by its address.
    pub fn start(&self) -> *mut u8 {
        self.block().start()
    }

    /// The content.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the block has at least this many bytes, all of them initialized, and they can be
        // changed only through the buffer, which is borrowed.
        unsafe { std::slice::from_raw_parts(self.start(), self.length) }
    }

    /// The content, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the buffer is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.length) }
    }

    fn block(&self) -> &PoolBlock {
        self.block.as_ref().expect("the block is present until the buffer is dropped")
    }
}

// SAFETY: the bytes are in a block, which is not part of the buffer itself and has no other owner.
unsafe impl Owner for Buffer {
    fn bytes_mut(&mut self) -> &mut [u8] {
        Buffer::bytes_mut(self)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            block.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_even_when_empty_and_initialized() {
        for length in [0, 1, 1000, 100_000, 1 << 20] {
            let buffer = Buffer::new(length);
            assert_eq!(buffer.start() as usize % ALIGNMENT, 0);
            assert_eq!(buffer.bytes().len(), length);
            assert_eq!(Buffer::zeros(length).bytes(), vec![0; length]);
        }
    }
}
