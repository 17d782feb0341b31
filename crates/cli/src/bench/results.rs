//! The report of rank 0, line by line, and all of it as one JSON document.

use std::collections::BTreeMap;

use ronde_control::VERSION;
use ronde_control::bench::{Benchmark, Figures, ratio};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Ronde called from Python, the baseline of all ratios.
pub(super) const OURS: &str = "ronde";
/// Ronde called from native code, without Python between the calls.
pub(super) const ENGINE: &str = "engine";
/// Ronde called from Python, on tensors in memory that all ranks of the host share.
pub(super) const ARENA: &str = "arena";
/// A plain copy.
pub(super) const COPY: &str = "memcpy";
/// All systems that can be measured, in display order.
pub(super) const SYSTEMS: [(&str, &str); 6] = [
    (OURS, "Ronde"),
    (ENGINE, "engine to engine"),
    (ARENA, "from the arena"),
    ("gloo", "torch gloo"),
    ("mpi", "MPI"),
    (COPY, "memcpy"),
];

/// One line of a report.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ReportLine {
    /// A message for the user.
    Note(String),
    /// The machine and the versions of the systems.
    Run { machine: MachineInfo, versions: BTreeMap<String, String> },
    /// The next task begins.
    Begin(BenchTask),
    /// A task and the times of its rounds.
    Row(ResultRow),
    /// Whether everything has been measured.
    Done(bool),
}

/// Properties of the machine that affect the results.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct MachineInfo {
    pub(super) cpu: String,
    pub(super) cores: u32,
    /// Load average at the start: the mean number of threads that wanted a core.
    pub(super) load: f64,
    pub(super) kernel: String,
    pub(super) python: String,
}

/// What to measure.
#[derive(Debug, Deserialize)]
pub(super) struct BenchTask {
    pub(super) collective: Benchmark,
    pub(super) bytes: u64,
}

/// A task, and the seconds per call in each round, by system.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ResultRow {
    pub(super) collective: Benchmark,
    pub(super) bytes: u64,
    pub(super) dtype: String,
    pub(super) seconds: BTreeMap<String, Vec<f64>>,
}

impl ResultRow {
    pub(super) fn figures(&self, system: &str) -> Option<Figures> {
        Figures::of(self.seconds.get(system)?)
    }

    /// How many times as long as Ronde another system took.
    pub(super) fn times_ours(&self, system: &str) -> Option<f64> {
        ratio(self.seconds.get(system)?, self.seconds.get(OURS)?)
    }

    /// How many plain copies of the same size take as long as Ronde.
    pub(super) fn copies(&self) -> Option<f64> {
        ratio(self.seconds.get(OURS)?, self.seconds.get(COPY)?)
    }
}

/// Everything that one job reported.
#[derive(Clone, Debug)]
pub(super) struct BenchRun {
    pub(super) ranks: u32,
    pub(super) hosts: usize,
    pub(super) transport: String,
    pub(super) machine: MachineInfo,
    pub(super) versions: BTreeMap<String, String>,
    pub(super) notes: Vec<String>,
    pub(super) rows: Vec<ResultRow>,
    pub(super) complete: bool,
}

impl BenchRun {
    pub(super) fn new(ranks: u32, transport: &str) -> BenchRun {
        BenchRun {
            ranks,
            hosts: 1,
            transport: transport.to_owned(),
            machine: MachineInfo::default(),
            versions: BTreeMap::new(),
            notes: Vec::new(),
            rows: Vec::new(),
            complete: false,
        }
    }

    pub(super) fn take(&mut self, line: ReportLine) {
        match line {
            ReportLine::Note(note) => self.notes.push(note),
            ReportLine::Run { machine, versions } => {
                self.machine = machine;
                self.versions = versions;
            }
            ReportLine::Begin(_) => {}
            ReportLine::Row(row) => self.rows.push(row),
            ReportLine::Done(done) => self.complete = done,
        }
    }

    /// The collectives that were measured, in order.
    pub(super) fn collectives(&self) -> Vec<Benchmark> {
        let mut found: Vec<Benchmark> = self.rows.iter().map(|row| row.collective).collect();
        found.dedup();
        found
    }

    pub(super) fn rows_of(&self, collective: Benchmark) -> Vec<&ResultRow> {
        self.rows.iter().filter(|row| row.collective == collective).collect()
    }
}

