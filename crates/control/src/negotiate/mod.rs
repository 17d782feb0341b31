//! Agreement on what to run next, without a clock.
//!
//! Every rank announces a tensor to the coordinator (rank 0) as soon as it is submitted. Once the
//! last rank has announced it, the [`Coordinator`] releases it, in the same order for all ranks,
//! together with everything else that is ready and fits into one bucket. The [`Member`] on each
//! rank follows that order. A request is sent in full once; afterwards the tensor is a small
//! number.
//!
//! Both are pure: messages go in, messages come out, and time is a parameter. The transport keeps
//! the order of messages from each member to the coordinator and from the coordinator to each
//! member; there is no order between members.

mod coordinator;
mod journal;
mod member;
mod numbers;
mod pending_tensor;
mod request;
mod rounds;
mod sets;

#[cfg(test)]
mod simulation;

pub use coordinator::{Coordinator, Stall};
pub use journal::{Journal, JournalEntry, LastSeen};
pub use member::{Member, MemberEvent, ReleasedTensor};
pub use request::{CollectiveKind, Request};

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Rank, SetId, Tuning};

/// The number of a tensor whose request has been sent in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TensorId(pub u32);

/// Messages from a member to the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MemberToCoordinator {
    /// A tensor was submitted with this request.
    Announce(Request),
    /// A tensor was submitted again, exactly as the last time.
    Known(TensorId),
    /// The member waits in a round without negotiation; see [`Coordinator::round_ended`]. Nothing
    /// follows from it but reports about late ranks.
    Waits {
        /// What it has submitted.
        request: Request,
        /// The round.
        round: u64,
        /// How long it has waited.
        since: Duration,
    },
    /// The member contributes nothing until all have joined.
    Join,
    /// The member takes no part in anything that is not released yet.
    Leave {
        /// The exception that ends its process, if one does.
        reason: Option<String>,
    },
}

/// Messages from the coordinator to all members, in one order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum CoordinatorToMember {
    /// All members have announced these: run them together now.
    Release(Vec<ReleasedItem>),
    /// The number is no longer valid.
    Forget(TensorId),
    /// A process set was added, as all ranks requested.
    SetAdded {
        /// The name of the request.
        name: String,
        /// The set's number.
        id: SetId,
        /// How many sets had been added when this one was, itself included: it distinguishes sets
        /// that get the same number one after the other.
        generation: u32,
    },
    /// A message that means the same to every member.
    Bulletin(Announcement),
}

/// An announcement of the coordinator that members pass on unchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Announcement {
    /// All members have announced this, but their requests do not match; it fails everywhere.
    Fail {
        /// The tensor's name.
        name: String,
        /// What differs, and on which ranks.
        error: String,
    },
    /// All ranks have joined.
    Joined {
        /// The rank that joined last.
        last: Rank,
    },
    /// A process set was removed, as all ranks requested.
    SetRemoved {
        /// The name of the request.
        name: String,
        /// The set's number.
        id: SetId,
    },
    /// From here on these values choose between algorithms.
    Tune(Tuning),
    /// A member has left: nothing will be released after this.
    Left {
        /// The rank that left.
        rank: Rank,
        /// The exception that ends its process, if one does.
        reason: Option<String>,
    },
    /// Some ranks are so late that the job ends.
    Stalled {
        /// Ranks that have not submitted the tensor.
        missing: Vec<Rank>,
        /// Human-readable description of which ranks are late, and with which tensor.
        error: String,
    },
    /// Some ranks are late: write the flight recorder to disk.
    WriteDown,
}

/// One tensor (or group of tensors) of a released bucket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ReleasedItem {
    /// A tensor by its name, with the number it has from now on.
    Named {
        /// The tensor's name.
        name: String,
        /// Its number from now on; `None` if it gets none.
        id: Option<TensorId>,
        /// What each member contributes, where that can differ: see `Request::share`.
        shares: Vec<Vec<u64>>,
        /// The request, for ranks that have not announced it.
        request: Option<Request>,
    },
    /// A tensor that all members know by its number.
    Known(TensorId),
}
