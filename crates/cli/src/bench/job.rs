//! Runs one job, whose rank 0 delivers its report to this process, line by line.
//!
//! On one host, the ranks coordinate their turns over a socket in a folder that only this user can
//! enter; on several hosts, through collectives.

use std::ffi::OsString;
use std::fs::Permissions;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;

use ronde_control::job::JobSpec;
use ronde_control::settings::{Launch, RONDE_TRANSPORT, RONDE_TUNING};
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

/// One job of a [`BenchPlan`].
pub(super) struct BenchJob<'a> {
    pub(super) program: &'a Path,
    pub(super) plan: &'a BenchPlan,
    pub(super) placements: &'a RankPlacement,
    pub(super) transport: &'a str,
    /// The tuning to measure with, instead of the one that is set.
    pub(super) tuning: Option<String>,
}

/// Whether to report progress for each line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableProgress {
    /// Announce each line before it is measured.
    Announced,
    /// The caller reports progress.
    Silent,
}

/// Why a benchmark failed.
pub(super) enum BenchFailure {
    /// The error has been reported; this is the exit code.
    Reported(u8),
    /// The error is still to be reported.
    Unreported(UserError),
}

/// Runs the job to its end and returns what it reported.
pub(super) fn run(
    bench_job: &BenchJob<'_>,
    wanted: TableProgress,
) -> Result<BenchRun, BenchFailure> {
    let folder = match bench_job.placements.is_here() {
        true => Some(folder().map_err(|error| no_folder(&error))?),
        false => None,
    };
    let (deliveries, report) = mpsc::channel();
    let job = job(bench_job, folder.as_ref().map(TempDir::path), deliveries)?;
    let mut run = BenchRun::new(bench_job.placements.slots.len() as u32, bench_job.transport);
    run.hosts = bench_job.placements.hosts.len();
    let outcome = thread::scope(|scope| {
        let reader = thread::Builder::new().name("ronde-report".into());
        let run = &mut run;
        reader
            .spawn_scoped(scope, move || read_report(&report, run, wanted))
            .map_err(|error| no_folder(&error))?;
        let outcome = ronde_launch::run(&job);
        // The job holds the last sender of the report; without it the reader ends.
        drop(job);
        outcome.map_err(|error| BenchFailure::Unreported(about_launch(&error)))
    })?;
    if outcome.code != 0 {
        progress(outcome.verdict.text.as_deref().unwrap_or_default().trim_end());
        return Err(BenchFailure::Reported(outcome.code));
    }
    if !run.complete {
        let error = "the ranks ended before everything was measured";
        return Err(BenchFailure::Unreported(UserError::new(
            error,
            "run it again with `--verbose`",
        )));
    }
    Ok(run)
}

/// A folder that only this user can enter, for a socket.
fn folder() -> std::io::Result<TempDir> {
    let private = Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix("ronde-bench-").permissions(private).tempdir()
}

/// Reads the report of rank 0 until it ends: one JSON object per line.
fn read_report(report: &mpsc::Receiver<Vec<u8>>, run: &mut BenchRun, wanted: TableProgress) {
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
            Ok(entry) => {
                if let ReportLine::Note(note) = &entry {
                    progress(&format!("note: {note}"));
                }
                run.take(entry);
            }
            Err(error) => progress(&format!("warning: cannot parse a rank's report: {error}")),
        }
    }
}

fn job(
    bench_job: &BenchJob<'_>,
    folder: Option<&Path>,
    deliveries: mpsc::Sender<Vec<u8>>,
) -> Result<Job, BenchFailure> {
    let refuse = |error: UserError| BenchFailure::Reported(report_error(&error, USAGE));
    let plan = json!({
        "folder": folder,
        "collectives": bench_job.plan.collectives,
        "sizes": bench_job.plan.sizes,
        "dtype": bench_job.plan.dtype,
        "systems": bench_job.plan.systems,
        "compare": bench_job.plan.compare,
        "rounds": bench_job.plan.rounds,
        "seconds": bench_job.plan.seconds,
    });
    let env = environment(bench_job);
    let set = env
        .iter()
        .filter(|(name, _)| [RONDE_TRANSPORT, RONDE_TUNING].iter().any(|it| name == it.name));
    let set = set.cloned().collect();
    let Launch { join_timeout, network, .. } =
        settings::check(&set, Rank0Files::Elsewhere).map_err(refuse)?;
    let python = script::python(bench_job.program).into_os_string();
    let command = [python, "-m".into(), "horovod._bench".into(), plan.to_string().into()];
    Ok(Job {
        command: command.to_vec(),
        job_spec: JobSpec::fixed(bench_job.placements.slots.len() as u32, join_timeout, None),
        hosts: HostSource::Listed(bench_job.placements.hosts.clone()),
        interfaces: Vec::new(),
        network,
        env,
        cwd: std::env::current_dir().map_err(|error| no_folder(&error))?,
        program: bench_job.program.to_owned(),
        start_timeout: START_TIMEOUT,
        gpus_per_rank: None,
        output: OutputOptions::default(),
        // There is nothing to fetch: the plan is on the command line.
        function: Some(Arc::from([])),
        deliveries: Some(deliveries),
        registry: None,
        listen: Ipv4Addr::LOCALHOST.into(),
    })
}

fn environment(bench_job: &BenchJob<'_>) -> Vec<(OsString, OsString)> {
    let mut env: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let mut set = |name: &str, value: &str| {
        env.retain(|(known, _)| known != name);
        env.push((name.into(), value.into()));
    };
    set(RONDE_TRANSPORT.name, bench_job.transport);
    // One thread per rank for every system; otherwise torch would copy in extra threads.
    set("OMP_NUM_THREADS", "1");
    if let Some(tuning) = &bench_job.tuning {
        set(RONDE_TUNING.name, tuning);
    }
    env
}

fn no_folder(error: &std::io::Error) -> BenchFailure {
    let error = format!("cannot create a directory for the report: {error}");
    BenchFailure::Unreported(UserError::new(error, "set TMPDIR to a writable directory"))
}
