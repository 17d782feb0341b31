//! Counters of steps: one rank counts, the others wait. Once they see the count, they also see
//! everything that it wrote before.

use super::atomic::{AtomicU64, Ordering};

pub(crate) fn count(word: &AtomicU64, steps: u64) {
    word.store(steps, Ordering::Release);
}

pub(crate) fn has_reached(word: &AtomicU64, steps: u64) -> bool {
    word.load(Ordering::Acquire) >= steps
}
