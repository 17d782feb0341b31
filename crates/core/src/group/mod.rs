//! The sets of ranks that do something together, and what connects them.
//!
//! A [`Circle`] is a set: its members in rising order, each with a place in it, and the *islands*
//! they live on: members of one island share memory, all others reach each other through sockets.
//! A [`Group`] is a circle together with what connects it; algorithms see places only.

mod circle;
mod islands;
mod linked;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ronde_control::{Rank, SetId, Tuning};

pub(crate) use self::circle::{Circle, Members};
pub(crate) use self::islands::Islands;
pub(crate) use self::linked::Linked;
pub(crate) use crate::transport::link::{BURST, Flow, Hands, Links, Opening, Scratch};
pub use crate::transport::shm::Block;
pub(crate) use crate::transport::shm::LANES as MOST_SETS;
pub(crate) use crate::transport::shm::{Arena, Shared, Stage};

/// What connects all ranks of the world.
pub(crate) struct Fabric {
    /// The shared memory of this rank's island, unless every rank is alone on its own.
    pub(crate) stage: Option<Stage>,
    /// The connections to other ranks, unless all are on one island.
    pub(crate) links: Option<Links>,
    /// The first rank of each rank's island.
    pub(crate) leaders: Vec<usize>,
}

/// All sets that this rank belongs to.
pub(crate) struct Groups {
    fabric: Fabric,
    circles: HashMap<SetId, Circle>,
    me: usize,
    tuning: Tuning,
    /// What has been said about choices, so that it is said once.
    told: HashSet<String>,
}

/// One set, ready for an algorithm.
pub(crate) enum Group<'a> {
    /// All members share memory.
    Shared(Shared<'a>),
    /// No two members share memory.
    Linked(Linked<'a>),
    /// Some members share memory.
    Islands(Islands<'a>),
}

impl Groups {
    pub(crate) fn new(fabric: Fabric, me: Rank) -> Groups {
        let world: Vec<Rank> = (0..fabric.leaders.len() as u32).map(Rank).collect();
        let (circles, tuning) = (HashMap::new(), Tuning::default());
        let mut groups = Groups { fabric, circles, me: me.index(), tuning, told: HashSet::new() };
        groups.add(SetId::WORLD, &world, 0);
        groups
    }

    /// From now on algorithms are chosen by these numbers.
    pub(crate) fn tune(&mut self, tuning: Tuning) {
        self.tuning = tuning;
        self.told.clear();
    }

    /// Says the words of a choice, unless they have been said.
    pub(crate) fn tell(&mut self, words: &str) {
        if !self.told.contains(words) {
            tracing::debug!("{words}");
            self.told.insert(words.into());
        }
    }

    /// Takes a set in, unless this rank is no member of it.
    pub(crate) fn add(&mut self, set: SetId, ranks: &[Rank], generation: u32) {
        let ranks: Vec<usize> = ranks.iter().map(|rank| rank.index()).collect();
        if let Ok(me) = ranks.binary_search(&self.me) {
            let members = Members { ranks: ranks.into(), me };
            let circle = Circle::new(members, &self.fabric.leaders, set.0 as usize, generation);
            self.circles.insert(set, circle);
        }
    }

    pub(crate) fn remove(&mut self, set: SetId) {
        self.circles.remove(&set);
    }

    /// The memory that all ranks of this host can see, if there is some.
    pub(crate) fn arena(&self) -> Option<&Arc<Arena>> {
        self.fabric.stage.as_ref().and_then(Stage::arena)
    }

    pub(crate) fn circle(&self, set: SetId) -> Option<&Circle> {
        self.circles.get(&set)
    }

    pub(crate) fn group(&mut self, set: SetId) -> Option<Group<'_>> {
        let circle = self.circles.get_mut(&set)?;
        let Fabric { stage, links, .. } = &mut self.fabric;
        let tuning = self.tuning;
        let (size, hosts) = (circle.size(), circle.hosts());
        match (stage.as_mut(), links.as_mut(), hosts) {
            (Some(stage), _, 1) => Some(Group::Shared(Shared::new(stage, circle.home(), tuning))),
            (_, Some(links), _) if hosts == size => {
                Some(Group::Linked(Linked::new(links, circle.members().clone(), tuning)))
            }
            (Some(stage), Some(links), _) => {
                Some(Group::Islands(Islands::new(stage, links, circle, tuning)))
            }
            _ => None,
        }
    }
}
