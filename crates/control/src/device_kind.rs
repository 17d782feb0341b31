//! Where a tensor is.

use serde::{Deserialize, Serialize};
use strum::Display;

/// The kind of processor that a tensor's memory belongs to. Which one of a host's GPUs it is does
/// not matter to the other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Display)]
#[strum(serialize_all = "UPPERCASE")]
pub enum DeviceKind {
    /// Host memory.
    Cpu,
    /// Memory of a GPU.
    Gpu,
}
