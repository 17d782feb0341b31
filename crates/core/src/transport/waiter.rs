//! Every wait of a rank goes through here: it spins a little, then sleeps, and ends when the world
//! does.
//!
//! Two kinds of threads wait. A *foreground* thread waits for a result and drives the engine
//! meanwhile; the *background* thread drives it when no other thread waits. A word, in shared
//! memory where there is some, says how deeply the rank sleeps, so that others ring only if it
//! helps:
//!
//! | depth | who sleeps | rung |
//! | --- | --- | --- |
//! | awake | nobody: some thread will look before it sleeps | never |
//! | foreground | the foreground thread, on its doorbell | on any progress |
//! | background | only the background thread, and something is outstanding | on any progress |
//! | idle | only the background thread, nothing outstanding | on this rank's own submissions |
//!
//! `depth` explains how the word is written and read so that no wake-up is lost.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ronde_control::Rank;
use ronde_control::cause::CauseKind;
use rustix::event::PollFlags;

use super::bell::Doorbell;
use super::depth::{AWAKE, BACKGROUND, Depth, FOREGROUND, IDLE, WakeTarget, anybody_sleeps};
use super::failure_detector::FailureDetector;
use super::shm::{Segment, dead_rank, dead_word};
use super::socket::sleep;
use super::spin_limit::SpinLimit;
use super::world_state::WorldState;
use crate::error::Error;

/// A safety net: no thread sleeps longer than this without looking.
const NAP: Duration = Duration::from_secs(1);

/// How often a thread yields before it sleeps: the thread it waits for may want the same core, and
/// then yielding is cheaper than a doorbell.
const YIELDS: u32 = 8;
/// Number of looks between two readings of the clock.
const LOOKS: u32 = 32;
/// Yielding takes less time than this unless another thread has taken the core.
const TAKEN: Duration = Duration::from_micros(4);
const HASTE: Duration = Duration::from_millis(1);
const SOON: Duration = Duration::from_millis(20);

/// A descriptor that should wake a sleeper, besides its doorbell.
pub(crate) type Interest<'a> = (BorrowedFd<'a>, PollFlags);

/// The two bells of a rank.
pub(crate) struct Doorbells {
    pub(crate) foreground: Doorbell,
    pub(crate) background: Doorbell,
}

pub(crate) struct Waiter {
    pub(crate) world_state: WorldState,
    pub(crate) failure_detector: FailureDetector,
    bells: Doorbells,
    host_shared: Option<HostShared>,
    depth: AtomicU32,
    /// For waits that must end, and for glances that may give up.
    spin_limit: SpinLimit,
    glances: SpinLimit,
    hurry: AtomicBool,
    look_again_soon: AtomicBool,
    missed: AtomicU64,
    /// The rank that the foreground thread waits for in the data plane, plus one.
    awaited: AtomicU32,
    clock: OnceLock<ClockCheck>,
}

/// Checks the clock after a sleep; may return the error that ends the world.
pub(crate) type ClockCheck = Box<dyn Fn() -> Option<Error> + Send + Sync>;

/// What the ranks of one host share.
pub(crate) struct HostShared {
    pub(crate) segment: Arc<Segment>,
    pub(crate) me: usize,
    /// The host's name.
    pub(crate) host: String,
    /// The doorbells of all ranks, in rank order, including this one's.
    pub(crate) bells: Vec<Doorbells>,
}

impl Waiter {
    pub(crate) fn new(
        world_state: WorldState,
        failure_detector: FailureDetector,
        bells: Doorbells,
        host_shared: Option<HostShared>,
        spin_limit: SpinLimit,
    ) -> Waiter {
        Waiter {
            world_state,
            failure_detector,
            bells,
            host_shared,
            depth: AtomicU32::new(IDLE),
            glances: spin_limit.like(),
            spin_limit,
            hurry: AtomicBool::new(false),
            look_again_soon: AtomicBool::new(false),
            missed: AtomicU64::new(0),
            awaited: AtomicU32::new(0),
            clock: OnceLock::new(),
        }
    }

