//! The sets of ranks that do something together, and what connects them.
//!
//! A [`Circle`] is a set: its members in rising order, each with a place in it. A [`Group`] is a
//! circle together with what connects all ranks of the world; algorithms see places only.

mod linked;
mod shared;

use std::collections::HashMap;
use std::sync::Arc;

use ronde_control::{Rank, SetId};

pub(crate) use self::linked::Linked;
pub(crate) use self::shared::{Shared, Stage};
pub(crate) use crate::transport::link::{BURST, Flow, Links};
pub(crate) use crate::transport::shm::LANES as MOST_SETS;

/// What connects all ranks of the world.
pub(crate) enum Fabric {
    /// All ranks share memory.
    Shared(Stage),
    /// Ranks reach each other through sockets.
    Linked(Links),
}

/// A set of ranks that this rank belongs to.
pub(crate) struct Circle {
    /// The members, in rising order.
    ranks: Arc<[usize]>,
    /// This rank's place among them.
    me: usize,
    /// The lane of counters in shared memory.
    lane: usize,
    /// Steps taken in shared memory.
    step: u64,
}

/// All sets that this rank belongs to.
pub(crate) struct Groups {
    fabric: Fabric,
    circles: HashMap<SetId, Circle>,
    me: usize,
}

/// One set, ready for an algorithm.
pub(crate) enum Group<'a> {
    Shared(Shared<'a>),
    Linked(Linked<'a>),
}

impl Groups {
    pub(crate) fn new(fabric: Fabric, me: Rank, size: usize) -> Groups {
        let mut groups = Groups { fabric, circles: HashMap::new(), me: me.index() };
        let world: Vec<Rank> = (0..size as u32).map(Rank).collect();
        groups.add(SetId::WORLD, &world, 0);
        groups
    }

    /// Takes a set in, unless this rank is no member of it.
    pub(crate) fn add(&mut self, set: SetId, ranks: &[Rank], generation: u32) {
        let ranks: Arc<[usize]> = ranks.iter().map(|rank| rank.index()).collect();
        let Ok(me) = ranks.binary_search(&self.me) else { return };
        // A lane that is used again still has the counts of the set that had it before; starting
        // beyond any of them makes those counts mean nothing.
        let step = u64::from(generation) << 40;
        self.circles.insert(set, Circle { ranks, me, lane: set.0 as usize, step });
    }

    pub(crate) fn remove(&mut self, set: SetId) {
        self.circles.remove(&set);
    }

    pub(crate) fn circle(&self, set: SetId) -> Option<&Circle> {
        self.circles.get(&set)
    }

    pub(crate) fn group(&mut self, set: SetId) -> Option<Group<'_>> {
        let circle = self.circles.get_mut(&set)?;
        Some(match &mut self.fabric {
            Fabric::Shared(stage) => Group::Shared(Shared::new(stage, circle)),
            Fabric::Linked(links) => Group::Linked(Linked::new(links, circle)),
        })
    }
}

impl Circle {
    pub(crate) fn size(&self) -> usize {
        self.ranks.len()
    }

    pub(crate) fn me(&self) -> usize {
        self.me
    }

    /// The place of a rank of the world.
    pub(crate) fn place(&self, rank: Rank) -> Option<usize> {
        self.ranks.binary_search(&rank.index()).ok()
    }
}
