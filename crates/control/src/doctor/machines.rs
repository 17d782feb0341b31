//! What is wrong with a host by itself.

use std::time::Duration;

use super::facts::Facts;
use super::{Finding, HostReport, Severity};
use crate::muster::Trouble;
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
    let mut found = Vec::new();
    for host in hosts {
        if let Some(Trouble { reason, hint }) = &host.trouble {
            found.push(Finding::new(Severity::Error, &host.name, reason, hint));
        }
        clock(host, &mut found);
        if let Some(facts) = &host.facts {
            limits(host, facts, ranks, &mut found);
            room(host, facts, &mut found);
            gpus(host, facts, &mut found);
            python(host, facts, &mut found);
        }
    }
    found
}

fn clock(host: &HostReport, found: &mut Vec<Finding>) {
    let Some(clock) = host.clock else { return };
    let off = clock.ahead_micros.unsigned_abs();
    // Half the time of the question is not known to be either.
    if off.saturating_sub(clock.round_trip_micros / 2) > APART.as_micros() as u64 {
        let seconds = off as f64 / 1e6;
        let way = if clock.ahead_micros > 0 { "ahead of" } else { "behind" };
        found.push(Finding::warning(
            &host.name,
            format!("its clock is {seconds:.1} s {way} the launcher's"),
            "let `chrony` or `systemd-timesyncd` set it: times in logs, timelines and files will \
             not match",
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
    // Each rank holds a few connections to every other.
    let needed = FILES_OF_A_RANK + 4 * ranks;
    if files < needed.max(FILES_OF_A_PROGRAM) {
        let severity = if files < needed { Severity::Error } else { Severity::Warning };
        let why = match severity {
            Severity::Error => format!("a rank of {ranks} needs about {needed}"),
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

fn room(host: &HostReport, facts: &Facts, found: &mut Vec<Finding>) {
    let (slots, cpus) = (host.slots, facts.cpus.usable);
    if cpus > 0 && cpus < slots {
        found.push(Finding::warning(
            &host.name,
            format!("it takes {slots} ranks and lets a process use {cpus} of its CPUs"),
            format!("give it `:{cpus}` slots, or it more CPUs; ranks that share one wait in turns"),
        ));
    }
    let free = facts.memory.available_bytes;
    if free > 0 && free < MEMORY_OF_A_RANK * u64::from(slots) {
        found.push(Finding::warning(
            &host.name,
            format!("it takes {slots} ranks and has {} MiB of memory free", free >> 20),
            "free some, or give it fewer slots: a rank with a framework takes half a GiB by itself",
        ));
    }
    if let Some(shm) = facts.shm_bytes.filter(|shm| *shm < LITTLE_SHM) {
        found.push(Finding::warning(
            &host.name,
            format!("its `/dev/shm` has {} MiB", shm >> 20),
            "nothing for Ronde, which does not use it; PyTorch's data loaders with workers do: \
             `--shm-size=8g` for a container, or `mount -o remount,size=8g /dev/shm`",
        ));
    }
}

fn gpus(host: &HostReport, facts: &Facts, found: &mut Vec<Finding>) {
    if let Some(problem) = &facts.gpus.problem {
        found.push(Finding::warning(
            &host.name,
            format!("`nvidia-smi` fails there: {problem}"),
            "see what it says there; a driver that was updated needs a restart of the host",
        ));
    }
    let (slots, count) = (host.slots, facts.gpus.devices.len() as u32);
    if (1..slots).contains(&count) {
        found.push(Finding::warning(
            &host.name,
            match count {
                1 => format!("it takes {slots} ranks and has one GPU"),
                _ => format!("it takes {slots} ranks and has {count} GPUs"),
            },
            format!("give it `:{count}` slots if every rank is to have a GPU of its own"),
        ));
    }
}

fn python(host: &HostReport, facts: &Facts, found: &mut Vec<Finding>) {
    let python = &facts.python;
    if let Some(problem) = &python.problem {
        found.push(Finding::warning(
            &host.name,
            format!("its Python cannot be asked: {problem}"),
            "install Ronde into a Python environment there: its commands lie beside that Python",
        ));
        return;
    }
    let has = |name: &str| python.packages.get(name);
    if let (None, Some(version)) = (has("ronde"), has("horovod")) {
        found.push(Finding::new(
            Severity::Error,
            &host.name,
            format!("`{}` has Horovod {version} and not Ronde", python.executable),
            format!(
                "`pip uninstall horovod`, then {} there: both are imported as `horovod`",
                install::command(PACKAGE_VERSION)
            ),
        ));
    }
}
