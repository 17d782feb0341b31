//! The process sets that exist. A request for a set that does not exist, or that this rank is not a
//! member of, is refused before any other rank learns of it.

use std::collections::HashMap;
use std::sync::RwLock;

use ronde_control::{Rank, SetId};

use crate::error::Error;

pub(super) struct ProcessSets {
    members: RwLock<HashMap<SetId, Vec<Rank>>>,
}

impl ProcessSets {
    pub(super) fn of(size: u32) -> ProcessSets {
        let world = (0..size).map(Rank).collect();
        ProcessSets { members: RwLock::new(HashMap::from([(SetId::WORLD, world)])) }
    }

    pub(super) fn add(&self, set: SetId, ranks: Vec<Rank>) {
        self.members.write().expect(LOCK).insert(set, ranks);
    }

    pub(super) fn remove(&self, set: SetId) {
        self.members.write().expect(LOCK).remove(&set);
    }

    pub(super) fn count(&self) -> usize {
        self.members.read().expect(LOCK).len()
    }

    /// The members of a set in rising order.
    pub(super) fn members(&self, set: SetId) -> Option<Vec<Rank>> {
        self.members.read().expect(LOCK).get(&set).cloned()
    }

    /// The members of a set, provided that `me` is one of them.
    pub(super) fn check(&self, name: &str, set: SetId, me: Rank) -> Result<Vec<Rank>, Error> {
        let Some(members) = self.members(set) else {
            return Err(Error::Invalid(format!(
                "{name}: Process set provided does not exist, or has not been registered."
            )));
        };
        if !members.contains(&me) {
            return Err(Error::Invalid(format!(
                "{name}: Rank {} is not a member of the provided process set.",
                me.0
            )));
        }
        Ok(members)
    }
}

const LOCK: &str = "nothing panics while it holds this lock";
