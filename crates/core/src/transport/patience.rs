//! How long a wait spins before it sleeps.
//!
//! Waking a sleeping thread costs some 40 µs, a look at a cache line a hundredth of that: a wait that
//! ends soon should spin, a long one should not, and one whose end must be brought about by another
//! rank on the same core must not. Which kind is coming is told by those before it: spinning that
//! ended a wait makes room for twice as much, spinning in vain halves it. Now and then a wait spins
//! as long as may be, since ranks that all sleep would never find out that they need not. With more
//! ranks than cores nobody spins: it would only keep the others from working.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Twice what it costs to wake a thread.
const MOST: Duration = Duration::from_micros(100);
const LEAST: Duration = Duration::from_micros(5);
const COURTESY: Duration = Duration::from_micros(60);
/// Of so many waits one spins as long as may be.
const PROBES: u32 = 8;

pub(crate) struct Patience(Option<Learned>);

struct Learned {
    /// In nanoseconds.
    limit: AtomicU64,
    waits: AtomicU32,
}

impl Default for Learned {
    fn default() -> Learned {
        Learned { limit: AtomicU64::new(MOST.as_nanos() as u64), waits: AtomicU32::new(0) }
    }
}

impl Patience {
    /// The patience of one of so many ranks on so many cores.
    pub(crate) fn of(ranks: usize, cores: usize) -> Patience {
        Patience((ranks <= cores).then(Learned::default))
    }

    /// That of another kind of waits, in the same place.
    pub(crate) fn like(&self) -> Patience {
        Patience(self.0.is_some().then(Learned::default))
    }

    /// How long the next wait spins, if it does.
    pub(crate) fn limit(&self) -> Option<Duration> {
        let Learned { limit, waits } = self.0.as_ref()?;
        let is_probe = waits.fetch_add(1, Ordering::Relaxed) % PROBES == 0;
        Some(if is_probe { MOST } else { Duration::from_nanos(limit.load(Ordering::Relaxed)) })
    }

    /// How long a wait goes on looking while it offers its core to others, before it sleeps: about
    /// what it takes to wake somebody, so that two who wake each other stay awake.
    pub(crate) fn courtesy(&self) -> Duration {
        if self.0.is_some() { COURTESY } else { Duration::ZERO }
    }

    /// Takes note of spinning that ended a wait after that long.
    pub(crate) fn paid_off(&self, after: Duration) {
        if let Some(Learned { limit, .. }) = &self.0 {
            let needed = (2 * after).clamp(LEAST, MOST).as_nanos() as u64;
            if limit.load(Ordering::Relaxed) < needed {
                limit.store(needed, Ordering::Relaxed);
            }
        }
    }

    /// Takes note of spinning in vain.
    pub(crate) fn was_in_vain(&self) {
        if let Some(Learned { limit, .. }) = &self.0 {
            let halved = limit.load(Ordering::Relaxed) / 2;
            limit.store(halved.max(LEAST.as_nanos() as u64), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What most waits get.
    fn usual(patience: &Patience) -> Option<Duration> {
        (0..PROBES).map(|_| patience.limit()).min().flatten()
    }

    #[test]
    fn it_wears_out_in_vain_and_comes_back_with_what_was_needed() {
        let patience = Patience::of(2, 2);
        assert_eq!(usual(&patience), Some(MOST));
        (0..20).for_each(|_| patience.was_in_vain());
        assert_eq!(usual(&patience), Some(LEAST));
        patience.paid_off(Duration::from_micros(30));
        assert_eq!(usual(&patience), Some(Duration::from_micros(60)));
        patience.paid_off(Duration::from_micros(3));
        assert_eq!(usual(&patience), Some(Duration::from_micros(60)));
        patience.paid_off(Duration::from_micros(90));
        assert_eq!(usual(&patience), Some(MOST));
    }

    #[test]
    fn one_wait_in_eight_tries_the_most() {
        let patience = Patience::of(2, 2);
        (0..20).for_each(|_| patience.was_in_vain());
        let probes = (0..80).filter(|_| patience.limit() == Some(MOST)).count();
        assert_eq!(probes, 10);
    }

    #[test]
    fn there_is_none_with_more_ranks_than_cores() {
        let patience = Patience::of(3, 2);
        patience.paid_off(Duration::ZERO);
        patience.was_in_vain();
        assert_eq!(patience.limit(), None);
    }
}
