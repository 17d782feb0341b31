//! The coordinator's log: one writer, and every rank reads it at its own pace.
//!
//! The writer never overtakes the slowest reader; it keeps frames that do not fit yet.
#![expect(unsafe_code, reason = "frames are in shared memory")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::{LINE, LOG};
use super::queue::{Body, CorruptFrame};
use super::{Segment, ring};

pub(crate) struct LogWriter {
    segment: Arc<Segment>,
}

impl LogWriter {
    pub(crate) fn new(segment: Arc<Segment>) -> LogWriter {
        LogWriter { segment }
    }

    /// Writes a frame for all ranks except the writer; returns false if there is no room for it
    /// now.
    pub(crate) fn push(&mut self, frame: &[u8]) -> bool {
        let tails = (1..self.segment.ranks()).map(|rank| tail(&self.segment, rank));
        ring::write(head(&self.segment), tails, LOG, 4 + frame.len(), |position| {
            // SAFETY: there is one writer, and no reader is here before `head` has moved past it.
            unsafe { body(&self.segment).put_frame(position, frame) };
        })
    }

    /// The longest frame that can ever fit.
    pub(crate) fn limit() -> usize {
        LOG / 2
    }
}

pub(crate) struct LogReader {
    segment: Arc<Segment>,
    rank: usize,
}

impl LogReader {
    pub(crate) fn new(segment: Arc<Segment>, rank: usize) -> LogReader {
        LogReader { segment, rank }
    }

    /// Reads the next frame.
    pub(crate) fn pop(&mut self) -> Result<Option<Vec<u8>>, CorruptFrame> {
        let tail = tail(&self.segment, self.rank);
        ring::read(head(&self.segment), tail, |head, tail| {
            // SAFETY: the writer does not come here before the slowest reader's `tail` has moved
            // on.
            unsafe { body(&self.segment).take(head, tail) }
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        let tail = tail(&self.segment, self.rank).load(Ordering::Relaxed);
        head(&self.segment).load(Ordering::Acquire) == tail
    }
}

fn head(segment: &Segment) -> &AtomicU64 {
    segment.word64(segment.layout().log())
}

fn tail(segment: &Segment, rank: usize) -> &AtomicU64 {
    segment.word64(segment.layout().log() + LINE * (1 + rank))
}

fn body(segment: &Segment) -> Body<'_> {
    let place = segment.layout().log() + LINE * (1 + segment.ranks());
    Body { segment, place, size: LOG }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reader_reads_every_frame_and_the_slowest_holds_up_the_writer() {
        let (segment, _fd) = Segment::create(3).unwrap();
        let segment = Arc::new(segment);
        let mut writer = LogWriter::new(segment.clone());
        let mut readers = [1, 2].map(|rank| LogReader::new(segment.clone(), rank));
        let frame = vec![5; 1000];
        let mut written = 0;
        while writer.push(&frame) {
            written += 1;
        }
        for _ in 0..written {
            assert_eq!(readers[0].pop().unwrap().unwrap(), frame);
        }
        assert!(readers[0].is_empty() && !writer.push(&frame));
        assert_eq!(readers[1].pop().unwrap().unwrap(), frame);
        assert!(writer.push(&frame));
    }
}