    /// Sets the check that every wait makes when it wakes up.
    pub(crate) fn look_at_clock(&self, clock: ClockCheck) {
        let _ = self.clock.set(clock);
    }

    /// The foreground thread is about to wait for this rank, in the data plane.
    pub(crate) fn waits_for(&self, rank: usize) {
        self.awaited.store(rank as u32 + 1, Ordering::Relaxed);
    }

    /// The rank that the foreground thread last waited for in the data plane.
    pub(crate) fn awaited(&self) -> Option<Rank> {
        self.awaited.load(Ordering::Relaxed).checked_sub(1).map(Rank)
    }

    /// Looks for as long as spinning pays off, and never sleeps.
    pub(crate) fn glance<T>(
        &self,
        mut look: impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        match (look()?, self.glances.limit()) {
            (None, Some(limit)) => self.spin((&self.glances, limit), &mut look),
            (seen, _) => Ok(seen),
        }
    }

    /// Looks until there is a result, the world ends, or the deadline passes.
    pub(crate) fn until<T>(
        &self,
        interests: &[Interest<'_>],
        deadline: Option<Instant>,
        mut look: impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        if let Some(seen) = look()? {
            return Ok(Some(seen));
        }
        loop {
            if let Some(limit) = self.spin_limit.limit()
                && let Some(seen) = self.spin((&self.spin_limit, limit), &mut look)?
            {
                return Ok(Some(seen));
            }
            if let Some(seen) = self.step_aside(&mut look)? {
                return Ok(Some(seen));
            }
            let limit = deadline.map_or(NAP, |at| at.saturating_duration_since(Instant::now()));
            if limit.is_zero() {
                return Ok(None);
            }
            self.check()?;
            self.depth().go_to_sleep(FOREGROUND);
            match look() {
                // Another thread has rung, or a wait inside `look` has ended: the rank counts as
                // awake.
                Ok(None) if self.depth().seen() != FOREGROUND => {}
                Ok(None) => {
                    let overslept =
                        self.sleep_on(&self.bells.foreground, interests, limit.min(NAP));
                    self.wake_up();
                    if overslept && let Some(seen) = look()? {
                        self.note_missed();
                        return Ok(Some(seen));
                    }
                }
                seen => {
                    self.wake_up();
                    return seen;
                }
            }
            self.wake_up();
            self.check()?;
        }
    }

    fn spin<T>(
        &self,
        (spin_limit, limit): (&SpinLimit, Duration),
        look: &mut impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let start = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if let Some(seen) = look()? {
                    spin_limit.paid_off(start.elapsed());
                    return Ok(Some(seen));
                }
                std::hint::spin_loop();
            }
            self.check()?;
            if start.elapsed() >= limit {
                spin_limit.was_in_vain();
                return Ok(None);
            }
        }
    }

    fn step_aside<T>(
        &self,
        look: &mut impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let mut end = Instant::now() + self.spin_limit.courtesy();
        for turn in 0.. {
            let before = Instant::now();
            std::thread::yield_now();
            if let Some(seen) = look()? {
                return Ok(Some(seen));
            }
            let now = Instant::now();
            if now - before >= TAKEN {
                // Another thread wants this core.
                end = now;
            }
            if turn >= YIELDS && now >= end {
                break;
            }
        }
        self.check()?;
        Ok(None)
    }

    /// Puts the background thread to sleep until it is rung or one of its interests is ready;
    /// returns whether neither happened for a whole nap.
    pub(crate) fn background_sleep(&self, interests: &[Interest<'_>]) -> bool {
        self.sleep_on(&self.bells.background, interests, NAP)
    }

    /// Fails if the world has ended, also if another rank of this host has found that out.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if let Some(host_shared) = &self.host_shared {
            let dead = host_shared.segment.dead().load(Ordering::Relaxed);
            match dead_rank(dead).map(Rank) {
                _ if dead == 0 => {}
                Some(rank) if self.world_state.knows(rank) => {
                    let cause = "another rank on its host found it dead".into();
                    self.world_state.suspect(rank, (CauseKind::Unknown, cause), Instant::now());
                }
                _ => {
                    let what =
                        format!("the word for a dead rank is {dead:#x}, which names no rank");
                    self.world_state.end(self.overwritten(&what));
                }
            }
        }
        self.world_state.settle(Instant::now());
        self.world_state.check()
    }

    /// Marks this rank as awake: one of its threads will look before it sleeps.
    pub(crate) fn wake_up(&self) {
        self.depth().go_to_sleep(AWAKE);
    }

    /// No thread drives the engine any more; the caller must look once more after this.
    pub(crate) fn leave_to_background(&self, outstanding: bool) {
        self.depth().go_to_sleep(if outstanding { BACKGROUND } else { IDLE });
    }

    /// For a foreground thread that has released the engine: if it was rung before that, the
    /// background thread has found the engine taken and gone back to sleep.
    pub(crate) fn ring_background_again(&self) {
        if self.depth().seen() == AWAKE {
            self.bells.background.ring();
        }
    }

    /// Wakes the sleeping thread of this rank, because there is something new to do.
    pub(crate) fn ring_own(&self) {
        fence(Ordering::SeqCst);
        rouse(self.depth(), &self.bells, WakeTarget::Everybody);
    }

    /// Wakes both threads of this rank, whatever their state.
    pub(crate) fn ring_all_own(&self) {
        self.bells.foreground.ring();
        self.bells.background.ring();
    }

    /// Wakes waiting ranks of this host after progress.
    pub(crate) fn ring_others(&self) {
        let Some(host_shared) = &self.host_shared else { return };
        if !anybody_sleeps(host_shared.segment.sleepers()) {
            return;
        }
        for rank in (0..host_shared.bells.len()).filter(|rank| *rank != host_shared.me) {
            host_shared.ring(rank, WakeTarget::Waiting);
        }
    }

    /// Wakes all other ranks of this host, even those that have nothing outstanding.
    pub(crate) fn ring_everybody(&self) {
        let Some(host_shared) = &self.host_shared else { return };
        fence(Ordering::SeqCst);
        for rank in (0..host_shared.bells.len()).filter(|rank| *rank != host_shared.me) {
            host_shared.ring(rank, WakeTarget::Everybody);
        }
    }

    /// Wakes one rank of this host even if it has nothing outstanding.
    pub(crate) fn ring_rank(&self, rank: usize) {
        fence(Ordering::SeqCst);
        if let Some(host_shared) = &self.host_shared {
            host_shared.ring(rank, WakeTarget::Everybody);
        }
    }

    /// Records the dead rank for the others of this host and wakes them.
    pub(crate) fn spread_death(&self, rank: Rank) {
        if let Some(host_shared) = &self.host_shared {
            let word = host_shared.segment.dead();
            let dead = dead_word(rank.0);
            let _ = word.compare_exchange(0, dead, Ordering::SeqCst, Ordering::SeqCst);
            self.ring_others();
        }
    }

    /// Tells the others of this host that shared memory can no longer be trusted.
    pub(crate) fn spread_mistrust(&self) {
        if let Some(host_shared) = &self.host_shared {
            host_shared.segment.dead().store(u64::MAX, Ordering::SeqCst);
            self.ring_others();
        }
    }

    /// The error for a value in shared memory that no rank writes.
    pub(crate) fn overwritten(&self, what: &str) -> Error {
        let host = self.host_shared.as_ref().map_or("this host", |host_shared| &host_shared.host);
        Error::Overwritten { host: host.to_owned(), what: what.to_owned(), tensor: None }
    }

    /// Bytes are waiting to be sent, and no event will announce free space: look again soon.
    pub(crate) fn hurry(&self, yes: bool) {
        self.hurry.store(yes, Ordering::Relaxed);
    }

    /// Something is to be done if a wait takes longer than a moment: do not sleep for long.
    pub(crate) fn look_again_soon(&self, yes: bool) {
        self.look_again_soon.store(yes, Ordering::Relaxed);
    }

    /// How often there was work that no doorbell had announced: each time is a bug.
    pub(crate) fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    pub(crate) fn note_missed(&self) {
        self.missed.fetch_add(1, Ordering::Relaxed);
        tracing::debug!("there was work that no doorbell had announced");
    }

    fn depth(&self) -> Depth<'_> {
        match &self.host_shared {
            Some(host_shared) => host_shared.depth(host_shared.me),
            None => Depth { word: &self.depth, sleepers: None },
        }
    }

    /// Returns whether a whole nap has passed without a wake-up.
    fn sleep_on(&self, bell: &Doorbell, interests: &[Interest<'_>], limit: Duration) -> bool {
        let mut fds = vec![(bell.as_fd(), PollFlags::IN)];
        let watched = self.failure_detector.interests(&mut fds);
        fds.extend_from_slice(interests);
        let until = self.world_state.settle(Instant::now());
        let limit = match until {
            Some(until) => until.saturating_duration_since(Instant::now()).min(limit),
            None => limit,
        };
        let hurry = self.hurry.load(Ordering::Relaxed);
        let limit =
            if self.look_again_soon.load(Ordering::Relaxed) { limit.min(SOON) } else { limit };
        let awake = sleep(&fds, if hurry { limit.min(HASTE) } else { limit });
        if awake[0] {
            bell.hush();
        }
        if awake[1..=watched].contains(&true) {
            // The other sleeping thread of this rank may have been woken by the same message and
            // found it already processed.
            if self.failure_detector.look(&self.world_state) {
                self.ring_all_own();
            }
        }
        if let Some(error) = self.clock.get().and_then(|clock| clock()) {
            self.world_state.end(error);
            self.ring_all_own();
        }
        limit == NAP && !hurry && !awake.contains(&true)
    }
}

