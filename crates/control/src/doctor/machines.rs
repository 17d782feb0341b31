//! What is wrong with a host by itself.

use std::time::Duration;

use super::facts::Facts;
use super::{Finding, HostReport, Severity};
use crate::{PACKAGE_VERSION, install};

/// What a rank needs beside its sockets: the program, libraries, data.
const FILES_OF_A_RANK: u64 = 64;

/// What programs with data loaders commonly open.
const FILES_OF_A_PROGRAM: u64 = 1024;

/// Threads and processes of one rank with a framework in it and loaders beside it.
const PROCESSES_OF_A_RANK: u64 = 256;

/// What a rank takes before it has any data.
const MEMORY_OF_A_RANK: u64 = 512 << 20;

/// What PyTorch's data loaders run short of first.
const LITTLE_SHM: u64 = 256 << 20;

/// How far clocks may be apart.
const APART: Duration = Duration::from_secs(1);

pub(super) fn findings(hosts: &[HostReport]) -> Vec<Finding> {
    let ranks = hosts.iter().map(|host| u64::from(host.slots)).sum();
    hosts.iter().flat_map(|host| of(host, ranks)).collect()
}

fn of(host: &HostReport, ranks: u64) -> Vec<Finding> {
    let mut findings = Findings { host: &host.name, found: Vec::new() };
    if let Some(trouble) = &host.trouble {
        findings.add(Severity::Error, &trouble.reason, &trouble.hint);
    }
    clock(host, &mut findings);
    if let Some(facts) = &host.facts {
        limits(facts, host.slots.into(), ranks, &mut findings);
        room(facts, host.slots.into(), &mut findings);
        gpus(facts, host.slots, &mut findings);
        python(facts, &mut findings);
    }
    findings.found
}

/// The findings of one host.
struct Findings<'a> {
    host: &'a str,
    found: Vec<Finding>,
}

impl Findings<'_> {
    fn add(&mut self, severity: Severity, what: impl Into<String>, fix: impl Into<String>) {
        let hosts = vec![self.host.to_owned()];
        self.found.push(Finding { severity, hosts, what: what.into(), fix: fix.into() });
    }
}

fn clock(host: &HostReport, findings: &mut Findings<'_>) {
    let Some(clock) = host.clock else { return };
    let off = clock.ahead_micros.unsigned_abs();
    // Half the time of the question is not known to be either.
    if off.saturating_sub(clock.round_trip_micros / 2) > APART.as_micros() as u64 {
        let seconds = off as f64 / 1e6;
        let way = if clock.ahead_micros > 0 { "ahead of" } else { "behind" };
        findings.add(
            Severity::Warning,
            format!("its clock is {seconds:.1} s {way} the launcher's"),
            "let `chrony` or `systemd-timesyncd` set it: times in logs, timelines and files will \
             not match",
        );
    }
}

fn limits(facts: &Facts, slots: u64, ranks: u64, findings: &mut Findings<'_>) {
    let raise = |option: &str, limit: &str| {
        format!(
            "raise it: `{option}` in `/etc/security/limits.conf` there, `--ulimit {limit}` for a \
             container, or `ulimit` before `sshd` starts"
        )
    };
    let files = facts.limits.files.soft.unwrap_or(u64::MAX);
    // Each rank holds a few connections to every other.
    let needed = FILES_OF_A_RANK + 4 * ranks;
    if files < needed.max(FILES_OF_A_PROGRAM) {
        let severity = if files < needed { Severity::Error } else { Severity::Warning };
        let why = match severity {
            Severity::Error => format!("a rank of {ranks} needs about {needed}"),
            _ => "programs with data loaders need more".into(),
        };
        findings.add(
            severity,
            format!("a process may open only {files} files and sockets (`ulimit -n`); {why}"),
            raise("* - nofile 65536", "nofile=65536"),
        );
    }
    let processes = facts.limits.processes.soft.unwrap_or(u64::MAX);
    if processes < PROCESSES_OF_A_RANK * slots.max(1) {
        findings.add(
            Severity::Warning,
            format!("its user may have only {processes} processes and threads (`ulimit -u`)"),
            raise("* - nproc unlimited", "nproc=65536"),
        );
    }
}

fn room(facts: &Facts, slots: u64, findings: &mut Findings<'_>) {
    let cpus = u64::from(facts.cpus.usable);
    if cpus > 0 && cpus < slots {
        findings.add(
            Severity::Warning,
            format!("it takes {slots} ranks and lets a process use {cpus} of its CPUs"),
            format!("give it `:{cpus}` slots, or it more CPUs; ranks that share one wait in turns"),
        );
    }
    let free = facts.memory.available_bytes;
    if free > 0 && free < MEMORY_OF_A_RANK * slots {
        findings.add(
            Severity::Warning,
            format!("it takes {slots} ranks and has {} MiB of memory free", free >> 20),
            "free some, or give it fewer slots: a rank with a framework takes half a GiB by itself",
        );
    }
    if let Some(shm) = facts.shm_bytes.filter(|shm| *shm < LITTLE_SHM) {
        findings.add(
            Severity::Warning,
            format!("its `/dev/shm` has {} MiB", shm >> 20),
            "nothing for Ronde, which does not use it; PyTorch's data loaders with workers do: \
             `--shm-size=8g` for a container, or `mount -o remount,size=8g /dev/shm`",
        );
    }
}

fn gpus(facts: &Facts, slots: u32, findings: &mut Findings<'_>) {
    if let Some(problem) = &facts.gpus.problem {
        findings.add(
            Severity::Warning,
            format!("`nvidia-smi` fails there: {problem}"),
            "see what it says there; a driver that was updated needs a restart of the host",
        );
    }
    let count = facts.gpus.devices.len() as u32;
    if (1..slots).contains(&count) {
        findings.add(
            Severity::Warning,
            match count {
                1 => format!("it takes {slots} ranks and has one GPU"),
                _ => format!("it takes {slots} ranks and has {count} GPUs"),
            },
            format!("give it `:{count}` slots if every rank is to have a GPU of its own"),
        );
    }
}

fn python(facts: &Facts, findings: &mut Findings<'_>) {
    let python = &facts.python;
    if let Some(problem) = &python.problem {
        findings.add(
            Severity::Warning,
            format!("its Python cannot be asked: {problem}"),
            "install Ronde into a Python environment there: its commands lie beside that Python",
        );
        return;
    }
    let has = |name: &str| python.packages.get(name);
    if let (None, Some(version)) = (has("ronde"), has("horovod")) {
        findings.add(
            Severity::Error,
            format!("`{}` has Horovod {version} and not Ronde", python.executable),
            format!(
                "`pip uninstall horovod`, then {} there: both are imported as `horovod`",
                install::command(PACKAGE_VERSION)
            ),
        );
    }
}
