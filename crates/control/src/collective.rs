//! The collectives, by name: the one list of them. What each needs to know stands in
//! `negotiate::CollectiveKind`.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};

/// A collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[derive(Display, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Collective {
    /// Everybody gets the sum.
    Allreduce,
    /// Everybody gets everything.
    Allgather,
    /// Everybody gets what one has.
    Broadcast,
    /// Everybody gets the part of everybody that is meant for it.
    Alltoall,
    /// Everybody gets its part of the sum.
    Reducescatter,
    /// Everybody waits for everybody.
    Barrier,
}

impl Collective {
    /// All of them, in the order in which they are shown.
    pub const ALL: &[Collective] = Collective::VARIANTS;
}
