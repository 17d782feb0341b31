//! `ronde bench`: measures the collectives, optionally compared with peers.
//!
//! The ranks are an ordinary job that runs `horovod._bench` from the Python package; rank 0
//! delivers the report to this process. `control::bench` evaluates the figures; this module runs
//! the jobs and shows the results: a table on standard output and, on request, a file with all
//! figures and a plot.

mod arguments;
mod calibrate;
mod choices;
mod job;
mod plot;
mod results;
mod table;
pub(crate) mod units;

use std::io;
use std::path::Path;

pub(crate) use arguments::Arguments;
use arguments::BenchPlan;
use job::{BenchFailure, TableProgress};
use results::BenchRun;

use crate::horovodrun::{print_stdout, report_error};
use crate::messages::{USAGE, UserError, print_stderr};
use crate::tables::terminal_width;

/// Runs the command and returns its exit code; `program` is this executable, which also serves as
/// agent.
pub(crate) fn run(program: &Path, arguments: &Arguments) -> u8 {
    let plan = match arguments.plan() {
        Ok(plan) => plan,
        Err(error) => return report_error(&error, USAGE),
    };
    let result = match &arguments.calibrate {
        _ if arguments.choices => choices::run(),
        Some(file) => calibrate::run(program, &plan, file),
        None => measure(program, &plan).and_then(|runs| show(&runs, arguments)),
    };
    match result {
        Ok(()) => 0,
        Err(BenchFailure::Reported(code)) => code,
        Err(BenchFailure::Unreported(error)) => report_error(&error, 1),
    }
}

/// Runs one job for each number of ranks and each transport.
fn measure(program: &Path, plan: &BenchPlan) -> Result<Vec<BenchRun>, BenchFailure> {
    let mut runs = Vec::new();
    for placements in &plan.placements {
        for transport in &plan.transports {
            let bench_job = job::BenchJob { program, plan, placements, transport, tuning: None };
            runs.push(job::run(&bench_job, TableProgress::Announced)?);
        }
    }
    Ok(runs)
}

fn show(runs: &[BenchRun], arguments: &Arguments) -> Result<(), BenchFailure> {
    if let Some(file) = &arguments.plot {
        write(file, &plot::svg(runs))?;
    }
    match arguments.json.as_deref() {
        Some(file) if file == Path::new("-") => {
            return print(&results::json(runs));
        }
        Some(file) => write(file, &results::json(runs))?,
        None => {}
    }
    print(&table::markdown(runs, terminal_width()))
}

/// Writes results to standard output.
fn print(text: &str) -> Result<(), BenchFailure> {
    match print_stdout(text) {
        0 => Ok(()),
        code => Err(BenchFailure::Reported(code)),
    }
}

fn write(file: &Path, text: &str) -> Result<(), BenchFailure> {
    std::fs::write(file, text).map_err(|error| cannot_write(file, &error))
}

fn cannot_write(file: &Path, error: &io::Error) -> BenchFailure {
    let error = format!("cannot write `{}`: {error}", file.display());
    BenchFailure::Unreported(UserError::new(
        error,
        "choose a file in a directory that you can write to",
    ))
}

/// Reports progress to standard error, because standard output is for results.
fn progress(text: &str) {
    print_stderr(text);
}
