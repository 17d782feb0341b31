//! The workers that run: where each is, what it is told of its place, and who forms the world.

use std::collections::BTreeMap;

use ronde_control::elastic::{AgentId, Offer, Start};
use ronde_control::rendezvous::Seat;
use ronde_control::status::Census;
use ronde_control::{Epoch, Rank, Worker};

use crate::hosts::Slot;

/// Those that have been started and have not ended.
#[derive(Default)]
pub(super) struct Workers {
    all: BTreeMap<Worker, Process>,
    /// The last world, in rank order.
    world: Vec<Worker>,
}

/// One of them.
struct Process {
    agent: AgentId,
    seat: Seat,
    pid: Option<u32>,
}

impl Workers {
    /// A worker is about to be started.
    pub(super) fn add(&mut self, start: &Start) {
        let seat = Seat { host: start.host.clone(), slot: start.slot };
        self.all.insert(start.worker, Process { agent: start.agent, seat, pid: None });
    }

    /// Its process runs.
    pub(super) fn started(&mut self, worker: Worker, pid: u32) {
        if let Some(process) = self.all.get_mut(&worker) {
            process.pid = Some(pid);
        }
    }

    /// It has ended.
    pub(super) fn remove(&mut self, worker: Worker) {
        self.all.remove(&worker);
    }

    /// Whose agent has ended: they have, too.
    pub(super) fn remove_of(&mut self, agent: AgentId) -> Vec<Worker> {
        let of = |(_, process): &(&Worker, &Process)| process.agent == agent;
        let gone: Vec<Worker> = self.all.iter().filter(of).map(|(worker, _)| *worker).collect();
        gone.iter().for_each(|worker| self.remove(*worker));
        gone
    }

    /// The agent that a worker has.
    pub(super) fn agent(&self, worker: Worker) -> Option<AgentId> {
        self.all.get(&worker).map(|process| process.agent)
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// A worker's rank in the last world.
    pub(super) fn rank(&self, worker: Worker) -> Option<Rank> {
        let index = self.world.iter().position(|member| *member == worker)?;
        Some(Rank(index as u32))
    }

    /// Those who come together for the first world, as those who watch will see them.
    pub(super) fn gathering(&self) -> Option<Census> {
        let all: Vec<Worker> = self.all.keys().copied().collect();
        self.world.is_empty().then(|| self.census(Epoch(0), &all))
    }

    /// A world was formed of these; gives it as those who watch will see it.
    pub(super) fn formed(&mut self, epoch: Epoch, world: Vec<Worker>) -> Census {
        self.world = world;
        self.census(epoch, &self.world)
    }

    fn census(&self, epoch: Epoch, workers: &[Worker]) -> Census {
        let unknown = || Seat { host: String::new(), slot: 0 };
        let seat = |worker| self.all.get(worker).map_or_else(unknown, |it| it.seat.clone());
        let seats: Vec<Seat> = workers.iter().map(seat).collect();
        let mut census = Census::new(&seats);
        census.formed(epoch.0);
        for (index, worker) in workers.iter().enumerate() {
            if let Some(pid) = self.all.get(worker).and_then(|process| process.pid) {
                census.started(Rank(index as u32), pid);
            }
        }
        census
    }
}

/// The place that a worker will probably have, if all slots on offer are used.
pub(super) fn slot(start: &Start, offers: &[Offer]) -> Slot {
    let has = |offer: &&Offer| offer.slots > start.slot || offer.host == start.host;
    let having: Vec<&Offer> = offers.iter().filter(has).collect();
    let own = having.iter().position(|offer| offer.host == start.host);
    Slot {
        rank: start.rank,
        host: start.host.clone(),
        local_rank: start.slot,
        local_size: own.map_or(0, |own| having[own].slots).max(start.slot + 1),
        cross_rank: own.unwrap_or(0) as u32,
        cross_size: having.len().max(1) as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(worker: u32, host: &str, slot: u32) -> Start {
        let (worker, agent) = (Worker(worker), AgentId(worker / 2));
        Start { worker, agent, host: host.into(), slot, rank: Rank(3), size: 5, late: false }
    }

    #[test]
    fn a_place_follows_from_what_is_on_offer() {
        let offers =
            [("a", 2), ("b", 1), ("c", 4)].map(|(host, slots)| Offer { host: host.into(), slots });
        let slot = slot(&start(9, "c", 1), &offers);
        assert_eq!((slot.local_rank, slot.local_size), (1, 4));
        assert_eq!((slot.cross_rank, slot.cross_size), (1, 2));
        let slot = super::slot(&start(9, "gone", 1), &offers);
        assert_eq!((slot.local_size, slot.cross_rank, slot.cross_size), (2, 0, 2));
    }

    #[test]
    fn those_of_an_agent_go_with_it_and_ranks_are_those_of_the_last_world() {
        let mut workers = Workers::default();
        for number in 0..4 {
            workers.add(&start(number, "a", number));
        }
        workers.started(Worker(3), 77);
        assert!(workers.gathering().is_some());
        let status = {
            let mut census = workers.formed(Epoch(2), vec![Worker(3), Worker(0)]);
            census.asked([], std::time::Duration::ZERO);
            census.complete(std::time::Duration::ZERO).unwrap()
        };
        assert_eq!((status.epoch, status.ranks.len(), status.ranks[0].pid), (2, 2, Some(77)));
        assert!(workers.gathering().is_none());
        assert_eq!(workers.rank(Worker(0)), Some(Rank(1)));
        assert_eq!(workers.rank(Worker(1)), None);
        assert_eq!(workers.remove_of(AgentId(1)), [Worker(2), Worker(3)]);
        assert_eq!((workers.count(), workers.agent(Worker(1))), (2, Some(AgentId(0))));
    }
}
