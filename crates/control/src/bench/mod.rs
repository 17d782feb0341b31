//! Interprets measured times: spread, ratios and bandwidths; and calibrates a machine.
//!
//! Bandwidths are defined as in NCCL's tests, so that results are comparable. Algorithm bandwidth
//! is the bytes of the task per second; bus bandwidth accounts for how often each byte must travel,
//! so it does not depend on the number of ranks when the network is the limit.

pub mod calibration;

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, VariantArray};

/// A benchmark, by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[derive(Display, EnumString, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Benchmark {
    /// All ranks get the sum.
    Allreduce,
    /// All ranks get the tensors of all.
    Allgather,
    /// All ranks get one rank's tensor.
    Broadcast,
    /// Each rank gets its part of every rank's tensor.
    Alltoall,
    /// Each rank gets its part of the sum.
    Reducescatter,
    /// All ranks wait for each other.
    Barrier,
    /// The gradients of one training step of ResNet-50.
    Resnet50,
    /// The gradients of one training step of BERT-base.
    Bert,
}

impl Benchmark {
    /// All benchmarks, in display order.
    pub const ALL: &[Benchmark] = Benchmark::VARIANTS;

    /// Whether the user chooses how many bytes it moves.
    pub fn has_sizes(self) -> bool {
        !matches!(self, Benchmark::Barrier | Benchmark::Resnet50 | Benchmark::Bert)
    }

    /// Bytes per second if each rank submits `bytes` and the operation takes `seconds`.
    pub fn algorithm_bandwidth(self, bytes: u64, ranks: u32, seconds: f64) -> f64 {
        let parts = if self == Benchmark::Allgather { f64::from(ranks) } else { 1.0 };
        bytes as f64 * parts / seconds
    }

    /// Algorithm bandwidth times how often each byte travels over the busiest link.
    pub fn bus_bandwidth(self, bytes: u64, ranks: u32, seconds: f64) -> f64 {
        let others = (f64::from(ranks) - 1.0) / f64::from(ranks);
        let factor = match self {
            Benchmark::Allreduce | Benchmark::Resnet50 | Benchmark::Bert => 2.0 * others,
            Benchmark::Allgather | Benchmark::Alltoall | Benchmark::Reducescatter => others,
            Benchmark::Broadcast | Benchmark::Barrier => 1.0,
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
            (Benchmark::Allreduce, 1e9, 1.5e9),
            (Benchmark::Allgather, 4e9, 3e9),
            (Benchmark::Broadcast, 1e9, 1e9),
            (Benchmark::Alltoall, 1e9, 0.75e9),
            (Benchmark::Reducescatter, 1e9, 0.75e9),
            (Benchmark::Resnet50, 1e9, 1.5e9),
        ] {
            assert_eq!(collective.algorithm_bandwidth(1_000_000, 4, 1e-3), algorithm);
            assert_eq!(collective.bus_bandwidth(1_000_000, 4, 1e-3), bus, "{collective:?}");
        }
    }
}
