//! Problems of a single host.

use std::time::Duration;

use super::facts::Facts;
use super::{Finding, HostReport, Severity};
use super::{confinement, gpus};
use crate::host_setup::HostProblem;
use crate::{PACKAGE_VERSION, counted, install};

/// Files that a rank opens besides its sockets: the program, libraries, data.
const FILES_OF_A_RANK: u64 = 64;

/// Files that programs with data loaders commonly open.
const FILES_OF_A_PROGRAM: u64 = 1024;

/// Threads and processes of a rank with a framework and data loaders.
const PROCESSES_OF_A_RANK: u64 = 256;

/// Memory of a rank before it has any data.
const MEMORY_OF_A_RANK: u64 = 512 << 20;

/// Below this, PyTorch's data loaders may run out of shared memory.
const LITTLE_SHM: u64 = 256 << 20;

/// How far clocks may differ.
const APART: Duration = Duration::from_secs(1);

pub(super) fn findings(hosts: &[HostReport]) -> Vec<Finding> {
    let ranks = hosts.iter().map(|host| u64::from(host.slots)).sum();
    let mut found = Vec::new();
    for host in hosts {
        if let Some(HostProblem { reason, hint }) = &host.trouble {
            found.push(Finding::new(Severity::Error, &host.name, reason, hint));
        }
        clock(host, &mut found);
        if let Some(facts) = &host.facts {
            limits(host, facts, ranks, &mut found);
            memory_and_cpus(host, facts, &mut found);
            found.extend(confinement::findings(host, &facts.confinement));
            found.extend(gpus::findings(host, &facts.gpus));
            python(host, facts, &mut found);
        }
    }
    found
}

fn clock(host: &HostReport, found: &mut Vec<Finding>) {
    let Some(clock) = host.clock else { return };
    let off = clock.ahead_micros.unsigned_abs();
    // The offset may be wrong by half the round trip.
    if off.saturating_sub(clock.round_trip_micros / 2) > APART.as_micros() as u64 {
        let seconds = off as f64 / 1e6;
        let direction = if clock.ahead_micros > 0 { "ahead of" } else { "behind" };
        found.push(Finding::warning(
            &host.name,
            format!("its clock is {seconds:.1} s {direction} the launcher's"),
            "synchronize it with `chrony` or `systemd-timesyncd`; otherwise times in \
             logs, timelines and files will not match",
        ));
    }
}

fn limits(host: &HostReport, facts: &Facts, ranks: u64, found: &mut Vec<Finding>) {
    let raise = |option: &str, limit: &str| {
        format!(
            "raise it: `{option}` in `/etc/security/limits.conf` there, `--ulimit {limit}` for a \
             container, or `ulimit` before `sshd` starts"
        )
    };
    let files = facts.limits.files.soft.unwrap_or(u64::MAX);
    // Each rank has a few connections to every other one.
    let needed = FILES_OF_A_RANK + 4 * ranks;
    if files < needed.max(FILES_OF_A_PROGRAM) {
        let severity = if files < needed { Severity::Error } else { Severity::Warning };
        let why = match severity {
            Severity::Error => format!("each of {ranks} ranks needs about {needed}"),
            _ => "programs with data loaders need more".into(),
        };
        found.push(Finding::new(
            severity,
            &host.name,
            format!("a process may open only {files} files and sockets (`ulimit -n`); {why}"),
            raise("* - nofile 65536", "nofile=65536"),
        ));
    }
    let processes = facts.limits.processes.soft.unwrap_or(u64::MAX);
    if processes < PROCESSES_OF_A_RANK * u64::from(host.slots).max(1) {
        found.push(Finding::warning(
            &host.name,
            format!("its user may have only {processes} processes and threads (`ulimit -u`)"),
            raise("* - nproc unlimited", "nproc=65536"),
        ));
    }
}

fn memory_and_cpus(host: &HostReport, facts: &Facts, found: &mut Vec<Finding>) {
    let (slots, cpus) = (host.slots, facts.cpus.usable);
    if cpus > 0 && cpus < slots {
        found.push(Finding::warning(
            &host.name,
            format!("more slots ({slots}) than CPUs that a process may use ({cpus})"),
            format!("use `:{cpus}` slots or add CPUs; ranks that share a CPU slow each other down"),
        ));
    }
    let free = facts.memory.available_bytes;
    if free > 0 && free < MEMORY_OF_A_RANK * u64::from(slots) {
        found.push(Finding::warning(
            &host.name,
            format!(
                "it has {}, but only {} MiB of free memory",
                counted(slots, "slot"),
                free >> 20
            ),
            "free some, or give it fewer slots: a rank with a framework needs half a GiB by itself",
        ));
    }
    if let Some(shm) = facts.shm_bytes.filter(|shm| *shm < LITTLE_SHM) {
        found.push(Finding::warning(
            &host.name,
            format!("its `/dev/shm` has only {} MiB", shm >> 20),
            "Ronde does not need it, but PyTorch data loaders with workers do: \
             `--shm-size=8g` for a container, or `mount -o remount,size=8g /dev/shm`",
        ));
    }
}

fn python(host: &HostReport, facts: &Facts, found: &mut Vec<Finding>) {
    let python = &facts.python;
    if let Some(problem) = &python.problem {
        found.push(Finding::warning(
            &host.name,
            format!("its Python does not run: {problem}"),
            "install Ronde into a Python environment there: its commands are next to that Python",
        ));
        return;
    }
    let has = |name: &str| python.packages.get(name);
    if let (None, Some(version)) = (has("ronde"), has("horovod")) {
        found.push(Finding::new(
            Severity::Error,
            &host.name,
            format!("`{}` has Horovod {version}, not Ronde", python.executable),
            format!(
                "`pip uninstall horovod`, then {} there: both are imported as `horovod`",
                install::command(PACKAGE_VERSION)
            ),
        ));
    }
}
