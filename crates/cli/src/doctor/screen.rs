//! The doctor's report for people: software and hardware of each host, the speed between hosts, and
//! what to fix.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use ronde_control::doctor::{
    ClockOffset, Confinement, DoctorReport, Facts, Finding, Gpus, HostReport, Limit, Severity,
    Speed,
};
use ronde_control::{CudaVersion, NcclVersion, VERSION, counted};

use crate::tables::{plain, plain_or_transposed};

/// Up to this many hosts, the paths between them are shown as a table; otherwise only the worst.
const MATRIX: usize = 8;

/// Packages in display order; one that no host has is left out.
const PACKAGES: [&str; 9] =
    ["ronde", "horovod", "torch", "tensorflow", "keras", "jax", "mxnet", "lightning", "numpy"];

/// The whole report, tables first.
pub(super) fn text(report: &DoctorReport, taken: Duration, width: Option<u16>) -> String {
    let count = counted(report.hosts.len(), "host");
    let mut text = format!("Ronde {VERSION}: {count} in {:.1} s\n\n", taken.as_secs_f64());
    text += &plain_or_transposed(&software(&report.hosts), width);
    text += "\n";
    text += &plain_or_transposed(&machines(&report.hosts), width);
    if confined(&report.hosts).next().is_some() {
        text += "\n";
        text += &plain_or_transposed(&containers(&report.hosts), width);
    }
    if has_gpus(&report.hosts) {
        text += "\n";
        text += &plain_or_transposed(&gpus(&report.hosts), width);
    }
    if !report.speeds.is_empty() {
        text += "\n";
        text += &match report.hosts.len() <= MATRIX {
            true => plain(&paths(report), &[], width),
            false => worst(&report.speeds),
        };
    }
    text += "\n";
    for finding in &report.findings {
        text += &finding_text(finding);
    }
    text + &verdict(report)
}

fn software(hosts: &[HostReport]) -> Vec<Vec<String>> {
    let has = |name: &&str| {
        let mut facts = hosts.iter().filter_map(|host| host.facts.as_ref());
        facts.any(|facts| facts.python.packages.contains_key(*name))
    };
    let packages: Vec<&str> = PACKAGES.into_iter().filter(has).collect();
    let mut header = vec!["host", "agent", "python"];
    header.extend(&packages);
    let row = |host: &HostReport| {
        let python = host.facts.as_ref().map(|facts| &facts.python);
        let mut row = vec![host.name.clone()];
        row.push(host.ronde.clone().unwrap_or_else(|| "not reached".into()));
        row.push(shown(python.and_then(|python| python.version.clone())));
        row.extend(
            packages
                .iter()
                .map(|name| shown(python.and_then(|python| python.packages.get(*name).cloned()))),
        );
        row
    };
    with_header(&header, hosts.iter().map(row))
}

fn machines(hosts: &[HostReport]) -> Vec<Vec<String>> {
    let header = [
        "host",
        "slots",
        "CPUs",
        "memory",
        "free",
        "/dev/shm",
        "files",
        "processes",
        "GPUs",
        "clock",
        "addresses",
    ];
    let row = |host: &HostReport| {
        let fact = |show: fn(&Facts) -> String| shown(host.facts.as_ref().map(show));
        let addresses: Vec<String> = host
            .addresses
            .iter()
            .map(|each| format!("{} ({})", each.address, each.interface))
            .collect();
        vec![
            host.name.clone(),
            host.slots.to_string(),
            fact(|facts| facts.cpus.usable.to_string()),
            fact(|facts| gibibytes(facts.memory.total_bytes)),
            fact(|facts| gibibytes(facts.memory.available_bytes)),
            fact(|facts| shown(facts.shm_bytes.map(gibibytes))),
            fact(|facts| limit(facts.limits.files)),
            fact(|facts| limit(facts.limits.processes)),
            fact(|facts| models(&facts.gpus)),
            shown(host.clock.map(clock)),
            shown((!addresses.is_empty()).then(|| addresses.join(", "))),
        ]
    };
    with_header(&header, hosts.iter().map(row))
}

/// The hosts whose agent is confined in some way.
fn confined(hosts: &[HostReport]) -> impl Iterator<Item = (&HostReport, &Confinement)> {
    let all = hosts.iter().filter_map(|host| Some((host, &host.facts.as_ref()?.confinement)));
    all.filter(|(_, confinement)| confinement.is_noteworthy())
}

