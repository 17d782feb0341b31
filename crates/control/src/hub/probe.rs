//! Which nodes measure the way between them next.
//!
//! Measuring costs its owners traffic, so each node takes part in one probe at a time, in none while
//! it works, and in no more than its share of bytes a day. Whoever has been measured least goes
//! first, with the partner that it has not met for the longest time.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Moment, NodeId};

/// What a probe measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    /// The time of round trips, with a few small messages.
    Latency,
    /// Bytes per second.
    Bandwidth,
}

impl Measure {
    /// What it costs each of the two nodes, in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Measure::Latency => 64 << 10,
            Measure::Bandwidth => 16 << 20,
        }
    }
}

/// Two nodes that are to measure the way between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// The node that connects.
    pub from: NodeId,
    /// The node that answers.
    pub to: NodeId,
    /// What they measure.
    pub measure: Measure,
}

/// The bytes that probes may cost a node in a day.
const DAILY: u64 = 512 << 20;
/// How long a node rests between two probes, in seconds.
const REST: u64 = 60;
/// Every so many probes of a node, one is of the bandwidth.
const BANDWIDTH_EVERY: u32 = 64;
/// A probe that nobody reports is given up after so many seconds.
const PATIENCE: u64 = 60;

/// Which probes have been made.
#[derive(Clone, Debug, Default)]
pub struct Prober {
    nodes: BTreeMap<NodeId, Probed>,
    met: BTreeMap<(NodeId, NodeId), Moment>,
    running: Vec<(Probe, Moment)>,
}

#[derive(Clone, Debug, Default)]
struct Probed {
    count: u32,
    last: Moment,
    day: u64,
    bytes: u64,
}

impl Prober {
    /// The probes to start now, among nodes that are online and do nothing else.
    pub fn next(&mut self, idle: &BTreeSet<NodeId>, now: Moment) -> Vec<Probe> {
        self.running.retain(|(_, since)| now.since(*since) < PATIENCE);
        let busy: BTreeSet<NodeId> =
            self.running.iter().flat_map(|(probe, _)| [probe.from, probe.to]).collect();
        let mut free: BTreeSet<NodeId> =
            idle.iter().copied().filter(|it| !busy.contains(it) && self.may(*it, now)).collect();
        let mut in_turn: Vec<NodeId> = free.iter().copied().collect();
        in_turn.sort_by_key(|node| self.nodes.get(node).map(|it| (it.count, it.last)));
        let mut probes = Vec::new();
        for node in in_turn {
            if !free.remove(&node) {
                continue;
            }
            let Some(partner) = self.partner(node, &free) else { break };
            free.remove(&partner);
            let probe =
                Probe { from: node, to: partner, measure: self.measure(node, partner, now) };
            self.begin(probe, now);
            probes.push(probe);
        }
        probes
    }

    /// A probe has ended, well or badly.
    pub fn ended(&mut self, probe: &Probe) {
        self.running.retain(|(running, _)| running != probe);
    }

    /// Forgets a node that is no longer part of the hub.
    pub fn remove(&mut self, node: NodeId) {
        self.nodes.remove(&node);
        self.met.retain(|(one, other), _| *one != node && *other != node);
        self.running.retain(|(probe, _)| probe.from != node && probe.to != node);
    }

    fn may(&self, node: NodeId, now: Moment) -> bool {
        self.nodes.get(&node).is_none_or(|it| now.since(it.last) >= REST)
            && self.affords(node, Measure::Latency, now)
    }

    fn affords(&self, node: NodeId, measure: Measure, now: Moment) -> bool {
        self.nodes
            .get(&node)
            .is_none_or(|it| it.day != day(now) || it.bytes + measure.bytes() <= DAILY)
    }

    /// The node that this one has not met for the longest time, or never.
    fn partner(&self, node: NodeId, free: &BTreeSet<NodeId>) -> Option<NodeId> {
        // So that those who start together do not all choose the same.
        let after = free.range(node..).chain(free.range(..node));
        after.copied().min_by_key(|other| self.met.get(&pair(node, *other)).copied())
    }

