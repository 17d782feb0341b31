//! Results as Markdown tables, which read well on a screen and when pasted into a document.

use ronde_control::bench::{Benchmark, Model};

use super::results::{ARENA, BenchRun, COPY, ENGINE, OURS, ResultRow, SYSTEMS};
use super::units;
use crate::tables;

/// Below this size a copy is dominated by the call itself and says nothing about memory.
const LEAST_COPY: u64 = 4096;

const LEGEND: &str = "\
Times are medians over rounds, with the 10th to 90th percentile in parentheses;
a round is the mean time of its calls on the slowest rank. Ratios are medians
of the ratios round by round: above 1, Ronde was faster. GB/s and bus GB/s are
Ronde's bandwidths as NCCL defines them. `copies` is how many plain copies of a
rank's tensor, made by all ranks at once, take as long as the call.
";

/// Columns to drop first if a terminal is too narrow, in this order.
const LESS: [&str; 5] = ["engine to engine", "from the arena", "bus GB/s", "copies", "GB/s"];

const NARROW: &str = "\
Some columns are hidden because the terminal is too narrow; use a wider one,
redirect the output, or add `--json`.
";

/// One table for each collective of each run, then notes and a legend. Columns that do not fit into
/// `width` are dropped, the least important first.
pub(super) fn markdown(runs: &[BenchRun], width: Option<u16>) -> String {
    let mut out = String::new();
    let mut left_out = false;
    for run in runs {
        out += &heading(run);
        for collective in run.collectives() {
            let mut columns = columns(run, collective);
            left_out |= width.is_some_and(|width| narrow(&mut columns, width.into()));
            out += &format!("{}\n", tables::markdown(&columns));
        }
        for note in &run.notes {
            out += &format!("Note: {note}\n\n");
        }
    }
    out + LEGEND + if left_out { NARROW } else { "" }
}

