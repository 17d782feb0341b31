//! Runs without hosts: the tests make up every answer, and the time.

use super::*;
use crate::PortRange;
use crate::install;
use crate::wire::agent::Dial;

const LIMIT: Duration = Duration::from_secs(3);

fn ms(millis: u64) -> Time {
    Duration::from_millis(millis)
}

fn doctor_run(names: &[(&str, bool)]) -> DoctorRun {
    let setup_host =
        |(name, here): &(&str, bool)| (SetupHost { name: (*name).into(), here: *here }, 2);
    let launcher = vec!["10.0.0.1:9".parse().unwrap()];
    let listening = (JobKey::from_entropy([1; 32]), vec![]);
    DoctorRun::new(names.iter().map(setup_host).collect(), launcher, listening, LIMIT)
}

fn facts() -> Facts {
    let packages = [("ronde", crate::PACKAGE_VERSION), ("torch", "2.9.0"), ("numpy", "2.1.0")];
    let packages = packages.map(|(name, version)| (name.to_owned(), version.to_owned()));
    Facts {
        cpus: Cpus { usable: 8, online: 8, ..Cpus::default() },
        memory: MemoryInfo { total_bytes: 16 << 30, available_bytes: 8 << 30 },
        shm_bytes: Some(8 << 30),
        python: Python {
            executable: "/venv/bin/python".into(),
            version: Some("3.11.2".into()),
            packages: packages.into(),
            problem: None,
        },
        ..Facts::default()
    }
}

fn time(ahead_micros: i64, round_trip_micros: u64) -> DoctorInput {
    DoctorInput::Clock(ClockOffset { ahead_micros, round_trip_micros })
}

fn examined(facts: Facts) -> DoctorInput {
    DoctorInput::Said(AgentToDriver::Examined { facts: Box::new(facts) })
}

/// The listeners of a host: `10.0.0.<number>`, and further addresses that all hosts have.
fn listeners(host: usize, port: u32, more: &[&str]) -> Vec<Listener> {
    let own = format!("10.0.0.{}", host + 1);
    let all = std::iter::once(own.as_str()).chain(more.iter().copied());
    all.map(|address| Listener {
        interface: Some("eth0".into()),
        address: format!("{address}:{}", 4000 + port).parse().unwrap(),
    })
    .collect()
}

/// Takes a host up to its calls; returns the commands that follow.
fn greet(doctor_run: &mut DoctorRun, host: usize, facts: Facts, more: &[&str]) -> Commands {
    let now = ms(100);
    let hello = DoctorInput::Hello { version: VERSION.into() };
    assert_eq!(doctor_run.on(host, hello, now), [(host, DriverToAgent::AskTime)]);
    for _ in 1..QUESTIONS {
        assert_eq!(doctor_run.on(host, time(10, 200), now), [(host, DriverToAgent::AskTime)]);
    }
    let asked = doctor_run.on(host, time(20, 300), now);
    assert_eq!(asked.len(), 1 + PORTS as usize, "{asked:?}");
    assert_eq!(asked[0], (host, DriverToAgent::Examine));
    assert_eq!(doctor_run.on(host, examined(facts), now), []);
    let mut commands = Vec::new();
    for port in 0..PORTS {
        let listening = AgentToDriver::Listening {
            listeners: listeners(host, port, more),
            known: vec![],
            ports: vec![],
            range: PortRange::default(),
        };
        commands.extend(doctor_run.on(host, DoctorInput::Said(listening), now));
    }
    commands
}

/// Answers calls with `outcome` and measurements with `rate` until nothing is left to do.
fn answer_all(
    doctor_run: &mut DoctorRun,
    mut commands: Commands,
    outcome: impl Fn(usize, Callee, SocketAddr) -> Dial,
    rate: impl Fn(usize, usize) -> Result<Rate, String>,
) {
    while let Some((from, command)) = commands.pop() {
        match command {
            DriverToAgent::Dial { targets, .. } => {
                for DialTarget { callee, addresses } in targets {
                    for address in addresses {
                        let outcome = outcome(from, callee, address);
                        let message = AgentToDriver::Dialed { callee, address, outcome };
                        commands.extend(doctor_run.on(from, DoctorInput::Said(message), ms(200)));
                    }
                }
            }
            DriverToAgent::Measure { callee: callee @ Callee::Host(to), .. } => {
                let message = AgentToDriver::Measured { callee, outcome: rate(from, to as usize) };
                commands.extend(doctor_run.on(from, DoctorInput::Said(message), ms(300)));
            }
            other => panic!("{other:?}"),
        }
    }
}

