//! The one who decides what is released when. It lives on rank 0 and sees every announcement.
//!
//! A tensor gathers announcements until every member of its set has sent one; then it is ready, or
//! it fails if the ranks do not want the same. Ready tensors wait for [`Coordinator::release`], which
//! the engine calls when its hands are free: so what becomes ready while a bucket is on the wire ends
//! up in the next bucket, and fusion clocks itself.
//!
//! A rank that has joined is waited for no more; it takes part with zeros in what the others reduce.
//! Sets are made and removed in the same order of messages as everything else.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::gathering::Gathering;
use super::journal::{Journal, LastSeen};
use super::numbers::Numbers;
use super::sets::Sets;
use super::{Bulletin, CoordinatorToMember, Item, Kind, MemberToCoordinator, Request, TensorId};
use crate::Rank;

/// The state of the coordinator.
pub struct Coordinator {
    sets: Sets,
    /// How many bytes a bucket may hold.
    pub threshold: u64,
    gathering: HashMap<String, Gathering>,
    /// What all members of its set have announced, or have joined instead.
    ready: VecDeque<Gathering>,
    numbers: Numbers,
    joined: Vec<Rank>,
    out: Vec<CoordinatorToMember>,
    left: Option<Rank>,
    /// Who has announced what, and when.
    pub journal: Journal,
}

/// A tensor that some ranks have announced and others have not.
#[derive(Clone, Debug, PartialEq)]
pub struct Stall {
    /// The tensor's name.
    pub name: String,
    /// Since when.
    pub since: Duration,
    /// Who has announced it.
    pub waiting: Vec<Rank>,
    /// Who has not announced it.
    pub missing: Vec<Rank>,
}

impl Coordinator {
    /// A coordinator of `size` ranks that fuses up to `threshold` bytes and remembers up to
    /// `capacity` tensors.
    pub fn new(size: usize, threshold: u64, capacity: usize) -> Coordinator {
        Coordinator {
            sets: Sets::of(size),
            threshold,
            gathering: HashMap::new(),
            ready: VecDeque::new(),
            numbers: Numbers::new(capacity),
            joined: Vec::new(),
            out: Vec::new(),
            left: None,
            journal: Journal::of(size),
        }
    }

    /// Takes a message of a member.
    pub fn on(&mut self, from: Rank, message: MemberToCoordinator, now: Duration) {
        self.journal.now = now;
        match message {
            MemberToCoordinator::Announce(request) => {
                self.journal.announced(from, &request, None);
                self.gather(from, &request, None);
            }
            MemberToCoordinator::Known(id) => self.announce_known(from, id),
            MemberToCoordinator::Join => self.join(from),
            MemberToCoordinator::Leave { reason } => self.leave(from, reason),
        }
    }

    /// Messages for all members that need no bucket, in order.
    pub fn take_messages(&mut self) -> Vec<CoordinatorToMember> {
        std::mem::take(&mut self.out)
    }

    /// Whether a bucket could be released.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Releases the next bucket: the oldest ready tensor and all others that can travel with it.
    pub fn release(&mut self) {
        let Some(first) = self.ready.pop_front() else { return };
        let mut bytes = first.request.bytes();
        let mut bucket = vec![first];
        let mut rest = VecDeque::with_capacity(self.ready.len());
        for ready in self.ready.drain(..) {
            let more = ready.request.bytes();
            if bytes.saturating_add(more) <= self.threshold
                && fuses(&bucket[0].request, &ready.request)
            {
                bytes += more;
                bucket.push(ready);
            } else {
                rest.push_back(ready);
            }
        }
        self.ready = rest;
        // A number that gives way to a new one is forgotten behind the release: in front of it, a
        // member would take it for a number that it must announce anew.
        let mut forgotten = Vec::new();
        let items = bucket.into_iter().map(|ready| self.item(ready, &mut forgotten)).collect();
        self.out.push(CoordinatorToMember::Release(items));
        let is_awaited = |id: TensorId, name: &str| {
            self.gathering.contains_key(name) || self.ready.iter().any(|r| r.known == Some(id))
        };
        forgotten.extend(self.numbers.trim(is_awaited));
        self.out.extend(forgotten.into_iter().map(CoordinatorToMember::Forget));
    }

    /// What has waited since `before` or longer for somebody, oldest first.
    pub fn stalls(&self, before: Duration) -> Vec<Stall> {
        let stall = |(name, gathering): (&String, &Gathering)| Stall {
            name: name.clone(),
            since: gathering.since,
            waiting: gathering.waiting(&self.sets),
            missing: gathering.missing(&self.sets, &self.joined),
        };
        let late = self.gathering.iter().filter(|(_, gathering)| gathering.since <= before);
        let mut stalls: Vec<Stall> = late.map(stall).collect();
        stalls.sort_by(|a, b| (a.since, &a.name).cmp(&(b.since, &b.name)));
        stalls
    }

    /// Tells everybody, at the same place in the order of messages.
    pub fn tell(&mut self, bulletin: Bulletin) {
        self.out.push(CoordinatorToMember::Bulletin(bulletin));
    }

