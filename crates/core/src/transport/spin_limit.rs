//! How long a wait spins before it sleeps.
//!
//! Waking a sleeping thread costs some 40 µs, a look at a cache line a hundredth of that. So a
//! short wait should spin and a long one should not, and a wait for another rank on the same core
//! must not. Earlier waits predict the next one: if spinning ended a wait, the limit rises to twice
//! the time it took; if it was in vain, the limit is halved. Now and then a wait spins for the
//! maximum, since ranks that all sleep would never find out that they need not. With more ranks
//! than cores nobody spins: it would only keep the others from working.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// About twice the cost of waking a thread.
const MOST: Duration = Duration::from_micros(100);
const LEAST: Duration = Duration::from_micros(5);
const COURTESY: Duration = Duration::from_micros(60);
/// One in this many waits spins for the maximum.
const PROBES: u32 = 8;

pub(crate) struct SpinLimit(Option<LearnedLimit>);

struct LearnedLimit {
    /// In nanoseconds.
    limit: AtomicU64,
    waits: AtomicU32,
}

impl Default for LearnedLimit {
    fn default() -> LearnedLimit {
        LearnedLimit { limit: AtomicU64::new(MOST.as_nanos() as u64), waits: AtomicU32::new(0) }
    }
}

impl SpinLimit {
    /// The limit for one of `ranks` ranks on `cores` cores.
    pub(crate) fn of(ranks: usize, cores: usize) -> SpinLimit {
        SpinLimit((ranks <= cores).then(LearnedLimit::default))
    }

    /// A separate limit for another kind of wait, on the same machine.
    pub(crate) fn like(&self) -> SpinLimit {
        SpinLimit(self.0.is_some().then(LearnedLimit::default))
    }

    /// How long the next wait spins, if it does.
    pub(crate) fn limit(&self) -> Option<Duration> {
        let LearnedLimit { limit, waits } = self.0.as_ref()?;
        let is_probe = waits.fetch_add(1, Ordering::Relaxed) % PROBES == 0;
        Some(if is_probe { MOST } else { Duration::from_nanos(limit.load(Ordering::Relaxed)) })
    }

    /// How long a wait keeps looking while it yields its core to others, before it sleeps: about
    /// the time it takes to wake a thread, so that two threads that wake each other stay awake.
    pub(crate) fn courtesy(&self) -> Duration {
        if self.0.is_some() { COURTESY } else { Duration::ZERO }
    }

    /// Records that spinning ended a wait after this long.
    pub(crate) fn paid_off(&self, after: Duration) {
        if let Some(LearnedLimit { limit, .. }) = &self.0 {
            let needed = (2 * after).clamp(LEAST, MOST).as_nanos() as u64;
            if limit.load(Ordering::Relaxed) < needed {
                limit.store(needed, Ordering::Relaxed);
            }
        }
    }

    /// Records that spinning was in vain.
    pub(crate) fn was_in_vain(&self) {
        if let Some(LearnedLimit { limit, .. }) = &self.0 {
            let halved = limit.load(Ordering::Relaxed) / 2;
            limit.store(halved.max(LEAST.as_nanos() as u64), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit that most waits get.
    fn usual(spin_limit: &SpinLimit) -> Option<Duration> {
        (0..PROBES).map(|_| spin_limit.limit()).min().flatten()
    }

    #[test]
    fn the_limit_shrinks_in_vain_and_grows_to_what_was_needed() {
        let spin_limit = SpinLimit::of(2, 2);
        assert_eq!(usual(&spin_limit), Some(MOST));
        (0..20).for_each(|_| spin_limit.was_in_vain());
        assert_eq!(usual(&spin_limit), Some(LEAST));
        spin_limit.paid_off(Duration::from_micros(30));
        assert_eq!(usual(&spin_limit), Some(Duration::from_micros(60)));
        spin_limit.paid_off(Duration::from_micros(3));
        assert_eq!(usual(&spin_limit), Some(Duration::from_micros(60)));
        spin_limit.paid_off(Duration::from_micros(90));
        assert_eq!(usual(&spin_limit), Some(MOST));
    }

    #[test]
    fn one_wait_in_eight_spins_for_the_maximum() {
        let spin_limit = SpinLimit::of(2, 2);
        (0..20).for_each(|_| spin_limit.was_in_vain());
        let probes = (0..80).filter(|_| spin_limit.limit() == Some(MOST)).count();
        assert_eq!(probes, 10);
    }

    #[test]
    fn nobody_spins_with_more_ranks_than_cores() {
        let spin_limit = SpinLimit::of(3, 2);
        spin_limit.paid_off(Duration::ZERO);
        spin_limit.was_in_vain();
        assert_eq!(spin_limit.limit(), None);
    }
}