fn reached(_: usize, _: Callee, _: SocketAddr) -> Dial {
    Dial::Reached { micros: 90 }
}

fn fast(_: usize, _: usize) -> Result<Rate, String> {
    Ok(Rate { bytes_per_second: 1_000_000_000, round_trip_micros: 60 })
}

/// A run over three hosts with these facts and all paths open.
fn examine(facts: [Facts; 3]) -> DoctorReport {
    let mut doctor_run = doctor_run(&[("a", true), ("b", false), ("c", false)]);
    let mut commands = Vec::new();
    for (host, facts) in facts.into_iter().enumerate() {
        commands.extend(greet(&mut doctor_run, host, facts, &[]));
    }
    answer_all(&mut doctor_run, commands, reached, fast);
    assert!(doctor_run.is_over());
    doctor_run.report()
}

fn lines(report: &DoctorReport) -> Vec<String> {
    let line = |finding: &Finding| {
        format!("{:?} {}: {}", finding.severity, finding.hosts.join("+"), finding.what)
    };
    report.findings.iter().map(line).collect()
}

#[test]
fn healthy_hosts_have_no_findings_and_every_path_is_measured_once() {
    let report = examine([facts(), facts(), facts()]);
    assert_eq!(report.findings, []);
    assert!(report.is_well());
    assert_eq!(report.speeds.len(), 6);
    // Each to both others, and two to the launcher.
    assert_eq!(report.paths.len(), 8);
    assert_eq!(
        report.hosts[1].clock,
        Some(ClockOffset { ahead_micros: 10, round_trip_micros: 200 })
    );
}

#[test]
fn no_host_takes_part_in_two_measurements_at_a_time() {
    let mut doctor_run = doctor_run(&[("a", false), ("b", false), ("c", false), ("d", false)]);
    let mut commands = Vec::new();
    for host in 0..4 {
        commands.extend(greet(&mut doctor_run, host, facts(), &[]));
    }
    let mut running: Vec<(usize, usize)> = Vec::new();
    let mut done = 0;
    let mut calls = commands;
    while let Some((from, command)) = calls.pop() {
        match command {
            DriverToAgent::Dial { targets, .. } => {
                for DialTarget { callee, addresses } in targets {
                    for address in addresses {
                        let outcome = Dial::Reached { micros: 9 };
                        let message = AgentToDriver::Dialed { callee, address, outcome };
                        calls.extend(doctor_run.on(from, DoctorInput::Said(message), ms(200)));
                    }
                }
            }
            DriverToAgent::Measure { callee: Callee::Host(to), .. } => {
                running.push((from, to as usize));
            }
            other => panic!("{other:?}"),
        }
        let mut busy: Vec<usize> = running.iter().flat_map(|(a, b)| [*a, *b]).collect();
        busy.sort_unstable();
        busy.dedup();
        assert_eq!(busy.len(), 2 * running.len(), "{running:?}");
        if calls.is_empty()
            && let Some((from, to)) = running.pop()
        {
            done += 1;
            assert!(!doctor_run.is_over());
            let callee = Callee::Host(to as u32);
            let message = AgentToDriver::Measured { callee, outcome: fast(0, 0) };
            calls.extend(doctor_run.on(from, DoctorInput::Said(message), ms(300)));
            // The loop ends when there are no calls, so add one while measurements run.
            if calls.is_empty() && !running.is_empty() {
                calls.push((from, dial(Vec::new())));
            }
        }
    }
    assert_eq!(done, 12);
    assert!(doctor_run.is_over());
}

