//! How long a wait spins before it sleeps.
//!
//! Waking a sleeping thread costs some 40 µs, a look at a cache line a hundredth of that: a wait that
//! ends soon should spin, a long one should not. Which kind is coming is told by those before it: a
//! wait that was ended by spinning or soon after doubles the patience, one that was far too long
//! halves it. With more ranks than cores there is none: a spinning thread would only keep the others
//! from working.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Twice what it costs to wake a thread.
const MOST: Duration = Duration::from_micros(100);
const LEAST: Duration = Duration::from_micros(6);
/// A wait this long makes the spinning before it small; a shorter one may have been long only because
/// the others slept, too.
const LONG: Duration = Duration::from_millis(1);

pub(crate) struct Patience {
    /// In nanoseconds; none for those who never spin.
    now: Option<AtomicU64>,
}

impl Patience {
    /// The patience of one of so many ranks on so many cores.
    pub(crate) fn of(ranks: usize, cores: usize) -> Patience {
        Patience { now: (ranks <= cores).then(|| AtomicU64::new(MOST.as_nanos() as u64)) }
    }

    /// How long the next wait spins, if it does.
    pub(crate) fn limit(&self) -> Option<Duration> {
        self.now.as_ref().map(|now| Duration::from_nanos(now.load(Ordering::Relaxed)))
    }

    /// Takes note of how long a wait was beyond the spinning; nothing, if spinning ended it.
    pub(crate) fn learn(&self, waited: Duration) {
        let Some(now) = &self.now else { return };
        let limit = now.load(Ordering::Relaxed);
        let next = if waited <= LONG { limit * 2 } else { limit / 2 };
        let next = next.clamp(LEAST.as_nanos() as u64, MOST.as_nanos() as u64);
        if next != limit {
            now.store(next, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_waits_wear_it_out_and_short_ones_bring_it_back() {
        let patience = Patience::of(2, 2);
        assert_eq!(patience.limit(), Some(MOST));
        (0..20).for_each(|_| patience.learn(Duration::from_secs(1)));
        assert_eq!(patience.limit(), Some(LEAST));
        (0..20).for_each(|_| patience.learn(Duration::from_micros(400)));
        assert_eq!(patience.limit(), Some(MOST));
    }

    #[test]
    fn there_is_none_with_more_ranks_than_cores() {
        let patience = Patience::of(3, 2);
        patience.learn(Duration::ZERO);
        assert_eq!(patience.limit(), None);
    }
}
