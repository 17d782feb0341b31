//! A tensor before it is ready: who has announced it, and whether all requests match.

use std::time::Duration;

use super::sets::RegisteredSets;
use super::{CollectiveKind, Request, TensorId};
use crate::Rank;

pub(super) struct PendingTensor {
    pub(super) request: Request,
    pub(super) since: Duration,
    /// What each member contributes, by its index in the set; empty if members cannot differ.
    pub(super) shares: Vec<Vec<u64>>,
    /// The number that all announcements so far have used, if any.
    pub(super) known: Option<TensorId>,
    first: Rank,
    present: Vec<bool>,
    /// How many members have not announced it.
    pub(super) absent: usize,
    mismatch: Option<String>,
}

impl PendingTensor {
    pub(super) fn new(
        request: Request,
        first: Rank,
        members: usize,
        known: Option<TensorId>,
        since: Duration,
    ) -> PendingTensor {
        let differs =
            matches!(request.kind, CollectiveKind::Allgather | CollectiveKind::Alltoall { .. });
        let shares = if differs { vec![Vec::new(); members] } else { Vec::new() };
        let present = vec![false; members];
        let absent = members;
        PendingTensor { request, since, shares, known, first, present, absent, mismatch: None }
    }

    /// Adds an announcement after comparing its request.
    pub(super) fn take(
        &mut self,
        from: Rank,
        place: usize,
        request: &Request,
        id: Option<TensorId>,
    ) {
        if self.present[place] {
            return;
        }
        if self.known != id {
            self.known = None;
        }
        if self.mismatch.is_none() {
            self.mismatch = request.mismatch(from, &self.request, self.first);
        }
        self.add(place, request.share());
    }

    /// Adds an announcement whose request is known to match.
    pub(super) fn add(&mut self, place: usize, share: Vec<u64>) {
        if std::mem::replace(&mut self.present[place], true) {
            return;
        }
        self.absent -= 1;
        if let Some(slot) = self.shares.get_mut(place) {
            *slot = share;
        }
    }

    /// The members that have announced it.
    pub(super) fn waiting(&self, sets: &RegisteredSets) -> Vec<Rank> {
        let members = sets.members(self.request.set).iter().zip(&self.present);
        members.filter(|(_, present)| **present).map(|(rank, _)| *rank).collect()
    }

    /// The members that have neither announced it nor joined.
    pub(super) fn missing(&self, sets: &RegisteredSets, joined: &[Rank]) -> Vec<Rank> {
        let members = sets.members(self.request.set).iter().zip(&self.present);
        let missing = members.filter(|(rank, present)| !**present && !joined.contains(rank));
        missing.map(|(rank, _)| *rank).collect()
    }

    /// Why it cannot run, now that all members but the absent ones have announced it.
    pub(super) fn problem(&self, absent: &[Rank]) -> Option<String> {
        if let Some(mismatch) = &self.mismatch {
            return Some(mismatch.clone());
        }
        if let Some(impossible) = self.request.impossible() {
            return Some(impossible.into());
        }
        let kind = match &self.request.kind {
            CollectiveKind::Allreduce { .. } | CollectiveKind::Barrier => return None,
            CollectiveKind::Allgather => "Allgather",
            CollectiveKind::Broadcast { .. } => "Broadcast",
            CollectiveKind::Alltoall { .. } => "Alltoall",
            CollectiveKind::Reducescatter { .. } => "Reducescatter",
            CollectiveKind::AddSet { .. } | CollectiveKind::RemoveSet { .. } => {
                "Adding or removing a process set"
            }
        };
        let first = absent.first()?;
        Some(format!(
            "{kind} is not supported with Join at this time. Specify sparse_as_dense=True if using \
             DistributedOptimizer ({first} has joined)."
        ))
    }
}