#[test]
fn a_single_machine_is_not_asked_to_listen() {
    let mut doctor_run = doctor_run(&[("localhost", true)]);
    doctor_run.on(0, DoctorInput::Hello { version: VERSION.into() }, ms(1));
    for _ in 1..QUESTIONS {
        doctor_run.on(0, time(0, 100), ms(1));
    }
    assert_eq!(doctor_run.on(0, time(0, 100), ms(1)), [(0, DriverToAgent::Examine)]);
    assert!(!doctor_run.is_over());
    doctor_run.on(0, examined(facts()), ms(2));
    assert!(doctor_run.is_over());
    assert_eq!(doctor_run.report().findings, []);
}

#[test]
fn missing_hosts_are_reported_as_the_launcher_would_and_delay_nobody() {
    let mut doctor_run = doctor_run(&[("a", true), ("b", false), ("c", false), ("d", false)]);
    let mut commands = greet(&mut doctor_run, 0, facts(), &[]);
    commands.extend(greet(&mut doctor_run, 1, facts(), &[]));
    let problem = HostProblem::new("no key", "copy one");
    assert_eq!(doctor_run.on(2, DoctorInput::Gone(problem), ms(110)), []);
    answer_all(&mut doctor_run, commands, reached, fast);
    assert_eq!(doctor_run.next_wakeup(), LIMIT);
    assert!(!doctor_run.is_over());
    doctor_run.tick(LIMIT);
    assert!(doctor_run.is_over());
    let report = doctor_run.report();
    assert_eq!(report.speeds.len(), 2, "the others have continued");
    let expected = ["Error c: no key", "Error d: it has not answered within 3 s"];
    assert_eq!(lines(&report), expected);
    assert!(!report.is_well());
}

#[test]
fn a_host_that_answers_and_then_hangs_is_reported_too() {
    let mut doctor_run = doctor_run(&[("b", false)]);
    doctor_run.on(0, DoctorInput::Hello { version: VERSION.into() }, ms(1));
    assert_eq!(doctor_run.next_wakeup(), LIMIT + WORK);
    doctor_run.tick(LIMIT + WORK);
    assert!(doctor_run.is_over());
    assert_eq!(
        lines(&doctor_run.report()),
        ["Error b: it answered, but then did not report its state"]
    );
}

#[test]
fn another_version_of_ronde_is_an_error() {
    let mut doctor_run = doctor_run(&[("b", false)]);
    assert_eq!(doctor_run.on(0, DoctorInput::Hello { version: "0".into() }, ms(1)), []);
    assert!(doctor_run.is_over());
    let expected = [format!("Error b: it runs Ronde 0, but this launcher is Ronde {VERSION}")];
    assert_eq!(lines(&doctor_run.report()), expected);
}

#[test]
fn unreachable_hosts_are_reported_once_with_addresses() {
    let mut doctor_run = doctor_run(&[("a", true), ("b", false), ("c", false)]);
    let mut commands = Vec::new();
    for host in 0..3 {
        commands.extend(greet(&mut doctor_run, host, facts(), &["172.17.0.1"]));
    }
    let outcome = |from: usize, callee: Callee, address: SocketAddr| {
        let blocked = [(1, Callee::Host(2)), (2, Callee::Host(1))].contains(&(from, callee));
        match address.ip().to_string().as_str() {
            "172.17.0.1" => Dial::WrongProcess,
            _ if blocked => Dial::TimedOut,
            _ => Dial::Reached { micros: 80 },
        }
    };
    answer_all(&mut doctor_run, commands, outcome, fast);
    let report = doctor_run.report();
    let lines = lines(&report);
    let errors: Vec<&String> = lines.iter().filter(|line| line.starts_with("Error")).collect();
    assert_eq!(errors.len(), 1, "{lines:?}");
    assert!(
        errors[0].starts_with("Error c: cannot reach `b`: 10.0.0.2:4000 timed out"),
        "{lines:?}"
    );
    assert!(report.findings[0].fix.contains("firewall"));
    let note = "Note a+b+c: no host can reach it at 172.17.0.1 (`eth0`), which other hosts have \
                too; that address is not used";
    assert!(lines.contains(&note.to_owned()), "{lines:?}");
    assert_eq!(report.speeds.len(), 4, "blocked paths are not measured");
}

