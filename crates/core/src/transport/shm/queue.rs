//! A queue of frames from one rank to the coordinator: one writer, one reader, no lock.
//!
//! A frame is four bytes of length and its body; positions (see `ring`) are taken modulo the size.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::{LINE, QUEUE};
use super::{Segment, ring};
use crate::buffer::Region;

/// A frame that cannot have been written by a rank of ours.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Torn;

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

    /// Puts a frame in, unless there is no room for it now.
    pub(crate) fn push(&mut self, frame: &[u8]) -> bool {
        let tails = std::iter::once(self.tail());
        ring::write(self.head(), tails, QUEUE, 4 + frame.len(), |position| {
            put_frame(self.body(), position, frame);
        })
    }

    /// Takes the oldest frame out.
    pub(crate) fn pop(&mut self) -> Result<Option<Vec<u8>>, Torn> {
        ring::read(self.head(), self.tail(), |head, tail| take(self.body(), head, tail))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head().load(Ordering::Acquire) == self.tail().load(Ordering::Relaxed)
    }

    /// Whether the reader should be woken whatever it thinks, because room runs out.
    pub(crate) fn is_half_full(&self) -> bool {
        let head = self.head().load(Ordering::Relaxed);
        head.wrapping_sub(self.tail().load(Ordering::Relaxed)) as usize > QUEUE / 2
    }

    /// The longest frame that ever fits.
    pub(crate) fn limit() -> usize {
        QUEUE / 2
    }

    fn head(&self) -> &AtomicU64 {
        self.segment.word64(self.place)
    }

    fn tail(&self) -> &AtomicU64 {
        self.segment.word64(self.place + LINE)
    }

    fn body(&self) -> Region {
        self.segment.region(self.place + 2 * LINE, QUEUE)
    }
}

/// Reads the frame at `tail`; gives it and the position behind it.
pub(super) fn take(body: Region, head: u64, tail: u64) -> Result<Option<(Vec<u8>, u64)>, Torn> {
    if head == tail {
        return Ok(None);
    }
    let mut length = [0; 4];
    get(body, tail, &mut length);
    let length = u32::from_le_bytes(length) as usize;
    if head.wrapping_sub(tail) < 4 + length as u64 || 4 + length > body.length() {
        return Err(Torn);
    }
    let mut frame = vec![0; length];
    get(body, tail + 4, &mut frame);
    Ok(Some((frame, tail + 4 + length as u64)))
}

/// Writes a frame, its length in front.
pub(super) fn put_frame(body: Region, position: u64, frame: &[u8]) {
    put(body, position, &(frame.len() as u32).to_le_bytes());
    put(body, position + 4, frame);
}

/// Writes bytes at a position, around the end if need be.
fn put(body: Region, position: u64, bytes: &[u8]) {
    let (near, far) = cut(body, position, bytes.len());
    let (first, second) = bytes.split_at(near.length());
    near.write(first);
    far.write(second);
}

fn get(body: Region, position: u64, bytes: &mut [u8]) {
    let (near, far) = cut(body, position, bytes.len());
    let (first, second) = bytes.split_at_mut(near.length());
    near.read(first);
    far.read(second);
}

fn cut(body: Region, position: u64, length: usize) -> (Region, Region) {
    let start = (position % body.length() as u64) as usize;
    let near = length.min(body.length() - start);
    (body.part(start..start + near), body.part(0..length - near))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in_for_a_long_time() {
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
    fn a_full_queue_refuses_and_a_torn_one_is_noticed() {
        let (segment, _fd) = Segment::create(1).unwrap();
        let mut queue = Queue::of(Arc::new(segment), 0);
        assert!(queue.push(&vec![0; QUEUE - 4]));
        assert!(queue.is_half_full());
        assert!(!queue.push(b""));
        queue.pop().unwrap();
        queue.head().fetch_add(5, Ordering::Relaxed);
        put(queue.body(), queue.tail().load(Ordering::Relaxed), &u32::MAX.to_le_bytes());
        assert_eq!(queue.pop(), Err(Torn));
    }
}
