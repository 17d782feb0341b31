//! The numbers of tensors. A tensor gets a number on release, and numbers are never reused; when
//! there are too many, the one released longest ago is forgotten.

use std::collections::{BTreeMap, HashMap};

use super::{Request, TensorId};
use crate::SetId;

#[derive(Default)]
pub(super) struct TensorNumbers {
    capacity: usize,
    meanings: HashMap<TensorId, TensorEntry>,
    by_name: HashMap<String, TensorId>,
    /// Numbers by the time of their last release.
    by_use: BTreeMap<u64, TensorId>,
    uses: u64,
    next: u32,
}

struct TensorEntry {
    request: Request,
    shares: Vec<Vec<u64>>,
    used: u64,
}

impl TensorNumbers {
    pub(super) fn new(capacity: usize) -> TensorNumbers {
        TensorNumbers { capacity, ..TensorNumbers::default() }
    }

    pub(super) fn meaning(&self, id: TensorId) -> Option<(&Request, &[Vec<u64>])> {
        let meaning = self.meanings.get(&id)?;
        Some((&meaning.request, &meaning.shares))
    }

    /// Gives a tensor a number, unless its name is never used again or numbers are disabled.
    pub(super) fn give(&mut self, request: Request, shares: &[Vec<u64>]) -> Option<TensorId> {
        if self.capacity == 0 || request.is_anonymous() {
            return None;
        }
        let id = TensorId(self.next);
        self.next += 1;
        self.by_name.insert(request.name.clone(), id);
        self.meanings.insert(id, TensorEntry { request, shares: shares.to_vec(), used: 0 });
        self.use_again(id);
        Some(id)
    }

    /// Records another release; returns whether the number is still known.
    pub(super) fn use_again(&mut self, id: TensorId) -> bool {
        let Some(meaning) = self.meanings.get_mut(&id) else { return false };
        self.by_use.remove(&meaning.used);
        self.uses += 1;
        meaning.used = self.uses;
        self.by_use.insert(self.uses, id);
        true
    }

    /// Forgets the least recently used numbers beyond the capacity, except those being waited for.
    pub(super) fn trim(&mut self, is_awaited: impl Fn(TensorId, &str) -> bool) -> Vec<TensorId> {
        let mut forgotten = Vec::new();
        while self.meanings.len() > self.capacity {
            let spare = |id: &&TensorId| !is_awaited(**id, &self.meanings[*id].request.name);
            let Some(id) = self.by_use.values().find(spare).copied() else { break };
            forgotten.extend(self.forget(id));
        }
        forgotten
    }

    pub(super) fn forget_name(&mut self, name: &str) -> Option<TensorId> {
        let id = self.by_name.get(name).copied()?;
        self.forget(id)
    }

    pub(super) fn forget_set(&mut self, set: SetId) -> Vec<TensorId> {
        let of_set = self.meanings.iter().filter(|(_, meaning)| meaning.request.set == set);
        let ids: Vec<TensorId> = of_set.map(|(id, _)| *id).collect();
        ids.into_iter().filter_map(|id| self.forget(id)).collect()
    }

    fn forget(&mut self, id: TensorId) -> Option<TensorId> {
        let meaning = self.meanings.remove(&id)?;
        self.by_use.remove(&meaning.used);
        self.by_name.remove(&meaning.request.name);
        Some(id)
    }
}
