//! The sets of ranks that exist, and which numbers are free. Freed numbers are used again, the one
//! that was freed first before the others.

use std::collections::{HashMap, VecDeque};

use crate::{Rank, SetId};

pub(super) struct Sets {
    members: HashMap<SetId, Vec<Rank>>,
    free: VecDeque<SetId>,
    next: u32,
    made: u32,
}

impl Sets {
    /// Only the world of `size` ranks.
    pub(super) fn of(size: usize) -> Sets {
        let world = (0..size as u32).map(Rank).collect();
        let members = HashMap::from([(SetId::WORLD, world)]);
        Sets { members, free: VecDeque::new(), next: 1, made: 0 }
    }

    pub(super) fn world(&self) -> usize {
        self.members(SetId::WORLD).len()
    }

    /// The members of a set in rising order; none if there is no such set.
    pub(super) fn members(&self, set: SetId) -> &[Rank] {
        self.members.get(&set).map_or(&[], Vec::as_slice)
    }

    pub(super) fn place(&self, set: SetId, rank: Rank) -> Option<usize> {
        self.members(set).binary_search(&rank).ok()
    }

    /// Whether some rank is no member.
    pub(super) fn is_partial(&self, set: SetId) -> bool {
        self.members(set).len() < self.world()
    }

    /// Makes a set; gives its number and how many were made before.
    pub(super) fn add(&mut self, ranks: Vec<Rank>) -> (SetId, u32) {
        let id = self.free.pop_front().unwrap_or_else(|| {
            let id = SetId(self.next);
            self.next += 1;
            id
        });
        self.members.insert(id, ranks);
        self.made += 1;
        (id, self.made)
    }

    pub(super) fn remove(&mut self, set: SetId) {
        if set != SetId::WORLD && self.members.remove(&set).is_some() {
            self.free.push_back(set);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_numbers_come_back_in_the_order_they_were_freed() {
        let mut sets = Sets::of(4);
        let ranks = || vec![Rank(1), Rank(3)];
        let ids: Vec<_> = (0..3).map(|_| sets.add(ranks()).0).collect();
        assert_eq!(ids, [SetId(1), SetId(2), SetId(3)]);
        sets.remove(SetId(3));
        sets.remove(SetId(1));
        assert_eq!(sets.add(ranks()), (SetId(3), 4));
        assert_eq!(sets.add(ranks()), (SetId(1), 5));
        assert_eq!(sets.add(ranks()), (SetId(4), 6));
        assert_eq!(sets.place(SetId(4), Rank(3)), Some(1));
        assert_eq!(sets.place(SetId(4), Rank(2)), None);
    }
}