    /// What a rank did last; none if it has announced nothing yet.
    pub fn last_seen(&self, rank: Rank) -> Option<LastSeen> {
        let name_of = |id| self.numbers.meaning(id).map(|(request, _)| request.name.clone());
        let mut seen = self.journal.last_seen(rank, name_of)?;
        let gathering = seen.name.as_ref().and_then(|name| self.gathering.get(name));
        seen.is_waiting =
            gathering.is_some_and(|gathering| !gathering.missing(&self.sets, &[]).contains(&rank));
        Some(seen)
    }

    /// An announcement under a forgotten number is ignored: its sender will see the `Forget` and
    /// announce again in full.
    fn announce_known(&mut self, from: Rank, id: TensorId) {
        let Some((request, shares)) = self.numbers.meaning(id) else { return };
        let Some(place) = self.sets.place(request.set, from) else { return };
        let share = shares.get(place).cloned().unwrap_or_default();
        self.journal.announced(from, request, Some(id));
        if let Some(gathering) = self.gathering.get_mut(&request.name)
            && gathering.known == Some(id)
        {
            gathering.add(place, share);
            let name = request.name.clone();
            return self.complete_if_all_here(&name);
        }
        let request = request.with_share(&share);
        self.gather(from, &request, Some(id));
    }

    fn gather(&mut self, from: Rank, request: &Request, id: Option<TensorId>) {
        let name = request.name.clone();
        if let Some(left) = self.left {
            let error = format!("{left} has left before `{name}` was submitted everywhere");
            return self.tell(Bulletin::Fail { name, error });
        }
        let Some(place) = self.sets.place(request.set, from) else {
            let error = format!(
                "{name}: Process set provided does not exist, or has not been registered, or {from} \
                 is not a member of it."
            );
            return self.tell(Bulletin::Fail { name, error });
        };
        let (members, now) = (self.sets.members(request.set).len(), self.journal.now);
        let gathering = self
            .gathering
            .entry(name.clone())
            .or_insert_with(|| Gathering::new(request.clone(), from, members, id, now));
        gathering.take(from, place, request, id);
        self.complete_if_all_here(&name);
    }

    fn complete_if_all_here(&mut self, name: &str) {
        let Some(gathering) = self.gathering.get(name) else { return };
        if gathering.absent > self.joined.len() {
            return;
        }
        let absent = gathering.missing(&self.sets, &[]);
        if !absent.iter().all(|rank| self.joined.contains(rank)) {
            return;
        }
        let gathering = self.gathering.remove(name).expect("it was just there");
        match gathering.problem(&absent) {
            Some(error) => self.tell(Bulletin::Fail { name: name.into(), error }),
            None => {
                self.journal.ready(name, gathering.request.set);
                self.accept(gathering);
            }
        }
    }

    fn accept(&mut self, gathering: Gathering) {
        let Request { name, kind, .. } = &gathering.request;
        match kind {
            Kind::AddSet { ranks } => {
                let (id, generation) = self.sets.add(ranks.clone());
                let name = name.clone();
                self.out.push(CoordinatorToMember::SetAdded { name, id, generation });
            }
            &Kind::RemoveSet { set } => {
                // What its members have agreed on comes before its end, what they have not fails.
                while self.ready.iter().any(|ready| ready.request.set == set) {
                    self.release();
                }
                let late = self.gathering.extract_if(|_, late| late.request.set == set);
                self.out.extend(late.map(|(name, _)| {
                    let set = set.0;
                    let error =
                        format!("process set {set} was removed while `{name}` waited in it");
                    CoordinatorToMember::Bulletin(Bulletin::Fail { name, error })
                }));
                let forgotten = self.numbers.forget_set(set);
                self.out.extend(forgotten.into_iter().map(CoordinatorToMember::Forget));
                self.sets.remove(set);
                self.tell(Bulletin::SetRemoved { name: name.clone(), id: set });
            }
            _ => self.ready.push_back(gathering),
        }
    }

    fn item(&mut self, ready: Gathering, forgotten: &mut Vec<TensorId>) -> Item {
        let Gathering { request, shares, known, absent, .. } = ready;
        if let Some(id) = known.filter(|id| self.numbers.use_again(*id)) {
            return Item::Known(id);
        }
        let name = request.name.clone();
        forgotten.extend(self.numbers.forget_name(&name));
        // Whoever never announced it must be told what it is.
        let is_strange_to_some = absent > 0 || self.sets.is_partial(request.set);
        let told = is_strange_to_some.then(|| request.clone());
        let id = self.numbers.give(request, &shares);
        Item::Named { name, id, shares, request: told }
    }

    fn join(&mut self, rank: Rank) {
        if self.left.is_some() || self.joined.contains(&rank) {
            return;
        }
        self.joined.push(rank);
        if self.joined.len() == self.sets.world() {
            self.joined.clear();
            return self.tell(Bulletin::Joined { last: rank });
        }
        let names: Vec<String> = self.gathering.keys().cloned().collect();
        names.iter().for_each(|name| self.complete_if_all_here(name));
    }

    fn leave(&mut self, rank: Rank, reason: Option<String>) {
        if self.left.is_some() {
            return;
        }
        self.left = Some(rank);
        self.gathering.clear();
        self.ready.clear();
        self.tell(Bulletin::Left { rank, reason });
    }
}

/// Whether two tensors can travel in one bucket.
fn fuses(a: &Request, b: &Request) -> bool {
    let fusible = matches!(a.kind, Kind::Allreduce { .. } | Kind::Broadcast { .. });
    fusible && a.kind == b.kind && a.dtype == b.dtype && a.set == b.set
}
