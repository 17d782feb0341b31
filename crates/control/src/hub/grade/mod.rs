//! Grades a node by what was measured, relative to the other nodes.
//!
//! Each axis has a score from 0 to 1 that is as good as the evidence allows: of a share such as
//! the time online, the lower end of what is plausible counts, and a place among the others starts
//! in the middle and moves with every measurement. So a newcomer begins with a C and can become an
//! A only by staying. The whole is a weighted mean, at most one letter above the worst axis.

mod evidence;
mod letter;

use std::fmt;

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};

use super::Span;
pub use evidence::{Evidence, Measured, Network, Record};
pub use letter::Letter;

/// What is graded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[derive(Display, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Axis {
    /// Whether the node is there when its owner said it would be.
    Availability,
    /// How seldom it vanishes without notice.
    Stability,
    /// How fast it computes.
    Speed,
    /// How well it is connected.
    Network,
    /// What became of the clusters that it served.
    Record,
}

impl Axis {
    /// All of them, in the order in which they are shown.
    pub const ALL: &[Axis] = Axis::VARIANTS;

    /// Its share of the whole.
    fn weight(self) -> f64 {
        match self {
            Axis::Availability | Axis::Stability | Axis::Speed => 0.2,
            Axis::Network => 0.15,
            Axis::Record => 0.25,
        }
    }
}

/// A score and why it is that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grade {
    /// From 0 to 1.
    pub score: f64,
    /// The score as a letter.
    pub letter: Letter,
    /// The reason in words.
    pub why: String,
}

/// The grades of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grades {
    /// All in all.
    pub whole: Grade,
    /// One for each axis, in the order of [`Axis::ALL`].
    pub axes: Vec<(Axis, Grade)>,
}

impl Grade {
    fn new(score: f64, why: impl Into<String>) -> Grade {
        let score = score.clamp(0.0, 1.0);
        Grade { score, letter: Letter::of(score), why: why.into() }
    }
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.letter, self.why)
    }
}

/// What the other nodes measure, against which each is compared; made once for all.
#[derive(Clone, Debug, Default)]
pub struct Population {
    speeds: Vec<f64>,
    latencies: Vec<f64>,
    bandwidths: Vec<f64>,
}

impl Population {
    /// The population of these nodes.
    pub fn of<'a>(nodes: impl IntoIterator<Item = &'a Evidence>) -> Population {
        let mut population = Population::default();
        for evidence in nodes {
            if let Some(measured) = &evidence.speed {
                population.speeds.push(measured.value);
            }
            if let Some(network) = &evidence.network {
                population.latencies.push(network.latency_ms);
                population.bandwidths.push(network.bandwidth);
            }
        }
        for values in
            [&mut population.speeds, &mut population.latencies, &mut population.bandwidths]
        {
            values.sort_by(f64::total_cmp);
        }
        population
    }
}

/// The grades that follow from the evidence about a node.
pub fn grade(evidence: &Evidence, population: &Population) -> Grades {
    let axis = |axis: &Axis| {
        let grade = match axis {
            Axis::Availability => availability(evidence),
            Axis::Stability => stability(evidence),
            Axis::Speed => speed(evidence, population),
            Axis::Network => network(evidence, population),
            Axis::Record => record(evidence),
        };
        (*axis, grade)
    };
    let axes: Vec<(Axis, Grade)> = Axis::ALL.iter().map(axis).collect();
    Grades { whole: whole(&axes), axes }
}

fn whole(axes: &[(Axis, Grade)]) -> Grade {
    let mean: f64 = axes.iter().map(|(axis, grade)| axis.weight() * grade.score).sum();
    let worst = axes.iter().min_by(|(_, a), (_, b)| a.score.total_cmp(&b.score));
    let (axis, grade) = worst.expect("there are axes");
    match Letter::of(mean) < grade.letter.better() {
        true => {
            let score = mean.min(grade.letter.better().best());
            Grade::new(score, format!("held back by {axis}, which is {}", grade.letter))
        }
        false => Grade::new(mean, format!("lowest in {axis}, which is {}", grade.letter)),
    }
}

/// How many hours of promised time count as one independent observation.
const HOURS_PER_OBSERVATION: f64 = 4.0;

fn availability(evidence: &Evidence) -> Grade {
    let Evidence { promised_seconds, online_seconds, .. } = *evidence;
    if promised_seconds == 0 {
        return Grade::new(MIDDLE, "has not promised any time yet");
    }
    let share = online_seconds.min(promised_seconds) as f64 / promised_seconds as f64;
    let observations = promised_seconds as f64 / 3600.0 / HOURS_PER_OBSERVATION;
    let why = format!("online {:.1} % of the {} promised", share * 100.0, Span(promised_seconds));
    Grade::new(plausible(share, observations), why)
}

