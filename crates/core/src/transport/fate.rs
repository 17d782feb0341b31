//! What has become of the world. Every wait looks here, and once it is sealed every wait ends.
//!
//! A broken connection makes its peer a suspect, not yet a dead one: for a short while the launcher
//! may still tell how it died, or the order of messages may show that it left in order. Then the
//! first suspect counts as lost.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ronde_control::Rank;
use ronde_control::cause::CauseKind;
use ronde_control::wire::Peer;

use crate::error::Error;

/// How long a suspect may still be explained by somebody who knows better.
const GRACE: Duration = Duration::from_millis(300);

pub(crate) struct Fate {
    sealed: AtomicBool,
    state: Mutex<State>,
    peers: Vec<Peer>,
}

#[derive(Default)]
struct State {
    suspect: Option<(Rank, (CauseKind, String), Instant)>,
    ended_in_order: bool,
    verdict: Option<Error>,
}

impl Fate {
    pub(crate) fn new(peers: Vec<Peer>) -> Fate {
        Fate { sealed: AtomicBool::new(false), state: Mutex::default(), peers }
    }

    /// The error that every wait ends with, once the world is over.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.sealed.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(self.verdict().unwrap_or(Error::Shutdown)),
        }
    }

    pub(crate) fn verdict(&self) -> Option<Error> {
        self.lock().verdict.clone()
    }

    /// Ends the world, unless it has ended already: the first cause stays.
    pub(crate) fn seal(&self, error: Error) {
        self.lock().verdict.get_or_insert(error);
        self.sealed.store(true, Ordering::Release);
    }

    /// A rank is known to be dead.
    pub(crate) fn lose(&self, rank: Rank, (kind, cause): (CauseKind, String)) {
        let (host, slot) = self.whereabouts(rank);
        if !self.lock().ended_in_order {
            self.seal(Error::Lost { rank, host, slot, kind, cause, tensor: None });
        }
    }

    /// Some ranks are too late for the others.
    pub(crate) fn stall(&self, missing: &[Rank], text: String) {
        self.seal(self.stalled(missing, text));
    }

    /// The error when some ranks are too late for the others.
    pub(crate) fn stalled(&self, missing: &[Rank], text: String) -> Error {
        let known = missing.iter().filter(|rank| self.knows(**rank));
        let missing = known.map(|rank| (*rank, self.whereabouts(*rank).0)).collect();
        Error::Stalled { missing, text, tensor: None }
    }

    /// The launcher went away without a word.
    pub(crate) fn lose_launcher(&self, error: Error) {
        if !self.lock().ended_in_order {
            self.seal(error);
        }
    }

    /// A rank has left in order.
    pub(crate) fn part(&self, rank: Rank, reason: Option<String>) {
        let (host, slot) = self.whereabouts(rank);
        let (kind, reason) = match reason {
            Some(error) => (CauseKind::Exception, format!("it failed with {error}")),
            None => (CauseKind::Left, "it has called shutdown or reached its end".into()),
        };
        self.end_in_order();
        self.seal(Error::Left { rank, host, slot, kind, reason, tensor: None });
    }

    /// From here on broken connections mean nothing.
    pub(crate) fn end_in_order(&self) {
        let mut state = self.lock();
        state.ended_in_order = true;
        state.suspect = None;
    }

    /// A connection to a rank broke.
    pub(crate) fn suspect(&self, rank: Rank, cause: (CauseKind, String), now: Instant) {
        let mut state = self.lock();
        if !state.ended_in_order && state.suspect.is_none() {
            state.suspect = Some((rank, cause, now));
        }
    }

    /// Gives up on a suspect whom nobody has explained; until when to look again, if there is one.
    pub(crate) fn settle(&self, now: Instant) -> Option<Instant> {
        let (rank, cause, since) = self.lock().suspect.clone()?;
        let until = since + GRACE;
        if now < until {
            return Some(until);
        }
        self.lose(rank, cause);
        None
    }

    /// Whether there is such a rank.
    pub(crate) fn knows(&self, rank: Rank) -> bool {
        rank.index() < self.peers.len()
    }

    /// How messages name a rank.
    pub(crate) fn name(&self, rank: Rank) -> String {
        let (host, slot) = self.whereabouts(rank);
        format!("{rank} ({host}, slot {slot})")
    }

    fn whereabouts(&self, rank: Rank) -> (String, u32) {
        match self.peers.get(rank.index()) {
            Some(peer) => (peer.host.clone(), peer.local_rank),
            None => ("nowhere".into(), 0),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fate() -> Fate {
        let peer = |slot| Peer {
            host: "h".into(),
            local_rank: slot,
            pid: 0,
            addresses: Vec::new(),
            unix: None,
        };
        Fate::new((0..3).map(peer).collect())
    }

    fn unknown(cause: &str) -> (CauseKind, String) {
        (CauseKind::Unknown, cause.into())
    }

    #[test]
    fn a_suspect_is_lost_when_nobody_knows_better_in_time() {
        let (fate, start) = (fate(), Instant::now());
        fate.suspect(Rank(1), unknown("connection reset"), start);
        assert_eq!(fate.settle(start), Some(start + GRACE));
        assert!(fate.check().is_ok());
        assert_eq!(fate.settle(start + GRACE), None);
        assert_eq!(fate.check().unwrap_err().blames(), Some(Rank(1)));
    }

    #[test]
    fn the_launchers_word_counts_more_than_a_suspicion() {
        let (fate, start) = (fate(), Instant::now());
        fate.suspect(Rank(1), unknown("connection reset"), start);
        fate.lose(Rank(2), (CauseKind::Signal, "was killed".into()));
        fate.settle(start + GRACE);
        let loss = fate.verdict().and_then(|error| error.loss()).unwrap();
        assert_eq!((loss.ranks, loss.kind), (vec![Rank(2)], CauseKind::Signal));
    }

    #[test]
    fn broken_connections_mean_nothing_after_an_orderly_end() {
        let (fate, start) = (fate(), Instant::now());
        fate.suspect(Rank(1), unknown("closed"), start);
        fate.end_in_order();
        fate.suspect(Rank(1), unknown("closed"), start);
        assert_eq!(fate.settle(start + GRACE), None);
        fate.lose(Rank(1), unknown("gone"));
        assert!(fate.check().is_ok());
    }
}
