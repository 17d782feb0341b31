//! Decides what is released when. Runs on rank 0 and receives every announcement.
//!
//! A tensor collects announcements until every member of its set has sent one; then it is ready, or
//! fails if the requests do not match. Ready tensors wait for [`Coordinator::release`], which the
//! engine calls when it is free. So what becomes ready while one bucket is in flight goes into the
//! next, and fusion paces itself.
//!
//! The others do not wait for a rank that has joined; it contributes zeros to their reductions.
//! Adding and removing sets follows the same message order as everything else.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::journal::{Journal, LastSeen};
use super::numbers::TensorNumbers;
use super::pending_tensor::PendingTensor;
use super::rounds::Rounds;
use super::sets::RegisteredSets;
use super::{
    Announcement, CollectiveKind, CoordinatorToMember, MemberToCoordinator, ReleasedItem, Request,
    TensorId,
};
use crate::{DeviceKind, Rank};

/// The state of the coordinator of a world.
pub struct Coordinator {
    sets: RegisteredSets,
    /// How many bytes a bucket may hold.
    pub threshold: u64,
    /// Tensors there travel one by one, not in buckets.
    unfused: Option<DeviceKind>,
    pending: HashMap<String, PendingTensor>,
    /// Tensors that every member of their set has announced, or has joined instead.
    ready: VecDeque<PendingTensor>,
    numbers: TensorNumbers,
    joined: Vec<Rank>,
    out: Vec<CoordinatorToMember>,
    left: Option<Rank>,
    rounds: Rounds,
    /// Who has announced what, and when.
    pub journal: Journal,
}

/// A tensor that some ranks have announced and others have not.
#[derive(Clone, Debug, PartialEq)]
pub struct Stall {
    /// The tensor's name.
    pub name: String,
    /// When the first rank announced it, on the engine's clock.
    pub since: Duration,
    /// Ranks that have announced it.
    pub waiting: Vec<Rank>,
    /// Ranks that have not announced it.
    pub missing: Vec<Rank>,
}

impl Coordinator {
    /// A coordinator of `size` ranks that fuses up to `threshold` bytes and remembers up to
    /// `capacity` tensors.
    pub fn new(size: usize, threshold: u64, capacity: usize) -> Coordinator {
        Coordinator {
            sets: RegisteredSets::of(size),
            threshold,
            unfused: None,
            pending: HashMap::new(),
            ready: VecDeque::new(),
            numbers: TensorNumbers::new(capacity),
            joined: Vec::new(),
            out: Vec::new(),
            left: None,
            rounds: Rounds::default(),
            journal: Journal::of(size),
        }
    }

    /// From now on, tensors on this kind of device are released one by one.
    pub fn keep_apart(&mut self, device: DeviceKind) {
        self.unfused = Some(device);
    }

    /// Handles a message from a member.
    pub fn on(&mut self, from: Rank, message: MemberToCoordinator, now: Duration) {
        self.journal.now = now;
        match message {
            MemberToCoordinator::Announce(request) => {
                self.journal.announced(from, &request, None);
                self.gather(from, &request, None);
            }
            MemberToCoordinator::Known(id) => self.announce_known(from, id),
            MemberToCoordinator::Waits { request, round, since } => {
                self.rounds.waits(from, request, round, now.saturating_sub(since));
            }
            MemberToCoordinator::Join => self.join(from),
            MemberToCoordinator::Leave { reason } => self.leave(from, reason),
        }
    }

    /// A round without negotiation has ended: `agreed` is what all ranks have run. Without it, they
    /// announce what they have submitted.
    pub fn round_ended(&mut self, round: u64, agreed: Option<&Request>, now: Duration) {
        self.rounds.ended(round);
        if let Some(request) = agreed {
            self.journal.now = now;
            self.journal.all_announced(request);
        }
    }

    /// Takes the messages for all members, in order.
    pub fn take_messages(&mut self) -> Vec<CoordinatorToMember> {
        std::mem::take(&mut self.out)
    }

    /// Whether a bucket can be released, of tensors that are wanted now.
    pub fn has_ready(&self, wanted: impl Fn(&Request) -> bool) -> bool {
        self.ready.iter().any(|ready| wanted(&ready.request))
    }

