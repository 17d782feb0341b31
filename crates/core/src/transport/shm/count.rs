//! Counters of steps: one rank counts, the others wait. Whatever it wrote before it counted, they see
//! once they see the count.

use super::atomic::{AtomicU64, Ordering};

pub(crate) fn count(word: &AtomicU64, steps: u64) {
    word.store(steps, Ordering::Release);
}

pub(crate) fn has_reached(word: &AtomicU64, steps: u64) -> bool {
    word.load(Ordering::Acquire) >= steps
}
