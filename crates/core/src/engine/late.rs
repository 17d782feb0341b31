//! Times waits in the data plane, so that a bucket in flight that makes no progress is noticed,
//! too.
//!
//! The coordinator's watch (`stall`) covers tensors that some rank has not submitted. Once all
//! ranks have, each works on the bucket, and if one of them stops there, the others wait for its
//! bytes. They check the clock whenever they wake up from a sleep, at most a second later, so this
//! costs nothing while there is work to do.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use ronde_control::Rank;

use crate::transport::waiter::Waiter;
use crate::watch::Watch;

/// How much longer than the launcher to wait before giving up: it may know which rank has stopped.
const LAUNCHER_FIRST: Duration = Duration::from_secs(5);

/// How much longer than the coordinator to wait for what it has not released: it knows which ranks
/// are late.
const COORDINATOR_FIRST: Duration = Duration::from_secs(15);

/// Where rank 0 takes the launcher's place, it pings every two seconds; after this long it counts
/// as silent.
const FIRST_RANK_SILENT: Duration = Duration::from_secs(6);

/// How long a wait must be to be reported.
const WORTH_REPORTING: Duration = Duration::from_secs(3);

pub(super) struct WaitClock {
    warning: Option<Duration>,
    shutdown: Option<Duration>,
    me: Rank,
    /// How old a bucket must be for the next report.
    next: Mutex<Duration>,
    /// How many checks in a row found rank 0 silent.
    silent: Mutex<u32>,
}

/// The result of a check that found something late.
#[derive(Debug, PartialEq, Eq)]
enum LateReport {
    Warn(String),
    GiveUp(Option<Rank>, String),
}

impl WaitClock {
    pub(super) fn new(
        (warning, shutdown): (Option<Duration>, Option<Duration>),
        me: Rank,
    ) -> WaitClock {
        let next = Mutex::new(warning.unwrap_or(Duration::MAX));
        WaitClock { warning, shutdown, me, next, silent: Mutex::new(0) }
    }

    /// Makes every wait of this rank check the clock.
    pub(super) fn guard(self, waiter: &Arc<Waiter>, watch: &Arc<Watch>) {
        if self.warning.is_none() && self.shutdown.is_none() {
            return;
        }
        let (waited, watch): (Weak<Waiter>, Weak<Watch>) =
            (Arc::downgrade(waiter), Arc::downgrade(watch));
        waiter.look_at_clock(Box::new(move || {
            let (waiter, watch) = (waited.upgrade()?, watch.upgrade()?);
            let waits = watch.longest_wait();
            if let Some(silence) =
                self.silence(waiter.failure_detector.silence_of_first_rank(), waits)
            {
                let (name, seconds) = (waiter.world_state.name(Rank(0)), silence.as_secs());
                tracing::warn!(
                    "{name} has not been heard from for {seconds} s, and others wait for it: its \
                     process may be stopped or frozen, or its host may be overloaded"
                );
            }
            let awaited = || waiter.awaited().map(|rank| (rank, waiter.world_state.name(rank)));
            match self.check(watch.underway(), waits, awaited)? {
                LateReport::Warn(text) => {
                    tracing::warn!("{text}");
                    watch.watch_state().count_stall();
                    watch.order("a rank is late".into());
                    None
                }
                LateReport::GiveUp(missing, text) => {
                    tracing::error!("{text}");
                    Some(waiter.world_state.stalled(missing.as_slice(), text))
                }
            }
        }));
    }

    /// How long rank 0 has been silent, once that is worth reporting. A silent rank is usually
    /// noticed by the process that pings it, but under another launcher nothing pings rank 0, so
    /// one rank reports it for all. The first check may come before the data that has arrived was
    /// read.
    fn silence(&self, silence: Option<Duration>, waits: Option<Duration>) -> Option<Duration> {
        let mut checks = self.silent.lock().expect("nothing panics while it holds this lock");
        let waits = self.me == Rank(1) && waits.is_some_and(|waits| waits >= WORTH_REPORTING);
        match silence.filter(|silence| waits && *silence >= FIRST_RANK_SILENT) {
            Some(silence) => {
                *checks = checks.saturating_add(1);
                (*checks == 2).then_some(silence)
            }
            None => {
                *checks = 0;
                None
            }
        }
    }

