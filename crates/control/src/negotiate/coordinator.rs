//! The one who decides what is released when. It lives on rank 0 and sees every announcement.
//!
//! A tensor gathers announcements until every rank has sent one; then it is ready, or it fails if
//! the ranks do not want the same. Ready tensors wait for [`Coordinator::release`], which the engine
//! calls when its hands are free: so what becomes ready while a bucket is on the wire ends up in the
//! next bucket, and fusion clocks itself.
//!
//! Numbers are given out on release and never used twice. When there are too many the one that was
//! released longest ago is forgotten; an announcement under a forgotten number is ignored, because
//! its sender will see the `Forget` and announce again in full.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use super::{CoordinatorToMember, Item, Kind, MemberToCoordinator, Request, TensorId};
use crate::Rank;

/// The state of the coordinator.
pub struct Coordinator {
    size: usize,
    threshold: u64,
    capacity: usize,
    gathering: HashMap<String, Gathering>,
    ready: VecDeque<Ready>,
    known: HashMap<TensorId, Known>,
    numbers: HashMap<String, TensorId>,
    /// Numbers by the time of their last release.
    by_use: BTreeMap<u64, TensorId>,
    uses: u64,
    next: u32,
    out: Vec<CoordinatorToMember>,
    left: Option<Rank>,
}

struct Gathering {
    request: Request,
    first: Rank,
    since: Duration,
    present: Vec<bool>,
    missing: usize,
    rows: Vec<u64>,
    /// The number that all announcements so far have used.
    known: Option<TensorId>,
    mismatch: Option<String>,
}

struct Ready {
    request: Request,
    rows: Vec<u64>,
    known: Option<TensorId>,
}

struct Known {
    request: Request,
    rows: Vec<u64>,
    used: u64,
}

/// A tensor that some ranks have announced and others have not.
#[derive(Clone, Debug, PartialEq)]
pub struct Stall {
    /// The tensor's name.
    pub name: String,
    /// Since when.
    pub since: Duration,
    /// Who has not announced it.
    pub missing: Vec<Rank>,
}

impl Coordinator {
    /// A coordinator of `size` ranks that fuses up to `threshold` bytes and remembers up to
    /// `capacity` tensors.
    pub fn new(size: usize, threshold: u64, capacity: usize) -> Coordinator {
        Coordinator {
            size,
            threshold,
            capacity,
            gathering: HashMap::new(),
            ready: VecDeque::new(),
            known: HashMap::new(),
            numbers: HashMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
            next: 0,
            out: Vec::new(),
            left: None,
        }
    }

    /// Takes a message of a member.
    pub fn on(&mut self, from: Rank, message: MemberToCoordinator, now: Duration) {
        match message {
            MemberToCoordinator::Announce(request) => {
                let rows = request.rows();
                self.announce(from, &request, rows, None, now);
            }
            MemberToCoordinator::Known(id) => self.announce_known(from, id, now),
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
            if bytes + more <= self.threshold && fuses(&bucket[0].request, &ready.request) {
                bytes += more;
                bucket.push(ready);
            } else {
                rest.push_back(ready);
            }
        }
        self.ready = rest;
        // A number that gives way to a new one is forgotten behind the release: in front of it, a
        // member would take it for a number that it must announce anew.
        let place = self.out.len();
        let items = bucket.into_iter().map(|ready| self.item(ready)).collect();
        self.out.insert(place, CoordinatorToMember::Release(items));
        self.trim();
    }

    /// What has waited since `before` or longer for somebody, oldest first.
    pub fn stalls(&self, before: Duration) -> Vec<Stall> {
        let stall = |(name, gathering): (&String, &Gathering)| Stall {
            name: name.clone(),
            since: gathering.since,
            missing: gathering.missing_ranks(),
        };
        let late = self.gathering.iter().filter(|(_, gathering)| gathering.since <= before);
        let mut stalls: Vec<Stall> = late.map(stall).collect();
        stalls.sort_by(|a, b| (a.since, &a.name).cmp(&(b.since, &b.name)));
        stalls
    }

    /// Since when the oldest unfinished gathering waits.
    pub fn oldest(&self) -> Option<Duration> {
        self.gathering.values().map(|gathering| gathering.since).min()
    }

    /// Ends the job because somebody is too late.
    pub fn give_up(&mut self, error: String) {
        self.out.push(CoordinatorToMember::Stalled { error });
    }

    fn announce_known(&mut self, from: Rank, id: TensorId, now: Duration) {
        let Some(known) = self.known.get(&id) else { return };
        let rows = known.rows.get(from.index()).copied();
        if let Some(gathering) = self.gathering.get_mut(&known.request.name)
            && gathering.known == Some(id)
        {
            gathering.add(from, rows);
            if gathering.missing == 0 {
                let name = known.request.name.clone();
                self.complete(&name);
            }
            return;
        }
        let mut request = known.request.clone();
        if let (Some(rows), Some(shape)) = (rows, request.shapes.first_mut()) {
            shape[0] = rows;
        }
        self.announce(from, &request, rows, Some(id), now);
    }

