//! One rank's side of the negotiation: what it has announced, which tensors it knows by number, and
//! what the coordinator's messages mean for it.

use std::collections::HashMap;

use super::{
    Announcement, CollectiveKind, CoordinatorToMember, MemberToCoordinator, ReleasedItem, Request,
    TensorId,
};
use crate::{Rank, SetId};

/// The state of one rank's negotiation.
pub struct Member {
    me: Rank,
    pending: HashMap<String, PendingRequest>,
    /// The tensor of each number, including those of sets without this rank.
    known: HashMap<TensorId, ReleasedTensor>,
    numbers: HashMap<String, TensorId>,
    sets: HashMap<SetId, Vec<Rank>>,
    has_joined: bool,
}

struct PendingRequest {
    request: Request,
    announced_as: Option<TensorId>,
}

/// A released tensor: this rank's request, and what the other ranks contribute.
#[derive(Clone, Debug, PartialEq)]
pub struct ReleasedTensor {
    /// What this rank requested, or would have requested.
    pub request: Request,
    /// What each member contributes, where that can differ.
    pub shares: Vec<Vec<u64>>,
    /// Whether this rank has joined and contributes zeros.
    pub is_absent: bool,
}

/// The effect of a coordinator's message on this rank.
#[derive(Clone, Debug, PartialEq)]
pub enum MemberEvent {
    /// Run these together, as one bucket.
    Run(Vec<ReleasedTensor>),
    /// Send this to the coordinator: a full announcement.
    Send(MemberToCoordinator),
    /// A process set was added.
    SetAdded {
        /// The name of the request.
        name: String,
        /// The set's number.
        id: SetId,
        /// Its members, in ascending order.
        ranks: Vec<Rank>,
        /// How many sets had been added when it was, itself included.
        generation: u32,
    },
    /// An announcement for every rank.
    Bulletin(Announcement),
    /// The message does not match what this rank has announced.
    Malformed(String),
}

impl Member {
    /// The member for this rank.
    pub fn new(me: Rank) -> Member {
        Member {
            me,
            pending: HashMap::new(),
            known: HashMap::new(),
            numbers: HashMap::new(),
            sets: HashMap::new(),
            has_joined: false,
        }
    }

    /// Submits a request, whose name must not be pending. Returns the message to the coordinator.
    pub fn submit(&mut self, request: Request) -> MemberToCoordinator {
        let id = self.numbers.get(&request.name).copied();
        let announced_as =
            id.filter(|id| self.known.get(id).is_some_and(|work| work.request == request));
        let message = match announced_as {
            Some(id) => MemberToCoordinator::Known(id),
            None => MemberToCoordinator::Announce(request.clone()),
        };
        self.pending.insert(request.name.clone(), PendingRequest { request, announced_as });
        message
    }

    /// This rank contributes nothing from now on. Returns the message to the coordinator.
    pub fn join(&mut self) -> MemberToCoordinator {
        self.has_joined = true;
        MemberToCoordinator::Join
    }

    /// Names of all requests announced but not yet released, in no particular order.
    pub fn pending(&self) -> impl Iterator<Item = &str> {
        self.pending.keys().map(String::as_str)
    }

    /// Drops all pending requests, because the world is over.
    pub fn abandon(&mut self) {
        self.pending.clear();
    }

    /// Handles a message from the coordinator.
    pub fn on(&mut self, message: CoordinatorToMember) -> Option<MemberEvent> {
        match message {
            CoordinatorToMember::Release(items) => self.release(items),
            CoordinatorToMember::Forget(id) => self.forget(id),
            CoordinatorToMember::SetAdded { name, id, generation } => {
                Some(self.add_set(name, id, generation))
            }
            CoordinatorToMember::Bulletin(announcement) => self.on_announcement(announcement),
        }
    }

    fn on_announcement(&mut self, announcement: Announcement) -> Option<MemberEvent> {
        match &announcement {
            Announcement::Fail { name, .. } => drop(self.pending.remove(name)?),
            Announcement::Joined { .. } => self.has_joined = false,
            Announcement::SetRemoved { name, id } => {
                self.sets.remove(id);
                self.pending.remove(name);
            }
            Announcement::Tune(tuning) => {
                if let Err(error) = tuning.check() {
                    return Some(MemberEvent::Malformed(error));
                }
            }
            Announcement::Left { .. } | Announcement::Stalled { .. } | Announcement::WriteDown => {}
        }
        Some(MemberEvent::Bulletin(announcement))
    }

    fn release(&mut self, items: Vec<ReleasedItem>) -> Option<MemberEvent> {
        let mut bucket = Vec::with_capacity(items.len());
        for item in items {
            match self.item(item) {
                Ok(Some(work)) => bucket.push(work),
                Ok(None) => {}
                Err(malformed) => return Some(MemberEvent::Malformed(malformed)),
            }
        }
        (!bucket.is_empty()).then_some(MemberEvent::Run(bucket))
    }

    /// The tensor that this rank has to run; `None` if it is not a member of the set.
    fn item(&mut self, item: ReleasedItem) -> Result<Option<ReleasedTensor>, String> {
        let work = match item {
            ReleasedItem::Known(id) => self
                .known
                .get(&id)
                .cloned()
                .ok_or_else(|| format!("unknown tensor number {}", id.0))?,
            ReleasedItem::Named { name, id, shares, request } => {
                let own = self.pending.get(&name).map(|pending| pending.request.clone());
                let request =
                    own.or(request).ok_or_else(|| format!("`{name}` was not announced"))?;
                let work = ReleasedTensor { request, shares, is_absent: false };
                if let Some(id) = id {
                    if self.is_mine(work.request.set) {
                        self.numbers.insert(name, id);
                    }
                    self.known.insert(id, work.clone());
                }
                work
            }
        };
        let Request { name, set, .. } = &work.request;
        let is_absent = self.pending.remove(name).is_none();
        match self.is_mine(*set) {
            true if is_absent && !self.has_joined => Err(format!("`{name}` was not announced")),
            true => Ok(Some(ReleasedTensor { is_absent, ..work })),
            false => Ok(None),
        }
    }

    fn is_mine(&self, set: SetId) -> bool {
        set == SetId::WORLD || self.sets.get(&set).is_some_and(|ranks| ranks.contains(&self.me))
    }

    fn add_set(&mut self, name: String, id: SetId, generation: u32) -> MemberEvent {
        match self.pending.remove(&name).map(|pending| pending.request.kind) {
            Some(CollectiveKind::AddSet { ranks }) => {
                self.sets.insert(id, ranks.clone());
                MemberEvent::SetAdded { name, id, ranks, generation }
            }
            _ => MemberEvent::Malformed(format!("`{name}` did not request a process set")),
        }
    }

    /// This rank may have announced a tensor by a number that is forgotten before the coordinator
    /// reads it. The coordinator then ignores the number, so the request is sent again in full.
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
