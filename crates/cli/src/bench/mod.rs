//! `ronde bench`: measures the collectives on this machine, beside peers if there are any.
//!
//! The ranks are a job as any other; what they run is in the Python package (`horovod._bench`), and
//! rank 0 reports over a socket. What the figures mean is in `control::bench`; here they are asked for
//! and shown: a table on standard output, and a file of figures and a plot if wanted.

mod arguments;
mod calibrate;
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

use crate::horovodrun::{report_error, tell};
use crate::messages::{USAGE, UserError, say};
use crate::tables::terminal_width;

/// Does what the arguments ask for; `program` is the executable that can also play a job's parts.
pub(crate) fn run(program: &Path, arguments: &Arguments) -> u8 {
    let plan = match arguments.plan() {
        Ok(plan) => plan,
        Err(mistake) => return report_error(&mistake, USAGE),
    };
    let done = match &arguments.calibrate {
        Some(file) => calibrate::run(program, &plan, file),
        None => measure(program, &plan).and_then(|runs| show(&runs, arguments)),
    };
    match done {
        Ok(()) => 0,
        Err(BenchFailure::Told(code)) => code,
        Err(BenchFailure::Mistake(mistake)) => report_error(&mistake, 1),
    }
}

/// One job for each number of ranks and each transport.
fn measure(program: &Path, plan: &BenchPlan) -> Result<Vec<BenchRun>, BenchFailure> {
    let mut runs = Vec::new();
    for placements in &plan.placements {
        for transport in &plan.transports {
            let order = job::BenchJob { program, plan, placements, transport, tuning: None };
            runs.push(job::run(&order, TableProgress::Told)?);
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
    match tell(text) {
        0 => Ok(()),
        code => Err(BenchFailure::Told(code)),
    }
}

fn write(file: &Path, text: &str) -> Result<(), BenchFailure> {
    std::fs::write(file, text).map_err(|error| cannot_write(file, &error))
}

fn cannot_write(file: &Path, error: &io::Error) -> BenchFailure {
    let error = format!("cannot write `{}`: {error}", file.display());
    BenchFailure::Mistake(UserError::new(error, "name a file in a folder that you may write to"))
}

/// What happens meanwhile; standard output is for results.
fn progress(text: &str) {
    say(text);
}