    fn measure(&self, one: NodeId, other: NodeId, now: Moment) -> Measure {
        let due = |node| {
            let count = self.nodes.get(&node).map_or(0, |it| it.count);
            count % BANDWIDTH_EVERY == 1 && self.affords(node, Measure::Bandwidth, now)
        };
        if due(one) && self.affords(other, Measure::Bandwidth, now) {
            Measure::Bandwidth
        } else {
            Measure::Latency
        }
    }

    fn begin(&mut self, probe: Probe, now: Moment) {
        self.met.insert(pair(probe.from, probe.to), now);
        self.running.push((probe, now));
        for node in [probe.from, probe.to] {
            let probed = self.nodes.entry(node).or_default();
            if probed.day != day(now) {
                (probed.day, probed.bytes) = (day(now), 0);
            }
            probed.count = probed.count.wrapping_add(1);
            probed.last = now;
            probed.bytes += probe.measure.bytes();
        }
    }
}

fn pair(one: NodeId, other: NodeId) -> (NodeId, NodeId) {
    (one.min(other), one.max(other))
}

fn day(at: Moment) -> u64 {
    at.0 / 86_400
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Moment = Moment(86_400 * 100);

    fn nodes(count: u64) -> BTreeSet<NodeId> {
        (0..count).map(NodeId).collect()
    }

    /// Runs a day with a step a minute; returns all probes.
    fn a_day(prober: &mut Prober, idle: &BTreeSet<NodeId>) -> Vec<Probe> {
        let mut all = Vec::new();
        for minute in 0..1440 {
            let probes = prober.next(idle, START.after(minute * 60));
            let taking_part: Vec<NodeId> =
                probes.iter().flat_map(|probe| [probe.from, probe.to]).collect();
            let distinct: BTreeSet<NodeId> = taking_part.iter().copied().collect();
            assert_eq!(distinct.len(), taking_part.len(), "a node is in two probes");
            probes.iter().for_each(|probe| prober.ended(probe));
            all.extend(probes);
        }
        all
    }

    #[test]
    fn every_pair_of_a_small_network_is_measured_within_a_day() {
        let mut prober = Prober::default();
        let all = a_day(&mut prober, &nodes(12));
        let pairs: BTreeSet<_> = all.iter().map(|probe| pair(probe.from, probe.to)).collect();
        assert_eq!(pairs.len(), 12 * 11 / 2);
        assert!(all.iter().any(|probe| probe.measure == Measure::Bandwidth));
    }

    #[test]
    fn no_node_pays_more_than_its_share() {
        let mut prober = Prober::default();
        let all = a_day(&mut prober, &nodes(2));
        let bytes: u64 = all.iter().map(|probe| probe.measure.bytes()).sum();
        assert!(bytes <= DAILY, "{bytes}");
        assert!(all.len() > 500);
    }

    #[test]
    fn all_nodes_take_part_equally_often() {
        let mut prober = Prober::default();
        let mut counts: BTreeMap<NodeId, usize> = BTreeMap::new();
        let all = a_day(&mut prober, &nodes(7));
        for node in all.iter().flat_map(|probe| [probe.from, probe.to]) {
            *counts.entry(node).or_default() += 1;
        }
        let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
        assert!(most - least <= most / 10, "{counts:?}");
    }

    #[test]
    fn nodes_that_work_or_are_being_measured_are_left_alone() {
        let mut prober = Prober::default();
        assert_eq!(prober.next(&nodes(1), START), []);
        assert_eq!(prober.next(&nodes(2), START).len(), 1);
        let later = START.after(PATIENCE - 1);
        assert_eq!(prober.next(&nodes(2), later), [], "the first probe has not ended");
        assert_eq!(prober.next(&nodes(2), START.after(PATIENCE)).len(), 1, "it was lost");
    }

    #[test]
    fn a_node_that_is_removed_leaves_nothing() {
        let mut prober = Prober::default();
        prober.next(&nodes(3), START);
        (0..3).for_each(|node| prober.remove(NodeId(node)));
        assert!(prober.nodes.is_empty() && prober.met.is_empty() && prober.running.is_empty());
    }
}
