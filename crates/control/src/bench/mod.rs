//! Interprets measured times: spread, ratios and bandwidths; and calibrates a machine.
//!
//! Bandwidths are defined as in NCCL's tests, so that results are comparable. Algorithm bandwidth
//! is the bytes of the task per second; bus bandwidth accounts for how often each byte must travel,
//! so it does not depend on the number of ranks when the network is the limit.

pub mod calibration;

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, VariantArray};

use crate::Collective;

/// A benchmark, by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Display)]
#[serde(untagged)]
pub enum Benchmark {
    /// One collective.
    #[strum(transparent)]
    Collective(Collective),
    /// The gradients of one training step.
    #[strum(transparent)]
    Model(Model),
}

/// A model whose gradients are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[derive(Display, EnumString, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Model {
    /// ResNet-50.
    Resnet50,
    /// BERT-base.
    Bert,
}

impl FromStr for Benchmark {
    type Err = strum::ParseError;

    fn from_str(name: &str) -> Result<Benchmark, strum::ParseError> {
        let collective = name.parse().map(Benchmark::Collective);
        collective.or_else(|_| name.parse().map(Benchmark::Model))
    }
}

impl Benchmark {
    /// A barrier, which moves nothing.
    pub const BARRIER: Benchmark = Benchmark::Collective(Collective::Barrier);

    /// All benchmarks, in display order.
    pub fn all() -> impl Iterator<Item = Benchmark> {
        let collectives = Collective::ALL.iter().copied().map(Benchmark::Collective);
        collectives.chain(Model::VARIANTS.iter().copied().map(Benchmark::Model))
    }

    /// Whether the user chooses how many bytes it moves.
    pub fn has_sizes(self) -> bool {
        matches!(self, Benchmark::Collective(collective) if collective != Collective::Barrier)
    }

    /// Bytes per second if each rank submits `bytes` and the operation takes `seconds`.
    pub fn algorithm_bandwidth(self, bytes: u64, ranks: u32, seconds: f64) -> f64 {
        let parts = if self == Benchmark::Collective(Collective::Allgather) {
            f64::from(ranks)
        } else {
            1.0
        };
        bytes as f64 * parts / seconds
    }

    /// Algorithm bandwidth times how often each byte travels over the busiest link.
    pub fn bus_bandwidth(self, bytes: u64, ranks: u32, seconds: f64) -> f64 {
        let others = (f64::from(ranks) - 1.0) / f64::from(ranks);
        let factor = match self {
            Benchmark::Model(_) | Benchmark::Collective(Collective::Allreduce) => 2.0 * others,
            Benchmark::Collective(Collective::Broadcast | Collective::Barrier) => 1.0,
            Benchmark::Collective(_) => others,
        };
        factor * self.algorithm_bandwidth(bytes, ranks, seconds)
    }
}

/// Median and spread of the rounds of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Half of the rounds took less.
    pub median: f64,
    /// A tenth of the rounds took less.
    pub p10: f64,
    /// A tenth of the rounds took more.
    pub p90: f64,
}

impl Figures {
    /// The figures of these rounds; `None` if there are none.
    pub fn of(rounds: &[f64]) -> Option<Figures> {
        let sorted = sorted(rounds);
        let at = |part| percentile(&sorted, part);
        Some(Figures { median: at(0.5)?, p10: at(0.1)?, p90: at(0.9)? })
    }
}

/// How many times longer theirs took: the median of the ratios of adjacent rounds, in which a
/// disturbance that hits both cancels out.
pub fn ratio(theirs: &[f64], ours: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = theirs.iter().zip(ours).map(|(theirs, ours)| theirs / ours).collect();
    percentile(&sorted(&ratios), 0.5)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// A percentile of sorted values, interpolated linearly.
fn percentile(sorted: &[f64], part: f64) -> Option<f64> {
    let place = part * sorted.len().checked_sub(1)? as f64;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    Some(low + (high - low) * place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_do_not_depend_on_the_order_of_rounds() {
        let rounds: Vec<f64> = [7, 3, 11, 1, 5, 9, 2, 10, 4, 8, 6].map(f64::from).to_vec();
        let figures = Figures::of(&rounds).unwrap();
        assert_eq!(figures, Figures { median: 6.0, p10: 2.0, p90: 10.0 });
        assert_eq!(Figures::of(&[4.0, 2.0]).unwrap().median, 3.0);
        assert_eq!(Figures::of(&[4.0]), Some(Figures { median: 4.0, p10: 4.0, p90: 4.0 }));
        assert_eq!(Figures::of(&[]), None);
    }

    #[test]
    fn a_disturbance_that_hits_both_cancels_out_of_the_ratio() {
        assert_eq!(ratio(&[20.0, 200.0, 2000.0], &[10.0, 100.0, 1000.0]), Some(2.0));
        assert_eq!(ratio(&[], &[1.0]), None);
    }

    #[test]
    fn bandwidths_are_those_of_nccls_tests() {
        for (collective, algorithm, bus) in [
            (Benchmark::Collective(Collective::Allreduce), 1e9, 1.5e9),
            (Benchmark::Collective(Collective::Allgather), 4e9, 3e9),
            (Benchmark::Collective(Collective::Broadcast), 1e9, 1e9),
            (Benchmark::Collective(Collective::Alltoall), 1e9, 0.75e9),
            (Benchmark::Collective(Collective::Reducescatter), 1e9, 0.75e9),
            (Benchmark::Model(Model::Resnet50), 1e9, 1.5e9),
        ] {
            assert_eq!(collective.algorithm_bandwidth(1_000_000, 4, 1e-3), algorithm);
            assert_eq!(collective.bus_bandwidth(1_000_000, 4, 1e-3), bus, "{collective:?}");
        }
    }
}
