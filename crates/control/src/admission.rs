//! Who keeps a place at a listener that anybody can connect to, and who is dropped.
//!
//! A connection holds a place from `accept` until its first message proves that it has the job's key.
//! Idle connections cost their owner nothing, so they must not keep ranks out: when all places are
//! taken, the next connection takes that of the one that deserves it least. Another user's goes before
//! one of unknown origin, one of unknown origin before one's own; among these, whoever has sent nothing
//! goes before whoever has begun to speak, and of those the one that has hesitated longest. Everybody
//! keeps its place for [`Limits::floor`], because a rank on a busy machine is not instantly there.
//! Whoever has proved itself is only bound by the deadline and takes no place.
//!
//! This file decides; sockets, clocks and the log are the caller's. It is used in a loop:
//!
//! 1. While `now >= opens_at()`, accept and call [`Admission::arrive`]; close the one it names.
//! 2. Tell it what is read: [`Admission::advance`], and [`Admission::leave`] once somebody is done.
//! 3. At [`Admission::next_wakeup`] close those that [`Admission::expire`] names, and log what
//!    [`Admission::notice`] gives.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::Time;

/// How long a crowd may last before the user is told, and how long until it is told again.
const QUIET: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_secs(30);

/// How many may be heard at a time, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections that have not proved themselves.
    pub places: usize,
    /// How long each of them surely keeps its place.
    pub floor: Duration,
    /// How long the whole handshake may take.
    pub deadline: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        let (floor, deadline) = (Duration::from_millis(100), Duration::from_secs(5));
        Limits { places: 256, floor, deadline }
    }
}

/// Whose process is at the other end, as far as the system tells. The least welcome come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Another user of this host.
    OtherUser,
    /// Nobody knows: the connection came over TCP.
    Unknown,
    /// The user who runs the job.
    OwnUser,
}

/// How far a connection has come. The least welcome come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It has sent nothing.
    Silent,
    /// It has sent something, but not yet a whole first message.
    Begun,
    /// Its first message shows that it has the job's key.
    Proven,
}

/// A connection that is being heard, in the order they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Caller(pub u64);

/// Who is being heard at one listener.
#[derive(Debug)]
pub struct Admission {
    limits: Limits,
    callers: BTreeMap<Caller, Standing>,
    next: u64,
    /// How many strangers were dropped since the last notice.
    dropped: u64,
    /// Since when there is a crowd.
    crowded: Option<Time>,
    told: Option<Time>,
}

#[derive(Clone, Copy, Debug)]
struct Standing {
    origin: Origin,
    stage: Stage,
    since: Time,
}

/// What the user should know about a crowd. Reads behind the name of the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Connections without proof at this moment.
    pub waiting: usize,
    /// Those that were dropped since the last notice, or since the crowd gathered.
    pub dropped: u64,
    /// How long ago that was.
    pub during: Duration,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Notice { waiting, dropped, during } = self;
        write!(
            f,
            "is crowded by connections that do not hold the job's key: {dropped} were dropped in \
             the last {} s and {waiting} say nothing; the job goes on, but another program, such as \
             a port scanner, should be stopped from connecting to it",
            during.as_secs()
        )
    }
}

impl Admission {
    /// Nobody is there yet.
    pub fn new(limits: Limits) -> Admission {
        let callers = BTreeMap::new();
        Admission { limits, callers, next: 0, dropped: 0, crowded: None, told: None }
    }

    /// From when on another connection may be accepted; those before it wait in the system's queue.
    pub fn opens_at(&self) -> Time {
        if self.unproven().count() < self.limits.places {
            return Time::ZERO;
        }
        let oldest = self.unproven().map(|(_, standing)| standing.since).min();
        oldest.map_or(Time::ZERO, |since| since + self.limits.floor)
    }

