//! Waiting with open eyes: every wait of a rank goes through here, spins a little, then sleeps, and
//! ends when the world does.
//!
//! Two kinds of threads wait. The *driver* is whoever waits for a result and drives the engine
//! meanwhile; the *background* thread drives when nobody waits. A word, in shared memory where there
//! is some, says how deep the rank sleeps, so that others ring only if it helps:
//!
//! | depth | who sleeps | rung |
//! | --- | --- | --- |
//! | awake | nobody: somebody will look before going to sleep | never |
//! | driver | the driver, on its bell | by any progress |
//! | background | only the background thread, and something is outstanding | by any progress |
//! | idle | only the background thread, nothing outstanding | by this rank's own submissions |
//!
//! How the word is written and read, so that no wake-up is lost, stands in `depth`.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ronde_control::Rank;
use ronde_control::cause::CauseKind;
use rustix::event::PollFlags;

use super::bell::Bell;
use super::depth::{AWAKE, BACKGROUND, DRIVER, Depth, IDLE, Whom, anybody_sleeps};
use super::fate::Fate;
use super::patience::Patience;
use super::sentinel::Sentinel;
use super::shm::{Segment, dead_rank, dead_word};
use super::socket::sleep;
use crate::error::Error;

/// A belt for the suspenders: nobody sleeps longer than this without looking around.
const NAP: Duration = Duration::from_secs(1);

/// Before a thread sleeps it steps aside this often: whoever it waits for may want the same core, and
/// then that is cheaper than a bell.
const YIELDS: u32 = 8;
/// Looks between two looks at the clock.
const LOOKS: u32 = 32;
/// A core that is offered comes back sooner than this unless somebody has taken it.
const TAKEN: Duration = Duration::from_micros(4);
const HASTE: Duration = Duration::from_millis(1);

/// Something a sleeper wants to be woken by besides its bell.
pub(crate) type Interest<'a> = (BorrowedFd<'a>, PollFlags);

/// The two bells of a rank.
pub(crate) struct Bells {
    pub(crate) driver: Bell,
    pub(crate) background: Bell,
}

pub(crate) struct Vigil {
    pub(crate) fate: Fate,
    pub(crate) sentinel: Sentinel,
    bells: Bells,
    house: Option<House>,
    depth: AtomicU32,
    /// Of those who must wait, and of those who would rather not.
    patience: Patience,
    glances: Patience,
    hurry: AtomicBool,
    missed: AtomicU64,
    /// For whom the driver waits in the data plane, plus one.
    awaited: AtomicU32,
    clock: OnceLock<Clock>,
}

/// Looks at the clock after a sleep; may have the world end.
pub(crate) type Clock = Box<dyn Fn() -> Option<Error> + Send + Sync>;

/// What the ranks of one host share.
pub(crate) struct House {
    pub(crate) segment: Arc<Segment>,
    pub(crate) me: usize,
    /// The host's name.
    pub(crate) host: String,
    /// The bells of all ranks, in rank order; this rank's own among them.
    pub(crate) bells: Vec<Bells>,
}

impl Vigil {
    pub(crate) fn new(
        fate: Fate,
        sentinel: Sentinel,
        bells: Bells,
        house: Option<House>,
        patience: Patience,
    ) -> Vigil {
        Vigil {
            fate,
            sentinel,
            bells,
            house,
            depth: AtomicU32::new(IDLE),
            glances: patience.like(),
            patience,
            hurry: AtomicBool::new(false),
            missed: AtomicU64::new(0),
            awaited: AtomicU32::new(0),
            clock: OnceLock::new(),
        }
    }

    /// Has whoever waits look at the clock when it wakes up.
    pub(crate) fn look_at_clock(&self, clock: Clock) {
        let _ = self.clock.set(clock);
    }

    /// The driver is about to wait for this rank, in the data plane.
    pub(crate) fn waits_for(&self, rank: usize) {
        self.awaited.store(rank as u32 + 1, Ordering::Relaxed);
    }

    /// For whom the driver last waited in the data plane.
    pub(crate) fn awaited(&self) -> Option<Rank> {
        self.awaited.load(Ordering::Relaxed).checked_sub(1).map(Rank)
    }

    /// Looks as long as a wait that is worth it takes, and never sleeps.
    pub(crate) fn glance<T>(
        &self,
        mut look: impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        match (look()?, self.glances.limit()) {
            (None, Some(limit)) => self.spin((&self.glances, limit), &mut look),
            (seen, _) => Ok(seen),
        }
    }

