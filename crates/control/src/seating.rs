//! Who sits where, found from the ranks' own words once all have come.
//!
//! `horovodrun` seats its ranks itself, unless its job is elastic. Other launchers say at most a
//! process's number on its host, so the rest follows from the names of the hosts: ranks with the same
//! one share a host. Ranks of a host are numbered as they say; where a number is missing, in the same
//! order without the gap; and if two say the same, in the order of their ranks.

use std::collections::{BTreeMap, HashMap};

use crate::settings::{Keeper, Place};
use crate::wire::Peer;

/// Numbers the ranks of each host from 0 on where the numbers they brought are not these.
pub fn number(peers: &mut [Peer]) {
    let mut hosts: HashMap<String, Vec<usize>> = HashMap::new();
    for (rank, peer) in peers.iter().enumerate() {
        hosts.entry(peer.host.clone()).or_default().push(rank);
    }
    for ranks in hosts.values() {
        let said = |rank: &usize| (peers[*rank].local_rank, *rank);
        let by_number: BTreeMap<u32, usize> = ranks.iter().map(said).collect();
        let in_order: Vec<usize> = match by_number.len() == ranks.len() {
            true => by_number.into_values().collect(),
            false => ranks.clone(),
        };
        for (number, rank) in in_order.into_iter().enumerate() {
            peers[rank].local_rank = number as u32;
        }
    }
}

impl Place {
    /// This place among all ranks; the launcher's word stays where it has said everything.
    pub fn among(&self, peers: &[Peer]) -> Place {
        let told = self.meeting.as_ref().is_none_or(|it| it.keeper == Keeper::Launcher);
        let Some(me) = peers.get(self.rank.index()).filter(|_| !told) else { return self.clone() };
        let local_size = peers.iter().filter(|peer| peer.host == me.host).count() as u32;
        let alike: Vec<&str> = peers
            .iter()
            .filter(|peer| peer.local_rank == me.local_rank)
            .map(|peer| peer.host.as_str())
            .collect();
        let cross_rank = alike.iter().position(|host| *host == me.host).unwrap_or_default();
        Place {
            local_rank: me.local_rank,
            local_size,
            cross_rank: cross_rank as u32,
            cross_size: alike.len() as u32,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Meeting;
    use crate::wire::JobKey;
    use crate::{Rank, Worker};

    fn seated(seats: &[(&str, u32)], keeper: Keeper) -> Vec<(u32, u32, u32, u32)> {
        let mut peers: Vec<Peer> = seats
            .iter()
            .map(|(host, local_rank)| Peer {
                host: (*host).to_owned(),
                local_rank: *local_rank,
                pid: 1,
                addresses: Vec::new(),
                unix: None,
            })
            .collect();
        number(&mut peers);
        let place = |rank: usize| Place {
            rank: Rank(rank as u32),
            size: seats.len() as u32,
            local_rank: 7,
            local_size: 7,
            cross_rank: 7,
            cross_size: 7,
            host: seats[rank].0.to_owned(),
            meeting: Some(Meeting {
                addresses: Vec::new(),
                key: JobKey::from_entropy([1; 32]),
                listen: Vec::new(),
                keeper,
            }),
        };
        let read =
            |place: Place| (place.local_rank, place.local_size, place.cross_rank, place.cross_size);
        (0..seats.len()).map(|rank| read(place(rank).among(&peers))).collect()
    }

    #[test]
    fn ranks_are_seated_by_host_as_horovod_counts() {
        let told = [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2)];
        let expected = [(0, 3, 0, 2), (0, 2, 1, 2), (1, 3, 0, 2), (1, 2, 1, 2), (2, 3, 0, 1)];
        assert_eq!(seated(&told, Keeper::FirstRank), expected);
        let untold = [("a", 0), ("b", 0), ("a", 0), ("b", 0), ("a", 0)];
        assert_eq!(seated(&untold, Keeper::FirstRank), expected);
        let gaps = [("a", 5), ("b", 4), ("a", 6), ("b", 5), ("a", 9)];
        assert_eq!(seated(&gaps, Keeper::Elastic(Worker(3))), expected);
        let turned = [("a", 1), ("a", 3), ("a", 0)];
        let expected = [(1, 3, 0, 1), (2, 3, 0, 1), (0, 3, 0, 1)];
        assert_eq!(seated(&turned, Keeper::Elastic(Worker(3))), expected);
    }

    #[test]
    fn the_launchers_word_stays() {
        assert_eq!(seated(&[("a", 0), ("a", 0)], Keeper::Launcher), [(7, 7, 7, 7); 2]);
    }
}
