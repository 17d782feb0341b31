//! One rank's side of the negotiation: what it has announced, what it knows by number, and what the
//! coordinator's messages mean for it.

use std::collections::HashMap;

use super::{Bulletin, CoordinatorToMember, Item, Kind, MemberToCoordinator, Request, TensorId};
use crate::{Rank, SetId};

/// The state of one member.
pub struct Member {
    me: Rank,
    pending: HashMap<String, Pending>,
    /// What numbers stand for, also those that are the business of others.
    known: HashMap<TensorId, Work>,
    numbers: HashMap<String, TensorId>,
    sets: HashMap<SetId, Vec<Rank>>,
    has_joined: bool,
}

struct Pending {
    request: Request,
    announced_as: Option<TensorId>,
}

/// A released tensor: the rank's own request, and what the other ranks contribute.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// What this rank asked for, or would have.
    pub request: Request,
    /// What each member contributes, where that may differ.
    pub shares: Vec<Vec<u64>>,
    /// Whether this rank has joined, and takes part with zeros.
    pub is_absent: bool,
}

/// What a message from the coordinator means for this rank.
#[derive(Clone, Debug, PartialEq)]
pub enum MemberEvent {
    /// Run these together.
    Run(Vec<Work>),
    /// Tell the coordinator again, in full.
    Send(MemberToCoordinator),
    /// A set has been made.
    SetAdded {
        /// The name of the request.
        name: String,
        /// The set's number.
        id: SetId,
        /// Its members, in rising order.
        ranks: Vec<Rank>,
        /// How many sets were made before.
        generation: u32,
    },
    /// What every rank hears.
    Bulletin(Bulletin),
    /// The coordinator spoke of something this rank never announced.
    Nonsense(String),
}

impl Member {
    /// The member that this rank is.
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

    /// Takes a tensor in, whose name must not be pending; the message goes to the coordinator.
    pub fn submit(&mut self, request: Request) -> MemberToCoordinator {
        let id = self.numbers.get(&request.name).copied();
        let announced_as =
            id.filter(|id| self.known.get(id).is_some_and(|work| work.request == request));
        let message = match announced_as {
            Some(id) => MemberToCoordinator::Known(id),
            None => MemberToCoordinator::Announce(request.clone()),
        };
        self.pending.insert(request.name.clone(), Pending { request, announced_as });
        message
    }

    /// This rank contributes nothing from now on; the message goes to the coordinator.
    pub fn join(&mut self) -> MemberToCoordinator {
        self.has_joined = true;
        MemberToCoordinator::Join
    }

    /// The names of everything announced and not yet released, in no order.
    pub fn pending(&self) -> impl Iterator<Item = &str> {
        self.pending.keys().map(String::as_str)
    }

    /// Forgets everything that is announced; called when the world is over.
    pub fn abandon(&mut self) {
        self.pending.clear();
    }

    /// Follows a message of the coordinator.
    pub fn on(&mut self, message: CoordinatorToMember) -> Option<MemberEvent> {
        match message {
            CoordinatorToMember::Release(items) => self.release(items),
            CoordinatorToMember::Forget(id) => self.forget(id),
            CoordinatorToMember::SetAdded { name, id, generation } => {
                Some(self.add_set(name, id, generation))
            }
            CoordinatorToMember::Bulletin(bulletin) => self.hear(bulletin),
        }
    }

    fn hear(&mut self, bulletin: Bulletin) -> Option<MemberEvent> {
        match &bulletin {
            Bulletin::Fail { name, .. } => drop(self.pending.remove(name)?),
            Bulletin::Joined { .. } => self.has_joined = false,
            Bulletin::SetRemoved { name, id } => {
                self.sets.remove(id);
                self.pending.remove(name);
            }
            Bulletin::Tune(tuning) => {
                if let Err(mistake) = tuning.check() {
                    return Some(MemberEvent::Nonsense(mistake));
                }
            }
            Bulletin::Left { .. } | Bulletin::Stalled { .. } | Bulletin::WriteDown => {}
        }
        Some(MemberEvent::Bulletin(bulletin))
    }

    fn release(&mut self, items: Vec<Item>) -> Option<MemberEvent> {
        let mut bucket = Vec::with_capacity(items.len());
        for item in items {
            match self.item(item) {
                Ok(Some(work)) => bucket.push(work),
                Ok(None) => {}
                Err(nonsense) => return Some(MemberEvent::Nonsense(nonsense)),
            }
        }
        (!bucket.is_empty()).then_some(MemberEvent::Run(bucket))
    }

    /// What an item means for this rank: nothing, if it is the business of others.
    fn item(&mut self, item: Item) -> Result<Option<Work>, String> {
        let work = match item {
            Item::Known(id) => {
                self.known.get(&id).cloned().ok_or_else(|| format!("number {} is unknown", id.0))?
            }
            Item::Named { name, id, shares, request } => {
                let own = self.pending.get(&name).map(|pending| pending.request.clone());
                let request =
                    own.or(request).ok_or_else(|| format!("`{name}` was not announced"))?;
                let work = Work { request, shares, is_absent: false };
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
            true => Ok(Some(Work { is_absent, ..work })),
            false => Ok(None),
        }
    }

    fn is_mine(&self, set: SetId) -> bool {
        set == SetId::WORLD || self.sets.get(&set).is_some_and(|ranks| ranks.contains(&self.me))
    }

    fn add_set(&mut self, name: String, id: SetId, generation: u32) -> MemberEvent {
        match self.pending.remove(&name).map(|pending| pending.request.kind) {
            Some(Kind::AddSet { ranks }) => {
                self.sets.insert(id, ranks.clone());
                MemberEvent::SetAdded { name, id, ranks, generation }
            }
            _ => MemberEvent::Nonsense(format!("`{name}` asked for no set")),
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
