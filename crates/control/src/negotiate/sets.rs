//! The existing process sets and the free numbers. Freed numbers are reused in the order in which
//! they were freed.

use std::collections::{HashMap, VecDeque};

use crate::{Rank, SetId};

pub(super) struct RegisteredSets {
    members: HashMap<SetId, Vec<Rank>>,
    free: VecDeque<SetId>,
    next: u32,
    made: u32,
}

impl RegisteredSets {
    /// The sets of a new world: only the world itself, with `size` ranks.
    pub(super) fn of(size: usize) -> RegisteredSets {
        let world = (0..size as u32).map(Rank).collect();
        let members = HashMap::from([(SetId::WORLD, world)]);
        RegisteredSets { members, free: VecDeque::new(), next: 1, made: 0 }
    }

    pub(super) fn world(&self) -> usize {
        self.members(SetId::WORLD).len()
    }

    /// The members of a set in ascending order; empty if there is no such set.
    pub(super) fn members(&self, set: SetId) -> &[Rank] {
        self.members.get(&set).map_or(&[], Vec::as_slice)
    }

    pub(super) fn place(&self, set: SetId, rank: Rank) -> Option<usize> {
        self.members(set).binary_search(&rank).ok()
    }

    /// Whether some ranks are not members.
    pub(super) fn is_partial(&self, set: SetId) -> bool {
        self.members(set).len() < self.world()
    }

    /// Adds a set; returns its number and how many sets have been added, including this one.
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
    fn freed_numbers_are_reused_in_the_order_they_were_freed() {
        let mut sets = RegisteredSets::of(4);
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
