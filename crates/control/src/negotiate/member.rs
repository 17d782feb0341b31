//! One rank's side of the negotiation: what it has announced, what it knows by number, and what the
//! coordinator's messages mean for it.

use std::collections::HashMap;

use super::{CoordinatorToMember, Item, Kind, MemberToCoordinator, Request, TensorId};
use crate::{Rank, SetId, Tuning};

/// The state of one member.
pub struct Member {
    me: Rank,
    pending: HashMap<String, Pending>,
    known: HashMap<TensorId, Known>,
    numbers: HashMap<String, TensorId>,
    sets: HashMap<SetId, Vec<Rank>>,
    has_joined: bool,
}

struct Pending {
    request: Request,
    announced_as: Option<TensorId>,
}

/// What a number stands for; a rank that is no member of the set knows only that.
struct Known {
    work: Work,
    is_mine: bool,
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
    /// This fails on every rank.
    Fail {
        /// The tensor's name.
        name: String,
        /// Why.
        error: String,
    },
    /// Tell the coordinator again, in full.
    Send(MemberToCoordinator),
    /// Everybody has joined.
    Joined {
        /// The last one to.
        last: Rank,
    },
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
    /// A set is gone.
    SetRemoved {
        /// The name of the request.
        name: String,
        /// The set's number.
        id: SetId,
    },
    /// Choose algorithms by these numbers from now on.
    Tune(Tuning),
    /// A member has left; nothing more will be released.
    Left {
        /// Who.
        rank: Rank,
        /// The exception that ends its process, if one does.
        reason: Option<String>,
    },
    /// Somebody is so late that the job ends.
    Stalled {
        /// Who is late.
        missing: Vec<Rank>,
        /// Who is late with what, in words.
        error: String,
    },
    /// Somebody is late: write down what this rank has done lately.
    WriteDown,
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

    /// Takes a tensor in; the message goes to the coordinator.
    pub fn submit(&mut self, request: Request) -> Result<MemberToCoordinator, SubmitError> {
        if self.pending.contains_key(&request.name) {
            return Err(SubmitError::Duplicate(request.name));
        }
        let id = self.numbers.get(&request.name).copied();
        let announced_as = id.filter(|id| self.known[id].work.request == request);
        let message = match announced_as {
            Some(id) => MemberToCoordinator::Known(id),
            None => MemberToCoordinator::Announce(request.clone()),
        };
        self.pending.insert(request.name.clone(), Pending { request, announced_as });
        Ok(message)
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
            CoordinatorToMember::Fail { name, error } => {
                self.pending.remove(&name).map(|_| MemberEvent::Fail { name, error })
            }
            CoordinatorToMember::Forget(id) => self.forget(id),
            CoordinatorToMember::Joined { last } => {
                self.has_joined = false;
                Some(MemberEvent::Joined { last })
            }
            CoordinatorToMember::SetAdded { name, id, generation } => {
                Some(self.add_set(name, id, generation))
            }
            CoordinatorToMember::SetRemoved { name, id } => {
                self.sets.remove(&id);
                self.pending.remove(&name);
                Some(MemberEvent::SetRemoved { name, id })
            }
            CoordinatorToMember::Left { rank, reason } => Some(MemberEvent::Left { rank, reason }),
            CoordinatorToMember::Tune(tuning) => Some(match tuning.check() {
                Ok(()) => MemberEvent::Tune(tuning),
                Err(mistake) => MemberEvent::Nonsense(mistake),
            }),
            CoordinatorToMember::Stalled { missing, error } => {
                Some(MemberEvent::Stalled { missing, error })
            }
            CoordinatorToMember::WriteDown => Some(MemberEvent::WriteDown),
        }
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
        match item {
            Item::Known(id) => {
                let known =
                    self.known.get(&id).ok_or_else(|| format!("number {} is unknown", id.0))?;
                let name = &known.work.request.name;
                let is_absent = self.pending.remove(name).is_none();
                if known.is_mine && is_absent && !self.has_joined {
                    return Err(format!("`{name}` was not announced"));
                }
                let work = Work { is_absent, ..known.work.clone() };
                Ok(known.is_mine.then_some(work))
            }
            Item::Named { name, id, shares, request } => {
                let pending = self.pending.remove(&name).map(|pending| pending.request);
                let is_absent = pending.is_none();
                let Some(request) = pending.or(request) else {
                    return Err(format!("`{name}` was not announced"));
                };
                let is_mine = self.is_mine(request.set);
                if is_mine && is_absent && !self.has_joined {
                    return Err(format!("`{name}` was not announced"));
                }
                let work = Work { request, shares, is_absent };
                if let Some(id) = id {
                    if is_mine {
                        self.numbers.insert(name, id);
                    }
                    self.known.insert(id, Known { work: work.clone(), is_mine });
                }
                Ok(is_mine.then_some(work))
            }
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
        let name = self.known.remove(&id)?.work.request.name;
        if self.numbers.get(&name) == Some(&id) {
            self.numbers.remove(&name);
        }
        let pending = self.pending.get_mut(&name)?;
        pending.announced_as.take_if(|announced| *announced == id)?;
        Some(MemberEvent::Send(MemberToCoordinator::Announce(pending.request.clone())))
    }
}
