//! Reports late ranks: on the coordinator, based on the times of the first announcements.

use std::collections::BTreeSet;
use std::time::Duration;

use ronde_control::Rank;
use ronde_control::negotiate::{Announcement, Coordinator, LastSeen, Stall};
use ronde_control::wire::{Peer, RankToDriver};

/// How many tensors one report names.
const MAX_NAMED: usize = 6;

pub(super) struct StallWatch {
    warning: Option<Duration>,
    shutdown: Option<Duration>,
    peers: Vec<Peer>,
    next: Duration,
    /// The stalled tensors that the last check found.
    known: BTreeSet<String>,
}

/// Describes the last thing that a late rank did.
fn last_activity(seen: Option<LastSeen>, now: Duration) -> String {
    let Some(LastSeen { name, at, announced, is_waiting }) = seen else {
        return "has submitted nothing yet".into();
    };
    let ago = now.saturating_sub(at).as_secs();
    match name {
        Some(name) if is_waiting => {
            format!("has waited for `{name}` (submission {announced}) for {ago} s")
        }
        Some(name) => format!("last submitted `{name}` (submission {announced}) {ago} s ago"),
        None => format!("last submission was number {announced}, {ago} s ago"),
    }
}

impl StallWatch {
    pub(super) fn new(
        warning: Option<Duration>,
        shutdown: Option<Duration>,
        peers: Vec<Peer>,
    ) -> StallWatch {
        let next = [warning, shutdown].into_iter().flatten().min().unwrap_or(Duration::MAX);
        StallWatch { warning, shutdown, peers, next, known: BTreeSet::new() }
    }

    /// Reports tensors that have waited too long, and ends the job if the user asked for that. If
    /// there was anything to report, returns what to send to the launcher: the oldest stalls that
    /// it does not know yet.
    pub(super) fn check(
        &mut self,
        coordinator: &mut Coordinator,
        now: Duration,
    ) -> Option<Vec<RankToDriver>> {
        if now < self.next {
            return None;
        }
        if let Some(limit) = self.shutdown {
            let late = coordinator.stalls(now.saturating_sub(limit));
            if !late.is_empty() && now > limit {
                let error = format!("{} Will shutdown.", self.report(coordinator, &late, now));
                tracing::error!("{error}");
                let missing = late.iter().flat_map(|stall| stall.missing.iter().copied());
                let missing = missing.collect::<BTreeSet<Rank>>().into_iter().collect();
                coordinator.tell(Announcement::Stalled { missing, error });
                self.next = Duration::MAX;
                return Some(self.unreported(&late, now));
            }
        }
        let mut reports = None;
        if let Some(limit) = self.warning.filter(|limit| now > *limit) {
            let late = coordinator.stalls(now - limit);
            if !late.is_empty() {
                tracing::warn!("{}", self.report(coordinator, &late, now));
                if self.known.is_empty() {
                    coordinator.tell(Announcement::WriteDown);
                }
                reports = Some(self.unreported(&late, now));
            }
            self.known = late.into_iter().map(|stall| stall.name).collect();
        }
        let pause = [self.warning, self.shutdown].into_iter().flatten().min();
        self.next = now + pause.unwrap_or(Duration::MAX / 2).min(Duration::from_secs(60));
        reports
    }

    /// Reports for the launcher about stalls that it does not know yet, a few at a time: one late
    /// rank may hold up thousands of tensors.
    fn unreported(&self, late: &[Stall], now: Duration) -> Vec<RankToDriver> {
        let unknown = late.iter().filter(|stall| !self.known.contains(&stall.name));
        let stalled = |stall: &Stall| RankToDriver::Stalled {
            tensor: stall.name.clone(),
            during: now.saturating_sub(stall.since),
            waiting: stall.waiting.clone(),
            late: stall.missing.clone(),
        };
        unknown.take(MAX_NAMED).map(stalled).collect()
    }