/// All results, with every round, for other programs.
pub(super) fn json(runs: &[BenchRun]) -> String {
    let runs: Vec<Value> = runs.iter().map(run).collect();
    let all = json!({ "ronde": VERSION, "unit": "seconds", "runs": runs });
    format!("{all:#}\n")
}

fn run(run: &BenchRun) -> Value {
    json!({
        "ranks": run.ranks,
        "hosts": run.hosts,
        "transport": run.transport,
        "machine": run.machine,
        "versions": run.versions,
        "notes": run.notes,
        "rows": run.rows.iter().map(|line| row(line, run.ranks)).collect::<Vec<_>>(),
    })
}

fn row(row: &ResultRow, ranks: u32) -> Value {
    let system = |name: &String| {
        let figures = row.figures(name)?;
        Some(json!({
            "median": figures.median,
            "p10": figures.p10,
            "p90": figures.p90,
            "times_ours": row.times_ours(name),
            "rounds": row.seconds[name],
        }))
    };
    let systems: BTreeMap<_, _> = row.seconds.keys().map(|name| (name, system(name))).collect();
    let ResultRow { collective, bytes, .. } = row;
    let median = row.figures(OURS).map(|figures| figures.median);
    json!({
        "collective": collective,
        "bytes": bytes,
        "dtype": row.dtype,
        "algorithm_bytes_per_second":
            median.map(|seconds| collective.algorithm_bandwidth(*bytes, ranks, seconds)),
        "bus_bytes_per_second":
            median.map(|seconds| collective.bus_bandwidth(*bytes, ranks, seconds)),
        "copies": row.copies(),
        "systems": systems,
    })
}

/// A run with every system, as rank 0 would report it, for tests of tables and plots.
#[cfg(test)]
pub(super) fn sample() -> BenchRun {
    let mut run = BenchRun::new(2, "auto");
    let lines = [
        r#"{"run": {"machine": {"cpu": "Example CPU", "cores": 2, "load": 0.5,
            "kernel": "6.1", "python": "3.11"}, "versions": {"ronde": "1.0", "gloo": "torch 2.9", "mpi": "Open MPI v4.1.4"}}}"#,
        r#"{"note": "gloo for alltoall is left out: not supported"}"#,
        r#"{"begin": {"collective": "allreduce", "bytes": 4, "dtype": "float32", "ranks": 2}}"#,
        r#"{"row": {"collective": "allreduce", "bytes": 4, "dtype": "float32", "ranks": 2, "seconds":
            {"ronde": [4e-6, 5e-6, 6e-6], "engine": [2e-6, 2e-6, 2e-6], "arena": [5e-6, 5e-6, 5e-6],
             "gloo": [2e-4, 3e-4, 2e-4], "mpi": [1e-6, 1e-6, 1e-6], "memcpy": [5e-7, 5e-7, 5e-7]}}}"#,
        r#"{"row": {"collective": "allreduce", "bytes": 67108864, "dtype": "float32", "ranks": 2,
            "seconds": {"ronde": [0.02, 0.021, 0.03], "engine": [0.02, 0.02, 0.02], "arena": [0.01, 0.01, 0.01],
             "gloo": [0.08, 0.09, 0.1], "mpi": [0.04, 0.05, 0.03], "memcpy": [0.01, 0.01, 0.01]}}}"#,
        r#"{"row": {"collective": "barrier", "bytes": 0, "dtype": "float32", "ranks": 2,
            "seconds": {"ronde": [3e-6], "mpi": [1e-6]}}}"#,
        r#"{"done": true}"#,
    ];
    for line in lines {
        run.take(serde_json::from_str(line).expect("a report of rank 0"));
    }
    assert!(run.complete);
    run
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_every_round_and_derived_figures() {
        let all: Value = serde_json::from_str(&json(&[sample()])).unwrap();
        let row = &all["runs"][0]["rows"][1];
        assert_eq!(row["collective"], "allreduce");
        assert_eq!(row["systems"]["gloo"]["rounds"], json!([0.08, 0.09, 0.1]));
        assert_eq!(row["systems"]["ronde"]["median"], 0.021);
        assert_eq!(row["systems"]["gloo"]["times_ours"], 4.0);
        assert_eq!(row["copies"], 2.1);
        assert_eq!(row["bus_bytes_per_second"], row["algorithm_bytes_per_second"]);
        assert_eq!(all["runs"][0]["machine"]["cpu"], "Example CPU");
        assert_eq!(all["unit"], "seconds");
    }
}
