//! `ronde env`: describes an installation and its machine for a bug report.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use ronde_control::VERSION;
use ronde_control::doctor::{Facts, GpuInfo, Limit};
use ronde_control::settings::HostNetwork;
use ronde_launch::doctor::DoctorPlan;
use ronde_launch::reach::ReachMethod;
use serde_json::json;

use crate::bench::units;
use crate::gpus;
use crate::horovodrun::{about_launch, print_stdout, report_error};

/// Print a report on this installation and machine, for bug reports.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Variables that may hold secrets are left out. Review the report before you share it."
)]
pub(crate) struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prefixes of the variables that may affect a job.
const PREFIXES: &[&str] =
    &["HOROVOD_", "RONDE_", "NCCL_", "CUDA_", "OMP_", "OMPI_", "SLURM_", "TORCH_"];

/// Parts of the names of variables whose values are not shown.
const SECRETS: &[&str] = &["SECRET", "KEY", "TOKEN", "PASSWORD", "CREDENTIAL"];

/// Time limit for collecting the facts about this machine.
const LIMIT: Duration = Duration::from_secs(20);

/// Prints the report; returns the exit code.
pub(crate) fn run(program: &Path, arguments: &Arguments) -> u8 {
    let plan = DoctorPlan {
        hosts: vec![("localhost".into(), ReachMethod::Local, 1)],
        program: program.to_owned(),
        interfaces: Vec::new(),
        network: HostNetwork::default(),
        limit: LIMIT,
    };
    let facts = match ronde_launch::doctor::doctor_run(&plan) {
        Ok(report) => report.hosts.into_iter().find_map(|host| host.facts).unwrap_or_default(),
        Err(error) => return report_error(&about_launch(&error), 1),
    };
    let system = system();
    let mpi = mpi();
    let settings = settings(std::env::vars_os());
    print_stdout(&match arguments.json {
        true => {
            let document = json!({
                "ronde": VERSION, "program": program, "system": system, "machine": facts,
                "mpirun": mpi, "settings": settings,
            });
            format!("{document:#}\n")
        }
        false => text(program, &system, &facts, mpi.as_deref(), &settings),
    })
}

fn text(
    program: &Path,
    system: &str,
    facts: &Facts,
    mpi: Option<&str>,
    settings: &[(String, String)],
) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(out, "{name:<10} {value}");
    };
    line("Ronde", &format!("{VERSION}, {}", program.display()));
    line("System", &format!("{system}, Linux {}", facts.kernel));
    let cpus = &facts.cpus;
    line("Processor", &format!("{}, {} of {} cores", cpus.model, cpus.usable, cpus.online));
    let shm = facts.shm_bytes.map_or("none".into(), units::bytes);
    let (total, free) = (facts.memory.total_bytes, facts.memory.available_bytes);
    line(
        "Memory",
        &format!("{}, {} available; /dev/shm {shm}", units::bytes(total), units::bytes(free)),
    );
    let (files, processes) = (limit(facts.limits.files), limit(facts.limits.processes));
    line("Limits", &format!("{files} open files, {processes} processes"));
    let found = &facts.gpus;
    line("GPUs", &or_none(&found.devices.iter().map(gpu).collect::<Vec<_>>()));
    if let Some(problem) = &found.problem {
        line("", &format!("nvidia-smi: {problem}"));
    }
    if let Some(driver) = &found.driver {
        line("Driver", driver);
    }
    for (name, text) in [("CUDA", gpus::cuda(found)), ("NCCL", gpus::nccl(found))] {
        if let Some(text) = text {
            line(name, &text);
        }
    }
    let addresses: Vec<_> =
        facts.addresses.iter().map(|at| format!("{} {}", at.interface, at.address)).collect();
    line("Network", &or_none(&addresses));
    line("mpirun", mpi.unwrap_or("not found on the PATH"));
    let python = &facts.python;
    let version = python.version.as_deref().unwrap_or("does not run");
    line("Python", &format!("{version}, {}", python.executable));
    if let Some(problem) = &python.problem {
        line("", problem);
    }
    let packages: Vec<_> =
        python.packages.iter().map(|(name, version)| format!("{name} {version}")).collect();
    line("Packages", &or_none(&packages));
    let settings: Vec<_> = settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
    line("Settings", settings.first().map_or("none", String::as_str));
    settings.iter().skip(1).for_each(|setting| line("", setting));
    out
}

fn gpu(gpu: &GpuInfo) -> String {
    let GpuInfo { name, memory_bytes, free_bytes } = gpu;
    let free = free_bytes.map(|free| format!(", {} free", units::bytes(free)));
    format!("{name} ({}{})", units::bytes(*memory_bytes), free.unwrap_or_default())
}

fn or_none(items: &[String]) -> String {
    if items.is_empty() { "none".into() } else { items.join(", ") }
}

fn limit(limit: Limit) -> String {
    limit.soft.map_or("unlimited".into(), |limit| limit.to_string())
}

/// The Linux distribution and the architecture.
fn system() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let name = name.unwrap_or("an unknown system").trim_matches('"').to_owned();
    format!("{name}, {}", std::env::consts::ARCH)
}

/// The MPI on the PATH, as `mpirun --version` names it.
fn mpi() -> Option<String> {
    let output = Command::new("mpirun").arg("--version").stdin(Stdio::null()).output().ok()?;
    mpi_version(&String::from_utf8_lossy(&output.stdout))
}

/// The first line, except that Hydra, the `mpirun` of the MPICH family, has its version below.
fn mpi_version(text: &str) -> Option<String> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next()?;
    let version = lines.find_map(|line| line.strip_prefix("Version:"));
    Some(version.map_or_else(|| first.to_owned(), |version| format!("Hydra {}", version.trim())))
}

/// The variables that may affect a job, with secrets hidden.
fn settings(variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<(String, String)> {
    let text = |word: OsString| word.to_string_lossy().into_owned();
    let mut all: Vec<_> = variables
        .map(|(name, value)| (text(name), text(value)))
        .filter(|(name, _)| PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
        .map(|(name, value)| {
            let hidden = SECRETS.iter().any(|secret| name.contains(secret));
            (name, if hidden { "(not shown)".into() } else { value })
        })
        .collect();
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_mpi_is_found() {
        let version = |text| mpi_version(text).unwrap_or_default();
        assert_eq!(version("mpirun (Open MPI) 4.1.4\n\nReport bugs\n"), "mpirun (Open MPI) 4.1.4");
        assert_eq!(
            version("HYDRA build details:\n    Version:    4.0.2\n    CC: gcc\n"),
            "Hydra 4.0.2"
        );
        assert_eq!(version(""), "");
    }

    #[test]
    fn settings_are_shown_and_secrets_are_not() {
        let variables = [
            ("RONDE_SECRET", "0f0f"),
            ("PATH", "/bin"),
            ("HOROVOD_LOG_LEVEL", "debug"),
            ("NCCL_DEBUG", "INFO"),
        ];
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        let shown = settings(variables.into_iter());
        let expected = [
            ("HOROVOD_LOG_LEVEL", "debug"),
            ("NCCL_DEBUG", "INFO"),
            ("RONDE_SECRET", "(not shown)"),
        ];
        assert_eq!(shown, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
