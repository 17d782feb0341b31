//! A process set that this rank belongs to.

use std::sync::Arc;

use ronde_control::Rank;

use crate::transport::shm::LocalMembers;

/// Some ranks in a fixed order, and this one's place among them.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    pub(crate) ranks: Arc<[usize]>,
    pub(crate) me: usize,
}

pub(crate) struct ProcessSet {
    members: Members,
    /// The places of the members of each island, islands in the order of their first member.
    islands: Vec<Vec<usize>>,
    /// This rank's island among them.
    island: usize,
    local_members: LocalMembers,
}

impl ProcessSet {
    /// The set of these members; `leaders` has the first rank of each rank's island.
    pub(super) fn new(
        members: Members,
        leaders: &[usize],
        lane: usize,
        generation: u32,
    ) -> ProcessSet {
        let leader = |place: usize| leaders[members.ranks[place]];
        let mut islands: Vec<Vec<usize>> = Vec::new();
        for place in 0..members.ranks.len() {
            match islands.iter_mut().find(|island| leader(island[0]) == leader(place)) {
                Some(island) => island.push(place),
                None => islands.push(vec![place]),
            }
        }
        let is_mine = |island: &Vec<usize>| island.contains(&members.me);
        let island = islands.iter().position(is_mine).expect("every member is on an island");
        // Local indices count all ranks of the island, members or not.
        let rank_of_local_index: Vec<usize> =
            (0..leaders.len()).filter(|rank| leaders[*rank] == leader(members.me)).collect();
        let local_index = |place: &usize| {
            rank_of_local_index.binary_search(&members.ranks[*place]).expect("it is on this island")
        };
        let me = islands[island].iter().position(|place| *place == members.me);
        let local_indices = islands[island].iter().map(local_index).collect();
        let me = me.expect("this rank is on its island");
        // A reused lane still has the counts of the previous set; starting beyond any of them makes
        // those counts harmless.
        let local_members =
            LocalMembers { local_indices, me, lane, step: u64::from(generation) << 40 };
        ProcessSet { members, islands, island, local_members }
    }

    pub(crate) fn size(&self) -> usize {
        self.members.ranks.len()
    }

    /// The number of islands.
    pub(crate) fn hosts(&self) -> usize {
        self.islands.len()
    }

    pub(crate) fn me(&self) -> usize {
        self.members.me
    }

    /// Its members, in rising order.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = Rank> {
        self.members.ranks.iter().map(|rank| Rank(*rank as u32))
    }

    /// The place of a rank of the world.
    pub(crate) fn place(&self, rank: Rank) -> Option<usize> {
        self.members.ranks.binary_search(&rank.index()).ok()
    }

    pub(super) fn members(&self) -> &Members {
        &self.members
    }

    pub(super) fn local_members(&mut self) -> &mut LocalMembers {
        &mut self.local_members
    }

    pub(super) fn islands(&self) -> &[Vec<usize>] {
        &self.islands
    }

    pub(super) fn island(&self) -> usize {
        self.island
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_grouped_by_island_and_indexed_among_all_its_ranks() {
        // Ranks 0, 1, 4 on one island, 2 and 3 on another, 5 alone.
        let leaders = [0, 0, 2, 2, 0, 5];
        let members = Members { ranks: Arc::from([1, 2, 3, 4, 5]), me: 3 };
        let mut process_set = ProcessSet::new(members, &leaders, 7, 1);
        assert_eq!(process_set.islands(), [vec![0, 3], vec![1, 2], vec![4]]);
        assert_eq!(
            (process_set.island(), process_set.hosts(), process_set.size(), process_set.me()),
            (0, 3, 5, 3)
        );
        let LocalMembers { local_indices, me, lane, step } = process_set.local_members();
        // Rank 0 has the first index, though it is not a member.
        assert_eq!((&local_indices[..], *me, *lane, *step), (&[1, 2][..], 1, 7, 1 << 40));
    }
}