    /// Whether some ranks have announced something that others have not.
    pub fn is_gathering(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Releases the next bucket: the oldest ready tensor that is wanted now, and all others that
    /// can travel with it.
    pub fn release(&mut self, wanted: impl Fn(&Request) -> bool) {
        let position = self.ready.iter().position(|ready| wanted(&ready.request));
        let Some(first) = position.and_then(|position| self.ready.remove(position)) else { return };
        let mut bytes = first.request.bytes();
        let mut bucket = vec![first];
        let mut rest = VecDeque::with_capacity(self.ready.len());
        for ready in self.ready.drain(..) {
            let more = ready.request.bytes();
            if bytes.saturating_add(more) <= self.threshold
                && self.unfused != Some(ready.request.device)
                && fuses(&bucket[0].request, &ready.request)
            {
                bytes += more;
                bucket.push(ready);
            } else {
                rest.push_back(ready);
            }
        }
        self.ready = rest;
        // Forget the numbers that new ones replace after the release: if `Forget` came first, a
        // member would announce the tensor again.
        let mut forgotten = Vec::new();
        let items = bucket.into_iter().map(|ready| self.item(ready, &mut forgotten)).collect();
        self.out.push(CoordinatorToMember::Release(items));
        let is_awaited = |id: TensorId, name: &str| {
            self.pending.contains_key(name) || self.ready.iter().any(|r| r.known == Some(id))
        };
        forgotten.extend(self.numbers.trim(is_awaited));
        self.out.extend(forgotten.into_iter().map(CoordinatorToMember::Forget));
    }

    /// Tensors that have been waiting for a rank since `before` or longer, oldest first.
    pub fn stalls(&self, before: Duration) -> Vec<Stall> {
        let stall = |(name, pending_tensor): (&String, &PendingTensor)| Stall {
            name: name.clone(),
            since: pending_tensor.since,
            waiting: pending_tensor.waiting(&self.sets),
            missing: pending_tensor.missing(&self.sets, &self.joined),
        };
        let late = self.pending.iter().filter(|(_, pending_tensor)| pending_tensor.since <= before);
        let mut stalls: Vec<Stall> = late.map(stall).collect();
        stalls.extend(self.rounds.stalls(before, self.sets.world()));
        stalls.sort_by(|a, b| (a.since, &a.name).cmp(&(b.since, &b.name)));
        stalls
    }

    /// Sends an announcement to every member, at the same point in the message order.
    pub fn tell(&mut self, announcement: Announcement) {
        self.out.push(CoordinatorToMember::Bulletin(announcement));
    }

    /// What a rank did last; `None` if it has announced nothing yet.
    pub fn last_seen(&self, rank: Rank) -> Option<LastSeen> {
        if let Some((name, at)) = self.rounds.awaited_by(rank) {
            let announced = self.journal.announced_by(rank) + 1;
            return Some(LastSeen { name: Some(name.into()), at, announced, is_waiting: true });
        }
        let name_of = |id| self.numbers.meaning(id).map(|(request, _)| request.name.clone());
        let mut seen = self.journal.last_seen(rank, name_of)?;
        let pending_tensor = seen.name.as_ref().and_then(|name| self.pending.get(name));
        seen.is_waiting = pending_tensor
            .is_some_and(|pending_tensor| !pending_tensor.missing(&self.sets, &[]).contains(&rank));
        Some(seen)
    }

    /// Ignores a forgotten number: its sender will receive the `Forget` and announce the tensor
    /// again in full.
    fn announce_known(&mut self, from: Rank, id: TensorId) {
        let Some((request, shares)) = self.numbers.meaning(id) else { return };
        let Some(place) = self.sets.place(request.set, from) else { return };
        let share = shares.get(place).cloned().unwrap_or_default();
        self.journal.announced(from, request, Some(id));
        if let Some(pending_tensor) = self.pending.get_mut(&request.name)
            && pending_tensor.known == Some(id)
        {
            pending_tensor.add(place, share);
            let name = request.name.clone();
            return self.complete_if_all_here(&name);
        }
        let request = request.with_share(&share);
        self.gather(from, &request, Some(id));
    }

    fn gather(&mut self, from: Rank, request: &Request, id: Option<TensorId>) {
        let name = request.name.clone();
        if let Some(left) = self.left {
            let error = format!("{left} left before all ranks had submitted `{name}`");
            return self.tell(Announcement::Fail { name, error });
        }
        let Some(place) = self.sets.place(request.set, from) else {
            let error = format!(
                "{name}: Process set provided does not exist, or has not been registered, or {from} \
                 is not a member of it."
            );
            return self.tell(Announcement::Fail { name, error });
        };
        let (members, now) = (self.sets.members(request.set).len(), self.journal.now);
        let pending_tensor = self
            .pending
            .entry(name.clone())
            .or_insert_with(|| PendingTensor::new(request.clone(), from, members, id, now));
        pending_tensor.take(from, place, request, id);
        self.complete_if_all_here(&name);
    }

    fn complete_if_all_here(&mut self, name: &str) {
        let Some(pending_tensor) = self.pending.get(name) else { return };
        if pending_tensor.absent > self.joined.len() {
            return;
        }
        let absent = pending_tensor.missing(&self.sets, &[]);
        if !absent.iter().all(|rank| self.joined.contains(rank)) {
            return;
        }
        let pending_tensor = self.pending.remove(name).expect("it was just there");
        match pending_tensor.problem(&absent) {
            Some(error) => self.tell(Announcement::Fail { name: name.into(), error }),
            None => {
                self.journal.ready(name, pending_tensor.request.set);
                self.accept(pending_tensor);
            }
        }
    }

    fn accept(&mut self, pending_tensor: PendingTensor) {
        let Request { name, kind, .. } = &pending_tensor.request;
        match kind {
            CollectiveKind::AddSet { ranks } => {
                let (id, generation) = self.sets.add(ranks.clone());
                let name = name.clone();
                self.out.push(CoordinatorToMember::SetAdded { name, id, generation });
            }
            &CollectiveKind::RemoveSet { set } => {
                // What its members have agreed on runs before it is removed; the rest fails.
                while self.ready.iter().any(|ready| ready.request.set == set) {
                    self.release(|_| true);
                }
                let late = self.pending.extract_if(|_, late| late.request.set == set);
                self.out.extend(late.map(|(name, _)| {
                    let set = set.0;
                    let error =
                        format!("process set {set} was removed while `{name}` was waiting in it");
                    CoordinatorToMember::Bulletin(Announcement::Fail { name, error })
                }));
                let forgotten = self.numbers.forget_set(set);
                self.out.extend(forgotten.into_iter().map(CoordinatorToMember::Forget));
                self.sets.remove(set);
                self.tell(Announcement::SetRemoved { name: name.clone(), id: set });
            }
            _ => self.ready.push_back(pending_tensor),
        }
    }

    fn item(&mut self, ready: PendingTensor, forgotten: &mut Vec<TensorId>) -> ReleasedItem {
        let PendingTensor { request, shares, known, absent, .. } = ready;
        if let Some(id) = known.filter(|id| self.numbers.use_again(*id)) {
            return ReleasedItem::Known(id);
        }
        let name = request.name.clone();
        forgotten.extend(self.numbers.forget_name(&name));
        // Ranks that have not announced it need the request too.
        let is_unknown_to_some = absent > 0 || self.sets.is_partial(request.set);
        let full = is_unknown_to_some.then(|| request.clone());
        let id = self.numbers.give(request, &shares);
        ReleasedItem::Named { name, id, shares, request: full }
    }

    fn join(&mut self, rank: Rank) {
        if self.left.is_some() || self.joined.contains(&rank) {
            return;
        }
        self.joined.push(rank);
        if self.joined.len() == self.sets.world() {
            self.joined.clear();
            return self.tell(Announcement::Joined { last: rank });
        }
        let names: Vec<String> = self.pending.keys().cloned().collect();
        names.iter().for_each(|name| self.complete_if_all_here(name));
    }

    fn leave(&mut self, rank: Rank, reason: Option<String>) {
        if self.left.is_some() {
            return;
        }
        self.left = Some(rank);
        self.pending.clear();
        self.ready.clear();
        self.tell(Announcement::Left { rank, reason });
    }
}

/// Whether two tensors can travel in one bucket.
fn fuses(a: &Request, b: &Request) -> bool {
    let fusible =
        matches!(a.kind, CollectiveKind::Allreduce { .. } | CollectiveKind::Broadcast { .. });
    fusible && a.kind == b.kind && a.dtype == b.dtype && a.set == b.set && a.device == b.device
}
