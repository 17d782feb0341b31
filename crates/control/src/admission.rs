//! Decides which connections a listener open to everyone keeps, and which it drops.
//!
//! A connection occupies a slot from `accept` until its first message proves that it has the job
//! key. Idle connections cost their owner nothing, so they must not keep ranks out: when all slots
//! are taken, the next connection evicts the least trusted one. Connections of other users go
//! first, then those of unknown origin, then the user's own; within each group, those that have
//! sent nothing go first, and of those the oldest. Every connection keeps its slot for at least
//! [`AdmissionLimits::floor`], because a rank on a busy machine needs a moment to send its message.
//! A connection that has proved itself occupies no slot and is bound only by the deadline.
//!
//! This file only decides; the caller owns sockets, clocks and the log. It is used in a loop:
//!
//! 1. While `now >= opens_at()`, accept and call [`Admission::arrive`]; close the one it returns.
//! 2. Report what was read with [`Admission::advance`], and the end of a handshake or connection
//!    with [`Admission::leave`].
//! 3. At [`Admission::next_wakeup`], close the connections that [`Admission::expire`] returns, and
//!    log what [`Admission::notice`] returns.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::Time;

/// How long a flood lasts before the user is notified, and the time between two notices.
const QUIET: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_secs(30);

/// How many unauthenticated connections a listener keeps, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Maximum number of connections that have not proved themselves.
    pub places: usize,
    /// How long each of them keeps its slot at least.
    pub floor: Duration,
    /// Time limit for the whole handshake.
    pub deadline: Duration,
}

impl Default for AdmissionLimits {
    fn default() -> AdmissionLimits {
        let (floor, deadline) = (Duration::from_millis(100), Duration::from_secs(5));
        AdmissionLimits { places: 256, floor, deadline }
    }
}

/// The owner of the peer process, if the system knows it. Least trusted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Another user of this host.
    OtherUser,
    /// Unknown: the connection came over TCP.
    Unknown,
    /// The user who runs the job.
    OwnUser,
}

/// How far a handshake has come. Least trusted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HandshakeProgress {
    /// It has sent nothing.
    Silent,
    /// It has sent something, but not yet a whole first message.
    Begun,
    /// Its first message proves that it has the job key.
    Proven,
}

/// A connection in its handshake, numbered in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Caller(pub u64);

/// The connections of one listener that are in their handshake.
#[derive(Debug)]
pub struct Admission {
    limits: AdmissionLimits,
    callers: BTreeMap<Caller, CallerState>,
    next: u64,
    /// How many connections were dropped since the last notice.
    dropped: u64,
    /// Since when the slots have been full.
    crowded: Option<Time>,
    last_notice: Option<Time>,
}

#[derive(Clone, Copy, Debug)]
struct CallerState {
    origin: Origin,
    stage: HandshakeProgress,
    since: Time,
}

/// A notice to the user about a flood of connections. Its text follows the name of the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrowdNotice {
    /// Connections that have not proved themselves at this moment.
    pub waiting: usize,
    /// Connections dropped since the last notice, or since the flood began.
    pub dropped: u64,
    /// The time in which they were dropped.
    pub during: Duration,
}

impl fmt::Display for CrowdNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CrowdNotice { waiting, dropped, during } = self;
        write!(
            f,
            "is flooded with connections that do not have the job key: {dropped} were \
             dropped in the last {} s and {waiting} are idle; the job continues, but \
             find out what is connecting, for example a port scanner",
            during.as_secs()
        )
    }
}

impl Admission {
    /// A listener without connections.
    pub fn new(limits: AdmissionLimits) -> Admission {
        let callers = BTreeMap::new();
        Admission { limits, callers, next: 0, dropped: 0, crowded: None, last_notice: None }
    }

    /// When the next connection may be accepted; until then it waits in the system's backlog.
    pub fn opens_at(&self) -> Time {
        if self.unproven().count() < self.limits.places {
            return Time::ZERO;
        }
        let oldest = self.unproven().map(|(_, state)| state.since).min();
        oldest.map_or(Time::ZERO, |since| since + self.limits.floor)
    }

