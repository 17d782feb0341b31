//! How deep a rank sleeps, in a word that others look at before they ring; the table of depths stands
//! in `vigil`.
//!
//! Whoever goes to sleep writes the word, then looks once more; whoever makes progress writes it
//! down, then looks at the word. With a full fence in between on both sides, one of the two sees
//! the other, and no wake-up is lost. The models in `tests/models` check just that, with this file.

use super::atomic::{AtomicU32, Ordering, fence};

pub(crate) const AWAKE: u32 = 0;
pub(crate) const DRIVER: u32 = 1;
pub(crate) const BACKGROUND: u32 = 2;
pub(crate) const IDLE: u32 = 3;

/// A rank's word, and the count of all ranks that want to be rung by any progress, if it has such
/// neighbours.
#[derive(Clone, Copy)]
pub(crate) struct Depth<'a> {
    pub(crate) word: &'a AtomicU32,
    pub(crate) sleepers: Option<&'a AtomicU32>,
}

/// Whom a ringer disturbs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whom {
    /// Those who wait for something.
    Waiting,
    /// Those who have nothing outstanding too.
    Everybody,
}

impl Depth<'_> {
    pub(crate) fn seen(self) -> u32 {
        self.word.load(Ordering::SeqCst)
    }

    /// Writes down how deep this rank sleeps from now on; the caller must look once more after this.
    pub(crate) fn lie_down(self, depth: u32) {
        // Counted before it is visible and uncounted after: the count is never too low.
        if let Some(sleepers) = self.sleepers.filter(|_| counts(depth)) {
            sleepers.fetch_add(1, Ordering::SeqCst);
        }
        let before = self.word.swap(depth, Ordering::SeqCst);
        if let Some(sleepers) = self.sleepers.filter(|_| counts(before)) {
            sleepers.fetch_sub(1, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// Gives the depth of a sleeper whose bell the caller must ring now. There is one per sleep: the
    /// ringer writes down that the sleeper is awake. A fence must stand between what there is to see
    /// and this.
    pub(crate) fn rouse(self, whom: Whom) -> Option<u32> {
        let seen = self.seen();
        if seen == AWAKE || (seen == IDLE && whom == Whom::Waiting) {
            return None;
        }
        self.word.compare_exchange(seen, AWAKE, Ordering::SeqCst, Ordering::SeqCst).ok()?;
        if let Some(sleepers) = self.sleepers.filter(|_| counts(seen)) {
            sleepers.fetch_sub(1, Ordering::SeqCst);
        }
        Some(seen)
    }
}

/// Whether anybody wants to be rung, once the caller has written down what there is to see.
pub(crate) fn anybody_sleeps(sleepers: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    sleepers.load(Ordering::SeqCst) > 0
}

/// Whether a sleeper of that depth wants to be rung by any progress.
fn counts(depth: u32) -> bool {
    depth == DRIVER || depth == BACKGROUND
}