    /// Looks until there is something to see, or the world or the time ends.
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
            if let Some(limit) = self.patience.limit()
                && let Some(seen) = self.spin((&self.patience, limit), &mut look)?
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
            self.depth().lie_down(DRIVER);
            match look() {
                // Somebody has rung, or a wait inside the look has got up: then it counts as awake.
                Ok(None) if self.depth().seen() != DRIVER => {}
                Ok(None) => {
                    let overslept = self.sleep_on(&self.bells.driver, interests, limit.min(NAP));
                    self.get_up();
                    if overslept && let Some(seen) = look()? {
                        self.note_missed();
                        return Ok(Some(seen));
                    }
                }
                seen => {
                    self.get_up();
                    return seen;
                }
            }
            self.get_up();
            self.check()?;
        }
    }

    fn spin<T>(
        &self,
        (patience, limit): (&Patience, Duration),
        look: &mut impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let start = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if let Some(seen) = look()? {
                    patience.paid_off(start.elapsed());
                    return Ok(Some(seen));
                }
                std::hint::spin_loop();
            }
            self.check()?;
            if start.elapsed() >= limit {
                patience.was_in_vain();
                return Ok(None);
            }
        }
    }

    fn step_aside<T>(
        &self,
        look: &mut impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let mut end = Instant::now() + self.patience.courtesy();
        for turn in 0.. {
            let before = Instant::now();
            std::thread::yield_now();
            if let Some(seen) = look()? {
                return Ok(Some(seen));
            }
            let now = Instant::now();
            if now - before >= TAKEN {
                // Somebody wants this core, and will have it.
                end = now;
            }
            if turn >= YIELDS && now >= end {
                break;
            }
        }
        self.check()?;
        Ok(None)
    }

    /// The background thread sleeps until it is rung, or one of its interests has something; gives
    /// whether neither happened for a whole nap.
    pub(crate) fn background_sleep(&self, interests: &[Interest<'_>]) -> bool {
        self.sleep_on(&self.bells.background, interests, NAP)
    }

    /// The end of the world, if it has come; also when another rank of this host has found it.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if let Some(house) = &self.house {
            let dead = house.segment.dead().load(Ordering::Relaxed);
            match dead_rank(dead).map(Rank) {
                _ if dead == 0 => {}
                Some(rank) if self.fate.knows(rank) => {
                    let cause = "a rank of its host has found it dead".into();
                    self.fate.suspect(rank, (CauseKind::Unknown, cause), Instant::now());
                }
                _ => {
                    let what = format!("the word for a dead rank is {dead:#x}, which names none");
                    self.fate.seal(self.overwritten(&what));
                }
            }
        }
        self.fate.settle(Instant::now());
        self.fate.check()
    }

    /// Somebody of this rank is awake and will look before it sleeps.
    pub(crate) fn get_up(&self) {
        self.depth().lie_down(AWAKE);
    }

    /// Nobody drives any more; the caller must look once more after this.
    pub(crate) fn leave_to_background(&self, outstanding: bool) {
        self.depth().lie_down(if outstanding { BACKGROUND } else { IDLE });
    }

    /// After a driver has given the engine back: if somebody rang while it still had it, the
    /// background thread has found it taken and gone to sleep again.
    pub(crate) fn ring_background_again(&self) {
        if self.depth().seen() == AWAKE {
            self.bells.background.ring();
        }
    }

    /// Wakes whoever of this rank sleeps, because there is something new to do.
    pub(crate) fn ring_own(&self) {
        fence(Ordering::SeqCst);
        rouse(self.depth(), &self.bells, Whom::Everybody);
    }

    /// Wakes the background thread whatever it does, for the end.
    pub(crate) fn ring_all_own(&self) {
        self.bells.driver.ring();
        self.bells.background.ring();
    }

    /// Tells sleeping ranks of this host that there was progress.
    pub(crate) fn ring_others(&self) {
        let Some(house) = &self.house else { return };
        if !anybody_sleeps(house.segment.sleepers()) {
            return;
        }
        for rank in (0..house.bells.len()).filter(|rank| *rank != house.me) {
            house.ring(rank, Whom::Waiting);
        }
    }

    /// Wakes all other ranks of this host, even those that have nothing outstanding.
    pub(crate) fn ring_everybody(&self) {
        let Some(house) = &self.house else { return };
        fence(Ordering::SeqCst);
        for rank in (0..house.bells.len()).filter(|rank| *rank != house.me) {
            house.ring(rank, Whom::Everybody);
        }
    }

    /// Wakes one rank of this host even if it has nothing outstanding.
    pub(crate) fn ring_rank(&self, rank: usize) {
        fence(Ordering::SeqCst);
        if let Some(house) = &self.house {
            house.ring(rank, Whom::Everybody);
        }
    }

    /// Writes the dead rank down for the others of this host and wakes them.
    pub(crate) fn spread_death(&self, rank: Rank) {
        if let Some(house) = &self.house {
            let word = house.segment.dead();
            let dead = dead_word(rank.0);
            let _ = word.compare_exchange(0, dead, Ordering::SeqCst, Ordering::SeqCst);
            self.ring_others();
        }
    }

    /// Tells the others of this host that their memory cannot be trusted any more.
    pub(crate) fn spread_mistrust(&self) {
        if let Some(house) = &self.house {
            house.segment.dead().store(u64::MAX, Ordering::SeqCst);
            self.ring_others();
        }
    }

    /// The error when something that no rank writes is found in shared memory.
    pub(crate) fn overwritten(&self, what: &str) -> Error {
        let host = self.house.as_ref().map_or("this host", |house| &house.host);
        Error::Overwritten { host: host.to_owned(), what: what.to_owned(), tensor: None }
    }

    /// Something waits to be sent, and nothing will tell when there is room: look again soon.
    pub(crate) fn hurry(&self, yes: bool) {
        self.hurry.store(yes, Ordering::Relaxed);
    }

    /// How often there was something to do that nobody had rung for: each is a bug.
    pub(crate) fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    pub(crate) fn note_missed(&self) {
        self.missed.fetch_add(1, Ordering::Relaxed);
        tracing::debug!("there was something to do, and nobody had rung");
    }

    fn depth(&self) -> Depth<'_> {
        match &self.house {
            Some(house) => house.depth(house.me),
            None => Depth { word: &self.depth, sleepers: None },
        }
    }

    /// Gives whether a whole nap has passed and nothing has woken it.
    fn sleep_on(&self, bell: &Bell, interests: &[Interest<'_>], limit: Duration) -> bool {
        let mut fds = vec![(bell.as_fd(), PollFlags::IN)];
        let watched = self.sentinel.interests(&mut fds);
        fds.extend_from_slice(interests);
        let until = self.fate.settle(Instant::now());
        let limit = match until {
            Some(until) => until.saturating_duration_since(Instant::now()).min(limit),
            None => limit,
        };
        let hurry = self.hurry.load(Ordering::Relaxed);
        let awake = sleep(&fds, if hurry { limit.min(HASTE) } else { limit });
        if awake[0] {
            bell.hush();
        }
        if awake[1..=watched].contains(&true) {
            // The other sleeping thread of this rank may have been woken by the same news and found
            // it gone.
            if self.sentinel.look(&self.fate) {
                self.ring_all_own();
            }
        }
        if let Some(error) = self.clock.get().and_then(|clock| clock()) {
            self.fate.seal(error);
            self.ring_all_own();
        }
        limit == NAP && !hurry && !awake.contains(&true)
    }
}

