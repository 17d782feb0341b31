//! Computes local and cross ranks from what the ranks report, once all have joined.
//!
//! `horovodrun` assigns these itself unless the job is elastic. Other launchers provide at most a
//! process's number on its host, so the rest follows from host names: ranks with the same host
//! name share a host. The ranks of a host keep the order of their reported numbers, with gaps
//! closed; if two report the same number, they are numbered in rank order.

use std::collections::{BTreeMap, HashMap};

use crate::settings::{RankInfo, RendezvousOwner};
use crate::wire::Peer;

/// Renumbers the ranks of each host so that their local ranks count up from 0.
pub fn number(peers: &mut [Peer]) {
    let mut hosts: HashMap<String, Vec<usize>> = HashMap::new();
    for (rank, peer) in peers.iter().enumerate() {
        hosts.entry(peer.host.clone()).or_default().push(rank);
    }
    for ranks in hosts.values() {
        let reported = |rank: &usize| (peers[*rank].local_rank, *rank);
        let by_number: BTreeMap<u32, usize> = ranks.iter().map(reported).collect();
        let in_order: Vec<usize> = match by_number.len() == ranks.len() {
            true => by_number.into_values().collect(),
            false => ranks.clone(),
        };
        for (number, rank) in in_order.into_iter().enumerate() {
            peers[rank].local_rank = number as u32;
        }
    }
}

impl RankInfo {
    /// Completes this rank's local and cross ranks from all peers, unless the launcher set them.
    pub fn among(&self, peers: &[Peer]) -> RankInfo {
        let set_by_launcher =
            self.rendezvous_info.as_ref().is_none_or(|it| it.keeper == RendezvousOwner::Launcher);
        let Some(me) = peers.get(self.rank.index()).filter(|_| !set_by_launcher) else {
            return self.clone();
        };
        let local_size = peers.iter().filter(|peer| peer.host == me.host).count() as u32;
        let same_local_rank: Vec<&str> = peers
            .iter()
            .filter(|peer| peer.local_rank == me.local_rank)
            .map(|peer| peer.host.as_str())
            .collect();
        let cross_rank =
            same_local_rank.iter().position(|host| *host == me.host).unwrap_or_default();
        RankInfo {
            local_rank: me.local_rank,
            local_size,
            cross_rank: cross_rank as u32,
            cross_size: same_local_rank.len() as u32,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::RendezvousInfo;
    use crate::wire::JobKey;
    use crate::{Rank, Worker};

    fn placed(reported: &[(&str, u32)], keeper: RendezvousOwner) -> Vec<(u32, u32, u32, u32)> {
        let mut peers: Vec<Peer> = reported
            .iter()
            .map(|(host, local_rank)| Peer {
                host: (*host).to_owned(),
                machine: String::new(),
                local_rank: *local_rank,
                pid: 1,
                addresses: Vec::new(),
                unix: None,
            })
            .collect();
        number(&mut peers);
        let place = |rank: usize| RankInfo {
            rank: Rank(rank as u32),
            size: reported.len() as u32,
            local_rank: 7,
            local_size: 7,
            cross_rank: 7,
            cross_size: 7,
            host: reported[rank].0.to_owned(),
            rendezvous_info: Some(RendezvousInfo {
                addresses: Vec::new(),
                key: JobKey::from_entropy([1; 32]),
                listen: Vec::new(),
                ports: crate::PortRange::default(),
                keeper,
            }),
        };
        let read = |place: RankInfo| {
            (place.local_rank, place.local_size, place.cross_rank, place.cross_size)
        };
        (0..reported.len()).map(|rank| read(place(rank).among(&peers))).collect()
    }

    #[test]
    fn local_and_cross_ranks_match_horovod() {
        let complete = [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2)];
        let expected = [(0, 3, 0, 2), (0, 2, 1, 2), (1, 3, 0, 2), (1, 2, 1, 2), (2, 3, 0, 1)];
        assert_eq!(placed(&complete, RendezvousOwner::FirstRank), expected);
        let missing = [("a", 0), ("b", 0), ("a", 0), ("b", 0), ("a", 0)];
        assert_eq!(placed(&missing, RendezvousOwner::FirstRank), expected);
        let gaps = [("a", 5), ("b", 4), ("a", 6), ("b", 5), ("a", 9)];
        assert_eq!(placed(&gaps, RendezvousOwner::Elastic(Worker(3))), expected);
        let reordered = [("a", 1), ("a", 3), ("a", 0)];
        let expected = [(1, 3, 0, 1), (2, 3, 0, 1), (0, 3, 0, 1)];
        assert_eq!(placed(&reordered, RendezvousOwner::Elastic(Worker(3))), expected);
    }

    #[test]
    fn numbers_set_by_the_launcher_are_kept() {
        assert_eq!(placed(&[("a", 0), ("a", 0)], RendezvousOwner::Launcher), [(7, 7, 7, 7); 2]);
    }
}
