//! Chooses the nodes of a cluster: peers of like kind, near each other, as good as the borrower's
//! standing warrants.
//!
//! 1. Every node that cannot take part is set aside with its reason.
//! 2. The others are grouped by kind: device, Python and framework versions. A cluster comes from
//!    one group.
//! 3. In each group, every node is tried as the middle of a cluster that grows by its nearest
//!    peers. The cluster whose quality is nearest to what the standing warrants wins, less what its
//!    distances cost.
//!
//! So the best nodes go to those who contribute most, and still nobody goes without while any node
//! is free.

mod shortage;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::map::NodeMap;
use super::offer::Offer;
use super::{Moment, NodeId, PersonId};
pub use shortage::{SetAside, Shortage};

/// What a borrower asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Who asks.
    pub borrower: PersonId,
    /// Their standing, from 0 to 1.
    pub standing: f64,
    /// How many ranks.
    pub ranks: u32,
    /// How many GPUs each of them needs.
    pub gpus_per_rank: u32,
    /// How many ranks a node without GPUs runs.
    pub ranks_per_node: u32,
    /// For how long.
    pub seconds: u64,
}

/// A node that might take part.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub owner: PersonId,
    /// What it does now.
    pub state: NodeState,
    /// What its owner offers.
    pub offer: Offer,
    /// What it is like.
    pub kind: Kind,
    /// The score of its grade in all, from 0 to 1.
    pub quality: f64,
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeState {
    /// It waits for work.
    Free,
    /// It is reserved.
    Reserved {
        /// Until then.
        until: Moment,
    },
    /// Its owner uses it, has paused it or lets it run dry.
    Paused,
    /// It is not connected.
    Offline,
}

/// What nodes of one cluster have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Kind {
    /// The product name of its GPUs, or the CPU's architecture.
    pub device: String,
    /// The version of Python, as in `3.12`.
    pub python: String,
    /// The versions of frameworks, by package.
    pub packages: BTreeMap<String, String>,
}

/// What two nodes are assumed to be apart if one has never been measured, in milliseconds: far, but
/// not as far as another continent.
const UNKNOWN: f64 = 50.0;

/// The nodes of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// The nodes and how many ranks each runs, the one in the middle first.
    pub nodes: Vec<(NodeId, u32)>,
    /// What they have in common.
    pub kind: Kind,
    /// The longest round trip from the node in the middle, in milliseconds.
    pub span_ms: f64,
    /// The lowest score of a node.
    pub quality: f64,
}

/// Chooses a cluster, or says why there is none and when there will be one.
pub fn choose(
    wanted: &Wanted,
    candidates: &[Candidate],
    map: &NodeMap,
    now: Moment,
) -> Result<Cluster, Shortage> {
    let mut kinds: BTreeMap<&Kind, Vec<&Candidate>> = BTreeMap::new();
    for candidate in candidates.iter().filter(|it| shortage::obstacle(wanted, it, now).is_none()) {
        kinds.entry(&candidate.kind).or_default().push(candidate);
    }
    let clusters = kinds
        .values()
        .flat_map(|peers| peers.iter().filter_map(|middle| around(middle, peers, wanted, map)));
    let best = clusters.max_by(|a, b| value(a, wanted).total_cmp(&value(b, wanted)));
    best.ok_or_else(|| Shortage::of(wanted, candidates, now))
}

/// How many ranks a node could run.
fn slots(wanted: &Wanted, candidate: &Candidate) -> u32 {
    match wanted.gpus_per_rank {
        0 => wanted.ranks_per_node.min(candidate.offer.cpus),
        gpus => candidate.offer.gpus / gpus,
    }
}

/// The cluster of a node and its nearest peers, if there are enough.
fn around(
    middle: &Candidate,
    peers: &[&Candidate],
    wanted: &Wanted,
    map: &NodeMap,
) -> Option<Cluster> {
    let apart = |peer: &Candidate| match peer.node == middle.node {
        true => 0.0,
        false => map.predict(middle.node, peer.node).unwrap_or(UNKNOWN),
    };
    let mut sorted: Vec<(f64, &&Candidate)> =
        peers.iter().map(|peer| (apart(peer), peer)).collect();
    let by_distance = |(a, one): &(f64, &&Candidate), (b, other): &(f64, &&Candidate)| {
        a.total_cmp(b).then(other.quality.total_cmp(&one.quality)).then(one.node.cmp(&other.node))
    };
    sorted.sort_by(by_distance);
    let (mut nodes, mut missing) = (Vec::new(), wanted.ranks);
    let (mut span_ms, mut quality) = (0.0, 1.0f64);
    for (apart, peer) in sorted {
        if missing == 0 {
            break;
        }
        let ranks = slots(wanted, peer).min(missing);
        nodes.push((peer.node, ranks));
        (missing, span_ms, quality) = (missing - ranks, apart, quality.min(peer.quality));
    }
    let kind = middle.kind.clone();
    (missing == 0).then_some(Cluster { nodes, kind, span_ms, quality })
}

/// How much a cluster suits: its quality is to be what the standing warrants, and it is to be
/// small.
fn value(cluster: &Cluster, wanted: &Wanted) -> f64 {
    /// What a borrower without any standing may expect.
    const LEAST: f64 = 0.3;
    let warranted = LEAST + (1.0 - LEAST) * wanted.standing;
    let distance = (1.0 + cluster.span_ms).log2() / 10.0;
    -(cluster.quality - warranted).abs() - distance
}

#[cfg(test)]
mod tests;