    /// `underway` is what all ranks work on, and for how long; `waits` is how long anything has
    /// waited.
    fn check(
        &self,
        underway: Option<(Duration, String)>,
        waits: Option<Duration>,
        awaited: impl Fn() -> Option<(Rank, String)>,
    ) -> Option<LateReport> {
        let mut next = self.next.lock().expect("nothing panics while it holds this lock");
        let Some((age, what)) = underway else {
            *next = self.warning.unwrap_or(Duration::MAX);
            let limit = self.shutdown?.saturating_add(COORDINATOR_FIRST);
            let seconds = waits.filter(|age| *age >= limit)?.as_secs();
            let text = format!(
                "this rank has waited for more than {seconds} seconds, and rank 0, which knows what \
                 is missing, has reported nothing. It may have stopped. Will shutdown."
            );
            return Some(LateReport::GiveUp(Some(Rank(0)), text));
        };
        let (missing, name) = awaited().unzip();
        let sender = name.unwrap_or_else(|| "another rank".into());
        let text = |age: Duration| {
            format!(
                "All ranks have submitted {what}, which has been in progress for more than {} seconds: \
                 {} waits for data from {sender}. A rank may have stopped, or a connection may be stuck.",
                age.as_secs(),
                self.me
            )
        };
        if self.shutdown.is_some_and(|limit| age >= limit.saturating_add(LAUNCHER_FIRST)) {
            return Some(LateReport::GiveUp(missing, text(age) + " Will shutdown."));
        }
        // All ranks wait; one report is enough.
        if self.me != Rank(0) || age < *next {
            return None;
        }
        *next = age + self.warning.unwrap_or(Duration::MAX / 2).min(Duration::from_secs(60));
        Some(LateReport::Warn(text(age)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn late(me: u32) -> WaitClock {
        WaitClock::new((Some(seconds(10)), Some(seconds(30))), Rank(me))
    }

    fn at(late: &WaitClock, age: u64) -> Option<LateReport> {
        let bucket = Some((seconds(age), "allreduce of `x`".to_owned()));
        late.check(bucket, Some(seconds(age)), || Some((Rank(2), "rank 2 (b, slot 0)".into())))
    }

    #[test]
    fn a_stuck_bucket_is_reported_by_rank_0_and_ends_the_job_when_asked_to() {
        let (first, other) = (late(0), late(1));
        assert_eq!(at(&first, 9), None);
        let Some(LateReport::Warn(text)) = at(&first, 10) else { panic!() };
        assert!(text.contains("allreduce of `x`, which has been in progress for more than 10"));
        assert!(text.contains("rank 0 waits for data from rank 2 (b, slot 0)"), "{text}");
        assert_eq!((at(&first, 11), at(&other, 11)), (None, None), "once is enough");
        assert!(matches!(at(&first, 20), Some(LateReport::Warn(_))));
        assert_eq!(at(&other, 34), None, "the launcher may know more");
        for rank in [&first, &other] {
            let Some(LateReport::GiveUp(missing, text)) = at(rank, 35) else { panic!() };
            assert_eq!(missing, Some(Rank(2)));
            assert!(text.ends_with("shutdown."), "{text}");
        }
    }

    #[test]
    fn a_silent_rank_0_is_reported_once_and_by_one_rank() {
        let (one, two) = (late(1), late(2));
        let at = |late: &WaitClock, silence, waits| late.silence(Some(seconds(silence)), waits);
        let waits = Some(seconds(4));
        assert_eq!((at(&one, 5, waits), at(&one, 7, None)), (None, None));
        assert_eq!(at(&one, 7, waits), None, "data that arrived may not have been read yet");
        assert_eq!(at(&one, 8, waits), Some(seconds(8)));
        assert_eq!((at(&one, 9, waits), at(&one, 1, waits)), (None, None));
        assert_eq!((at(&one, 7, waits), at(&one, 8, waits)), (None, Some(seconds(8))));
        assert_eq!((at(&two, 8, waits), at(&two, 9, waits)), (None, None));
        assert_eq!(one.silence(None, waits), None, "there is a launcher");
    }

    #[test]
    fn each_bucket_is_timed_separately() {
        let late = late(0);
        assert!(at(&late, 10).is_some());
        assert_eq!(late.check(None, None, || None), None);
        assert!(at(&late, 10).is_some());
    }

    #[test]
    fn a_wait_for_a_silent_coordinator_ends_the_job_eventually() {
        let late = late(1);
        assert_eq!(late.check(None, Some(seconds(44)), || None), None);
        let Some(LateReport::GiveUp(Some(Rank(0)), text)) =
            late.check(None, Some(seconds(45)), || None)
        else {
            panic!()
        };
        assert!(text.contains("rank 0, which knows what is missing"), "{text}");
    }
}
