//! The clock of whoever waits in the data plane: a bucket that is on its way is outstanding work, too.
//!
//! The coordinator's watch (`stall`) sees tensors that some rank has not submitted. Once all have, every
//! rank works on the bucket, and if one of them stops there the others wait for its bytes. They look at
//! the clock whenever they wake up from a sleep, at most a second later, so this costs nothing while
//! there is something to do.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use ronde_control::Rank;

use crate::transport::vigil::Vigil;
use crate::watch::Watch;

/// How much longer than the launcher to wait before giving up: it may know who has stopped.
const LAUNCHER_FIRST: Duration = Duration::from_secs(5);

/// How much longer than the coordinator to wait for what it has not released: it knows who is late.
const COORDINATOR_FIRST: Duration = Duration::from_secs(15);

/// Rank 0 asks every two seconds where it takes the launcher's place; this long is too long.
const FIRST_RANK_SILENT: Duration = Duration::from_secs(6);

/// A wait that is worth a word.
const WORTH_A_WORD: Duration = Duration::from_secs(3);

pub(super) struct Late {
    warning: Option<Duration>,
    shutdown: Option<Duration>,
    me: Rank,
    /// How old a bucket must be for the next report.
    next: Mutex<Duration>,
    /// Looks in a row that found rank 0 silent.
    silent: Mutex<u32>,
}

/// What there is to say.
#[derive(Debug, PartialEq, Eq)]
enum Finding {
    Warn(String),
    GiveUp(Option<Rank>, String),
}

impl Late {
    pub(super) fn new((warning, shutdown): (Option<Duration>, Option<Duration>), me: Rank) -> Late {
        let next = Mutex::new(warning.unwrap_or(Duration::MAX));
        Late { warning, shutdown, me, next, silent: Mutex::new(0) }
    }

    /// Has every wait of this rank look at the clock.
    pub(super) fn guard(self, vigil: &Arc<Vigil>, watch: &Arc<Watch>) {
        if self.warning.is_none() && self.shutdown.is_none() {
            return;
        }
        let (waited, watch): (Weak<Vigil>, Weak<Watch>) =
            (Arc::downgrade(vigil), Arc::downgrade(watch));
        vigil.look_at_clock(Box::new(move || {
            let (vigil, watch) = (waited.upgrade()?, watch.upgrade()?);
            let waits = watch.longest_wait();
            if let Some(silence) = self.silence(vigil.sentinel.silence_of_first_rank(), waits) {
                let (name, seconds) = (vigil.fate.name(Rank(0)), silence.as_secs());
                tracing::warn!(
                    "{name} has not been heard from for {seconds} s, and others wait for it: its \
                     process may be stopped or frozen, or its host may be overloaded"
                );
            }
            let whom = || vigil.awaited().map(|rank| (rank, vigil.fate.name(rank)));
            match self.look(watch.underway(), waits, whom)? {
                Finding::Warn(text) => {
                    tracing::warn!("{text}");
                    watch.ledger().count_stall();
                    watch.order("somebody is late".into());
                    None
                }
                Finding::GiveUp(missing, text) => {
                    tracing::error!("{text}");
                    Some(vigil.fate.stalled(missing.as_slice(), text))
                }
            }
        }));
    }

    /// For how long rank 0 has been silent, once that is worth a word. Everybody else's silence is
    /// noticed by whoever asks, but there is nobody to ask rank 0 under another launcher; one rank says
    /// so for all. The first look may come before what has arrived was read.
    fn silence(&self, silence: Option<Duration>, waits: Option<Duration>) -> Option<Duration> {
        let mut looks = self.silent.lock().expect("nothing panics while it holds this lock");
        let waits = self.me == Rank(1) && waits.is_some_and(|waits| waits >= WORTH_A_WORD);
        match silence.filter(|silence| waits && *silence >= FIRST_RANK_SILENT) {
            Some(silence) => {
                *looks = looks.saturating_add(1);
                (*looks == 2).then_some(silence)
            }
            None => {
                *looks = 0;
                None
            }
        }
    }

