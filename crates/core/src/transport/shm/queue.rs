//! A queue of frames from one rank to the coordinator: one writer, one reader, no lock.
//!
//! A frame is four bytes of length and its body; positions (see `ring`) are taken modulo the size.
#![expect(unsafe_code, reason = "frames are in shared memory")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::{LINE, QUEUE};
use super::{Segment, ring};

/// A frame that none of our ranks can have written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CorruptFrame;

pub(crate) struct Queue {
    segment: Arc<Segment>,
    place: usize,
}

impl Queue {
    /// The queue that `rank` writes and the coordinator reads.
    pub(crate) fn of(segment: Arc<Segment>, rank: usize) -> Queue {
        let place = segment.layout().queue(rank);
        Queue { segment, place }
    }

    /// Appends a frame; returns false if there is no room for it now.
    pub(crate) fn push(&mut self, frame: &[u8]) -> bool {
        let tails = std::iter::once(self.tail());
        ring::write(self.head(), tails, QUEUE, 4 + frame.len(), |position| {
            // SAFETY: there is one writer, and the reader is not here before `head` has moved past
            // it.
            unsafe { self.body().put_frame(position, frame) };
        })
    }

    /// Removes and returns the oldest frame.
    pub(crate) fn pop(&mut self) -> Result<Option<Vec<u8>>, CorruptFrame> {
        ring::read(self.head(), self.tail(), |head, tail| {
            // SAFETY: the writer does not come here before `tail` has moved on.
            unsafe { self.body().take(head, tail) }
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head().load(Ordering::Acquire) == self.tail().load(Ordering::Relaxed)
    }

    /// Whether to wake the reader even if it is idle, because space is running out.
    pub(crate) fn is_half_full(&self) -> bool {
        let head = self.head().load(Ordering::Relaxed);
        head.wrapping_sub(self.tail().load(Ordering::Relaxed)) as usize > QUEUE / 2
    }

    /// The longest frame that can ever fit.
    pub(crate) fn limit() -> usize {
        QUEUE / 2
    }

    fn head(&self) -> &AtomicU64 {
        self.segment.word64(self.place)
    }

    fn tail(&self) -> &AtomicU64 {
        self.segment.word64(self.place + LINE)
    }

    fn body(&self) -> Body<'_> {
        Body { segment: &self.segment, place: self.place + 2 * LINE, size: QUEUE }
    }
}

/// A ring of bytes in the segment.
pub(super) struct Body<'a> {
    pub(super) segment: &'a Segment,
    pub(super) place: usize,
    pub(super) size: usize,
}

impl Body<'_> {
    /// Reads the frame at `tail`; returns it and the position after it.
    ///
    /// # Safety
    /// Nobody writes between `tail` and `head`.
    pub(super) unsafe fn take(
        &self,
        head: u64,
        tail: u64,
    ) -> Result<Option<(Vec<u8>, u64)>, CorruptFrame> {
        if head == tail {
            return Ok(None);
        }
        let mut length = [0; 4];
        // SAFETY: a frame is never shorter, so this is before `head`, where nobody writes.
        unsafe { self.get(tail, &mut length) };
        let length = u32::from_le_bytes(length) as usize;
        if head.wrapping_sub(tail) < 4 + length as u64 || 4 + length > self.size {
            return Err(CorruptFrame);
        }
        let mut frame = vec![0; length];
        // SAFETY: just checked to be before `head`.
        unsafe { self.get(tail + 4, &mut frame) };
        Ok(Some((frame, tail + 4 + length as u64)))
    }

    /// Writes a frame with its length in front.
    ///
    /// # Safety
    /// Nobody touches the length and the frame's bytes from `position` on.
    pub(super) unsafe fn put_frame(&self, position: u64, frame: &[u8]) {
        // SAFETY: guaranteed by the caller.
        unsafe { self.put(position, &(frame.len() as u32).to_le_bytes()) };
        // SAFETY: as above.
        unsafe { self.put(position + 4, frame) };
    }

    /// Writes bytes at a position, wrapping around at the end.
    ///
    /// # Safety
    /// Nobody touches `bytes.len()` bytes from `position` on.
    unsafe fn put(&self, position: u64, bytes: &[u8]) {
        let (place, near) = self.cut(position, bytes.len());
        let (first, second) = bytes.split_at(near);
        // SAFETY: guaranteed by the caller.
        unsafe { self.segment.write(place, first) };
        // SAFETY: as above.
        unsafe { self.segment.write(self.place, second) };
    }

    /// # Safety
    /// Nobody writes to `bytes.len()` bytes from `position` on.
    unsafe fn get(&self, position: u64, bytes: &mut [u8]) {
        let (place, near) = self.cut(position, bytes.len());
        let (first, second) = bytes.split_at_mut(near);
        // SAFETY: guaranteed by the caller.
        unsafe { self.segment.read(place, first) };
        // SAFETY: as above.
        unsafe { self.segment.read(self.place, second) };
    }

    /// The offset of a position in the segment, and how many of the bytes fit before the end.
    fn cut(&self, position: u64, length: usize) -> (usize, usize) {
        assert!(length <= self.size, "longer than the ring");
        let start = (position % self.size as u64) as usize;
        (self.place + start, length.min(self.size - start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_arrive_unchanged_and_in_order() {
        let (segment, _fd) = Segment::create(2).unwrap();
        let segment = Arc::new(segment);
        let mut writer = Queue::of(segment.clone(), 1);
        let mut reader = Queue::of(segment, 1);
        let frames = |i: usize| vec![i as u8; (i * 7919) % 3000];
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for i in 0..2000 {
                    while !writer.push(&frames(i)) {
                        std::thread::yield_now();
                    }
                }
            });
            for i in 0..2000 {
                let frame = loop {
                    match reader.pop().unwrap() {
                        Some(frame) => break frame,
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!(frame, frames(i), "frame {i}");
            }
        });
        assert!(reader.is_empty());
    }

    #[test]
    fn a_full_queue_refuses_and_a_corrupt_frame_is_detected() {
        let (segment, _fd) = Segment::create(1).unwrap();
        let mut queue = Queue::of(Arc::new(segment), 0);
        assert!(queue.push(&vec![0; QUEUE - 4]));
        assert!(queue.is_half_full());
        assert!(!queue.push(b""));
        queue.pop().unwrap();
        queue.head().fetch_add(5, Ordering::Relaxed);
        let tail = queue.tail().load(Ordering::Relaxed);
        // SAFETY: nobody else has the segment.
        unsafe { queue.body().put(tail, &u32::MAX.to_le_bytes()) };
        assert_eq!(queue.pop(), Err(CorruptFrame));
    }
}