    /// A connection was accepted; gives its name, and whose place it takes if all are taken.
    pub fn arrive(&mut self, origin: Origin, now: Time) -> (Caller, Option<Caller>) {
        let is_full = self.unproven().count() >= self.limits.places;
        let evicted = is_full.then(|| self.least_welcome(now)).flatten();
        if let Some(evicted) = evicted {
            self.callers.remove(&evicted);
            self.dropped += 1;
            self.crowded.get_or_insert(now);
        }
        let caller = Caller(self.next);
        self.next += 1;
        self.callers.insert(caller, Standing { origin, stage: Stage::Silent, since: now });
        (caller, evicted)
    }

    /// A connection has come that far.
    pub fn advance(&mut self, caller: Caller, stage: Stage) {
        if let Some(standing) = self.callers.get_mut(&caller) {
            standing.stage = standing.stage.max(stage);
        }
    }

    /// A connection has ended, or its handshake has.
    pub fn leave(&mut self, caller: Caller) {
        self.callers.remove(&caller);
    }

    /// Those whose time is over; they are heard no more.
    pub fn expire(&mut self, now: Time) -> Vec<Caller> {
        let limit = self.limits.deadline;
        let late = self.callers.iter().filter(|(_, standing)| standing.since + limit <= now);
        let late: Vec<Caller> = late.map(|(caller, _)| *caller).collect();
        for caller in &late {
            self.callers.remove(caller);
            self.dropped += 1;
        }
        late
    }

    /// When somebody's time is over, or the user is to be told something.
    pub fn next_wakeup(&self) -> Option<Time> {
        let oldest = self.callers.values().map(|standing| standing.since).min();
        let expiry = oldest.map(|since| since + self.limits.deadline);
        expiry.into_iter().chain(self.notice_at()).min()
    }

    /// What to tell the user, if it is time.
    pub fn notice(&mut self, now: Time) -> Option<Notice> {
        if self.notice_at().is_none_or(|at| now < at) {
            return None;
        }
        let since = self.told.max(self.crowded).unwrap_or(now);
        let (waiting, dropped) = (self.unproven().count(), self.dropped);
        self.dropped = 0;
        self.crowded = None;
        if dropped == 0 {
            return None;
        }
        self.told = Some(now);
        Some(Notice { waiting, dropped, during: now.saturating_sub(since) })
    }

    /// Of these the order in which they are served: one's own user's first, then whoever came first.
    pub fn in_turn(&self, mut callers: Vec<Caller>) -> Vec<Caller> {
        let origin = |caller: &Caller| self.callers.get(caller).map(|standing| standing.origin);
        callers.sort_by_key(|caller| (std::cmp::Reverse(origin(caller)), *caller));
        callers
    }

    fn notice_at(&self) -> Option<Time> {
        let again = self.told.map_or(Time::ZERO, |told| told + AGAIN);
        self.crowded.map(|since| (since + QUIET).max(again))
    }

    fn unproven(&self) -> impl Iterator<Item = (&Caller, &Standing)> {
        self.callers.iter().filter(|(_, standing)| standing.stage < Stage::Proven)
    }

