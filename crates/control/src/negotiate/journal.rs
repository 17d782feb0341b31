//! What the coordinator has seen of each rank, for those who watch: what a rank announced last, and,
//! while somebody keeps a timeline, who announced what when and when it was ready.

use std::time::Duration;

use super::{Request, TensorId};
use crate::{Rank, SetId};

/// Something the coordinator saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A rank has announced a tensor.
    Announced {
        /// The tensor's name.
        name: String,
        /// The collective, as Horovod writes it.
        kind: &'static str,
        /// Who.
        rank: Rank,
        /// When.
        at: Duration,
    },
    /// All ranks have announced a tensor.
    Ready {
        /// The tensor's name.
        name: String,
        /// Whose business it is.
        set: SetId,
        /// When.
        at: Duration,
    },
}

/// What a rank did last, as far as the coordinator knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastSeen {
    /// The tensor it announced last; none if nobody knows its name any more.
    pub name: Option<String>,
    /// When that was.
    pub at: Duration,
    /// How many it has announced.
    pub announced: u64,
    /// Whether it waits for that tensor itself.
    pub is_waiting: bool,
}

/// What the coordinator keeps of the announcements.
pub struct Journal {
    last: Vec<Mention>,
    /// None while nobody keeps a timeline.
    notices: Option<Vec<Notice>>,
    /// When the message came that is being followed.
    pub(super) now: Duration,
}

/// A tensor by its number, or by its name while it has none; the memory of the name is used again.
#[derive(Clone, Default)]
struct Mention {
    id: Option<TensorId>,
    name: String,
    at: Duration,
    announced: u64,
}

impl Journal {
    pub(super) fn of(size: usize) -> Journal {
        Journal { last: vec![Mention::default(); size], notices: None, now: Duration::ZERO }
    }

    /// Keeps notices from now on of who announces what.
    pub fn start(&mut self) {
        self.notices.get_or_insert_default();
    }

    /// Keeps no notices any more.
    pub fn stop(&mut self) {
        self.notices = None;
    }

    /// The notices since the last call, in order.
    pub fn take(&mut self) -> Vec<Notice> {
        self.notices.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn announced(&mut self, rank: Rank, request: &Request, id: Option<TensorId>) {
        let at = self.now;
        if let Some(mention) = self.last.get_mut(rank.index()) {
            mention.id = id;
            mention.at = at;
            mention.announced += 1;
            if id.is_none() {
                mention.name.clear();
                mention.name.push_str(&request.name);
            }
        }
        if let Some(notices) = &mut self.notices {
            let (name, kind) = (request.name.clone(), request.kind.name());
            notices.push(Notice::Announced { name, kind, rank, at });
        }
    }

    /// Notes that everybody has announced a tensor.
    pub(super) fn ready(&mut self, name: &str, set: SetId) {
        if let Some(notices) = &mut self.notices {
            notices.push(Notice::Ready { name: name.into(), set, at: self.now });
        }
    }

    /// What a rank announced last, unless it never announced anything.
    pub(super) fn last_seen(
        &self,
        rank: Rank,
        name_of: impl FnOnce(TensorId) -> Option<String>,
    ) -> Option<LastSeen> {
        let mention = self.last.get(rank.index()).filter(|mention| mention.announced > 0)?;
        let name = match mention.id {
            Some(id) => name_of(id),
            None => Some(mention.name.clone()),
        };
        let Mention { at, announced, .. } = *mention;
        Some(LastSeen { name, at, announced, is_waiting: false })
    }
}
