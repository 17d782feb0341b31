//! What is known of a node. The hub measures all of it; nothing is taken from the node's word but
//! its claims, which are compared with the measurements.

use serde::{Deserialize, Serialize};

/// Everything that grades follow from. Old evidence fades: see [`Evidence::faded`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// How long the node was to be online, by its owner's hours.
    pub promised_seconds: u64,
    /// How long of that it was.
    pub online_seconds: u64,
    /// How often it vanished without notice.
    pub vanished: u32,
    /// How fast it computes.
    pub speed: Option<Measured>,
    /// How it is connected.
    pub network: Option<Network>,
    /// What became of the clusters that it served.
    pub record: Record,
}

/// A measured quantity of which more is better.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The median of the measurements.
    pub value: f64,
    /// How often it was measured.
    pub count: u32,
    /// What the node says of itself.
    pub claimed: Option<f64>,
}

impl Measured {
    /// What the node claims, if the measurements contradict it.
    pub(super) fn lie(&self) -> Option<f64> {
        /// Measurements on a busy machine are lower; a lie is more than that.
        const TOLERANCE: f64 = 0.6;
        self.claimed.filter(|claimed| self.value < claimed * TOLERANCE)
    }
}

/// How a node is connected, seen from its peers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Network {
    /// The median time of a round trip, in milliseconds.
    pub latency_ms: f64,
    /// Median bytes per second.
    pub bandwidth: f64,
    /// The share of probes that were lost.
    pub loss: f64,
    /// How often it was measured.
    pub count: u32,
}

/// The clusters that a node was part of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Served to the end.
    pub served: u32,
    /// Ended by a fault of the node.
    pub failed: u32,
    /// Left before the end because the owner wanted the machine back.
    pub left: u32,
}

impl Evidence {
    /// The evidence half a period later: what was counted counts half, and what was measured stays.
    pub fn faded(&self) -> Evidence {
        let Record { served, failed, left } = self.record;
        Evidence {
            promised_seconds: self.promised_seconds / 2,
            online_seconds: self.online_seconds / 2,
            vanished: self.vanished / 2,
            record: Record { served: served / 2, failed: failed / 2, left: left / 2 },
            ..self.clone()
        }
    }
}
