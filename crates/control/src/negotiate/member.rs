//! One rank's side of the negotiation: what it has announced, what it knows by number, and what the
//! coordinator's messages mean for it.

use std::collections::HashMap;

use super::{CoordinatorToMember, Item, MemberToCoordinator, Request, TensorId};
use crate::Rank;

/// The state of one member.
#[derive(Default)]
pub struct Member {
    pending: HashMap<String, Pending>,
    known: HashMap<TensorId, Work>,
    numbers: HashMap<String, TensorId>,
}

struct Pending {
    request: Request,
    announced_as: Option<TensorId>,
}

/// A released tensor: the rank's own request, and what the other ranks contribute.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// What this rank asked for.
    pub request: Request,
    /// What each rank contributes along the first dimension, where that may differ.
    pub rows: Vec<u64>,
}

/// What a message from the coordinator means for this rank.
#[derive(Clone, Debug, PartialEq)]
pub enum MemberEvent {
    /// Run these together.
    Run(Vec<Work>),
    /// This fails on every rank.
    Fail {
        /// The tensor's name.
        name: String,
        /// Why.
        error: String,
    },
    /// Tell the coordinator again, in full.
    Send(MemberToCoordinator),
    /// A member has left; nothing more will be released.
    Left {
        /// Who.
        rank: Rank,
        /// The exception that ends its process, if one does.
        reason: Option<String>,
    },
    /// Somebody is so late that the job ends.
    Stalled {
        /// Who is late with what, in words.
        error: String,
    },
    /// The coordinator spoke of something this rank never announced.
    Nonsense(String),
}

/// A tensor that cannot be announced.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The name is in flight already.
    #[error(
        "Requested to allreduce, allgather, or broadcast a tensor with the same name as another \
         tensor that is currently being processed. If you want to request another tensor, use a \
         different tensor name (`{0}` is in flight)"
    )]
    Duplicate(String),
}

impl Member {
    /// Takes a tensor in; the message goes to the coordinator.
    pub fn submit(&mut self, request: Request) -> Result<MemberToCoordinator, SubmitError> {
        if self.pending.contains_key(&request.name) {
            return Err(SubmitError::Duplicate(request.name));
        }
        let id = self.numbers.get(&request.name).copied();
        let announced_as = id.filter(|id| self.known[id].request == request);
        let message = match announced_as {
            Some(id) => MemberToCoordinator::Known(id),
            None => MemberToCoordinator::Announce(request.clone()),
        };
        self.pending.insert(request.name.clone(), Pending { request, announced_as });
        Ok(message)
    }

    /// The names of everything announced and not yet released, in no order.
    pub fn pending(&self) -> impl Iterator<Item = &str> {
        self.pending.keys().map(String::as_str)
    }

    /// Whether anything is announced and not yet released.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Forgets everything that is announced; called when the world is over.
    pub fn abandon(&mut self) {
        self.pending.clear();
    }

    /// Follows a message of the coordinator.
    pub fn on(&mut self, message: CoordinatorToMember) -> Option<MemberEvent> {
        match message {
            CoordinatorToMember::Release(items) => Some(self.release(items)),
            CoordinatorToMember::Fail { name, error } => {
                self.pending.remove(&name).map(|_| MemberEvent::Fail { name, error })
            }
            CoordinatorToMember::Forget(id) => self.forget(id),
            CoordinatorToMember::Left { rank, reason } => Some(MemberEvent::Left { rank, reason }),
            CoordinatorToMember::Stalled { error } => Some(MemberEvent::Stalled { error }),
        }
    }

    fn release(&mut self, items: Vec<Item>) -> MemberEvent {
        let mut bucket = Vec::with_capacity(items.len());
        for item in items {
            match self.item(item) {
                Ok(work) => bucket.push(work),
                Err(nonsense) => return MemberEvent::Nonsense(nonsense),
            }
        }
        MemberEvent::Run(bucket)
    }

    fn item(&mut self, item: Item) -> Result<Work, String> {
        match item {
            Item::Known(id) => {
                let work =
                    self.known.get(&id).ok_or_else(|| format!("number {} is unknown", id.0))?;
                let name = &work.request.name;
                self.pending.remove(name).ok_or_else(|| format!("`{name}` was not announced"))?;
                Ok(work.clone())
            }
            Item::Named { name, id, rows } => {
                let pending = self
                    .pending
                    .remove(&name)
                    .ok_or_else(|| format!("`{name}` was not announced"))?;
                let work = Work { request: pending.request, rows };
                if let Some(id) = id {
                    self.numbers.insert(name, id);
                    self.known.insert(id, work.clone());
                }
                Ok(work)
            }
        }
    }

    /// A number that this rank has used in an announcement may be forgotten before the coordinator
    /// has read it; the coordinator then ignores it, and the description must travel again.
    fn forget(&mut self, id: TensorId) -> Option<MemberEvent> {
        let name = self.known.remove(&id)?.request.name;
        if self.numbers.get(&name) == Some(&id) {
            self.numbers.remove(&name);
        }
        let pending = self.pending.get_mut(&name)?;
        pending.announced_as.take_if(|announced| *announced == id)?;
        Some(MemberEvent::Send(MemberToCoordinator::Announce(pending.request.clone())))
    }
}