/// What the containers of the hosts leave them.
fn containers(hosts: &[HostReport]) -> Vec<Vec<String>> {
    let header = [
        "host",
        "inside",
        "user",
        "CPU quota",
        "memory limit",
        "process limit",
        "capabilities",
        "seccomp",
        "root file system",
    ];
    let row = |(host, inside): (&HostReport, &Confinement)| {
        vec![
            host.name.clone(),
            inside.container.clone().unwrap_or_else(|| "no container".into()),
            if inside.user == 0 { "root".into() } else { inside.user.to_string() },
            inside.cpu_quota().unwrap_or_else(|| "none".into()),
            inside.memory_limit_bytes.map_or_else(|| "none".into(), gibibytes),
            inside.process_limit.map_or_else(|| "none".into(), |limit| limit.to_string()),
            inside.capability_names(),
            if inside.seccomp { "filtered" } else { "off" }.into(),
            if inside.read_only_root { "read-only" } else { "writable" }.into(),
        ]
    };
    with_header(&header, confined(hosts).map(row))
}

fn has_gpus(hosts: &[HostReport]) -> bool {
    let mut facts = hosts.iter().filter_map(|host| host.facts.as_ref());
    facts.any(|facts| !facts.gpus.devices.is_empty())
}

fn gpus(hosts: &[HostReport]) -> Vec<Vec<String>> {
    let header = ["host", "GPU memory", "free", "driver", "CUDA", "NCCL", "NCCL is in"];
    let row = |host: &HostReport| {
        let fact = |show: fn(&Gpus) -> Option<String>| {
            shown(host.facts.as_ref().and_then(|facts| show(&facts.gpus)))
        };
        vec![
            host.name.clone(),
            fact(|gpus| span(gpus.devices.iter().map(|gpu| gpu.memory_bytes))),
            fact(|gpus| span(gpus.devices.iter().filter_map(|gpu| gpu.free_bytes))),
            fact(|gpus| gpus.driver.clone()),
            fact(|gpus| Some(CudaVersion(gpus.cuda.as_ref()?.version?).to_string())),
            fact(|gpus| Some(NcclVersion(gpus.nccl.as_ref()?.version?).to_string())),
            fact(|gpus| gpus.nccl.as_ref()?.path.clone()),
        ]
    };
    with_header(&header, hosts.iter().map(row))
}

/// The least and the most of these amounts of memory.
fn span(amounts: impl Iterator<Item = u64>) -> Option<String> {
    let amounts: Vec<u64> = amounts.filter(|bytes| *bytes > 0).collect();
    let (least, most) = (gibibytes(*amounts.iter().min()?), gibibytes(*amounts.iter().max()?));
    Some(if least == most { least } else { format!("{least} to {most}") })
}

/// A table with the speed from each row to each column, and the round-trip time.
fn paths(report: &DoctorReport) -> Vec<Vec<String>> {
    let names: Vec<&str> = report.hosts.iter().map(|host| host.name.as_str()).collect();
    let mut header = vec!["from \\ to"];
    header.extend(&names);
    let cell = |from: &str, to: &str| {
        let found = report.speeds.iter().find(|speed| speed.from == from && speed.to == to);
        shown(found.filter(|speed| speed.problem.is_none()).map(speed))
    };
    let row = |from: &&str| {
        let mut row = vec![(*from).to_owned()];
        row.extend(names.iter().map(|to| cell(from, to)));
        row
    };
    with_header(&header, names.iter().map(row))
}

/// For many hosts: the slowest and farthest paths.
fn worst(speeds: &[Speed]) -> String {
    let mut measured: Vec<&Speed> = speeds.iter().filter(|path| path.problem.is_none()).collect();
    let mut text = format!("{} measured\n", counted(measured.len(), "path"));
    measured.sort_by_key(|path| path.bytes_per_second);
    for path in measured.iter().take(3) {
        let _ = writeln!(text, "  slowest: `{}` to `{}`, {}", path.from, path.to, speed(path));
    }
    if let Some(path) = measured.get(measured.len() / 2) {
        let _ = writeln!(text, "  median: {}", speed(path));
    }
    measured.sort_by_key(|path| std::cmp::Reverse(path.round_trip_micros));
    for path in measured.iter().take(1) {
        let _ = writeln!(text, "  farthest: `{}` to `{}`, {}", path.from, path.to, speed(path));
    }
    text
}