#[test]
fn blocked_ports_and_one_way_paths_are_warnings() {
    let mut doctor_run = doctor_run(&[("a", true), ("b", false)]);
    let mut commands = greet(&mut doctor_run, 0, facts(), &[]);
    commands.extend(greet(&mut doctor_run, 1, facts(), &[]));
    let outcome = |from: usize, callee: Callee, address: SocketAddr| match (from, callee) {
        (0, Callee::Host(1)) => Dial::Refused,
        (1, Callee::Host(0)) if address.port() == 4001 => Dial::TimedOut,
        _ => Dial::Reached { micros: 80 },
    };
    answer_all(&mut doctor_run, commands, outcome, fast);
    let report = doctor_run.report();
    assert!(report.is_well(), "{report:?}");
    let expected = [
        "Warning a: cannot reach `b`, which it must in jobs that list it after `b`: 10.0.0.2:4000 \
         refused, 10.0.0.2:4001 refused, 10.0.0.2:4002 refused",
        "Warning b: reaches `a` only on some ports: 10.0.0.1:4001 timed out",
    ];
    assert_eq!(lines(&report), expected);
}

#[test]
fn different_versions_are_reported_with_what_to_install() {
    let mut other = facts();
    other.python.packages.insert("torch".into(), "2.8.0".into());
    other.python.packages.insert("ronde".into(), "0.0.9".into());
    other.python.packages.remove("numpy");
    other.python.version = Some("3.12.1".into());
    let mut patch = facts();
    patch.python.version = Some("3.11.9".into());
    let report = examine([facts(), other, patch]);
    let ours = crate::PACKAGE_VERSION;
    let expected = [
        format!("Error b: ronde differs: {ours} on `a`, `c`; 0.0.9 on `b`"),
        "Warning b: torch differs: 2.9.0 on `a`, `c`; 2.8.0 on `b`".into(),
        "Warning b: numpy differs: 2.1.0 on `a`, `c`; missing on `b`".into(),
        "Warning b: Python differs: 3.11 on `a`, `c`; 3.12 on `b`".into(),
    ];
    assert_eq!(lines(&report), expected);
    assert_eq!(report.findings[0].fix, format!("{} on the others", install::command(ours)));
    assert_eq!(report.findings[1].fix, "`pip install torch==2.9.0` on the others");
}

#[test]
fn on_a_tie_the_host_that_was_named_first_is_right() {
    let mut other = facts();
    other.python.packages.insert("torch".into(), "3.0.0".into());
    let mut none = facts();
    none.python.packages.remove("torch");
    let report = examine([facts(), other, none]);
    let expected = "Warning b+c: torch differs: 2.9.0 on `a`; missing on `c`; 3.0.0 on `b`";
    assert_eq!(lines(&report), [expected]);
}

#[test]
fn missing_resources_are_reported_with_a_fix() {
    let limit = |soft| Limit { soft: Some(soft), hard: None };
    let mut small = facts();
    small.cpus.usable = 1;
    small.memory.available_bytes = 600 << 20;
    small.shm_bytes = Some(64 << 20);
    small.limits = ProcessLimits { files: limit(64), processes: limit(100) };
    let mut tight = facts();
    tight.limits.files = limit(512);
    let report = examine([facts(), small, tight]);
    let expected = [
        "Error b: a process may open only 64 files and sockets (`ulimit -n`); each of 6 ranks needs \
         about 88",
        "Warning b: its user may have only 100 processes and threads (`ulimit -u`)",
        "Warning b: more slots (2) than CPUs that a process may use (1)",
        "Warning b: it has 2 slots, but only 600 MiB of free memory",
        "Warning b: its `/dev/shm` has only 64 MiB",
        "Warning c: a process may open only 512 files and sockets (`ulimit -n`); programs with \
         data loaders need more",
    ];
    assert_eq!(lines(&report), expected);
    assert!(report.findings[0].fix.contains("nofile"));
}