impl House {
    fn depth(&self, rank: usize) -> Depth<'_> {
        Depth { word: self.segment.depth(rank), sleepers: Some(self.segment.sleepers()) }
    }

    fn ring(&self, rank: usize, whom: Whom) {
        rouse(self.depth(rank), &self.bells[rank], whom);
    }
}

fn rouse(depth: Depth<'_>, bells: &Bells, whom: Whom) {
    match depth.rouse(whom) {
        Some(DRIVER) => bells.driver.ring(),
        Some(_) => bells.background.ring(),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use ronde_control::Rank;
    use ronde_control::wire::Peer;

    use super::*;

    fn vigil(segment: &Arc<Segment>) -> Vigil {
        let peer = |local_rank| Peer {
            host: "node-a".into(),
            local_rank,
            pid: 0,
            addresses: Vec::new(),
            unix: None,
        };
        let bells = || Bells { driver: Bell::new().unwrap(), background: Bell::new().unwrap() };
        let (host, all) = ("node-a".into(), (0..2).map(|_| bells()).collect());
        let house = House { segment: segment.clone(), me: 0, host, bells: all };
        let (fate, patience) = (Fate::new((0..2).map(peer).collect()), Patience::of(2, 1));
        Vigil::new(fate, Sentinel::default(), bells(), Some(house), patience)
    }

    #[test]
    fn a_scribbled_segment_blames_no_rank_but_says_what_happened() {
        for scribble in [12345, u64::MAX, 2 | 2 << 32, dead_word(2), 0x4142_4344_4546_4748] {
            let segment = Arc::new(Segment::create(2).unwrap().0);
            let vigil = vigil(&segment);
            assert!(vigil.check().is_ok());
            segment.dead().store(scribble, Ordering::Relaxed);
            let error = vigil.check().unwrap_err();
            assert_eq!(error.blames(), None, "{error}");
            let text = error.to_string();
            assert!(text.starts_with("the shared memory of the ranks on node-a was overwritten"));
        }
    }

    #[test]
    fn a_dead_rank_is_told_through_shared_memory() {
        let segment = Arc::new(Segment::create(2).unwrap().0);
        let (one, other) = (vigil(&segment), vigil(&segment));
        one.spread_death(Rank(1));
        assert!(other.check().is_ok(), "for a moment the launcher may know better");
        let late = Instant::now() + Duration::from_secs(60);
        other.fate.settle(late);
        assert_eq!(other.check().unwrap_err().blames(), Some(Rank(1)));
    }
}