    /// Among those who have had their time; if nobody has, whoever came first.
    fn least_welcome(&self, now: Time) -> Option<Caller> {
        let (floor, worth) =
            (self.limits.floor, |standing: &Standing| (standing.origin, standing.stage));
        let ripe = self.unproven().filter(|(_, standing)| standing.since + floor <= now);
        let least = ripe.min_by_key(|(caller, standing)| (worth(standing), **caller));
        least.or_else(|| self.unproven().next()).map(|(caller, _)| *caller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits =
        Limits { places: 3, floor: Duration::from_millis(100), deadline: Duration::from_secs(5) };

    fn ms(milliseconds: u64) -> Time {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn the_one_that_hesitates_longest_makes_room_once_it_has_had_its_time() {
        let mut door = Admission::new(LIMITS);
        let callers: Vec<_> = (0..3).map(|time| door.arrive(Origin::Unknown, ms(time)).0).collect();
        assert_eq!(door.opens_at(), ms(100));
        door.advance(callers[0], Stage::Begun);
        let (fourth, evicted) = door.arrive(Origin::Unknown, ms(110));
        assert_eq!(evicted, Some(callers[1]), "the first has begun to speak");
        door.leave(fourth);
        assert_eq!(door.opens_at(), ms(0));
    }

    #[test]
    fn other_users_go_first_and_the_own_user_last() {
        let mut door = Admission::new(LIMITS);
        let own = door.arrive(Origin::OwnUser, ms(0)).0;
        let unknown = door.arrive(Origin::Unknown, ms(1)).0;
        let other = door.arrive(Origin::OtherUser, ms(2)).0;
        door.advance(other, Stage::Begun);
        assert_eq!(door.arrive(Origin::OwnUser, ms(200)).1, Some(other));
        assert_eq!(door.arrive(Origin::OwnUser, ms(200)).1, Some(unknown));
        assert_eq!(door.arrive(Origin::OwnUser, ms(200)).1, Some(own));
        let stranger = door.arrive(Origin::OtherUser, ms(400)).0;
        let mine = door.arrive(Origin::OwnUser, ms(400)).0;
        assert_eq!(door.in_turn(vec![stranger, mine]), [mine, stranger]);
    }

    #[test]
    fn whoever_has_the_key_is_not_pushed_out() {
        let mut door = Admission::new(LIMITS);
        let proven = door.arrive(Origin::Unknown, ms(0)).0;
        door.advance(proven, Stage::Proven);
        for time in 1..50 {
            assert_ne!(door.arrive(Origin::Unknown, ms(time * 200)).1, Some(proven));
        }
        assert_eq!(door.expire(ms(5000))[0], proven, "but it has a deadline");
    }

    #[test]
    fn a_crowd_is_told_of_after_a_while_and_then_now_and_then() {
        let mut door = Admission::new(LIMITS);
        assert_eq!((door.notice(ms(60_000)), door.next_wakeup()), (None, None));
        for _ in 0..10 {
            door.arrive(Origin::Unknown, ms(1000));
        }
        assert_eq!(door.notice(ms(3900)), None);
        assert_eq!(door.next_wakeup(), Some(ms(4000)));
        let notice = door.notice(ms(4000)).unwrap();
        assert_eq!(notice, Notice { waiting: 3, dropped: 7, during: ms(3000) });
        let text = notice.to_string();
        assert!(text.contains("7 were dropped in the last 3 s and 3 say nothing"), "{text}");
        door.arrive(Origin::Unknown, ms(4001));
        assert_eq!(door.notice(ms(20_000)), None);
        assert_eq!(door.notice(ms(34_000)).unwrap().dropped, 1);
    }

    proptest! {
        /// However many idle connections come before and after a rank, it has its time to speak, and
        /// they delay it by no more than their number says.
        #[test]
        fn a_rank_gets_through_any_number_of_idle_connections(before in 0usize..600, gap in 0u64..3) {
            let mut door = Admission::new(Limits { places: 64, ..LIMITS });
            let mut now = ms(0);
            for _ in 0..before {
                now = now.max(door.opens_at()) + ms(gap);
                door.arrive(Origin::Unknown, now);
            }
            now = now.max(door.opens_at());
            let bound = ms(100 * (1 + before as u64 / 64) + gap * before as u64);
            prop_assert!(now <= bound, "{now:?} {bound:?}");
            let (rank, _) = door.arrive(Origin::Unknown, now);
            let speaks = now + ms(99);
            while now.max(door.opens_at()) <= speaks {
                now = now.max(door.opens_at()) + ms(1);
                prop_assert_ne!(door.arrive(Origin::Unknown, now).1, Some(rank));
            }
            door.advance(rank, Stage::Proven);
            prop_assert!(door.callers.contains_key(&rank));
        }
    }
}
