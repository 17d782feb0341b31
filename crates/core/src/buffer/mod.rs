//! Memory that tensors lie in: views of what a framework owns, and results that we own.
//!
//! A [`Region`] is a promise made by whoever submitted it: the memory stays valid, and nobody else
//! touches it, until the operation has completed. [`Segments`] strings regions together, so that an
//! algorithm sees a fused bucket as one row of bytes without copying it into one.
#![expect(unsafe_code, reason = "this room holds the raw memory of tensors")]

mod pool;

use std::ops::Range;
use std::ptr::NonNull;

use self::pool::Block;

/// A stretch of memory that somebody else owns.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    start: *mut u8,
    length: usize,
}

// SAFETY: whoever made the region promised that only the engine touches it until completion.
unsafe impl Send for Region {}
// SAFETY: as above; a shared reference gives no more than a copy does.
unsafe impl Sync for Region {}

impl Region {
    /// A view of `length` bytes at `start`.
    ///
    /// # Safety
    /// The memory is readable, and writable if it is the target of an operation; it stays so, and
    /// nobody else touches it, until the operation that uses the region has completed.
    pub unsafe fn new(start: *mut u8, length: usize) -> Region {
        Region { start, length }
    }

    /// Where it starts.
    pub fn start(self) -> *mut u8 {
        self.start
    }

    /// How many bytes it has.
    pub fn length(self) -> usize {
        self.length
    }

    /// The part of it in `range`.
    pub fn part(self, range: Range<usize>) -> Region {
        assert!(range.start <= range.end && range.end <= self.length, "a part lies inside");
        // SAFETY: the range was just checked to lie inside the region.
        let start = unsafe { self.start.add(range.start) };
        Region { start, length: range.end - range.start }
    }

    /// Copies `self` over `target`, which has the same length; nothing happens if they are one.
    pub fn copy_to(self, target: Region) {
        assert_eq!(self.length, target.length, "copies have equal lengths");
        if self.start == target.start {
            return;
        }
        // SAFETY: both are valid for their length by the promise of `Region::new`; `copy` allows
        // overlap.
        unsafe { std::ptr::copy(self.start, target.start, self.length) };
    }
}

impl Region {
    /// Copies bytes in; as many as the region has.
    pub(crate) fn write(self, bytes: &[u8]) {
        assert_eq!(self.length, bytes.len(), "copies have equal lengths");
        // SAFETY: the region is valid for its length, and nobody else touches it now.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start, self.length) };
    }

    /// Copies bytes out; as many as the region has.
    pub(crate) fn read(self, bytes: &mut [u8]) {
        assert_eq!(self.length, bytes.len(), "copies have equal lengths");
        // SAFETY: the region is valid for its length, and nobody writes to it now.
        unsafe { std::ptr::copy_nonoverlapping(self.start, bytes.as_mut_ptr(), self.length) };
    }

