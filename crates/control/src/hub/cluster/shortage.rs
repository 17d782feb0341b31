//! Why there is no cluster: what stands in the way of each node, what would be enough, and when.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Candidate, Kind, NodeState, Wanted, slots};
use crate::counted;
use crate::hub::{Moment, Span};

/// Too few nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shortage {
    /// How many ranks were asked for.
    pub ranks: u32,
    /// How many the largest group of like nodes could run now.
    pub possible: u32,
    /// How many all nodes together could run now, although they are of several kinds.
    pub of_all_kinds: u32,
    /// How these kinds differ.
    pub differences: Vec<String>,
    /// Why nodes are set aside, and how many for each reason.
    pub aside: Vec<(SetAside, u32)>,
    /// In how many seconds there will be enough, if nobody else takes them and nothing changes.
    pub enough_in: Option<u64>,
}

/// Why a node cannot take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SetAside {
    /// It is offered to other people.
    NotOffered,
    /// It has no GPU, or too few for a rank.
    TooFewGpus,
    /// It is not connected.
    Offline,
    /// Its owner needs it.
    Paused,
    /// It is reserved.
    Reserved,
    /// Its hours have not begun, or end too soon.
    Hours,
}

impl SetAside {
    fn words(self) -> &'static str {
        match self {
            SetAside::NotOffered => "not offered to you",
            SetAside::TooFewGpus => "without enough GPUs",
            SetAside::Offline => "offline",
            SetAside::Paused => "paused by the owner",
            SetAside::Reserved => "reserved",
            SetAside::Hours => "not lent for so long at this hour",
        }
    }
}

/// What stands in the way of a node, what lasts longest first.
pub(super) fn obstacle(wanted: &Wanted, candidate: &Candidate, now: Moment) -> Option<SetAside> {
    let Candidate { owner, offer, state, .. } = candidate;
    if !offer.to.includes(wanted.borrower, *owner) {
        return Some(SetAside::NotOffered);
    }
    if slots(wanted, candidate) == 0 {
        return Some(SetAside::TooFewGpus);
    }
    let short = offer.hours.is_some_and(|hours| hours.left(now) < wanted.seconds);
    match state {
        NodeState::Offline => Some(SetAside::Offline),
        NodeState::Paused => Some(SetAside::Paused),
        NodeState::Reserved { .. } => Some(SetAside::Reserved),
        NodeState::Free => short.then_some(SetAside::Hours),
    }
}

impl Shortage {
    pub(super) fn of(wanted: &Wanted, candidates: &[Candidate], now: Moment) -> Shortage {
        let mut aside: BTreeMap<SetAside, u32> = BTreeMap::new();
        let mut kinds: BTreeMap<&Kind, u32> = BTreeMap::new();
        for candidate in candidates {
            match obstacle(wanted, candidate, now) {
                Some(reason) => *aside.entry(reason).or_default() += 1,
                None => *kinds.entry(&candidate.kind).or_default() += slots(wanted, candidate),
            }
        }
        Shortage {
            ranks: wanted.ranks,
            possible: kinds.values().copied().max().unwrap_or_default(),
            of_all_kinds: kinds.values().sum(),
            differences: differences(kinds.keys().copied()),
            aside: aside.into_iter().collect(),
            enough_in: enough_in(wanted, candidates, now),
        }
    }
}

/// The values that are not the same in all kinds: `torch: 2.9.1, 2.11.0`.
fn differences<'a>(kinds: impl Iterator<Item = &'a Kind>) -> Vec<String> {
    let mut values: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut count = 0;
    for kind in kinds {
        count += 1;
        let packages = kind.packages.iter().map(|(name, version)| (&**name, &**version));
        let own = [("device", &*kind.device), ("Python", &*kind.python)];
        for (name, value) in own.into_iter().chain(packages) {
            values.entry(name).or_default().push(value);
        }
    }
    let text = |(name, mut values): (&str, Vec<&str>)| {
        if values.len() < count {
            values.push("none");
        }
        values.sort_unstable();
        values.dedup();
        (values.len() > 1).then(|| format!("{name}: {}", values.join(", ")))
    };
    values.into_iter().filter_map(text).collect()
}

/// When enough like nodes will be free, if reservations end and hours begin as they say.
fn enough_in(wanted: &Wanted, candidates: &[Candidate], now: Moment) -> Option<u64> {
    let mut kinds: BTreeMap<&Kind, Vec<(Moment, u32)>> = BTreeMap::new();
    for candidate in candidates {
        if let Some(at) = free_from(wanted, candidate, now) {
            kinds.entry(&candidate.kind).or_default().push((at, slots(wanted, candidate)));
        }
    }
    let enough_at = |mut free: Vec<(Moment, u32)>| {
        free.sort_unstable();
        let mut sum = 0;
        let reached = free.into_iter().find(|(_, slots)| {
            sum += slots;
            sum >= wanted.ranks
        });
        reached.map(|(at, _)| at)
    };
    kinds.into_values().filter_map(enough_at).min().map(|at| at.since(now))
}

fn free_from(wanted: &Wanted, candidate: &Candidate, now: Moment) -> Option<Moment> {
    let free = match (obstacle(wanted, candidate, now), candidate.state) {
        (None, _) => return Some(now),
        (Some(SetAside::Reserved), NodeState::Reserved { until }) => until.max(now),
        (Some(SetAside::Hours), _) => now,
        _ => return None,
    };
    let Some(hours) = candidate.offer.hours else { return Some(free) };
    if hours.left(free) >= wanted.seconds {
        return Some(free);
    }
    let next = hours.next(free.after(hours.left(free)));
    (hours.left(next) >= wanted.seconds).then_some(next)
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = |count: u32| counted(count as usize, "rank");
        write!(f, "{} asked for, room for {} now", ranks(self.ranks), self.possible)?;
        if self.of_all_kinds >= self.ranks {
            write!(
                f,
                "; there is room for {} on nodes that differ ({})",
                self.of_all_kinds,
                self.differences.join("; ")
            )?;
        }
        for (reason, nodes) in &self.aside {
            write!(f, "; {} {}", counted(*nodes as usize, "node"), reason.words())?;
        }
        match self.enough_in {
            Some(seconds) => write!(f, "; there will be enough in about {}", Span(seconds)),
            None => Ok(()),
        }
    }
}
