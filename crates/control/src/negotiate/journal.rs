//! What the coordinator remembers of each rank: its last announcement and, while there is a
//! timeline, who announced what when, and when it was ready.

use std::time::Duration;

use super::{Request, TensorId};
use crate::{Rank, SetId};

/// An observation of the coordinator, for the timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalEntry {
    /// A rank has announced a tensor.
    Announced {
        /// The tensor's name.
        name: String,
        /// The collective, as Horovod writes it.
        kind: &'static str,
        /// The rank that announced it.
        rank: Rank,
        /// When it happened, on the engine's clock.
        at: Duration,
    },
    /// All ranks have announced a tensor.
    Ready {
        /// The tensor's name.
        name: String,
        /// Process set of the request.
        set: SetId,
        /// When it happened, on the engine's clock.
        at: Duration,
    },
}

/// The last action of a rank, as far as the coordinator knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastSeen {
    /// The tensor it announced last; `None` if the name has been forgotten.
    pub name: Option<String>,
    /// When that was, on the engine's clock.
    pub at: Duration,
    /// How many tensors it has announced.
    pub announced: u64,
    /// Whether it is waiting for that tensor itself.
    pub is_waiting: bool,
}

/// What the coordinator remembers of announcements.
pub struct Journal {
    last: Vec<TensorRef>,
    /// The last tensor that all ranks have run without announcing it, and how many those were.
    common: TensorRef,
    /// `None` while there is no timeline.
    entries: Option<Vec<JournalEntry>>,
    /// When the message being handled arrived.
    pub(super) now: Duration,
}

/// A tensor by its number, or by its name while it has none. The name's allocation is reused.
#[derive(Clone, Default)]
struct TensorRef {
    id: Option<TensorId>,
    name: String,
    at: Duration,
    announced: u64,
}

impl Journal {
    pub(super) fn of(size: usize) -> Journal {
        let last = vec![TensorRef::default(); size];
        Journal { last, common: TensorRef::default(), entries: None, now: Duration::ZERO }
    }

    /// Starts recording entries.
    pub fn start(&mut self) {
        self.entries.get_or_insert_default();
    }

    /// Stops recording entries.
    pub fn stop(&mut self) {
        self.entries = None;
    }

    /// Takes the entries since the last call, in order.
    pub fn take(&mut self) -> Vec<JournalEntry> {
        self.entries.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn announced(&mut self, rank: Rank, request: &Request, id: Option<TensorId>) {
        let at = self.now;
        if let Some(tensor) = self.last.get_mut(rank.index()) {
            tensor.id = id;
            tensor.at = at;
            tensor.announced += 1;
            if id.is_none() {
                tensor.name.clear();
                tensor.name.push_str(&request.name);
            }
        }
        if let Some(entries) = &mut self.entries {
            let (name, kind) = (request.name.clone(), request.kind.name());
            entries.push(JournalEntry::Announced { name, kind, rank, at });
        }
    }

    /// Records that all ranks have run this without announcing it.
    pub(super) fn all_announced(&mut self, request: &Request) {
        let TensorRef { name, at, announced, .. } = &mut self.common;
        *at = self.now;
        *announced += 1;
        name.clear();
        name.push_str(&request.name);
    }

    /// How many tensors a rank has submitted.
    pub(super) fn announced_by(&self, rank: Rank) -> u64 {
        let own = self.last.get(rank.index()).map_or(0, |tensor| tensor.announced);
        own + self.common.announced
    }

    /// Records that all members have announced a tensor.
    pub(super) fn ready(&mut self, name: &str, set: SetId) {
        if let Some(entries) = &mut self.entries {
            entries.push(JournalEntry::Ready { name: name.into(), set, at: self.now });
        }
    }

    /// The last announcement of a rank; `None` if there is none.
    pub(super) fn last_seen(
        &self,
        rank: Rank,
        name_of: impl FnOnce(TensorId) -> Option<String>,
    ) -> Option<LastSeen> {
        let announced = Some(self.announced_by(rank)).filter(|announced| *announced > 0)?;
        let tensor = match self.last.get(rank.index()) {
            Some(tensor) if tensor.announced > 0 && tensor.at >= self.common.at => tensor,
            _ => &self.common,
        };
        let name = match tensor.id {
            Some(id) => name_of(id),
            None => Some(tensor.name.clone()),
        };
        Some(LastSeen { name, at: tensor.at, announced, is_waiting: false })
    }
}