    fn announce(
        &mut self,
        from: Rank,
        request: &Request,
        rows: Option<u64>,
        id: Option<TensorId>,
        now: Duration,
    ) {
        let name = request.name.clone();
        if let Some(left) = self.left {
            let error = format!("{left} has left before `{name}` was submitted everywhere");
            self.out.push(CoordinatorToMember::Fail { name, error });
            return;
        }
        let size = self.size;
        let gathering = self
            .gathering
            .entry(name.clone())
            .or_insert_with(|| Gathering::new(request.clone(), from, size, id, now));
        if gathering.present[from.index()] {
            return;
        }
        if gathering.known != id {
            gathering.known = None;
        }
        if gathering.mismatch.is_none() {
            gathering.mismatch = request.mismatch(from, &gathering.request, gathering.first);
        }
        gathering.add(from, rows);
        if gathering.missing == 0 {
            self.complete(&name);
        }
    }

    fn complete(&mut self, name: &str) {
        let gathering = self.gathering.remove(name).expect("the caller has just seen it");
        let impossible = || gathering.request.impossible().map(String::from);
        if let Some(error) = gathering.mismatch.clone().or_else(impossible) {
            self.out.push(CoordinatorToMember::Fail { name: name.into(), error });
            return;
        }
        let Gathering { request, rows, known, .. } = gathering;
        self.ready.push_back(Ready { request, rows, known });
    }

    fn item(&mut self, ready: Ready) -> Item {
        let Ready { request, rows, known } = ready;
        if let Some(id) = known.filter(|id| self.known.contains_key(id)) {
            self.touch(id);
            return Item::Known(id);
        }
        let name = request.name.clone();
        if let Some(old) = self.numbers.get(&name).copied() {
            self.forget(old);
        }
        let id = (self.capacity > 0 && !request.is_anonymous()).then(|| {
            let id = TensorId(self.next);
            self.next += 1;
            self.numbers.insert(name.clone(), id);
            self.known.insert(id, Known { request, rows: rows.clone(), used: 0 });
            self.touch(id);
            id
        });
        Item::Named { name, id, rows }
    }

    fn touch(&mut self, id: TensorId) {
        let known = self.known.get_mut(&id).expect("only known numbers are used");
        self.by_use.remove(&known.used);
        self.uses += 1;
        known.used = self.uses;
        self.by_use.insert(self.uses, id);
    }

    /// Forgets the longest unused numbers beyond the capacity, but none that somebody waits for.
    fn trim(&mut self) {
        while self.known.len() > self.capacity {
            let waiting = |id: &TensorId| {
                self.gathering.contains_key(&self.known[id].request.name)
                    || self.ready.iter().any(|ready| ready.known == Some(*id))
            };
            let Some(id) = self.by_use.values().copied().find(|id| !waiting(id)) else { return };
            self.forget(id);
        }
    }

    fn forget(&mut self, id: TensorId) {
        let known = self.known.remove(&id).expect("only known numbers are forgotten");
        self.by_use.remove(&known.used);
        self.numbers.remove(&known.request.name);
        self.out.push(CoordinatorToMember::Forget(id));
    }

    fn leave(&mut self, rank: Rank, reason: Option<String>) {
        if self.left.is_some() {
            return;
        }
        self.left = Some(rank);
        self.gathering.clear();
        self.ready.clear();
        self.out.push(CoordinatorToMember::Left { rank, reason });
    }
}

impl Gathering {
    fn new(
        request: Request,
        first: Rank,
        size: usize,
        known: Option<TensorId>,
        since: Duration,
    ) -> Gathering {
        let rows = if request.rows().is_some() { vec![0; size] } else { Vec::new() };
        let present = vec![false; size];
        Gathering { request, first, since, present, missing: size, rows, known, mismatch: None }
    }

    fn add(&mut self, from: Rank, rows: Option<u64>) {
        if std::mem::replace(&mut self.present[from.index()], true) {
            return;
        }
        self.missing -= 1;
        if let (Some(rows), Some(slot)) = (rows, self.rows.get_mut(from.index())) {
            *slot = rows;
        }
    }

    fn missing_ranks(&self) -> Vec<Rank> {
        let absent = self.present.iter().enumerate().filter(|(_, present)| !**present);
        absent.map(|(index, _)| Rank(index as u32)).collect()
    }
}

/// Whether two tensors can travel in one bucket.
fn fuses(a: &Request, b: &Request) -> bool {
    let fusible = matches!(a.kind, Kind::Allreduce { .. } | Kind::Broadcast { .. });
    fusible && a.kind == b.kind && a.dtype == b.dtype
}
