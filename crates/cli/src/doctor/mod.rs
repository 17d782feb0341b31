//! `ronde doctor`: looks at the hosts of a job and between them, and says what would go wrong.
//!
//! The visit is in `launch::doctor`, what its findings mean in `control::doctor`; here they are shown,
//! as tables for people or as JSON for programs.

mod arguments;
mod screen;

use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) use arguments::Arguments;
use ronde_control::VERSION;
use ronde_control::doctor::DoctorReport;
use serde_json::json;

use crate::horovodrun::{about_launch, report_error, tell};
use crate::messages::USAGE;
use crate::tables::terminal_width;

/// Does what the arguments ask for; `program` is the executable that can also play an agent.
pub(crate) fn run(program: &Path, arguments: &Arguments) -> u8 {
    let plan = match arguments.plan(program) {
        Ok(plan) => plan,
        Err(mistake) => return report_error(&mistake, USAGE),
    };
    let start = Instant::now();
    let report = match ronde_launch::doctor::doctor_run(&plan) {
        Ok(report) => report,
        Err(error) => return report_error(&about_launch(&error), 1),
    };
    let taken = start.elapsed();
    let told = tell(&match arguments.json {
        true => document(&report, taken),
        false => screen::text(&report, taken, terminal_width()),
    });
    told.max(u8::from(!report.is_well()))
}

fn document(report: &DoctorReport, taken: Duration) -> String {
    let document = json!({
        "ronde": VERSION,
        "seconds": taken.as_secs_f64(),
        "well": report.is_well(),
        "hosts": report.hosts,
        "paths": report.paths,
        "speeds": report.speeds,
        "findings": report.findings,
    });
    format!("{document:#}\n")
}
