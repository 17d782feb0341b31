//! The position in a flow of bytes.

use std::io::{IoSlice, IoSliceMut};

use super::BURST;
use crate::buffer::{Row, RowMut};

/// A flow in one direction, and how many of its bytes have moved.
pub(super) struct Cursor<R> {
    peer: usize,
    row: R,
    slice: usize,
    offset: usize,
    done: usize,
}

/// The source or destination of a flow, slice by slice.
pub(super) trait Slices {
    fn count(&self) -> usize;
    fn length(&self, slice: usize) -> usize;
}

/// The destination of received bytes.
pub(crate) enum Landing<'a> {
    /// Straight into its destination.
    Row(RowMut<'a>),
    /// Into a scratch buffer, used as a ring.
    Scratch(Scratch<'a>),
}

/// A ring buffer that `length` bytes pass through. One system call fills at most half of it.
pub(crate) struct Scratch<'a> {
    pub(crate) memory: &'a mut [u8],
    pub(crate) length: usize,
}

impl Slices for Row<'_> {
    fn count(&self) -> usize {
        self.slices().len()
    }

    fn length(&self, slice: usize) -> usize {
        self.slices()[slice].len()
    }
}

impl Slices for Landing<'_> {
    fn count(&self) -> usize {
        match self {
            Landing::Row(row) => row.slices().len(),
            Landing::Scratch(Scratch { memory, length }) => length.div_ceil(memory.len()),
        }
    }

    fn length(&self, slice: usize) -> usize {
        match self {
            Landing::Row(row) => row.slices()[slice].len(),
            Landing::Scratch(Scratch { memory, length }) => {
                memory.len().min(length - slice * memory.len())
            }
        }
    }
}

impl<R: Slices> Cursor<R> {
    pub(super) fn new(peer: usize, row: R) -> Cursor<R> {
        let mut cursor = Cursor { peer, row, slice: 0, offset: 0, done: 0 };
        cursor.skip_empty();
        cursor
    }

    pub(super) fn peer(&self) -> usize {
        self.peer
    }

    pub(super) fn is_over(&self) -> bool {
        self.slice >= self.row.count()
    }

    /// Bytes moved so far.
    pub(super) fn done(&self) -> usize {
        self.done
    }

    /// Total bytes of the flow.
    pub(super) fn length(&self) -> usize {
        (0..self.row.count()).map(|slice| self.row.length(slice)).sum()
    }

    /// Records how many bytes moved; returns whether any did.
    pub(super) fn advance(&mut self, moved: Option<usize>) -> bool {
        let Some(mut count) = moved.filter(|count| *count > 0) else { return false };
        self.done += count;
        while count > 0 {
            let left = self.row.length(self.slice) - self.offset;
            if count < left {
                self.offset += count;
                return true;
            }
            count -= left;
            self.slice += 1;
            self.offset = 0;
        }
        self.skip_empty();
        true
    }

    fn skip_empty(&mut self) {
        while !self.is_over() && self.row.length(self.slice) == 0 {
            self.slice += 1;
        }
    }
}

impl<'a> Cursor<Row<'a>> {
    /// Fills in the next bytes to send, as many as one system call should; returns the number of
    /// slices.
    pub(super) fn fill(&self, slices: &mut [IoSlice<'a>]) -> usize {
        let rest = self.row.slices()[self.slice..].iter();
        let (mut start, mut room, mut count) = (self.offset, BURST, 0);
        for (slot, slice) in slices.iter_mut().zip(rest) {
            let length = (slice.len() - start).min(room);
            *slot = IoSlice::new(&slice[start..start + length]);
            (start, room, count) = (0, room - length, count + 1);
            if room == 0 {
                break;
            }
        }
        count
    }
}

impl Cursor<Landing<'_>> {
    /// Fills in the memory for the next bytes, as much as one system call should fill; returns the
    /// number of slices.
    pub(super) fn fill<'b>(&'b mut self, slices: &mut [IoSliceMut<'b>]) -> usize {
        match &mut self.row {
            Landing::Row(row) => {
                let rest = row.slices_mut()[self.slice..].iter_mut();
                let (mut start, mut room, mut count) = (self.offset, BURST, 0);
                for (slot, slice) in slices.iter_mut().zip(rest) {
                    let length = (slice.len() - start).min(room);
                    *slot = IoSliceMut::new(&mut slice[start..start + length]);
                    (start, room, count) = (0, room - length, count + 1);
                    if room == 0 {
                        break;
                    }
                }
                count
            }
            Landing::Scratch(Scratch { memory, length }) => {
                let room = BURST.min(*length - self.done);
                let (before, behind) = memory.split_at_mut(self.offset);
                let near = room.min(behind.len());
                let far = (room - near).min(before.len());
                slices[0] = IoSliceMut::new(&mut behind[..near]);
                slices[1] = IoSliceMut::new(&mut before[..far]);
                if far > 0 { 2 } else { 1 }
            }
        }
    }

    /// The scratch buffer, empty for a flow that has none.
    pub(super) fn scratch(&self) -> &[u8] {
        match &self.row {
            Landing::Row(_) => &[],
            Landing::Scratch(Scratch { memory, .. }) => memory,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_buffer_wraps_around() {
        let mut memory = vec![0; 2 * BURST];
        let length = 5 * BURST + 7;
        let landing = Landing::Scratch(Scratch { memory: &mut memory, length });
        let mut cursor = Cursor::new(3, landing);
        assert_eq!((cursor.peer(), cursor.length()), (3, length));
        let mut number = 0;
        while !cursor.is_over() {
            let mut slices = [IoSliceMut::new(&mut []), IoSliceMut::new(&mut [])];
            let count = cursor.fill(&mut slices);
            // Less arrives than there is room for.
            let mut left = BURST / 3 * 2;
            let mut moved = 0;
            for slice in &mut slices[..count] {
                let part = left.min(slice.len());
                slice[..part].iter_mut().for_each(|byte| {
                    *byte = number as u8;
                    number += 1;
                });
                (left, moved) = (left - part, moved + part);
            }
            assert!(cursor.advance(Some(moved)));
            assert_eq!(cursor.done(), number);
            for at in number.saturating_sub(BURST)..number {
                assert_eq!(cursor.scratch()[at % (2 * BURST)], at as u8);
            }
        }
        assert_eq!(number, length);
    }

    #[test]
    fn a_row_is_traversed_slice_by_slice_without_the_empty_ones() {
        let mut cursor = Cursor::new(0, Row::new(vec![&[], &[1, 2], &[], &[3], &[]]));
        let mut seen: Vec<u8> = Vec::new();
        while !cursor.is_over() {
            let mut slices = [IoSlice::new(&[]); 4];
            let count = cursor.fill(&mut slices);
            let first = slices[..count].iter().flat_map(|slice| slice.iter()).next();
            seen.extend(first);
            assert!(cursor.advance(Some(1)));
        }
        assert_eq!(seen, [1, 2, 3]);
        assert!(Cursor::new(0, Row::new(vec![&[]])).is_over());
    }
}
