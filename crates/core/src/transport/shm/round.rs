//! Rounds in which every rank says what it wants, and all find the same answer by themselves.
//!
//! A rank that takes part writes its wish for a round, then the round's number; others read in the
//! opposite order. Each rank has two places, for rounds with even and odd numbers. It may write
//! its wish for a round once all ranks have written theirs for the round before: then all have the
//! answer of the round before that, which was in the same place, and will not look there again.

use super::atomic::{AtomicU64, Ordering};

/// The wish of a rank that wants nothing: the round has no agreement.
pub(crate) const REFUSAL: u64 = 0;

/// One of the two places of a rank.
#[derive(Clone, Copy)]
pub(crate) struct RoundWords<'a> {
    pub(crate) round: &'a AtomicU64,
    pub(crate) wish: &'a AtomicU64,
}

impl RoundWords<'_> {
    /// Writes a wish, together with everything that this rank has written before.
    pub(crate) fn publish(self, round: u64, wish: u64) {
        self.wish.store(wish, Ordering::Relaxed);
        self.round.store(round, Ordering::Release);
    }

    /// The wish for this round, if the rank has written one.
    pub(crate) fn wish(self, round: u64) -> Option<u64> {
        self.has(round).then(|| self.wish.load(Ordering::Relaxed))
    }

    /// Whether the rank has written a wish for this round.
    pub(crate) fn has(self, round: u64) -> bool {
        self.round.load(Ordering::Acquire) == round
    }
}