#[test]
fn gpus_fewer_than_slots_or_than_elsewhere_are_reported() {
    let with = |count: usize, driver: &str| {
        let gpus = gpus(13_000, 23_007);
        let devices = vec![gpus.devices[0].clone(); count];
        Facts { gpus: Gpus { devices, driver: Some(driver.into()), ..gpus }, ..facts() }
    };
    let report = examine([with(2, "570.86"), with(1, "560.1"), with(2, "570.124")]);
    let expected = [
        "Warning b: it has 2 slots, but only one GPU",
        "Warning b: the number of GPUs differs: 2 on `a`, `c`; 1 on `b`",
        "Warning b: NVIDIA's driver differs: 570 on `a`, `c`; 560 on `b`",
    ];
    assert_eq!(lines(&report), expected);
    let mut hidden = with(2, "570.86");
    hidden.gpus.visible = Some(0);
    let report = examine([hidden, facts(), facts()]);
    assert_eq!(
        lines(&report),
        ["Warning a: it has 2 slots, but only 0 GPUs in CUDA_VISIBLE_DEVICES"]
    );
}

/// Two GPUs, and libraries with these versions.
fn gpus(cuda: u32, nccl: u32) -> Gpus {
    let library = |version, path: &str| {
        Some(GpuLibrary { version: Some(version), path: Some(path.into()), problem: None })
    };
    let (memory_bytes, free_bytes) = (140 << 30, Some(139 << 30));
    Gpus {
        devices: vec![GpuInfo { name: "NVIDIA H200".into(), memory_bytes, free_bytes }; 2],
        driver: Some("580.65".into()),
        cuda: library(cuda, "libcuda.so.1"),
        nccl: library(nccl, "libnccl.so.2"),
        ..Gpus::default()
    }
}

#[test]
fn a_driver_or_an_nccl_that_cannot_be_used_is_reported_with_a_fix() {
    let missing =
        |problem: &str| Some(GpuLibrary { problem: Some(problem.into()), ..GpuLibrary::default() });
    let host_memory = "so GPU tensors would go through host memory, which is slower";
    for (gpus, what, fix) in [
        (gpus(11_040, 21_400), String::new(), ""),
        (
            gpus(11_020, 21_805),
            "its NVIDIA driver is too old: it supports CUDA 11.2, and Ronde needs 11.4".into(),
            "update NVIDIA's driver",
        ),
        (
            Gpus { devices: vec![], ..gpus(11_020, 21_805) },
            "its NVIDIA driver is too old: it supports CUDA 11.2, and Ronde needs 11.4".into(),
            "update NVIDIA's driver",
        ),
        (
            Gpus { cuda: missing("libcuda.so.1: no such file"), ..gpus(0, 0) },
            "it has GPUs, but ranks cannot use them: libcuda.so.1: no such file".into(),
            "NVIDIA_DRIVER_CAPABILITIES",
        ),
        (
            gpus(12_040, 21_304),
            format!(
                "NCCL 2.13.4 (`libnccl.so.2`) is too old, {host_memory}: Ronde needs 2.14.0 or newer"
            ),
            "`pip install --upgrade nvidia-nccl-cu12`",
        ),
        (
            Gpus { nccl: missing("no file"), ..gpus(13_000, 0) },
            format!("no NCCL, {host_memory}: no file"),
            "`pip install --upgrade nvidia-nccl-cu13`",
        ),
        (Gpus { devices: vec![], cuda: missing("x"), ..gpus(0, 0) }, String::new(), ""),
        (
            Gpus {
                cuda: None,
                nccl: None,
                unknown: Some("took longer than 2.5 s".into()),
                ..gpus(0, 0)
            },
            "the program that looks for the driver and NCCL there took longer than 2.5 s".into(),
            "--check-build --verbose",
        ),
    ] {
        let host = HostReport { name: "a".into(), slots: 2, ..HostReport::default() };
        let found = super::gpus::findings(&host, &gpus);
        let text = found.first().map_or(("", ""), |it| (it.what.as_str(), it.fix.as_str()));
        assert_eq!(text.0, what);
        assert!(text.1.contains(fix), "{}", text.1);
    }
}

#[test]
fn gpus_and_libraries_that_differ_between_hosts_are_reported() {
    let with = |gpus: Gpus| Facts { gpus, ..facts() };
    let mut other = gpus(13_000, 22_809);
    other.devices[0].name = "NVIDIA A100".into();
    other.devices[1].free_bytes = Some(3 << 30);
    let report = examine([with(gpus(13_000, 23_007)), with(gpus(13_000, 23_004)), with(other)]);
    let expected = [
        "Warning c: another program uses GPU 1 (NVIDIA H200): 3.0 of 140.0 GiB are free",
        "Warning c: the model of the GPUs differs: NVIDIA H200 on `a`, `b`; NVIDIA A100 and NVIDIA \
         H200 on `c`",
        "Warning c: NCCL differs: 2.30 on `a`, `b`; 2.28 on `c`",
    ];
    assert_eq!(lines(&report), expected);
}

