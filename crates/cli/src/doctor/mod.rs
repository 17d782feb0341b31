//! `ronde doctor`: checks the hosts of a job and the network between them, and reports problems.
//!
//! `launch::doctor` collects the facts and `control::doctor` judges them; this module prints the
//! findings, as tables for people or as JSON for programs.

mod arguments;
mod screen;

use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) use arguments::Arguments;
use ronde_control::VERSION;
use ronde_control::doctor::DoctorReport;
use ronde_control::settings;
use ronde_launch::doctor::DoctorPlan;
use ronde_launch::hosts::{self, Host};
use ronde_launch::reach::{AgentAccess, ReachOptions, ReachWay};
pub(crate) use screen::finding_text;
use serde_json::json;

use crate::horovodrun::{about_launch, print_stdout, report_error};
use crate::messages::{USAGE, UserError};
use crate::tables::terminal_width;

/// Runs the command and returns its exit code; `program` is this executable, which also serves as
/// agent.
pub(crate) fn run(program: &Path, arguments: &Arguments) -> u8 {
    let plan = match arguments.plan(program) {
        Ok(plan) => plan,
        Err(error) => return report_error(&error, USAGE),
    };
    let start = Instant::now();
    let report = match ronde_launch::doctor::doctor_run(&plan) {
        Ok(report) => report,
        Err(error) => return report_error(&about_launch(&error), 1),
    };
    let taken = start.elapsed();
    let code = print_stdout(&match arguments.json {
        true => document(&report, taken),
        false => screen::text(&report, taken, terminal_width()),
    });
    code.max(u8::from(!report.is_well()))
}

/// Checks hosts through their standing agents, as a job with `--reach agent` would reach them;
/// returns the report and its text.
pub(crate) fn over_agents(
    program: &Path,
    hosts: &[Host],
    access: AgentAccess,
) -> Result<(DoctorReport, String), UserError> {
    let start = Instant::now();
    let limit = access.time_limit;
    let reach = ReachOptions { way: ReachWay::Agent(access), ..ReachOptions::default() };
    let reached = hosts::reached(hosts.to_vec(), &hosts::hostname(), &reach);
    let plan = DoctorPlan {
        hosts: reached.into_iter().map(|(host, how)| (host.name, how, host.slots)).collect(),
        program: program.to_owned(),
        interfaces: Vec::new(),
        network: settings::host_network(|name| std::env::var(name).ok())?,
        limit,
    };
    let report = ronde_launch::doctor::doctor_run(&plan).map_err(|error| about_launch(&error))?;
    let text = screen::text(&report, start.elapsed(), terminal_width());
    Ok((report, text))
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
