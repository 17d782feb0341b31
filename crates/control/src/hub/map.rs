//! Where nodes are, as seen by the time that messages take between them.
//!
//! Of a thousand nodes there are half a million pairs, too many to measure. Each node has a place in
//! a plane and a height above it, its own access line; the time between two nodes is their distance
//! in the plane plus both heights (Vivaldi coordinates). Every measured round trip moves two nodes a
//! little towards what was measured, less the better a node is known. So times between nodes that
//! have never spoken can be predicted, and the same places make the map on the page.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::NodeId;

/// The place of a node, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// In the plane.
    pub x: f64,
    /// In the plane.
    pub y: f64,
    /// Above the plane.
    pub height: f64,
    /// How far off predictions are, as a share: 1 for a node that has just arrived.
    pub error: f64,
}

/// The places of all nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeMap {
    places: BTreeMap<NodeId, Place>,
}

/// How far a node moves at most, as a share of what is missing.
const STEP: f64 = 0.25;
/// No access line is shorter.
const LEAST_HEIGHT: f64 = 0.01;
/// A longer round trip is a broken measurement.
const MOST_MILLISECONDS: f64 = 60_000.0;

impl NodeMap {
    /// Where a node is, if it was ever measured.
    pub fn place(&self, node: NodeId) -> Option<&Place> {
        self.places.get(&node)
    }

    /// All nodes that were ever measured.
    pub fn places(&self) -> impl Iterator<Item = (NodeId, &Place)> {
        self.places.iter().map(|(node, place)| (*node, place))
    }

    /// Forgets a node.
    pub fn remove(&mut self, node: NodeId) {
        self.places.remove(&node);
    }

    /// The predicted round trip between two nodes, in milliseconds, if both were ever measured.
    pub fn predict(&self, one: NodeId, other: NodeId) -> Option<f64> {
        Some(time(self.places.get(&one)?, self.places.get(&other)?))
    }

    /// Takes in a round trip between two nodes.
    pub fn measured(&mut self, one: NodeId, other: NodeId, milliseconds: f64) {
        if one == other || !(0.0..=MOST_MILLISECONDS).contains(&milliseconds) {
            return;
        }
        let milliseconds = milliseconds.max(2.0 * LEAST_HEIGHT);
        let [a, b] = [one, other].map(|node| *self.places.entry(node).or_insert(start(node)));
        self.places.insert(one, moved(a, &b, milliseconds));
        self.places.insert(other, moved(b, &a, milliseconds));
    }
}

/// Newcomers begin near the middle, each in another direction, or they could not leave each other.
fn start(node: NodeId) -> Place {
    /// The golden angle, whose multiples are spread evenly.
    const TURN: f64 = 2.399_963_229_728_653;
    let (y, x) = (node.0 as f64 * TURN).sin_cos();
    Place { x, y, height: 1.0, error: 1.0 }
}

fn time(one: &Place, other: &Place) -> f64 {
    (one.x - other.x).hypot(one.y - other.y) + one.height + other.height
}

/// Where `one` is after a round trip to `other`.
fn moved(one: Place, other: &Place, milliseconds: f64) -> Place {
    let predicted = time(&one, other);
    let missing = milliseconds - predicted;
    // A node that is well known hardly moves for one that is not.
    let weight = one.error / (one.error + other.error).max(1e-9);
    let error = (missing.abs() / milliseconds).min(1.0);
    let step = STEP * weight * missing;
    let apart = (one.x - other.x).hypot(one.y - other.y);
    let heights = one.height + other.height;
    let toward = |from: f64, to: f64| match apart > 1e-9 {
        true => from + step * (from - to) / predicted,
        false => from + step / 2.0,
    };
    Place {
        x: toward(one.x, other.x),
        y: toward(one.y, other.y),
        height: (one.height + step * heights / predicted).max(LEAST_HEIGHT),
        error: (one.error + (error - one.error) * STEP * weight).clamp(0.01, 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three cities with ten nodes each, every node with an access line of its own.
    fn truth(one: u64, other: u64) -> f64 {
        const CITIES: [(f64, f64); 3] = [(0.0, 0.0), (40.0, 0.0), (15.0, 70.0)];
        let (a, b) = (CITIES[one as usize % 3], CITIES[other as usize % 3]);
        let line = |node: u64| 0.5 + (node % 7) as f64;
        (a.0 - b.0).hypot(a.1 - b.1) + line(one) + line(other)
    }

    fn trained(rounds: u64) -> NodeMap {
        let mut map = NodeMap::default();
        for round in 0..rounds {
            for node in 0..30 {
                // With a few others, and never with the rest.
                let peer = (node + 1 + round % 7) % 30;
                map.measured(NodeId(node), NodeId(peer), truth(node, peer));
            }
        }
        map
    }

    #[test]
    fn times_between_nodes_that_have_never_spoken_are_predicted() {
        let map = trained(300);
        let mut errors: Vec<f64> = Vec::new();
        for one in 0..30 {
            for other in one + 1..30 {
                let predicted = map.predict(NodeId(one), NodeId(other)).unwrap();
                errors.push((predicted - truth(one, other)).abs());
            }
        }
        errors.sort_by(f64::total_cmp);
        let [half, most] = [errors.len() / 2, errors.len() * 9 / 10].map(|index| errors[index]);
        assert!(half < 1.0 && most < 3.0, "off by {half} and {most} ms");
    }

    #[test]
    fn nodes_of_one_city_are_near_each_other_on_the_map() {
        let map = trained(300);
        let apart = |one: u64, other: u64| {
            let [a, b] = [one, other].map(|node| *map.place(NodeId(node)).unwrap());
            (a.x - b.x).hypot(a.y - b.y)
        };
        assert!(apart(0, 3) < 5.0 && apart(0, 1) > 25.0, "{} {}", apart(0, 3), apart(0, 1));
    }

    #[test]
    fn the_error_falls_with_measurements_and_nothing_is_known_of_strangers() {
        let (few, many) = (trained(1), trained(300));
        let error = |map: &NodeMap| map.place(NodeId(3)).unwrap().error;
        assert!(error(&many) < error(&few) / 2.0);
        assert_eq!(many.predict(NodeId(3), NodeId(99)), None);
    }

    #[test]
    fn broken_measurements_move_nothing() {
        let mut map = trained(5);
        let before = map.clone();
        for bad in [f64::NAN, f64::INFINITY, -1.0, 1e9] {
            map.measured(NodeId(1), NodeId(2), bad);
        }
        map.measured(NodeId(4), NodeId(4), 1.0);
        assert_eq!(map, before);
        map.measured(NodeId(1), NodeId(2), 0.0);
        assert!(map.places().all(|(_, place)| place.x.is_finite() && place.height > 0.0));
    }
}
