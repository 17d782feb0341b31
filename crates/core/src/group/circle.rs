//! A set of ranks that this rank belongs to.

use std::sync::Arc;

use ronde_control::Rank;

use crate::transport::shm::Home;

/// Some ranks in a fixed order, and this one's place among them.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    pub(crate) ranks: Arc<[usize]>,
    pub(crate) me: usize,
}

pub(crate) struct Circle {
    members: Members,
    /// The places of the members of each island, islands in the order of their first member.
    islands: Vec<Vec<usize>>,
    /// This rank's island among them.
    island: usize,
    home: Home,
}

impl Circle {
    /// The circle of these members; `leaders` has the first rank of each rank's island.
    pub(super) fn new(members: Members, leaders: &[usize], lane: usize, generation: u32) -> Circle {
        let leader = |place: usize| leaders[members.ranks[place]];
        let mut islands: Vec<Vec<usize>> = Vec::new();
        for place in 0..members.ranks.len() {
            match islands.iter_mut().find(|island| leader(island[0]) == leader(place)) {
                Some(island) => island.push(place),
                None => islands.push(vec![place]),
            }
        }
        let is_mine = |island: &Vec<usize>| island.contains(&members.me);
        let island = islands.iter().position(is_mine).expect("every member lives somewhere");
        // Seats are counted over all ranks of the island, members or not.
        let rank_of_seat: Vec<usize> =
            (0..leaders.len()).filter(|rank| leaders[*rank] == leader(members.me)).collect();
        let seat = |place: &usize| {
            rank_of_seat.binary_search(&members.ranks[*place]).expect("it lives on this island")
        };
        let me = islands[island].iter().position(|place| *place == members.me);
        let seats = islands[island].iter().map(seat).collect();
        let me = me.expect("this rank lives on its island");
        // A lane that is used again still has the counts of the set that had it before; starting
        // beyond any of them makes those counts mean nothing.
        let home = Home { seats, me, lane, step: u64::from(generation) << 40 };
        Circle { members, islands, island, home }
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

    /// The place of a rank of the world.
    pub(crate) fn place(&self, rank: Rank) -> Option<usize> {
        self.members.ranks.binary_search(&rank.index()).ok()
    }

    pub(super) fn members(&self) -> &Members {
        &self.members
    }

    pub(super) fn home(&mut self) -> &mut Home {
        &mut self.home
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
    fn members_are_grouped_by_island_and_seated_among_all_who_live_there() {
        // Ranks 0, 1, 4 on one island, 2 and 3 on another, 5 alone.
        let leaders = [0, 0, 2, 2, 0, 5];
        let members = Members { ranks: Arc::from([1, 2, 3, 4, 5]), me: 3 };
        let mut circle = Circle::new(members, &leaders, 7, 1);
        assert_eq!(circle.islands(), [vec![0, 3], vec![1, 2], vec![4]]);
        assert_eq!((circle.island(), circle.hosts(), circle.size(), circle.me()), (0, 3, 5, 3));
        let Home { seats, me, lane, step } = circle.home();
        // Rank 0 has the first seat, though it is no member.
        assert_eq!((&seats[..], *me, *lane, *step), (&[1, 2][..], 1, 7, 1 << 40));
    }
}
