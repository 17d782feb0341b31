//! How deeply a rank sleeps: a word that others read before they ring. The table of depths is in
//! `waiter`.
//!
//! A thread that goes to sleep writes the word, then looks for work once more; a thread that makes
//! progress publishes it, then reads the word. With a full fence in between on both sides, at least
//! one of the two sees the other, so no wake-up is lost. The models in `tests/models` check exactly
//! this, on this file.

use super::atomic::{AtomicU32, Ordering, fence};

pub(crate) const AWAKE: u32 = 0;
pub(crate) const FOREGROUND: u32 = 1;
pub(crate) const BACKGROUND: u32 = 2;
pub(crate) const IDLE: u32 = 3;

/// A rank's word and, if the rank shares memory with others, the number of ranks there that want to
/// be rung on any progress.
#[derive(Clone, Copy)]
pub(crate) struct Depth<'a> {
    pub(crate) word: &'a AtomicU32,
    pub(crate) sleepers: Option<&'a AtomicU32>,
}

/// Which sleepers to wake.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WakeTarget {
    /// Ranks that are waiting for something.
    Waiting,
    /// Also ranks with nothing outstanding.
    Everybody,
}

impl Depth<'_> {
    pub(crate) fn seen(self) -> u32 {
        self.word.load(Ordering::SeqCst)
    }

    /// Records how deeply this rank sleeps from now on; the caller must look for work once more
    /// afterwards.
    pub(crate) fn go_to_sleep(self, depth: u32) {
        // Incremented before the word changes and decremented after: the count is never too low.
        if let Some(sleepers) = self.sleepers.filter(|_| counts(depth)) {
            sleepers.fetch_add(1, Ordering::SeqCst);
        }
        let before = self.word.swap(depth, Ordering::SeqCst);
        if let Some(sleepers) = self.sleepers.filter(|_| counts(before)) {
            sleepers.fetch_sub(1, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// Returns the depth of a sleeper whose doorbell the caller must ring now. Only one caller gets
    /// it per sleep, because it marks the sleeper as awake. A fence must separate publishing the
    /// progress from this call.
    pub(crate) fn rouse(self, target: WakeTarget) -> Option<u32> {
        let seen = self.seen();
        if seen == AWAKE || (seen == IDLE && target == WakeTarget::Waiting) {
            return None;
        }
        self.word.compare_exchange(seen, AWAKE, Ordering::SeqCst, Ordering::SeqCst).ok()?;
        if let Some(sleepers) = self.sleepers.filter(|_| counts(seen)) {
            sleepers.fetch_sub(1, Ordering::SeqCst);
        }
        Some(seen)
    }
}

/// Whether any rank wants to be rung; call it after publishing the progress.
pub(crate) fn anybody_sleeps(sleepers: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    sleepers.load(Ordering::SeqCst) > 0
}

/// Whether a sleeper at this depth wants to be rung on any progress.
fn counts(depth: u32) -> bool {
    depth == FOREGROUND || depth == BACKGROUND
}