/// Drops columns until the rest fits, and returns whether it dropped any. The times of peers go
/// last; their ratios stay.
fn narrow(columns: &mut Vec<Column>, width: usize) -> bool {
    let count = columns.len();
    let wide = |columns: &[Column]| {
        let cell = |(name, cells): &Column| {
            cells.iter().chain([name]).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        columns.iter().map(|column| cell(column) + 3).sum::<usize>() + 1 > width
    };
    let peers: Vec<String> =
        columns.iter().filter_map(|(name, _)| Some(name.strip_suffix(RATIO)?.to_owned())).collect();
    for name in LESS.into_iter().chain(peers.iter().map(String::as_str)) {
        if wide(columns) {
            columns.retain(|(column, _)| column != name);
        }
    }
    columns.len() < count
}

/// A heading and its cells.
type Column = (String, Vec<String>);

/// Suffix of the column with a peer's ratio.
const RATIO: &str = " / Ronde";

fn heading(run: &BenchRun) -> String {
    let place = match (run.hosts, run.transport.as_str()) {
        (2.., _) => format!("on {} hosts", run.hosts),
        (_, "tcp") => "over TCP".to_owned(),
        _ => "in shared memory".to_owned(),
    };
    let ranks = if run.ranks == 1 { "rank" } else { "ranks" };
    let versions: Vec<String> = SYSTEMS
        .iter()
        .filter_map(|(system, name)| {
            let version = run.versions.get(*system)?;
            // The MPI's own name is more specific than ours.
            Some(if *system == "mpi" { version.clone() } else { format!("{name} ({version})") })
        })
        .collect();
    let machine = &run.machine;
    format!(
        "## {} {ranks} {place}\n\n{}, {} cores, load {:.1} at the start, Linux {}; {}\n\n",
        run.ranks,
        machine.cpu,
        machine.cores,
        machine.load,
        machine.kernel,
        versions.join(", ")
    )
}

fn columns(run: &BenchRun, collective: Benchmark) -> Vec<Column> {
    let rows = run.rows_of(collective);
    let dtype = rows.first().map(|row| row.dtype.as_str()).unwrap_or_default();
    let first = match collective {
        Benchmark::BARRIER => collective.to_string(),
        _ => format!("{collective}, {dtype}"),
    };
    let mut columns = vec![(first, rows.iter().map(|row| label(row)).collect::<Vec<_>>())];
    let there = |system: &str| rows.iter().any(|row| row.seconds.contains_key(system));
    let shown = || SYSTEMS.into_iter().filter(|(system, _)| *system != COPY && there(system));
    for (system, name) in shown() {
        let cell = |row: &&ResultRow| row.figures(system).map(|figures| units::spread(&figures));
        columns.push((name.to_owned(), cells(&rows, cell)));
    }
    for (system, name) in shown().filter(|(system, _)| !matches!(*system, OURS | ENGINE | ARENA)) {
        let cell = |row: &&ResultRow| row.times_ours(system).map(units::ratio);
        columns.push((format!("{name}{RATIO}"), cells(&rows, cell)));
    }
    if collective != Benchmark::BARRIER {
        columns.extend(bandwidths(&rows, run.ranks));
    }
    columns
}

fn bandwidths(rows: &[&ResultRow], ranks: u32) -> [Column; 3] {
    let median = |row: &ResultRow| row.figures(OURS).map(|figures| figures.median);
    let algorithm = |row: &&ResultRow| {
        let seconds = median(row)?;
        Some(units::gigabytes(row.collective.algorithm_bandwidth(row.bytes, ranks, seconds)))
    };
    let bus = |row: &&ResultRow| {
        let seconds = median(row)?;
        Some(units::gigabytes(row.collective.bus_bandwidth(row.bytes, ranks, seconds)))
    };
    let copies =
        |row: &&ResultRow| row.copies().filter(|_| row.bytes >= LEAST_COPY).map(units::ratio);
    [
        ("GB/s".into(), cells(rows, algorithm)),
        ("bus GB/s".into(), cells(rows, bus)),
        ("copies".into(), cells(rows, copies)),
    ]
}

fn label(row: &ResultRow) -> String {
    match row.collective {
        Benchmark::BARRIER => "all ranks".into(),
        Benchmark::Model(Model::Resnet50) => format!("161 gradients, {}", units::bytes(row.bytes)),
        Benchmark::Model(Model::Bert) => format!("199 gradients, {}", units::bytes(row.bytes)),
        _ => units::bytes(row.bytes),
    }
}

fn cells(rows: &[&ResultRow], cell: impl Fn(&&ResultRow) -> Option<String>) -> Vec<String> {
    rows.iter().map(|row| cell(row).unwrap_or_else(|| "–".into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::sample;

    #[test]
    fn a_narrow_terminal_shows_what_matters() {
        let text = markdown(&[sample()], Some(80));
        let tables: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert!(tables.iter().all(|line| line.chars().count() <= 80), "{text}");
        let heads = ["allreduce, float32", "Ronde", "torch gloo / Ronde", "MPI / Ronde"];
        let first: Vec<&str> = tables[0].trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(first, heads);
        assert!(text.ends_with(NARROW));
    }

    #[test]
    fn a_run_with_peers() {
        insta::assert_snapshot!(markdown(&[sample()], None), @r"
        ## 2 ranks in shared memory

        Example CPU, 2 cores, load 0.5 at the start, Linux 6.1; Ronde (1.0), torch gloo (torch 2.9), Open MPI v4.1.4

        | allreduce, float32 | Ronde               | engine to engine    | from the arena      | torch gloo          | MPI                 | torch gloo / Ronde | MPI / Ronde | GB/s | bus GB/s | copies |
        |--------------------|---------------------|---------------------|---------------------|---------------------|---------------------|--------------------|-------------|------|----------|--------|
        | 4 B                | 5.00 µs (4.20–5.80) | 2.00 µs (2.00–2.00) | 5.00 µs (5.00–5.00) | 200 µs (200–280)    | 1.00 µs (1.00–1.00) | 50.0               | 0.20        | 0.00 | 0.00     | –      |
        | 64 MiB             | 21.0 ms (20.2–28.2) | 20.0 ms (20.0–20.0) | 10.0 ms (10.0–10.0) | 90.0 ms (82.0–98.0) | 40.0 ms (32.0–48.0) | 4.00               | 2.00        | 3.20 | 3.20     | 2.10   |

        | barrier   | Ronde               | MPI                 | MPI / Ronde |
        |-----------|---------------------|---------------------|-------------|
        | all ranks | 3.00 µs (3.00–3.00) | 1.00 µs (1.00–1.00) | 0.33        |

        Note: gloo for alltoall is left out: not supported

        Times are medians over rounds, with the 10th to 90th percentile in parentheses;
        a round is the mean time of its calls on the slowest rank. Ratios are medians
        of the ratios round by round: above 1, Ronde was faster. GB/s and bus GB/s are
        Ronde's bandwidths as NCCL defines them. `copies` is how many plain copies of a
        rank's tensor, made by all ranks at once, take as long as the call.
        ");
    }
}