    /// A connection was accepted. Returns its id, and the one to close if all slots were taken.
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
        self.callers
            .insert(caller, CallerState { origin, stage: HandshakeProgress::Silent, since: now });
        (caller, evicted)
    }

    /// A handshake has come this far.
    pub fn advance(&mut self, caller: Caller, stage: HandshakeProgress) {
        if let Some(state) = self.callers.get_mut(&caller) {
            state.stage = state.stage.max(stage);
        }
    }

    /// A handshake has completed, or its connection has closed.
    pub fn leave(&mut self, caller: Caller) {
        self.callers.remove(&caller);
    }

    /// Removes and returns the connections whose handshake has timed out.
    pub fn expire(&mut self, now: Time) -> Vec<Caller> {
        let limit = self.limits.deadline;
        let late = self.callers.iter().filter(|(_, state)| state.since + limit <= now);
        let late: Vec<Caller> = late.map(|(caller, _)| *caller).collect();
        for caller in &late {
            self.callers.remove(caller);
            self.dropped += 1;
        }
        late
    }

    /// When the next handshake times out or the next notice is due.
    pub fn next_wakeup(&self) -> Option<Time> {
        let oldest = self.callers.values().map(|state| state.since).min();
        let expiry = oldest.map(|since| since + self.limits.deadline);
        expiry.into_iter().chain(self.notice_at()).min()
    }

    /// The notice for the user, if one is due.
    pub fn notice(&mut self, now: Time) -> Option<CrowdNotice> {
        if self.notice_at().is_none_or(|at| now < at) {
            return None;
        }
        let since = self.last_notice.max(self.crowded).unwrap_or(now);
        let (waiting, dropped) = (self.unproven().count(), self.dropped);
        self.dropped = 0;
        self.crowded = None;
        if dropped == 0 {
            return None;
        }
        self.last_notice = Some(now);
        Some(CrowdNotice { waiting, dropped, during: now.saturating_sub(since) })
    }

    /// Sorts connections into the order to serve them: the user's own first, then by arrival.
    pub fn in_turn(&self, mut callers: Vec<Caller>) -> Vec<Caller> {
        let origin = |caller: &Caller| self.callers.get(caller).map(|state| state.origin);
        callers.sort_by_key(|caller| (std::cmp::Reverse(origin(caller)), *caller));
        callers
    }

    fn notice_at(&self) -> Option<Time> {
        let again = self.last_notice.map_or(Time::ZERO, |last| last + AGAIN);
        self.crowded.map(|since| (since + QUIET).max(again))
    }

    fn unproven(&self) -> impl Iterator<Item = (&Caller, &CallerState)> {
        self.callers.iter().filter(|(_, state)| state.stage < HandshakeProgress::Proven)
    }

    /// The connection to evict: one past its floor if there is one, otherwise the oldest.
    fn least_welcome(&self, now: Time) -> Option<Caller> {
        let (floor, trust) = (self.limits.floor, |state: &CallerState| (state.origin, state.stage));
        let evictable = self.unproven().filter(|(_, state)| state.since + floor <= now);
        let least = evictable.min_by_key(|(caller, state)| (trust(state), **caller));
        least.or_else(|| self.unproven().next()).map(|(caller, _)| *caller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: AdmissionLimits = AdmissionLimits {
        places: 3,
        floor: Duration::from_millis(100),
        deadline: Duration::from_secs(5),
    };

    fn ms(milliseconds: u64) -> Time {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn the_oldest_silent_connection_is_evicted_after_its_floor() {
        let mut admission = Admission::new(LIMITS);
        let callers: Vec<_> =
            (0..3).map(|time| admission.arrive(Origin::Unknown, ms(time)).0).collect();
        assert_eq!(admission.opens_at(), ms(100));
        admission.advance(callers[0], HandshakeProgress::Begun);
        let (fourth, evicted) = admission.arrive(Origin::Unknown, ms(110));
        assert_eq!(evicted, Some(callers[1]), "the first has begun its handshake");
        admission.leave(fourth);
        assert_eq!(admission.opens_at(), ms(0));
    }

    #[test]
    fn other_users_are_evicted_first_and_the_own_user_last() {
        let mut admission = Admission::new(LIMITS);
        let own = admission.arrive(Origin::OwnUser, ms(0)).0;
        let unknown = admission.arrive(Origin::Unknown, ms(1)).0;
        let other = admission.arrive(Origin::OtherUser, ms(2)).0;
        admission.advance(other, HandshakeProgress::Begun);
        assert_eq!(admission.arrive(Origin::OwnUser, ms(200)).1, Some(other));
        assert_eq!(admission.arrive(Origin::OwnUser, ms(200)).1, Some(unknown));
        assert_eq!(admission.arrive(Origin::OwnUser, ms(200)).1, Some(own));
        let other = admission.arrive(Origin::OtherUser, ms(400)).0;
        let own = admission.arrive(Origin::OwnUser, ms(400)).0;
        assert_eq!(admission.in_turn(vec![other, own]), [own, other]);
    }

    #[test]
    fn a_connection_with_the_key_is_not_evicted() {
        let mut admission = Admission::new(LIMITS);
        let proven = admission.arrive(Origin::Unknown, ms(0)).0;
        admission.advance(proven, HandshakeProgress::Proven);
        for time in 1..50 {
            assert_ne!(admission.arrive(Origin::Unknown, ms(time * 200)).1, Some(proven));
        }
        assert_eq!(admission.expire(ms(5000))[0], proven, "but it has a deadline");
    }

    #[test]
    fn a_flood_is_reported_after_a_while_and_then_periodically() {
        let mut admission = Admission::new(LIMITS);
        assert_eq!((admission.notice(ms(60_000)), admission.next_wakeup()), (None, None));
        for _ in 0..10 {
            admission.arrive(Origin::Unknown, ms(1000));
        }
        assert_eq!(admission.notice(ms(3900)), None);
        assert_eq!(admission.next_wakeup(), Some(ms(4000)));
        let notice = admission.notice(ms(4000)).unwrap();
        assert_eq!(notice, CrowdNotice { waiting: 3, dropped: 7, during: ms(3000) });
        let text = notice.to_string();
        assert!(text.contains("7 were dropped in the last 3 s and 3 are idle"), "{text}");
        admission.arrive(Origin::Unknown, ms(4001));
        assert_eq!(admission.notice(ms(20_000)), None);
        assert_eq!(admission.notice(ms(34_000)).unwrap().dropped, 1);
    }

    proptest! {
        /// However many idle connections arrive before and after a rank, it has time to send its
        /// message, and they delay it no longer than their number explains.
        #[test]
        fn a_rank_gets_through_any_number_of_idle_connections(before in 0usize..600, gap in 0u64..3) {
            let mut admission = Admission::new(AdmissionLimits { places: 64, ..LIMITS });
            let mut now = ms(0);
            for _ in 0..before {
                now = now.max(admission.opens_at()) + ms(gap);
                admission.arrive(Origin::Unknown, now);
            }
            now = now.max(admission.opens_at());
            let bound = ms(100 * (1 + before as u64 / 64) + gap * before as u64);
            prop_assert!(now <= bound, "{now:?} {bound:?}");
            let (rank, _) = admission.arrive(Origin::Unknown, now);
            let sends = now + ms(99);
            while now.max(admission.opens_at()) <= sends {
                now = now.max(admission.opens_at()) + ms(1);
                prop_assert_ne!(admission.arrive(Origin::Unknown, now).1, Some(rank));
            }
            admission.advance(rank, HandshakeProgress::Proven);
            prop_assert!(admission.callers.contains_key(&rank));
        }
    }
}
