//! Ranks that share memory, and the steps they take in it.
//!
//! Every collective is a row of steps, the same row on every rank. A step uses one half of the
//! staging memory, the next step the other half. Each rank has three counters that only it writes,
//! each counting steps: what it has *published*, what it has *reduced*, and what it has *finished*
//! reading. Two rules make the halves safe to use again:
//!
//! - A rank enters step `s` (and may write its staging memory) only when every rank has finished
//!   step `s - 2`, the last one that used the same half.
//! - A rank reads the memory of another only after that one's counter says that it may.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::buffer::Region;
use crate::error::Error;
use crate::transport::shm::{Counter, Segment};
use crate::transport::vigil::Vigil;

pub(crate) struct Shared {
    segment: Arc<Segment>,
    vigil: Arc<Vigil>,
    me: usize,
    step: u64,
}

impl Shared {
    pub(crate) fn new(segment: Arc<Segment>, vigil: Arc<Vigil>, me: usize) -> Shared {
        Shared { segment, vigil, me, step: 0 }
    }

    pub(crate) fn me(&self) -> usize {
        self.me
    }

    pub(crate) fn ranks(&self) -> usize {
        self.segment.ranks()
    }

    /// The bytes that a step can carry per rank.
    pub(crate) fn piece(&self) -> usize {
        self.segment.piece()
    }

    /// Enters the next step: waits until this half of the staging memory is free again.
    pub(crate) fn enter(&self) -> Result<(), Error> {
        let needed = self.step.saturating_sub(1);
        (0..self.ranks()).try_for_each(|rank| self.await_count(rank, Counter::Finished, needed))
    }

    /// The staging memory of a rank in this step.
    pub(crate) fn staging(&self, rank: usize) -> Region {
        self.segment.staging(rank, (self.step % 2) as usize)
    }

    pub(crate) fn publish(&self) {
        self.count(Counter::Published);
    }

    pub(crate) fn reduced(&self) {
        self.count(Counter::Reduced);
    }

    /// Leaves the step: this rank reads nothing of the others any more.
    pub(crate) fn finish(&mut self) {
        self.count(Counter::Finished);
        self.step += 1;
    }

    pub(crate) fn await_published(&self, rank: usize) -> Result<(), Error> {
        self.await_count(rank, Counter::Published, self.step + 1)
    }

    pub(crate) fn await_reduced(&self, rank: usize) -> Result<(), Error> {
        self.await_count(rank, Counter::Reduced, self.step + 1)
    }

    fn count(&self, counter: Counter) {
        self.segment.counter(self.me, counter).store(self.step + 1, Ordering::Release);
        self.vigil.ring_others();
    }

    fn await_count(&self, rank: usize, counter: Counter, needed: u64) -> Result<(), Error> {
        let word = self.segment.counter(rank, counter);
        let reached = || Ok((word.load(Ordering::Acquire) >= needed).then_some(()));
        self.vigil.until(&[], None, reached).map(|_| ())
    }
}