#[test]
fn hosts_without_gpus_have_nothing_to_report_about_them() {
    let absent = GpuLibrary { problem: Some("no driver".into()), ..GpuLibrary::default() };
    let nccl = gpus(0, 23_007).nccl;
    let without = Facts { gpus: Gpus { cuda: Some(absent), nccl, ..Gpus::default() }, ..facts() };
    assert_eq!(lines(&examine([without.clone(), facts(), without])), [""; 0]);
}

#[test]
fn a_python_that_does_not_run_or_has_horovod_is_reported() {
    let broken = Python {
        executable: "python3".into(),
        problem: Some("`python3` was not found".into()),
        ..Python::default()
    };
    let mut old = facts();
    old.python.packages.remove("ronde");
    old.python.packages.insert("horovod".into(), "0.28.1".into());
    let report = examine([facts(), Facts { python: broken, ..facts() }, old]);
    let ours = crate::PACKAGE_VERSION;
    let expected = [
        "Error c: `/venv/bin/python` has Horovod 0.28.1, not Ronde".to_owned(),
        "Warning b: its Python does not run: `python3` was not found".into(),
        format!("Warning c: ronde differs: {ours} on `a`; missing on `c`"),
    ];
    assert_eq!(lines(&report), expected);
}

#[test]
fn a_clock_is_off_only_beyond_the_error_of_the_measurement() {
    for (ahead, round_trip, expected) in [
        (900_000, 100, None),
        (1_400_000, 1_000_000, None),
        (90_000_000, 100, Some("Warning a: its clock is 90.0 s ahead of the launcher's")),
        (-2_500_000, 100, Some("Warning a: its clock is 2.5 s behind the launcher's")),
    ] {
        let clock = Some(ClockOffset { ahead_micros: ahead, round_trip_micros: round_trip });
        let host = HostReport { name: "a".into(), clock, ..HostReport::default() };
        let report =
            DoctorReport { findings: machines::findings(&[host]), ..DoctorReport::default() };
        assert_eq!(lines(&report), expected.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn a_path_that_is_much_slower_than_the_others_is_reported() {
    let mut doctor_run = doctor_run(&[("a", true), ("b", false), ("c", false)]);
    let mut commands = Vec::new();
    for host in 0..3 {
        commands.extend(greet(&mut doctor_run, host, facts(), &[]));
    }
    let rate = |from: usize, to: usize| match (from, to) {
        (2, 0) => Ok(Rate { bytes_per_second: 11_000_000, round_trip_micros: 9_000 }),
        (2, 1) => Err("10.0.0.2:4000 timed out".into()),
        _ => fast(from, to),
    };
    answer_all(&mut doctor_run, commands, reached, rate);
    let expected = [
        "Warning c: sends 0.09 Gb/s to `a`; most paths reach 8.00 Gb/s",
        "Warning c: has a round trip of 9.0 ms to `a`; most take 0.1 ms",
        "Warning c: could not measure the path to `b`: 10.0.0.2:4000 timed out",
    ];
    assert_eq!(lines(&doctor_run.report()), expected);
}

#[test]
fn with_many_hosts_each_is_measured_with_some() {
    const HOSTS: usize = 40;
    let names: Vec<String> = (0..HOSTS).map(|number| format!("n{number}")).collect();
    let names: Vec<(&str, bool)> = names.iter().map(|name| (name.as_str(), false)).collect();
    let mut doctor_run = doctor_run(&names);
    let mut commands = Vec::new();
    for host in 0..HOSTS {
        commands.extend(greet(&mut doctor_run, host, facts(), &[]));
    }
    answer_all(&mut doctor_run, commands, reached, fast);
    assert!(doctor_run.is_over());
    let report = doctor_run.report();
    assert_eq!(report.findings, []);
    // To the hosts that are 1, 2, 4, 8, 16 and 32 places further on.
    assert_eq!(report.speeds.len(), 6 * HOSTS);
}
