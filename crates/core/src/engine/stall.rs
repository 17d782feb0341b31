//! Reports who is late: on the coordinator, from the times of the first announcements.

use std::time::Duration;

use ronde_control::negotiate::{Coordinator, Stall};
use ronde_control::wire::Peer;

/// Tensors that one report names.
const NAMED: usize = 6;

pub(super) struct StallWatch {
    warning: Option<Duration>,
    shutdown: Option<Duration>,
    peers: Vec<Peer>,
    next: Duration,
}

impl StallWatch {
    pub(super) fn new(
        warning: Option<Duration>,
        shutdown: Option<Duration>,
        peers: Vec<Peer>,
    ) -> StallWatch {
        let next = [warning, shutdown].into_iter().flatten().min().unwrap_or(Duration::MAX);
        StallWatch { warning, shutdown, peers, next }
    }

    /// Reports what has waited too long, and ends the job if the user asked for that.
    pub(super) fn look(&mut self, coordinator: &mut Coordinator, now: Duration) {
        if now < self.next {
            return;
        }
        if let Some(limit) = self.shutdown {
            let late = coordinator.stalls(now.saturating_sub(limit));
            if !late.is_empty() && now > limit {
                let error = format!("{} Will shutdown.", self.report(&late, now));
                tracing::error!("{error}");
                coordinator.give_up(error);
                self.next = Duration::MAX;
                return;
            }
        }
        if let Some(limit) = self.warning.filter(|limit| now > *limit) {
            let late = coordinator.stalls(now - limit);
            if !late.is_empty() {
                tracing::warn!("{}", self.report(&late, now));
            }
        }
        let pause = [self.warning, self.shutdown].into_iter().flatten().min();
        self.next = now + pause.unwrap_or(Duration::MAX / 2).min(Duration::from_secs(60));
    }

    fn report(&self, late: &[Stall], now: Duration) -> String {
        let oldest = late.iter().map(|stall| stall.since).min().unwrap_or(now);
        let mut text = format!(
            "One or more tensors were submitted to be reduced, gathered or broadcasted by a subset \
             of ranks and are waiting for the remainder of ranks for more than {} seconds. Some \
             ranks may have taken another way through the program, or have stopped.\nMissing ranks:",
            (now - oldest).as_secs()
        );
        for (rank, peer) in self.peers.iter().enumerate() {
            let missing = |stall: &&Stall| stall.missing.iter().any(|late| late.index() == rank);
            let names: Vec<&str> =
                late.iter().filter(missing).map(|stall| stall.name.as_str()).collect();
            if names.is_empty() {
                continue;
            }
            let more = if names.len() > NAMED { " ..." } else { "" };
            let names = names[..names.len().min(NAMED)].join(", ");
            text += &format!("\n{rank}: [{names}{more}] ({}, slot {})", peer.host, peer.local_rank);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use ronde_control::negotiate::{CoordinatorToMember, Kind, MemberToCoordinator, Request};
    use ronde_control::{DType, Rank, SetId};

    use super::*;

    fn peers() -> Vec<Peer> {
        let peer = |local_rank| Peer {
            host: "node-a".into(),
            local_rank,
            pid: 0,
            addresses: Vec::new(),
            unix: None,
        };
        (0..3).map(peer).collect()
    }

    #[test]
    fn a_stall_names_the_late_ranks_and_ends_the_job_when_asked_to() {
        let second = Duration::from_secs(1);
        let mut coordinator = Coordinator::new(3, 0, 0);
        let request = Request {
            name: "allreduce.x".into(),
            set: SetId::WORLD,
            kind: Kind::Barrier,
            dtype: DType::U8,
            shapes: vec![],
        };
        coordinator.on(Rank(1), MemberToCoordinator::Announce(request), Duration::ZERO);
        let mut watch = StallWatch::new(Some(second), Some(5 * second), peers());
        watch.look(&mut coordinator, 2 * second);
        assert_eq!(coordinator.take_messages(), []);
        watch.look(&mut coordinator, 6 * second);
        let messages = coordinator.take_messages();
        let [CoordinatorToMember::Stalled { error }] = messages.as_slice() else {
            panic!("{messages:?}")
        };
        assert!(error.contains("0: [allreduce.x] (node-a, slot 0)"), "{error}");
        assert!(error.contains("2: [allreduce.x] (node-a, slot 2)"), "{error}");
        assert!(!error.contains("1: ["), "{error}");
    }
}
