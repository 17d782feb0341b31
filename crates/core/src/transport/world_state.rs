//! Whether the world is still running. Every wait checks it, and once it has ended every wait ends.
//!
//! A broken connection makes its peer a suspect, but not dead yet: for a short while the launcher
//! may still report how it died, or the order of messages may show that it left in order. After
//! that the first suspect counts as lost.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ronde_control::Rank;
use ronde_control::cause::CauseKind;
use ronde_control::wire::Peer;

use crate::error::Error;

/// How long to wait for a better explanation before a suspect counts as lost.
const GRACE: Duration = Duration::from_millis(300);

pub(crate) struct WorldState {
    ended: AtomicBool,
    state: Mutex<EndState>,
    peers: Vec<Peer>,
}

#[derive(Default)]
struct EndState {
    suspect: Option<(Rank, (CauseKind, String), Instant)>,
    ended_in_order: bool,
    verdict: Option<Error>,
}

impl WorldState {
    pub(crate) fn new(peers: Vec<Peer>) -> WorldState {
        WorldState { ended: AtomicBool::new(false), state: Mutex::default(), peers }
    }

    /// Fails with the error that every wait ends with, once the world is over.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.ended.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(self.verdict().unwrap_or(Error::Shutdown)),
        }
    }

    pub(crate) fn verdict(&self) -> Option<Error> {
        self.lock().verdict.clone()
    }

    /// Ends the world, unless it has ended already: the first cause wins.
    pub(crate) fn end(&self, error: Error) {
        self.lock().verdict.get_or_insert(error);
        self.ended.store(true, Ordering::Release);
    }

    /// Ends the world because a rank is dead.
    pub(crate) fn lose(&self, rank: Rank, (kind, cause): (CauseKind, String)) {
        let (host, slot) = self.location(rank);
        if !self.lock().ended_in_order {
            self.end(Error::Lost { rank, host, slot, kind, cause, tensor: None });
        }
    }

    /// Ends the world because some ranks are too late.
    pub(crate) fn stall(&self, missing: &[Rank], text: String) {
        self.end(self.stalled(missing, text));
    }

    /// The error when some ranks are too late for the others.
    pub(crate) fn stalled(&self, missing: &[Rank], text: String) -> Error {
        let known = missing.iter().filter(|rank| self.knows(**rank));
        let missing = known.map(|rank| (*rank, self.location(*rank).0)).collect();
        Error::Stalled { missing, text, tensor: None }
    }

    /// Ends the world because the launcher went away without notice.
    pub(crate) fn lose_launcher(&self, error: Error) {
        if !self.lock().ended_in_order {
            self.end(error);
        }
    }

    /// Ends the world because a rank has left in order.
    pub(crate) fn part(&self, rank: Rank, reason: Option<String>) {
        let (host, slot) = self.location(rank);
        let (kind, reason) = match reason {
            Some(error) => (CauseKind::Exception, format!("it failed with {error}")),
            None => (CauseKind::Left, "it has called shutdown or reached its end".into()),
        };
        self.end_in_order();
        self.end(Error::Left { rank, host, slot, kind, reason, tensor: None });
    }

    /// From here on broken connections mean nothing.
    pub(crate) fn end_in_order(&self) {
        let mut state = self.lock();
        state.ended_in_order = true;
        state.suspect = None;
    }

    /// Makes a rank a suspect because a connection to it broke.
    pub(crate) fn suspect(&self, rank: Rank, cause: (CauseKind, String), now: Instant) {
        let mut state = self.lock();
        if !state.ended_in_order && state.suspect.is_none() {
            state.suspect = Some((rank, cause, now));
        }
    }

    /// Gives up on a suspect once its time is over; returns the time to check again, if there is
    /// one.
    pub(crate) fn settle(&self, now: Instant) -> Option<Instant> {
        let (rank, cause, since) = self.lock().suspect.clone()?;
        let until = since + GRACE;
        if now < until {
            return Some(until);
        }
        self.lose(rank, cause);
        None
    }

    /// Whether the world has such a rank.
    pub(crate) fn knows(&self, rank: Rank) -> bool {
        rank.index() < self.peers.len()
    }

    /// The name of a rank in messages.
    pub(crate) fn name(&self, rank: Rank) -> String {
        let (host, slot) = self.location(rank);
        format!("{rank} ({host}, slot {slot})")
    }

    fn location(&self, rank: Rank) -> (String, u32) {
        match self.peers.get(rank.index()) {
            Some(peer) => (peer.host.clone(), peer.local_rank),
            None => ("an unknown host".into(), 0),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, EndState> {
        self.state.lock().expect("nothing panics while it holds this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world_state() -> WorldState {
        let peer = |slot| Peer {
            host: "h".into(),
            machine: String::new(),
            local_rank: slot,
            pid: 0,
            addresses: Vec::new(),
            unix: None,
        };
        WorldState::new((0..3).map(peer).collect())
    }

    fn unknown(cause: &str) -> (CauseKind, String) {
        (CauseKind::Unknown, cause.into())
    }

    #[test]
    fn a_suspect_without_an_explanation_is_lost() {
        let (world_state, start) = (world_state(), Instant::now());
        world_state.suspect(Rank(1), unknown("connection reset"), start);
        assert_eq!(world_state.settle(start), Some(start + GRACE));
        assert!(world_state.check().is_ok());
        assert_eq!(world_state.settle(start + GRACE), None);
        assert_eq!(world_state.check().unwrap_err().blames(), Some(Rank(1)));
    }

    #[test]
    fn the_launchers_report_overrides_a_suspicion() {
        let (world_state, start) = (world_state(), Instant::now());
        world_state.suspect(Rank(1), unknown("connection reset"), start);
        world_state.lose(Rank(2), (CauseKind::Signal, "was killed".into()));
        world_state.settle(start + GRACE);
        let loss = world_state.verdict().and_then(|error| error.loss()).unwrap();
        assert_eq!((loss.ranks, loss.kind), (vec![Rank(2)], CauseKind::Signal));
    }

    #[test]
    fn broken_connections_mean_nothing_after_an_orderly_end() {
        let (world_state, start) = (world_state(), Instant::now());
        world_state.suspect(Rank(1), unknown("closed"), start);
        world_state.end_in_order();
        world_state.suspect(Rank(1), unknown("closed"), start);
        assert_eq!(world_state.settle(start + GRACE), None);
        world_state.lose(Rank(1), unknown("gone"));
        assert!(world_state.check().is_ok());
    }
}