    /// `underway` is what all ranks work on and for how long; `waits`, how long anything has waited.
    fn look(
        &self,
        underway: Option<(Duration, String)>,
        waits: Option<Duration>,
        whom: impl Fn() -> Option<(Rank, String)>,
    ) -> Option<Finding> {
        let mut next = self.next.lock().expect("nothing panics while it holds this lock");
        let Some((age, what)) = underway else {
            *next = self.warning.unwrap_or(Duration::MAX);
            let limit = self.shutdown?.saturating_add(COORDINATOR_FIRST);
            let seconds = waits.filter(|age| *age >= limit)?.as_secs();
            let text = format!(
                "this rank has waited for more than {seconds} seconds, and rank 0, which knows what \
                 is missing, has not said anything. It may have stopped. Will shutdown."
            );
            return Some(Finding::GiveUp(Some(Rank(0)), text));
        };
        let (missing, name) = whom().unzip();
        let whom = name
            .map(|name| format!(" waits for data of {name}"))
            .unwrap_or_else(|| " waits for the data of another rank".into());
        let text = |age: Duration| {
            format!(
                "All ranks have submitted {what}, which has been on its way for more than {} seconds: \
                 {}{whom}. A rank may have stopped, or a connection may carry nothing any more.",
                age.as_secs(),
                self.me
            )
        };
        if self.shutdown.is_some_and(|limit| age >= limit.saturating_add(LAUNCHER_FIRST)) {
            return Some(Finding::GiveUp(missing, text(age) + " Will shutdown."));
        }
        // All ranks wait; it is enough if one of them says so.
        if self.me != Rank(0) || age < *next {
            return None;
        }
        *next = age + self.warning.unwrap_or(Duration::MAX / 2).min(Duration::from_secs(60));
        Some(Finding::Warn(text(age)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn late(me: u32) -> Late {
        Late::new((Some(seconds(10)), Some(seconds(30))), Rank(me))
    }

    fn at(late: &Late, age: u64) -> Option<Finding> {
        let bucket = Some((seconds(age), "allreduce of `x`".to_owned()));
        late.look(bucket, Some(seconds(age)), || Some((Rank(2), "rank 2 (b, slot 0)".into())))
    }

    #[test]
    fn a_bucket_on_its_way_is_reported_by_rank_0_and_ends_the_job_when_asked_to() {
        let (first, other) = (late(0), late(1));
        assert_eq!(at(&first, 9), None);
        let Some(Finding::Warn(text)) = at(&first, 10) else { panic!() };
        assert!(text.contains("allreduce of `x`, which has been on its way for more than 10"));
        assert!(text.contains("rank 0 waits for data of rank 2 (b, slot 0)"), "{text}");
        assert_eq!((at(&first, 11), at(&other, 11)), (None, None), "once is enough");
        assert!(matches!(at(&first, 20), Some(Finding::Warn(_))));
        assert_eq!(at(&other, 34), None, "the launcher may know more");
        for rank in [&first, &other] {
            let Some(Finding::GiveUp(missing, text)) = at(rank, 35) else { panic!() };
            assert_eq!(missing, Some(Rank(2)));
            assert!(text.ends_with("shutdown."), "{text}");
        }
    }

    #[test]
    fn a_silent_first_rank_is_told_of_once_and_by_one_rank() {
        let (one, two) = (late(1), late(2));
        let at = |late: &Late, silence, waits| late.silence(Some(seconds(silence)), waits);
        let waits = Some(seconds(4));
        assert_eq!((at(&one, 5, waits), at(&one, 7, None)), (None, None));
        assert_eq!(at(&one, 7, waits), None, "what came may not have been read yet");
        assert_eq!(at(&one, 8, waits), Some(seconds(8)));
        assert_eq!((at(&one, 9, waits), at(&one, 1, waits)), (None, None));
        assert_eq!((at(&one, 7, waits), at(&one, 8, waits)), (None, Some(seconds(8))));
        assert_eq!((at(&two, 8, waits), at(&two, 9, waits)), (None, None));
        assert_eq!(one.silence(None, waits), None, "there is a launcher");
    }

    #[test]
    fn the_next_bucket_has_its_own_time() {
        let late = late(0);
        assert!(at(&late, 10).is_some());
        assert_eq!(late.look(None, None, || None), None);
        assert!(at(&late, 10).is_some());
    }

    #[test]
    fn what_a_silent_coordinator_never_releases_ends_the_job_in_the_end() {
        let late = late(1);
        assert_eq!(late.look(None, Some(seconds(44)), || None), None);
        let Some(Finding::GiveUp(Some(Rank(0)), text)) =
            late.look(None, Some(seconds(45)), || None)
        else {
            panic!()
        };
        assert!(text.contains("rank 0, which knows what is missing"), "{text}");
    }
}
