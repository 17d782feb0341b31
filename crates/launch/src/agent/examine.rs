//! What an agent finds out about its host for `ronde doctor`.
//!
//! Everything is read from the system, except the installed packages, which a Python process lists,
//! and what is known about [`gpus`]. All programs are stopped after [`LIMIT`].

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use ronde_control::doctor::{Cpus, Facts, Limit, MemoryInfo, ProcessLimits, Python};
use rustix::process::{Resource, Rlimit, getrlimit};
use tokio::process::Command;
use tokio::time::timeout;

use super::{confinement, gpus};
use crate::{cgroup, interfaces};

/// Time limit for each program.
const LIMIT: Duration = Duration::from_millis(2500);

const PACKAGES: &str = include_str!("packages.py");

/// Collects all facts about this host. `program` is this executable.
pub(super) async fn facts(program: &Path) -> Facts {
    let (python, gpus) = tokio::join!(python(program), gpus::find(program));
    let name = rustix::system::uname();
    Facts {
        hostname: name.nodename().to_string_lossy().into_owned(),
        kernel: name.release().to_string_lossy().into_owned(),
        cpus: cpus(),
        memory: memory(),
        shm_bytes: rustix::fs::statvfs("/dev/shm").ok().map(|shm| shm.f_blocks * shm.f_frsize),
        limits: ProcessLimits { files: limit(Resource::Nofile), processes: limit(Resource::Nproc) },
        confinement: confinement::find(),
        addresses: interfaces::for_others(),
        gpus,
        python,
    }
}

fn cpus() -> Cpus {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    Cpus {
        model: cpu_model(&text).to_owned(),
        usable: std::thread::available_parallelism().map_or(0, |count| count.get() as u32),
        online: text.lines().filter(|line| line.starts_with("processor")).count() as u32,
    }
}

/// The CPU's model name in `/proc/cpuinfo`, or the architecture: on Arm, the kernel gives no name.
fn cpu_model(info: &str) -> &str {
    let line = info.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| Some(line.split_once(':')?.1.trim())).unwrap_or(ARCH)
}

/// The machine's memory, or the container's limit if that is lower.
fn memory() -> MemoryInfo {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let (total, available) = (kibibytes(&text, "MemTotal:"), kibibytes(&text, "MemAvailable:"));
    let limits = cgroup::limits();
    match (limits.memory_bytes, limits.memory_used) {
        (Some(most), Some(used)) if most < total => MemoryInfo {
            total_bytes: most,
            available_bytes: available.min(most.saturating_sub(used)),
        },
        _ => MemoryInfo { total_bytes: total, available_bytes: available },
    }
}

fn kibibytes(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0) << 10
}

fn limit(resource: Resource) -> Limit {
    let Rlimit { current, maximum } = getrlimit(resource);
    Limit { soft: current, hard: maximum }
}

async fn python(program: &Path) -> Python {
    let executable = interpreter(program);
    let path = executable.display().to_string();
    match output(Command::new(&executable).args(["-c", PACKAGES])).await {
        Ok(text) => packages(&text),
        Err(problem) => {
            let problem = Some(format!("`{path}` {problem}"));
            Python { executable: path, problem, ..Python::default() }
        }
    }
}

/// The Python that this command was installed for, or else the one on the PATH.
pub(super) fn interpreter(program: &Path) -> PathBuf {
    let beside = program.parent().map(|folder| folder.join("python"));
    beside.filter(|python| python.is_file()).unwrap_or_else(|| "python3".into())
}

/// Parses the output of `packages.py`.
fn packages(text: &str) -> Python {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let mut named: BTreeMap<String, String> =
        lines.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect();
    let version = named.remove("python");
    let executable = named.remove("executable").unwrap_or_default();
    let problem = version.is_none().then(|| "printed nothing".to_owned());
    Python { executable, version, packages: named, problem }
}

pub(super) const ABSENT: &str = "was not found";

/// The standard output of a program that succeeds in time, or else what went wrong.
pub(super) async fn output(command: &mut Command) -> Result<String, String> {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = match timeout(LIMIT, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(ABSENT.into());
        }
        Ok(Err(error)) => return Err(format!("could not be run: {error}")),
        Err(_) => return Err(format!("took longer than {:.1} s", LIMIT.as_secs_f32())),
    };
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    // Emulators such as qemu notice only in the child that there is no such program.
    if output.status.code() == Some(127) {
        return Err(ABSENT.into());
    }
    let lines = [output.stderr, output.stdout].map(|text| last_line(&text));
    let message = lines.into_iter().find(|line| !line.is_empty()).unwrap_or_default();
    Err(format!("failed ({}): {message}", output.status))
}

fn last_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_cpus_memory_and_limits() {
        let (cpus, memory) = (cpus(), memory());
        assert!(cpus.usable >= 1 && cpus.online >= 1, "{cpus:?}");
        assert!(memory.available_bytes <= memory.total_bytes, "{memory:?}");
        assert!(memory.total_bytes > 64 << 20, "{memory:?}");
        let files = limit(Resource::Nofile);
        assert!(files.soft.unwrap_or(u64::MAX) <= files.hard.unwrap_or(u64::MAX), "{files:?}");
    }

    #[test]
    fn a_cpu_without_a_model_name_is_named_after_its_architecture() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: AMD EPYC\n"), "AMD EPYC");
        assert_eq!(cpu_model("processor\t: 0\nCPU implementer\t: 0x41\n"), ARCH);
    }

    #[test]
    fn program_output_is_parsed() {
        let python = packages("executable /venv/bin/python\npython 3.11.2\ntorch 2.9.0+cpu\n");
        assert_eq!(python.version.as_deref(), Some("3.11.2"));
        assert_eq!(python.packages["torch"], "2.9.0+cpu");
        assert_eq!(packages("").problem.as_deref(), Some("printed nothing"));
        assert_eq!(kibibytes("MemTotal:    8 kB\n", "MemTotal:"), 8192);
    }

    #[tokio::test]
    async fn a_failed_program_is_explained() {
        let shell = |script: &'static str| async move {
            output(Command::new("sh").args(["-c", script])).await
        };
        assert_eq!(shell("echo well").await.unwrap(), "well\n");
        let error = shell("echo first; echo no device >&2; exit 9").await.unwrap_err();
        assert_eq!(error, "failed (exit status: 9): no device");
        let error = output(&mut Command::new("ronde-no-such-program")).await.unwrap_err();
        assert_eq!(error, ABSENT);
    }
}
