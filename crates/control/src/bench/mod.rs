//! What measured times mean: spread, ratios and bandwidths; and how a machine is calibrated.
//!
//! Bandwidths are defined as in NCCL's tests, so that figures can be compared: the algorithm's is the
//! bytes of the task per second; the bus's takes into account how often each byte must travel, and
//! so does not depend on the number of ranks when the wires are the limit.

pub mod calibration;

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, VariantArray};

/// Something that can be measured, by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[derive(Display, EnumString, VariantArray)]
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
    /// The gradients of one training step of ResNet-50.
    Resnet50,
    /// The gradients of one training step of BERT-base.
    Bert,
}

impl Collective {
    /// All of them, in the order in which they are shown.
    pub const ALL: &[Collective] = Collective::VARIANTS;

    /// Whether the user chooses how many bytes it moves.
    pub fn has_sizes(self) -> bool {
        !matches!(self, Collective::Barrier | Collective::Resnet50 | Collective::Bert)
    }

    /// Bytes per second, when each rank hands in `bytes` and it takes so many seconds.
    pub fn algorithm_bandwidth(self, bytes: u64, ranks: u32, seconds: f64) -> f64 {
        let parts = if self == Collective::Allgather { f64::from(ranks) } else { 1.0 };
        bytes as f64 * parts / seconds
    }

    /// The same, times how often each byte has to travel on the busiest wire.
    pub fn bus_bandwidth(self, bytes: u64, ranks: u32, seconds: f64) -> f64 {
        let others = (f64::from(ranks) - 1.0) / f64::from(ranks);
        let factor = match self {
            Collective::Allreduce | Collective::Resnet50 | Collective::Bert => 2.0 * others,
            Collective::Allgather | Collective::Alltoall | Collective::Reducescatter => others,
            Collective::Broadcast | Collective::Barrier => 1.0,
        };
        factor * self.algorithm_bandwidth(bytes, ranks, seconds)
    }
}

/// The middle of some rounds, and how far they spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Half of the rounds were faster.
    pub median: f64,
    /// A tenth was faster.
    pub p10: f64,
    /// A tenth was slower.
    pub p90: f64,
}

impl Figures {
    /// Those of some rounds; none of no rounds.
    pub fn of(rounds: &[f64]) -> Option<Figures> {
        let sorted = sorted(rounds);
        let at = |part| percentile(&sorted, part);
        Some(Figures { median: at(0.5)?, p10: at(0.1)?, p90: at(0.9)? })
    }
}

/// How many times longer theirs took: the median of the ratios of rounds that stood side by side, so
/// that a disturbance that met both cancels out.
pub fn ratio(theirs: &[f64], ours: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = theirs.iter().zip(ours).map(|(theirs, ours)| theirs / ours).collect();
    percentile(&sorted(&ratios), 0.5)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// A percentile of sorted values, between two of them if it falls there.
fn percentile(sorted: &[f64], part: f64) -> Option<f64> {
    let place = part * sorted.len().checked_sub(1)? as f64;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    Some(low + (high - low) * place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_does_not_depend_on_the_order_of_rounds() {
        let rounds: Vec<f64> = [7, 3, 11, 1, 5, 9, 2, 10, 4, 8, 6].map(f64::from).to_vec();
        let figures = Figures::of(&rounds).unwrap();
        assert_eq!(figures, Figures { median: 6.0, p10: 2.0, p90: 10.0 });
        assert_eq!(Figures::of(&[4.0, 2.0]).unwrap().median, 3.0);
        assert_eq!(Figures::of(&[4.0]), Some(Figures { median: 4.0, p10: 4.0, p90: 4.0 }));
        assert_eq!(Figures::of(&[]), None);
    }

    #[test]
    fn a_disturbance_that_meets_both_cancels_out_of_the_ratio() {
        assert_eq!(ratio(&[20.0, 200.0, 2000.0], &[10.0, 100.0, 1000.0]), Some(2.0));
        assert_eq!(ratio(&[], &[1.0]), None);
    }

    #[test]
    fn bandwidths_are_those_of_nccls_tests() {
        for (collective, algorithm, bus) in [
            (Collective::Allreduce, 1e9, 1.5e9),
            (Collective::Allgather, 4e9, 3e9),
            (Collective::Broadcast, 1e9, 1e9),
            (Collective::Alltoall, 1e9, 0.75e9),
            (Collective::Reducescatter, 1e9, 0.75e9),
            (Collective::Resnet50, 1e9, 1.5e9),
        ] {
            assert_eq!(collective.algorithm_bandwidth(1_000_000, 4, 1e-3), algorithm);
            assert_eq!(collective.bus_bandwidth(1_000_000, 4, 1e-3), bus, "{collective:?}");
        }
    }
}