impl HostShared {
    fn depth(&self, rank: usize) -> Depth<'_> {
        Depth { word: self.segment.depth(rank), sleepers: Some(self.segment.sleepers()) }
    }

    fn ring(&self, rank: usize, target: WakeTarget) {
        rouse(self.depth(rank), &self.bells[rank], target);
    }
}

fn rouse(depth: Depth<'_>, bells: &Doorbells, target: WakeTarget) {
    match depth.rouse(target) {
        Some(FOREGROUND) => bells.foreground.ring(),
        Some(_) => bells.background.ring(),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use ronde_control::Rank;
    use ronde_control::wire::Peer;

    use super::*;

    fn waiter(segment: &Arc<Segment>) -> Waiter {
        let peer = |local_rank| Peer {
            host: "node-a".into(),
            machine: String::new(),
            local_rank,
            pid: 0,
            addresses: Vec::new(),
            unix: None,
        };
        let bells = || Doorbells {
            foreground: Doorbell::new().unwrap(),
            background: Doorbell::new().unwrap(),
        };
        let (host, all) = ("node-a".into(), (0..2).map(|_| bells()).collect());
        let host_shared = HostShared { segment: segment.clone(), me: 0, host, bells: all };
        let (world_state, spin_limit) =
            (WorldState::new((0..2).map(peer).collect()), SpinLimit::of(2, 1));
        Waiter::new(world_state, FailureDetector::default(), bells(), Some(host_shared), spin_limit)
    }

    #[test]
    fn an_overwritten_segment_blames_no_rank_but_explains_what_happened() {
        for garbage in [12345, u64::MAX, 2 | 2 << 32, dead_word(2), 0x4142_4344_4546_4748] {
            let segment = Arc::new(Segment::create(2).unwrap().0);
            let waiter = waiter(&segment);
            assert!(waiter.check().is_ok());
            segment.dead().store(garbage, Ordering::Relaxed);
            let error = waiter.check().unwrap_err();
            assert_eq!(error.blames(), None, "{error}");
            let text = error.to_string();
            assert!(text.starts_with("the shared memory of the ranks on node-a was overwritten"));
        }
    }

    #[test]
    fn a_dead_rank_is_reported_through_shared_memory() {
        let segment = Arc::new(Segment::create(2).unwrap().0);
        let (one, other) = (waiter(&segment), waiter(&segment));
        one.spread_death(Rank(1));
        assert!(other.check().is_ok(), "the launcher may still report the cause");
        let late = Instant::now() + Duration::from_secs(60);
        other.world_state.settle(late);
        assert_eq!(other.check().unwrap_err().blames(), Some(Rank(1)));
    }
}