    /// The bytes as a socket wants to see them.
    pub(crate) fn as_bytes<'a>(self) -> &'a [u8] {
        // SAFETY: valid for its length, and unchanged until the operation has completed; the caller
        // keeps the slice for the length of one system call.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }

    /// The bytes as a socket wants to fill them.
    pub(crate) fn as_bytes_mut<'a>(self) -> &'a mut [u8] {
        // SAFETY: as for `as_bytes`, and nobody else reads it now.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

/// Several regions that count as one row of bytes.
#[derive(Clone, Debug, Default)]
pub struct Segments {
    regions: Vec<Region>,
    /// Where each region starts in the row.
    starts: Vec<usize>,
    length: usize,
}

impl Segments {
    /// Strings the regions together.
    pub fn new(regions: Vec<Region>) -> Segments {
        let mut length = 0;
        let starts = regions.iter().map(|region| {
            let start = length;
            length += region.length;
            start
        });
        let starts = starts.collect();
        Segments { regions, starts, length }
    }

    /// The bytes in the row.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The regions, in order.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The parts of the regions that make up `range`, in order, each with its place in the row.
    pub fn parts(&self, range: Range<usize>) -> impl Iterator<Item = (usize, Region)> + '_ {
        assert!(range.end <= self.length, "a range lies inside the row");
        let first = self.starts.partition_point(|start| *start <= range.start).saturating_sub(1);
        let rows = self.starts[first..].iter().zip(&self.regions[first..]);
        rows.take_while(move |(start, _)| **start < range.end)
            .map(move |(start, region)| {
                let low = range.start.max(*start);
                let high = range.end.min(start + region.length);
                (low, region.part(low.saturating_sub(*start).min(region.length)..high - start))
            })
            .filter(|(_, part)| part.length > 0)
    }

    /// The row of the bytes in `range`.
    pub fn slice(&self, range: Range<usize>) -> Segments {
        Segments::new(self.parts(range).map(|(_, part)| part).collect())
    }

    /// Rows one behind the other, as one.
    pub fn join(rows: impl Iterator<Item = Segments>) -> Segments {
        Segments::new(rows.flat_map(|row| row.regions).collect())
    }

    /// Copies `range` of the row to `target`, which is as long as the range.
    pub fn gather(&self, range: Range<usize>, target: Region) {
        let base = range.start;
        for (at, part) in self.parts(range) {
            part.copy_to(target.part(at - base..at - base + part.length));
        }
    }

    /// Copies `source` over `range` of the row, which is as long as the source.
    pub fn scatter(&self, range: Range<usize>, source: Region) {
        let base = range.start;
        for (at, part) in self.parts(range) {
            source.part(at - base..at - base + part.length).copy_to(part);
        }
    }

    /// Copies the whole row over `target`, region by region where the two are cut alike.
    pub fn copy_to(&self, target: &Segments) {
        self.copy_range(0..self.length, target, 0);
    }

    /// Copies `range` of the row over `target` from `start` on.
    pub fn copy_range(&self, range: Range<usize>, target: &Segments, start: usize) {
        let base = range.start;
        for (at, part) in self.parts(range) {
            let place = start + at - base;
            target.scatter(place..place + part.length, part);
        }
    }
}

/// Memory of our own, aligned for every element type and for whole cache lines.
#[derive(Debug)]
pub struct Buffer {
    /// There until the buffer is dropped.
    block: Option<Block>,
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the buffer owns its memory alone.
unsafe impl Send for Buffer {}
// SAFETY: a shared reference gives out nothing but the address and the length.
unsafe impl Sync for Buffer {}

const ALIGNMENT: usize = 64;

impl Buffer {
    /// Memory for `length` bytes, whose content is whatever was there.
    pub fn new(length: usize) -> Buffer {
        let block = Block::new(length);
        Buffer { start: block.start, block: Some(block), length }
    }

    /// Memory for `length` bytes, all zero.
    pub fn zeros(length: usize) -> Buffer {
        let buffer = Buffer::new(length);
        // SAFETY: the memory is ours and that long.
        unsafe { buffer.start.as_ptr().write_bytes(0, length) };
        buffer
    }

    /// How many bytes it has.
    pub fn length(&self) -> usize {
        self.length
    }

    /// A view of all of it, valid as long as the buffer.
    pub fn region(&self) -> Region {
        Region { start: self.start.as_ptr(), length: self.length }
    }

    /// Copies bytes in; as many as the buffer has.
    pub fn fill(&self, bytes: &[u8]) {
        self.region().write(bytes);
    }

    /// A copy of its content, which somebody must have written before.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        self.region().read(&mut bytes);
        bytes
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

    fn view(bytes: &mut [u8]) -> Region {
        // SAFETY: the slice outlives the region in every test below.
        unsafe { Region::new(bytes.as_mut_ptr(), bytes.len()) }
    }

    #[test]
    fn any_range_of_a_row_is_found_in_the_right_regions() {
        let mut parts: Vec<Vec<u8>> = vec![vec![0, 1, 2], vec![], vec![3], vec![4, 5, 6, 7]];
        let row = Segments::new(parts.iter_mut().map(|part| view(part)).collect());
        assert_eq!(row.length(), 8);
        for low in 0..=8 {
            for high in low..=8 {
                let mut out = vec![99; high - low];
                row.gather(low..high, view(&mut out));
                let expected: Vec<u8> = (low as u8..high as u8).collect();
                assert_eq!(out, expected, "{low}..{high}");
            }
        }
    }

    #[test]
    fn scattering_is_the_opposite_of_gathering() {
        let mut parts: Vec<Vec<u8>> = vec![vec![0; 3], vec![0; 5]];
        let row = Segments::new(parts.iter_mut().map(|part| view(part)).collect());
        row.scatter(1..6, view(&mut [1, 2, 3, 4, 5]));
        drop(row);
        assert_eq!(parts, [vec![0, 1, 2], vec![3, 4, 5, 0, 0]]);
    }

    #[test]
    fn a_row_is_copied_whatever_its_cuts() {
        let (mut a, mut b, mut c) = ([1, 2, 3], [4, 5], [0; 5]);
        let row = Segments::new(vec![view(&mut a), view(&mut b)]);
        row.copy_to(&Segments::new(vec![view(&mut c)]));
        assert_eq!(c, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn our_own_memory_is_aligned_even_when_empty() {
        for length in [0, 1, 1000] {
            let buffer = Buffer::new(length);
            assert_eq!(buffer.region().start() as usize % ALIGNMENT, 0);
            assert_eq!(buffer.length(), length);
        }
    }

    #[test]
    fn places_beyond_four_gigabytes_are_found() {
        // Hardly any of this memory is ever touched, so it takes no room.
        let (mut first, mut second) = (vec![0; (3 << 30) + 1], vec![0; 2 << 30]);
        let row = Segments::new(vec![view(&mut first), view(&mut second)]);
        let border = (3 << 30) + 1;
        assert_eq!(row.length(), (5 << 30) + 1);
        for (mark, at) in [(1 << 31) - 3, 1 << 31, border - 2, (1 << 32) - 2, row.length() - 5]
            .into_iter()
            .enumerate()
        {
            let mut bytes = [mark as u8 + 1; 5];
            row.scatter(at..at + 5, view(&mut bytes));
            let mut seen = [0; 7];
            let around = at - 1..(at + 6).min(row.length());
            row.gather(around.clone(), view(&mut seen[..around.len()]));
            assert_eq!(seen[1..6], bytes, "{at}");
            assert_eq!(row.parts(at..at + 5).count(), if at == border - 2 { 2 } else { 1 });
        }
    }
}
