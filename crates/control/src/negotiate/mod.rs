//! Agreement on what is reduced next, without a clock.
//!
//! Every rank announces a tensor to the coordinator (rank 0) the moment it is submitted. The
//! [`Coordinator`] releases it, in one order for all, once the last rank has announced it, together
//! with everything else that is ready and fits into one bucket. The [`Member`] on each rank follows
//! that order. A description travels once: afterwards a tensor is a small number.
//!
//! Both are pure: messages go in, messages come out, and time is a parameter. The order of messages
//! from one member to the coordinator and from the coordinator to one member is kept by whatever
//! carries them; there is no order between members.

mod coordinator;
mod gathering;
mod journal;
mod member;
mod numbers;
mod request;
mod sets;

#[cfg(test)]
mod simulation;

pub use coordinator::{Coordinator, Stall};
pub use journal::{Journal, LastSeen, Notice};
pub use member::{Member, MemberEvent, Work};
pub use request::{Kind, Request};

use serde::{Deserialize, Serialize};

use crate::{Rank, SetId, Tuning};

/// The number under which a tensor is known once its description has travelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TensorId(pub u32);

/// What a member tells the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MemberToCoordinator {
    /// A tensor is here, and this is what it is.
    Announce(Request),
    /// A tensor is here, exactly as it was the last time.
    Known(TensorId),
    /// The member contributes nothing from now on, until everybody has said so.
    Join,
    /// The member takes part in nothing that is not yet released.
    Leave {
        /// The exception that ends its process, if one does.
        reason: Option<String>,
    },
}

/// What the coordinator tells all members, in one order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum CoordinatorToMember {
    /// Everybody has these; run them together, now.
    Release(Vec<Item>),
    /// The number means nothing any more.
    Forget(TensorId),
    /// A set that everybody wanted has been made.
    SetAdded {
        /// The name of the request.
        name: String,
        /// The set's number.
        id: SetId,
        /// How many sets were made before, so that a number that is used again means another set.
        generation: u32,
    },
    /// Something that means the same to every member.
    Bulletin(Bulletin),
}

/// What a member hears from the coordinator and passes on as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Bulletin {
    /// Everybody has this, but not the same; it fails everywhere.
    Fail {
        /// The tensor's name.
        name: String,
        /// What differs, and on which ranks.
        error: String,
    },
    /// Everybody has joined.
    Joined {
        /// The last one to.
        last: Rank,
    },
    /// A set that nobody wants any more is gone.
    SetRemoved {
        /// The name of the request.
        name: String,
        /// The set's number.
        id: SetId,
    },
    /// From here on algorithms are chosen by these numbers.
    Tune(Tuning),
    /// A member has left: nothing will be released after this.
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
    /// Somebody is late: write down what you have done lately.
    WriteDown,
}

/// One tensor (or group of tensors) of a released bucket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Item {
    /// A tensor under its name; from now on under a number if it got one.
    Named {
        /// The tensor's name.
        name: String,
        /// Its number from now on.
        id: Option<TensorId>,
        /// What each member contributes, where that may differ: see `Request::share`.
        shares: Vec<Vec<u64>>,
        /// What it is, for those who have joined and never announced it.
        request: Option<Request>,
    },
    /// A tensor that all members know by its number.
    Known(TensorId),
}
