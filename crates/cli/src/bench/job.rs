//! One measurement: a job whose rank 0 delivers its report to this process, line by line.
//!
//! On one host the ranks give each other turns over a socket in a folder that only this user may enter;
//! on several they do it by collectives.

use std::ffi::OsString;
use std::fs::Permissions;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;

use ronde_control::job::JobSpec;
use ronde_control::settings::{RONDE_TRANSPORT, RONDE_TUNING};
use ronde_launch::source::HostSource;
use ronde_launch::{Job, OutputOptions};
use serde_json::json;
use tempfile::TempDir;

use super::arguments::{BenchPlan, RankPlacement, START_TIMEOUT};
use super::progress;
use super::results::{BenchRun, ReportLine};
use super::units;
use crate::horovodrun::{about_launch, report_error};
use crate::messages::{USAGE, UserError};
use crate::script;
use crate::settings::{self, Rank0Files};

/// One job of a plan.
pub(super) struct BenchJob<'a> {
    pub(super) program: &'a Path,
    pub(super) plan: &'a BenchPlan,
    pub(super) placements: &'a RankPlacement,
    pub(super) transport: &'a str,
    /// A tuning to measure under, instead of the one that is set.
    pub(super) tuning: Option<String>,
}

/// Whether each line of the table is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableProgress {
    /// Announce each line of the table.
    Told,
    /// Somebody else tells how far it is.
    Silent,
}

/// Why there is nothing to show.
pub(super) enum BenchFailure {
    /// It has been said; this is the exit code.
    Told(u8),
    /// It is still to be said.
    Mistake(UserError),
}

/// Runs the job to its end and gives what it reported.
pub(super) fn run(order: &BenchJob<'_>, wanted: TableProgress) -> Result<BenchRun, BenchFailure> {
    let folder = match order.placements.is_here() {
        true => Some(folder().map_err(|error| no_folder(&error))?),
        false => None,
    };
    let (deliveries, report) = mpsc::channel();
    let job = job(order, folder.as_ref().map(TempDir::path), deliveries)?;
    let mut run = BenchRun::new(order.placements.slots.len() as u32, order.transport);
    run.hosts = order.placements.hosts.len();
    let outcome = thread::scope(|scope| {
        let ears = thread::Builder::new().name("ronde-report".into());
        let run = &mut run;
        ears.spawn_scoped(scope, move || hear(&report, run, wanted))
            .map_err(|error| no_folder(&error))?;
        let outcome = ronde_launch::run(&job);
        // With the job the last way to the report ends.
        drop(job);
        outcome.map_err(|error| BenchFailure::Mistake(about_launch(&error)))
    })?;
    if outcome.code != 0 {
        progress(outcome.verdict.text.as_deref().unwrap_or_default().trim_end());
        return Err(BenchFailure::Told(outcome.code));
    }
    if !run.complete {
        let error = "the ranks ended before they had measured everything";
        return Err(BenchFailure::Mistake(UserError::new(error, "run it again with `--verbose`")));
    }
    Ok(run)
}

/// A folder that only this user may enter: a socket will be in it.
fn folder() -> std::io::Result<TempDir> {
    let private = Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix("ronde-bench-").permissions(private).tempdir()
}

/// Takes what rank 0 reports until it has ended: a JSON object on each line.
fn hear(report: &mpsc::Receiver<Vec<u8>>, run: &mut BenchRun, wanted: TableProgress) {
    let mut line = Vec::new();
    for byte in report.iter().flatten() {
        if byte != b'\n' {
            line.push(byte);
            continue;
        }
        match serde_json::from_slice(&std::mem::take(&mut line)) {
            Ok(ReportLine::Begin(_)) if wanted == TableProgress::Silent => {}
            Ok(ReportLine::Begin(task)) => {
                let size = match task.collective.has_sizes() {
                    true => format!(" of {}", units::bytes(task.bytes)),
                    false => String::new(),
                };
                let collective = task.collective;
                progress(&format!("{} ranks, {}: {collective}{size}", run.ranks, run.transport));
            }
            Ok(told) => {
                if let ReportLine::Note(note) = &told {
                    progress(&format!("note: {note}"));
                }
                run.take(told);
            }
            Err(error) => progress(&format!("warning: cannot parse a rank's report: {error}")),
        }
    }
}

fn job(
    order: &BenchJob<'_>,
    folder: Option<&Path>,
    deliveries: mpsc::Sender<Vec<u8>>,
) -> Result<Job, BenchFailure> {
    let refuse = |mistake: UserError| BenchFailure::Told(report_error(&mistake, USAGE));
    let plan = json!({
        "folder": folder,
        "collectives": order.plan.collectives,
        "sizes": order.plan.sizes,
        "dtype": order.plan.dtype,
        "systems": order.plan.systems,
        "compare": order.plan.compare,
        "rounds": order.plan.rounds,
        "seconds": order.plan.seconds,
    });
    let env = environment(order);
    let set = env
        .iter()
        .filter(|(name, _)| [RONDE_TRANSPORT, RONDE_TUNING].iter().any(|it| name == it.name));
    let set = set.cloned().collect();
    let join_timeout = settings::check(&set, Rank0Files::Elsewhere).map_err(refuse)?.join_timeout;
    let python = script::python(order.program).into_os_string();
    let command = [python, "-m".into(), "horovod._bench".into(), plan.to_string().into()];
    Ok(Job {
        command: command.to_vec(),
        job_spec: JobSpec::fixed(order.placements.slots.len() as u32, join_timeout, None),
        hosts: HostSource::Listed(order.placements.hosts.clone()),
        interfaces: Vec::new(),
        env,
        cwd: std::env::current_dir().map_err(|error| no_folder(&error))?,
        program: order.program.to_owned(),
        start_timeout: START_TIMEOUT,
        output: OutputOptions::default(),
        // Nothing to fetch: what is to be measured stands on the command line.
        function: Some(Arc::from([])),
        deliveries: Some(deliveries),
        registry: None,
        listen: Ipv4Addr::LOCALHOST.into(),
    })
}

fn environment(order: &BenchJob<'_>) -> Vec<(OsString, OsString)> {
    let mut env: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let mut set = |name: &str, value: &str| {
        env.retain(|(known, _)| known != name);
        env.push((name.into(), value.into()));
    };
    set(RONDE_TRANSPORT.name, order.transport);
    // One thread per rank for every system, or torch's copies would run beside the ranks.
    set("OMP_NUM_THREADS", "1");
    if let Some(tuning) = &order.tuning {
        set(RONDE_TUNING.name, tuning);
    }
    env
}

fn no_folder(error: &std::io::Error) -> BenchFailure {
    let error = format!("cannot create a directory for the report: {error}");
    BenchFailure::Mistake(UserError::new(error, "set TMPDIR to a writable directory"))
}
