//! How far a flow of bytes has come.

use super::{BURST, Flow};
use crate::buffer::Region;

pub(super) struct Cursor<'a> {
    flow: Flow<'a>,
    region: usize,
    offset: usize,
    pub(super) done: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(flow: Flow<'a>) -> Cursor<'a> {
        let mut cursor = Cursor { flow, region: 0, offset: 0, done: 0 };
        cursor.skip_empty();
        cursor
    }

    pub(super) fn peer(&self) -> usize {
        self.flow.peer
    }

    pub(super) fn is_over(&self) -> bool {
        self.region >= self.flow.regions.len()
    }

    /// What comes next, as far as one system call should go; gives the number of slices.
    pub(super) fn fill<T>(&self, slices: &mut [T], make: impl Fn(Region) -> T) -> usize {
        let rest = &self.flow.regions[self.region..];
        let count = rest.len().min(slices.len());
        let mut room = BURST;
        for (index, region) in rest[..count].iter().enumerate() {
            let start = if index == 0 { self.offset } else { 0 };
            let length = (region.length() - start).min(room);
            slices[index] = make(region.part(start..start + length));
            room -= length;
            if room == 0 {
                return index + 1;
            }
        }
        count
    }

    /// Takes note of what moved; gives whether anything did.
    pub(super) fn advance(&mut self, moved: Option<usize>) -> bool {
        let Some(mut count) = moved.filter(|count| *count > 0) else { return false };
        self.done += count;
        while count > 0 {
            let left = self.flow.regions[self.region].length() - self.offset;
            if count < left {
                self.offset += count;
                return true;
            }
            count -= left;
            self.region += 1;
            self.offset = 0;
        }
        self.skip_empty();
        true
    }

    fn skip_empty(&mut self) {
        let regions = self.flow.regions;
        while regions.get(self.region).is_some_and(|region| region.length() == 0) {
            self.region += 1;
        }
    }
}
