//! Process sets, and what connects their members.
//!
//! A [`ProcessSet`] has its members in rising order, each with a place in the set, and the
//! *islands* they are on: members of one island share memory, all others reach each other through
//! sockets. A [`Group`] is a set together with what connects it; algorithms see places only.

mod islands;
mod linked;
mod process_set;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ronde_control::{Rank, SetId, Tuning};

pub(crate) use self::islands::Islands;
pub(crate) use self::linked::Linked;
pub(crate) use self::process_set::{Members, ProcessSet};
pub(crate) use crate::transport::link::{BURST, Flow, LinkThreads, Links, Opening, Scratch};
pub use crate::transport::shm::ArenaBlock;
pub(crate) use crate::transport::shm::LANES as MOST_SETS;
pub(crate) use crate::transport::shm::{Arena, SegmentView, SharedGroup};
pub(crate) use crate::transport::shm::{CorruptLength, ExpressLane, RoundAnswer};

/// What connects all ranks of the world.
pub(crate) struct Fabric {
    /// The shared memory of this rank's island, unless no two ranks share memory.
    pub(crate) segment_view: Option<SegmentView>,
    /// The connections to other ranks, unless all are on one island.
    pub(crate) links: Option<Links>,
    /// The first rank of each rank's island.
    pub(crate) leaders: Vec<usize>,
}

/// All process sets that this rank belongs to.
pub(crate) struct Groups {
    fabric: Fabric,
    process_sets: HashMap<SetId, ProcessSet>,
    me: usize,
    tuning: Tuning,
    /// Choices that have been logged, so that each is logged once.
    logged: HashSet<String>,
}

/// One set, ready for an algorithm.
pub(crate) enum Group<'a> {
    /// All members share memory.
    Shared(SharedGroup<'a>),
    /// No two members share memory.
    Linked(Linked<'a>),
    /// Some members share memory.
    Islands(Islands<'a>),
}

impl Groups {
    pub(crate) fn new(fabric: Fabric, me: Rank) -> Groups {
        let world: Vec<Rank> = (0..fabric.leaders.len() as u32).map(Rank).collect();
        let (process_sets, tuning) = (HashMap::new(), Tuning::default());
        let mut groups =
            Groups { fabric, process_sets, me: me.index(), tuning, logged: HashSet::new() };
        groups.add(SetId::WORLD, &world, 0);
        groups
    }

    /// Chooses algorithms with these thresholds from now on.
    pub(crate) fn tune(&mut self, tuning: Tuning) {
        self.tuning = tuning;
        self.logged.clear();
    }

    /// Logs the text of a choice, unless that has been done.
    pub(crate) fn log_once(&mut self, text: &str) {
        if !self.logged.contains(text) {
            tracing::debug!("{text}");
            self.logged.insert(text.into());
        }
    }

    /// Adds a process set, if this rank is a member of it.
    pub(crate) fn add(&mut self, set: SetId, ranks: &[Rank], generation: u32) {
        let ranks: Vec<usize> = ranks.iter().map(|rank| rank.index()).collect();
        if let Ok(me) = ranks.binary_search(&self.me) {
            let members = Members { ranks: ranks.into(), me };
            let process_set =
                ProcessSet::new(members, &self.fabric.leaders, set.0 as usize, generation);
            self.process_sets.insert(set, process_set);
        }
    }

    pub(crate) fn remove(&mut self, set: SetId) {
        self.process_sets.remove(&set);
    }

    /// The memory that all ranks of this host can see, if there is any.
    pub(crate) fn arena(&self) -> Option<&Arc<Arena>> {
        self.fabric.segment_view.as_ref().and_then(SegmentView::arena)
    }

    /// The thresholds that choose between algorithms now.
    pub(crate) fn tuning(&self) -> Tuning {
        self.tuning
    }

    /// The express lane, if all ranks share memory.
    pub(crate) fn express_lane(&self) -> Option<ExpressLane> {
        let Fabric { segment_view, links, leaders } = &self.fabric;
        let is_one_island = links.is_none() && leaders.len() > 1;
        segment_view.as_ref().filter(|_| is_one_island).map(|view| view.express_lane(self.me))
    }

    pub(crate) fn process_set(&self, set: SetId) -> Option<&ProcessSet> {
        self.process_sets.get(&set)
    }

    pub(crate) fn group(&mut self, set: SetId) -> Option<Group<'_>> {
        let process_set = self.process_sets.get_mut(&set)?;
        let Fabric { segment_view, links, .. } = &mut self.fabric;
        let tuning = self.tuning;
        let (size, hosts) = (process_set.size(), process_set.hosts());
        match (segment_view.as_mut(), links.as_mut(), hosts) {
            (Some(segment_view), _, 1) => Some(Group::Shared(SharedGroup::new(
                segment_view,
                process_set.local_members(),
                tuning,
            ))),
            (_, Some(links), _) if hosts == size => {
                Some(Group::Linked(Linked::new(links, process_set.members().clone(), tuning)))
            }
            (Some(segment_view), Some(links), _) => {
                Some(Group::Islands(Islands::new(segment_view, links, process_set, tuning)))
            }
            _ => None,
        }
    }
}