    fn report(&self, coordinator: &Coordinator, late: &[Stall], now: Duration) -> String {
        let oldest = late.iter().map(|stall| stall.since).min().unwrap_or(now);
        let mut text = format!(
            "One or more tensors were submitted to be reduced, gathered or broadcasted by a subset \
             of ranks and are waiting for the remainder of ranks for more than {} seconds. Some \
             ranks may have taken a different code path, or have stopped.\nMissing ranks:",
            (now - oldest).as_secs()
        );
        for (rank, peer) in self.peers.iter().enumerate() {
            let missing = |stall: &&Stall| stall.missing.iter().any(|late| late.index() == rank);
            let names: Vec<&str> =
                late.iter().filter(missing).map(|stall| stall.name.as_str()).collect();
            if names.is_empty() {
                continue;
            }
            let more = if names.len() > MAX_NAMED { " ..." } else { "" };
            let names = names[..names.len().min(MAX_NAMED)].join(", ");
            let activity = last_activity(coordinator.last_seen(Rank(rank as u32)), now);
            let Peer { host, local_rank, .. } = peer;
            text += &format!("\n{rank}: [{names}{more}] ({host}, slot {local_rank}; {activity})");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use ronde_control::negotiate::{
        CollectiveKind, CoordinatorToMember, MemberToCoordinator, Request,
    };
    use ronde_control::{DType, DeviceKind, SetId};

    use super::*;

    fn peers() -> Vec<Peer> {
        let peer = |local_rank| Peer {
            host: "node-a".into(),
            machine: String::new(),
            local_rank,
            pid: 0,
            addresses: Vec::new(),
            unix: None,
        };
        (0..3).map(peer).collect()
    }

    fn barrier(name: &str) -> MemberToCoordinator {
        MemberToCoordinator::Announce(Request {
            name: name.into(),
            set: SetId::WORLD,
            kind: CollectiveKind::Barrier,
            dtype: DType::U8,
            shapes: vec![],
            device: DeviceKind::Cpu,
        })
    }

    #[test]
    fn a_stall_names_the_late_ranks_and_what_they_did_last() {
        let second = Duration::from_secs(1);
        let mut coordinator = Coordinator::new(3, 0, 0);
        (1..3).for_each(|rank| coordinator.on(Rank(rank), barrier("first"), Duration::ZERO));
        coordinator.on(Rank(1), barrier("allreduce.x"), second);
        coordinator.on(Rank(2), barrier("allreduce.y"), 3 * second);
        let mut watch = StallWatch::new(Some(second), None, peers());
        let late = coordinator.stalls(6 * second);
        let report = watch.report(&coordinator, &late, 6 * second);
        let (head, ranks) = report.split_once("Missing ranks:\n").unwrap();
        assert!(head.contains("a subset of ranks") && head.contains("more than 6 seconds"));
        assert_eq!(
            ranks,
            "0: [first, allreduce.x, allreduce.y] (node-a, slot 0; has submitted nothing yet)\n\
             1: [allreduce.y] (node-a, slot 1; has waited for `allreduce.x` (submission 2) for 5 s)\n\
             2: [allreduce.x] (node-a, slot 2; has waited for `allreduce.y` (submission 2) for 3 s)"
        );
        let reports = watch.check(&mut coordinator, 6 * second).unwrap();
        let first = RankToDriver::Stalled {
            tensor: "first".into(),
            during: 6 * second,
            waiting: vec![Rank(1), Rank(2)],
            late: vec![Rank(0)],
        };
        assert_eq!((reports.len(), &reports[0]), (3, &first));
        assert_eq!(
            coordinator.take_messages(),
            [CoordinatorToMember::Bulletin(Announcement::WriteDown)]
        );
        let again = watch.check(&mut coordinator, 8 * second);
        assert_eq!(again, Some(vec![]), "it is logged again, but not sent to the launcher again");
        assert_eq!(coordinator.take_messages(), [], "the flight recorder is dumped once");
    }

    #[test]
    fn a_rank_that_fell_silent_is_described_by_its_last_submission() {
        let second = Duration::from_secs(1);
        let mut coordinator = Coordinator::new(2, 0, 8);
        for step in 0..3 {
            (0..2).for_each(|rank| coordinator.on(Rank(rank), barrier("w"), step * second));
            coordinator.release(|_| true);
        }
        coordinator.on(Rank(0), barrier("x"), 3 * second);
        let activity = last_activity(coordinator.last_seen(Rank(1)), 10 * second);
        assert_eq!(activity, "last submitted `w` (submission 3) 8 s ago");
    }

    #[test]
    fn a_stall_ends_the_job_when_asked_to() {
        let second = Duration::from_secs(1);
        let mut coordinator = Coordinator::new(3, 0, 0);
        coordinator.on(Rank(1), barrier("allreduce.x"), Duration::ZERO);
        let mut watch = StallWatch::new(Some(second), Some(5 * second), peers());
        assert_eq!(watch.check(&mut coordinator, 2 * second).map(|reports| reports.len()), Some(1));
        coordinator.take_messages();
        assert_eq!(watch.check(&mut coordinator, 6 * second), Some(vec![]));
        let messages = coordinator.take_messages();
        let [CoordinatorToMember::Bulletin(Announcement::Stalled { missing, error })] =
            messages.as_slice()
        else {
            panic!("{messages:?}")
        };
        assert_eq!(*missing, [Rank(0), Rank(2)]);
        assert!(error.contains("0: [allreduce.x] (node-a, slot 0;"), "{error}");
        assert!(error.contains("2: [allreduce.x] (node-a, slot 2;"), "{error}");
        assert!(!error.contains("1: ["), "{error}");
        assert!(error.ends_with("Will shutdown."), "{error}");
    }
}