/// A finding and its fix.
pub(crate) fn finding_text(finding: &Finding) -> String {
    let Finding { severity, hosts, what, fix } = finding;
    let names: Vec<String> = hosts.iter().map(|host| format!("`{host}`")).collect();
    format!("{}: {}: {what}\n  fix: {fix}\n", word(*severity), names.join(", "))
}

fn verdict(report: &DoctorReport) -> String {
    let mut counts: BTreeMap<Severity, usize> = BTreeMap::new();
    for finding in &report.findings {
        *counts.entry(finding.severity).or_default() += 1;
    }
    counts.remove(&Severity::Note);
    let listed = counts.iter().map(|(severity, count)| counted(*count, word(*severity)));
    let listed = listed.collect::<Vec<_>>().join(", ");
    let one = report.hosts.len() == 1;
    let these = if one { "this host" } else { "these hosts" };
    let blank = if report.findings.is_empty() { "" } else { "\n" };
    match (report.is_well(), listed.as_str()) {
        (true, "") => format!("{blank}no problems found: a job on {these} would start\n"),
        (true, listed) => format!("{blank}{listed}: a job on {these} would start\n"),
        (false, listed) => format!("{blank}{listed}: a job on {these} would not start\n"),
    }
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    }
}

fn with_header(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Vec<Vec<String>> {
    let header = header.iter().map(|name| (*name).to_owned()).collect();
    std::iter::once(header).chain(rows).collect()
}

fn shown(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".into())
}

fn gibibytes(bytes: u64) -> String {
    match bytes {
        ..0x4000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

fn limit(limit: Limit) -> String {
    limit.soft.map_or_else(|| "unlimited".into(), |soft| soft.to_string())
}

fn models(gpus: &Gpus) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for gpu in &gpus.devices {
        *counts.entry(&gpu.name).or_default() += 1;
    }
    let listed = counts.iter().map(|(name, count)| format!("{count} × {name}"));
    let listed = listed.collect::<Vec<_>>().join(", ");
    if listed.is_empty() { "none".into() } else { listed }
}

fn clock(clock: ClockOffset) -> String {
    let seconds = clock.ahead_micros as f64 * 1e-6;
    match clock.ahead_micros.unsigned_abs() {
        1_000_000.. => format!("{seconds:+.1} s"),
        // Smaller offsets are below the precision of the measurement.
        ..50 => "0.0 ms".into(),
        _ => format!("{:+.1} ms", seconds * 1e3),
    }
}

fn speed(speed: &Speed) -> String {
    let rate = speed.bytes_per_second as f64 * 8e-9;
    let trip = speed.round_trip_micros;
    match trip {
        ..1_000 => format!("{rate:.2} Gb/s, {trip} µs"),
        _ => format!("{rate:.2} Gb/s, {:.1} ms", f64::from(trip) * 1e-3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ronde_control::doctor::{
        Address, Cpus, GpuInfo, GpuLibrary, HostProblem, MemoryInfo, ProcessLimits, Python,
    };

    fn host(name: &str) -> HostReport {
        let limit = |soft| Limit { soft, hard: None };
        let python = Python {
            version: Some("3.11.2".into()),
            packages: [("ronde".into(), "0.1.0".into()), ("torch".into(), "2.9.0".into())].into(),
            ..Python::default()
        };
        let gpu = |free: u64| GpuInfo {
            name: "NVIDIA H200".into(),
            memory_bytes: 140 << 30,
            free_bytes: Some(free << 30),
        };
        let library = |version, path: &str| {
            Some(GpuLibrary { version: Some(version), path: Some(path.into()), problem: None })
        };
        let gpus = Gpus {
            devices: vec![gpu(139), gpu(90)],
            driver: Some("580.65.06".into()),
            cuda: library(13_000, "/lib/libcuda.so.1"),
            nccl: library(23_007, "/venv/libnccl.so.2"),
            ..Gpus::default()
        };
        HostReport {
            name: name.into(),
            slots: 4,
            ronde: Some("1".into()),
            clock: Some(ClockOffset { ahead_micros: -2_340_000, round_trip_micros: 300 }),
            addresses: vec![Address {
                interface: "eth0".into(),
                address: "10.0.0.1".parse().unwrap(),
            }],
            facts: Some(Facts {
                cpus: Cpus { usable: 8, ..Cpus::default() },
                memory: MemoryInfo { total_bytes: 16 << 30, available_bytes: 700 << 20 },
                shm_bytes: Some(64 << 20),
                limits: ProcessLimits { files: limit(Some(1024)), processes: limit(None) },
                gpus,
                python,
                ..Facts::default()
            }),
            ..HostReport::default()
        }
    }

    fn path(from: &str, to: &str, round_trip_micros: u32) -> Speed {
        Speed {
            from: from.into(),
            to: to.into(),
            address: "10.0.0.1:4000".parse().unwrap(),
            bytes_per_second: 1_180_000_000,
            round_trip_micros,
            problem: None,
        }
    }

    fn finding(severity: Severity, hosts: &[&str]) -> Finding {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        Finding { severity, hosts, what: "a problem".into(), fix: "do this".into() }
    }

    fn shown(report: &DoctorReport) -> String {
        text(report, Duration::from_millis(1840), None).replace(VERSION, "1")
    }

    #[test]
    fn a_few_hosts_are_shown_as_tables() {
        let trouble = Some(HostProblem::new("", ""));
        let lost = HostReport { name: "node-lost".into(), slots: 1, trouble, ..Default::default() };
        let report = DoctorReport {
            hosts: vec![host("a"), host("b"), lost],
            speeds: vec![path("a", "b", 58), path("b", "a", 12_300)],
            findings: vec![
                finding(Severity::Error, &["node-lost"]),
                finding(Severity::Warning, &["a", "b"]),
                finding(Severity::Note, &["a"]),
            ],
            ..DoctorReport::default()
        };
        insta::assert_snapshot!(shown(&report), @r"
        Ronde 1: 3 hosts in 1.8 s

        host       agent        python  ronde  torch
        a          1            3.11.2  0.1.0  2.9.0
        b          1            3.11.2  0.1.0  2.9.0
        node-lost  not reached  -       -      -

        host       slots  CPUs  memory    free     /dev/shm  files  processes  GPUs             clock   addresses
        a          4      8     16.0 GiB  700 MiB  64 MiB    1024   unlimited  2 × NVIDIA H200  -2.3 s  10.0.0.1 (eth0)
        b          4      8     16.0 GiB  700 MiB  64 MiB    1024   unlimited  2 × NVIDIA H200  -2.3 s  10.0.0.1 (eth0)
        node-lost  1      -     -         -        -         -      -          -                -       -

        host       GPU memory  free                   driver     CUDA  NCCL    NCCL is in
        a          140.0 GiB   90.0 GiB to 139.0 GiB  580.65.06  13.0  2.30.7  /venv/libnccl.so.2
        b          140.0 GiB   90.0 GiB to 139.0 GiB  580.65.06  13.0  2.30.7  /venv/libnccl.so.2
        node-lost  -           -                      -          -     -       -

        from \ to  a                   b                 node-lost
        a          -                   9.44 Gb/s, 58 µs  -
        b          9.44 Gb/s, 12.3 ms  -                 -
        node-lost  -                   -                 -

        error: `node-lost`: a problem
          fix: do this
        warning: `a`, `b`: a problem
          fix: do this
        note: `a`: a problem
          fix: do this

        1 error, 1 warning: a job on these hosts would not start
        ");
    }

    #[test]
    fn for_many_hosts_the_worst_paths_are_shown() {
        let names: Vec<String> = (0..9).map(|number| format!("n{number}")).collect();
        let mut speeds: Vec<Speed> =
            names.iter().map(|name| path(name, "n0", 60)).skip(1).collect();
        speeds[3].bytes_per_second = 1_000_000;
        speeds[4].round_trip_micros = 90_000;
        let hosts = names.iter().map(|name| host(name)).collect();
        let text = shown(&DoctorReport { hosts, speeds, ..DoctorReport::default() });
        for line in [
            "8 paths measured\n",
            "  slowest: `n4` to `n0`, 0.01 Gb/s, 60 µs\n",
            "  median: 9.44 Gb/s, ",
            "  farthest: `n5` to `n0`, 9.44 Gb/s, 90.0 ms\n",
            "\nno problems found: a job on these hosts would start\n",
        ] {
            assert!(text.contains(line), "{line} is missing in {text}");
        }
    }
}
