//! The options of `ronde bench`, and the plan that follows from them.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use ronde_control::bench::Benchmark;
use ronde_control::{Collective, DType};
use ronde_launch::hosts::{self, Host, HostsError, Slot};
use ronde_launch::reach::ReachMethod;

use super::results::{ARENA, COPY, ENGINE, OURS};
use super::units;
use crate::horovodrun::about_hosts;
use crate::messages::UserError;
use crate::processes;
use crate::reach::Reach;

/// How long the hosts may take to respond.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The value of `--collective` that selects everything.
const ALL: &str = "all";

/// Measure the collectives, optionally compared with gloo and MPI.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "ronde bench [-np <N>] [OPTIONS]",
    after_help = "Examples:\n  ronde bench\n  ronde bench -np 2,4 --collective all --compare gloo,mpi \
                  --plot bench.svg\n  ronde bench -np 4 --calibrate tuning.conf"
)]
pub(crate) struct Arguments {
    /// Number of ranks; several are measured one after another; also written `-np <N>`
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "2",
          value_parser = processes::number)]
    num_proc: Vec<u32>,

    hosts: Option<String>,

    #[command(flatten)]
    reach: Reach,

    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "allreduce",
          value_parser = collective, hide_possible_values = true, help = collectives())]
    collective: Vec<Vec<BenchmarkArg>>,

    /// Bytes that each rank submits; K, M and G are powers of 1024
    #[arg(long, value_name = "BYTES", value_delimiter = ',',
          default_value = "4,1K,16K,256K,4M,64M", value_parser = units::parse_bytes)]
    sizes: Vec<u64>,

    /// The element type
    #[arg(long, value_name = "TYPE", default_value = "float32", value_parser = dtype)]
    dtype: String,

    /// Also measure these, in alternating rounds: gloo (from torch), mpi (the `mpirun` on the PATH)
    #[arg(long, value_name = "PEERS", value_delimiter = ',',
          value_parser = PossibleValuesParser::new(["gloo", "mpi"]), hide_possible_values = true)]
    compare: Vec<String>,

    /// auto: shared memory where possible; tcp: sockets; `auto,tcp`: both
    #[arg(long, value_name = "TRANSPORTS", value_delimiter = ',', default_value = "auto",
          value_parser = PossibleValuesParser::new(["auto", "tcp"]), hide_possible_values = true)]
    transport: Vec<String>,

    /// Rounds per line of the table
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = rounds)]
    rounds: u32,

    /// Instead of a number of rounds: as many as fit into this many seconds per line
    #[arg(long, value_name = "S", value_parser = seconds, allow_negative_numbers = true)]
    seconds: Option<f64>,

    /// Write all figures to a file; `-` writes them to standard output instead of the table
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,

    /// Plot the times to an SVG file
    #[arg(long, value_name = "FILE")]
    pub(super) plot: Option<PathBuf>,

    /// Measure where one algorithm overtakes another on this machine, and write these thresholds to
    /// a file for RONDE_TUNING
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "plot", "compare"])]
    pub(super) calibrate: Option<PathBuf>,

    /// Print which algorithm runs when, with the thresholds that RONDE_TUNING sets here
    #[arg(long, exclusive = true)]
    pub(super) choices: bool,

    pub(crate) verbose: bool,
}

/// What a value of `--collective` selects.
type BenchmarkArg = Benchmark;

/// The slots and hosts of the ranks of one job.
#[derive(Clone)]
pub(super) struct RankPlacement {
    pub(super) slots: Vec<Slot>,
    pub(super) hosts: Vec<(Host, ReachMethod)>,
}

impl RankPlacement {
    /// Whether all ranks are on this machine.
    pub(super) fn is_here(&self) -> bool {
        self.hosts.iter().all(|(_, method)| *method == ReachMethod::Local)
    }
}

/// What to measure, after validation.
#[derive(Clone)]
pub(super) struct BenchPlan {
    /// The placement of the ranks, for each number of ranks.
    pub(super) placements: Vec<RankPlacement>,
    pub(super) collectives: Vec<Benchmark>,
    pub(super) sizes: Vec<u64>,
    pub(super) dtype: String,
    /// Which variants of Ronde to measure, and the plain copy.
    pub(super) systems: Vec<String>,
    pub(super) compare: Vec<String>,
    pub(super) transports: Vec<String>,
    pub(super) rounds: u32,
    pub(super) seconds: Option<f64>,
}

impl Arguments {
    pub(super) fn plan(&self) -> Result<BenchPlan, UserError> {
        let placements = unique(&self.num_proc).into_iter().map(|ranks| self.placements(ranks));
        let placements = placements.collect::<Result<_, _>>()?;
        Ok(BenchPlan {
            placements,
            collectives: unique(&self.collective.concat()),
            sizes: unique(&self.sizes),
            dtype: self.dtype.clone(),
            systems: [OURS, ENGINE, ARENA, COPY].map(str::to_owned).to_vec(),
            compare: unique(&self.compare),
            transports: unique(&self.transport),
            rounds: self.rounds,
            seconds: self.seconds,
        })
    }

    fn placements(&self, ranks: u32) -> Result<RankPlacement, UserError> {
        let invalid = |error: HostsError| about_hosts(&error);
        let hosts = match &self.hosts {
            Some(text) => hosts::parse(text).map_err(invalid)?,
            None => vec![Host::local(ranks)],
        };
        let slots = hosts::assign(&hosts, ranks).map_err(invalid)?;
        let reach = self.reach.options(START_TIMEOUT)?;
        let hosts = hosts::methods(&hosts, &slots, &hosts::hostname(), &reach);
        Ok(RankPlacement { hosts, slots })
    }
}

/// Removes duplicates and keeps the order.
fn unique<T: Clone + PartialEq>(values: &[T]) -> Vec<T> {
    let mut kept: Vec<T> = Vec::new();
    for value in values {
        if !kept.contains(value) {
            kept.push(value.clone());
        }
    }
    kept
}

fn collectives() -> String {
    let names = names(Collective::ALL);
    format!("{names}; the gradients of one training step of resnet50 or bert; or {ALL}")
}

fn names(all: impl IntoIterator<Item = impl ToString>) -> String {
    all.into_iter().map(|each| each.to_string()).collect::<Vec<_>>().join(", ")
}

fn collective(text: &str) -> Result<Vec<BenchmarkArg>, String> {
    if text == ALL {
        return Ok(Benchmark::all().collect());
    }
    let found = text.parse().map(|collective| vec![collective]);
    found.map_err(|_| format!("it must be one of {}, or {ALL}", names(Benchmark::all())))
}

fn dtype(text: &str) -> Result<String, String> {
    match text.parse() {
        Ok(DType::Bool) | Err(_) => Err("it must be an element type such as float32, float64, \
                                         float16, bfloat16, int32 or uint8"
            .into()),
        Ok(_) => Ok(text.to_owned()),
    }
}

fn rounds(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(rounds @ 1..) => Ok(rounds),
        _ => Err("it must be a positive integer".into()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("it must be a number of seconds up to 3600".into()),
    }
}