/// An interruption a day is a C. Before the first day is over, one is assumed.
fn stability(evidence: &Evidence) -> Grade {
    let days = evidence.online_seconds as f64 / 86_400.0;
    let rate = (f64::from(evidence.vanished) + 1.0) / (days + 1.0);
    let online = Span(evidence.online_seconds);
    let why = match evidence.vanished {
        0 => format!("has never vanished in {online} online"),
        1 => format!("vanished once in {online} online"),
        count => format!("vanished {count} times in {online} online"),
    };
    Grade::new(1.0 / (1.0 + rate), why)
}

fn speed(evidence: &Evidence, population: &Population) -> Grade {
    let Some(measured) = &evidence.speed else {
        return Grade::new(MIDDLE, "not measured yet");
    };
    if let Some(claimed) = measured.lie() {
        let why = format!(
            "measured {:.0}, which is less than the {claimed:.0} it claims",
            measured.value
        );
        return Grade::new(0.0, why);
    }
    let place = place(measured.value, &population.speeds);
    let why = format!(
        "{}, measured {}",
        among("faster", place, &population.speeds),
        times(measured.count)
    );
    Grade::new(settled(place, measured.count, population.speeds.len()), why)
}

/// One percent of lost probes costs as much as a tenth of the places.
const LOSS_COST: f64 = 10.0;

fn network(evidence: &Evidence, population: &Population) -> Grade {
    let Some(network) = &evidence.network else {
        return Grade::new(MIDDLE, "not measured yet");
    };
    let nearer = 1.0 - place(network.latency_ms, &population.latencies);
    let wider = place(network.bandwidth, &population.bandwidths);
    let nodes = population.bandwidths.len();
    let score = settled((nearer + wider) / 2.0, network.count, nodes) - LOSS_COST * network.loss;
    let mut why =
        format!("{:.1} ms to its peers, {:.0} MB/s", network.latency_ms, network.bandwidth / 1e6);
    if network.loss > 0.001 {
        why += &format!(", loses {:.1} % of the probes", network.loss * 100.0);
    }
    Grade::new(score, format!("{why}, measured {}", times(network.count)))
}

fn record(evidence: &Evidence) -> Grade {
    let Record { served, failed, left } = evidence.record;
    let total: f64 = [served, failed, left].map(f64::from).iter().sum();
    if total == 0.0 {
        return Grade::new(MIDDLE, "has not served a cluster yet");
    }
    let mut why = format!("served {served} of {total} clusters to the end");
    for (count, what) in [(failed, "failed"), (left, "left early")] {
        if count > 0 {
            why += &format!(", {what} {}", times(count));
        }
    }
    Grade::new(plausible(f64::from(served) / total, total), why)
}

/// What is assumed of a node of which nothing is known.
const MIDDLE: f64 = 0.5;

/// The lower end of what is plausible for a share of that many observations: Wilson's bound, which
/// nine of ten times is below the truth.
fn plausible(share: f64, observations: f64) -> f64 {
    const Z: f64 = 1.282;
    let (n, z2) = (observations, Z * Z);
    let middle = share + z2 / (2.0 * n);
    let margin = Z * (share * (1.0 - share) / n + z2 / (4.0 * n * n)).sqrt();
    (middle - margin) / (1.0 + z2 / n)
}

/// The share of values that are smaller, with half of those that are equal.
fn place(value: f64, sorted: &[f64]) -> f64 {
    let smaller = sorted.partition_point(|other| *other < value);
    let upto = sorted.partition_point(|other| *other <= value);
    match sorted.len() {
        0 => MIDDLE,
        count => (smaller + upto) as f64 / 2.0 / count as f64,
    }
}

/// A place among the nodes, as far as so many measurements of so many nodes settle it.
fn settled(place: f64, measurements: u32, nodes: usize) -> f64 {
    let sure = |count: f64, half: f64| count / (count + half);
    let weight = sure(f64::from(measurements), 1.0) * sure(nodes as f64, 3.0);
    MIDDLE + (place - MIDDLE) * weight
}

fn among(better: &str, place: f64, all: &[f64]) -> String {
    format!("{better} than {:.0} % of {} nodes", place * 100.0, all.len())
}

fn times(count: u32) -> String {
    match count {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        count => format!("{count} times"),
    }
}

#[cfg(test)]
mod tests;
