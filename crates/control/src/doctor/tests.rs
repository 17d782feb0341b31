//! Visits without hosts: every answer is made up, and so is the time.

use super::*;
use crate::install;
use crate::wire::agent::Dial;

const LIMIT: Duration = Duration::from_secs(3);

fn ms(millis: u64) -> Time {
    Duration::from_millis(millis)
}

fn visit(names: &[(&str, bool)]) -> Visit {
    let guest = |(name, here): &(&str, bool)| (Guest { name: (*name).into(), here: *here }, 2);
    let launcher = vec!["10.0.0.1:9".parse().unwrap()];
    let door = (JobKey::from_entropy([1; 32]), vec![]);
    Visit::new(names.iter().map(guest).collect(), launcher, door, LIMIT)
}

fn facts() -> Facts {
    let packages = [("ronde", crate::PACKAGE_VERSION), ("torch", "2.9.0"), ("numpy", "2.1.0")];
    let packages = packages.map(|(name, version)| (name.to_owned(), version.to_owned()));
    Facts {
        cpus: Cpus { usable: 8, online: 8, ..Cpus::default() },
        memory: Memory { total_bytes: 16 << 30, available_bytes: 8 << 30 },
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

fn told(ahead_micros: i64, round_trip_micros: u64) -> Event {
    Event::Told(Clock { ahead_micros, round_trip_micros })
}

fn examined(facts: Facts) -> Event {
    Event::Said(AgentToDriver::Examined { facts: Box::new(facts) })
}

/// Where the ports of a host are: `10.0.0.<number>`, and more addresses that all hosts have.
fn listeners(host: usize, port: u32, more: &[&str]) -> Vec<Listener> {
    let own = format!("10.0.0.{}", host + 1);
    let all = std::iter::once(own.as_str()).chain(more.iter().copied());
    all.map(|address| Listener {
        interface: "eth0".into(),
        address: format!("{address}:{}", 4000 + port).parse().unwrap(),
    })
    .collect()
}

/// Brings a host up to its calls; gives what is to be done then.
fn greet(visit: &mut Visit, host: usize, facts: Facts, more: &[&str]) -> Commands {
    let now = ms(100);
    let hello = Event::Hello { version: VERSION.into() };
    assert_eq!(visit.on(host, hello, now), [(host, DriverToAgent::AskTime)]);
    for _ in 1..QUESTIONS {
        assert_eq!(visit.on(host, told(10, 200), now), [(host, DriverToAgent::AskTime)]);
    }
    let asked = visit.on(host, told(20, 300), now);
    assert_eq!(asked.len(), 1 + PORTS as usize, "{asked:?}");
    assert_eq!(asked[0], (host, DriverToAgent::Examine));
    assert_eq!(visit.on(host, examined(facts), now), []);
    let mut commands = Vec::new();
    for port in 0..PORTS {
        let listening = AgentToDriver::Listening {
            listeners: listeners(host, port, more),
            known: vec![],
            ports: vec![],
        };
        commands.extend(visit.on(host, Event::Said(listening), now));
    }
    commands
}

/// Answers calls as `outcome` says, and measurements with figures, until nothing is left to do.
fn go_on(
    visit: &mut Visit,
    mut commands: Commands,
    outcome: impl Fn(usize, Callee, SocketAddr) -> Dial,
    rate: impl Fn(usize, usize) -> Result<Rate, String>,
) {
    while let Some((from, command)) = commands.pop() {
        match command {
            DriverToAgent::Dial { targets, .. } => {
                for Target { callee, addresses } in targets {
                    for address in addresses {
                        let outcome = outcome(from, callee, address);
                        let said = AgentToDriver::Dialled { callee, address, outcome };
                        commands.extend(visit.on(from, Event::Said(said), ms(200)));
                    }
                }
            }
            DriverToAgent::Measure { callee: callee @ Callee::Host(to), .. } => {
                let said = AgentToDriver::Measured { callee, outcome: rate(from, to as usize) };
                commands.extend(visit.on(from, Event::Said(said), ms(300)));
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

/// Three hosts with these facts, all ways open.
fn looked_at(facts: [Facts; 3]) -> Report {
    let mut visit = visit(&[("a", true), ("b", false), ("c", false)]);
    let mut commands = Vec::new();
    for (host, facts) in facts.into_iter().enumerate() {
        commands.extend(greet(&mut visit, host, facts, &[]));
    }
    go_on(&mut visit, commands, reached, fast);
    assert!(visit.is_over());
    visit.report()
}

fn lines(report: &Report) -> Vec<String> {
    let line = |finding: &Finding| {
        format!("{:?} {}: {}", finding.severity, finding.hosts.join("+"), finding.what)
    };
    report.findings.iter().map(line).collect()
}

#[test]
fn healthy_hosts_have_no_findings_and_every_way_is_measured_once() {
    let report = looked_at([facts(), facts(), facts()]);
    assert_eq!(report.findings, []);
    assert!(report.is_well());
    assert_eq!(report.speeds.len(), 6);
    // Each to both others, and two to the launcher.
    assert_eq!(report.paths.len(), 8);
    assert_eq!(report.hosts[1].clock, Some(Clock { ahead_micros: 10, round_trip_micros: 200 }));
}

#[test]
fn nobody_measures_with_two_at_a_time() {
    let mut visit = visit(&[("a", false), ("b", false), ("c", false), ("d", false)]);
    let mut commands = Vec::new();
    for host in 0..4 {
        commands.extend(greet(&mut visit, host, facts(), &[]));
    }
    let mut running: Vec<(usize, usize)> = Vec::new();
    let mut done = 0;
    let mut calls = commands;
    while let Some((from, command)) = calls.pop() {
        match command {
            DriverToAgent::Dial { targets, .. } => {
                for Target { callee, addresses } in targets {
                    for address in addresses {
                        let outcome = Dial::Reached { micros: 9 };
                        let said = AgentToDriver::Dialled { callee, address, outcome };
                        calls.extend(visit.on(from, Event::Said(said), ms(200)));
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
            assert!(!visit.is_over());
            let callee = Callee::Host(to as u32);
            let said = AgentToDriver::Measured { callee, outcome: fast(0, 0) };
            calls.extend(visit.on(from, Event::Said(said), ms(300)));
            // The loop ends when nothing is left.
            if calls.is_empty() && !running.is_empty() {
                calls.push((from, dial(Vec::new())));
            }
        }
    }
    assert_eq!(done, 12);
    assert!(visit.is_over());
}

#[test]
fn one_machine_alone_is_not_asked_to_listen() {
    let mut visit = visit(&[("localhost", true)]);
    visit.on(0, Event::Hello { version: VERSION.into() }, ms(1));
    for _ in 1..QUESTIONS {
        visit.on(0, told(0, 100), ms(1));
    }
    assert_eq!(visit.on(0, told(0, 100), ms(1)), [(0, DriverToAgent::Examine)]);
    assert!(!visit.is_over());
    visit.on(0, examined(facts()), ms(2));
    assert!(visit.is_over());
    assert_eq!(visit.report().findings, []);
}

#[test]
fn hosts_that_do_not_come_are_named_in_the_launchers_words_and_hold_nobody_up() {
    let mut visit = visit(&[("a", true), ("b", false), ("c", false), ("d", false)]);
    let mut commands = greet(&mut visit, 0, facts(), &[]);
    commands.extend(greet(&mut visit, 1, facts(), &[]));
    let trouble = Trouble::new("no key", "copy one");
    assert_eq!(visit.on(2, Event::Gone(trouble), ms(110)), []);
    go_on(&mut visit, commands, reached, fast);
    assert_eq!(visit.next_wakeup(), LIMIT);
    assert!(!visit.is_over());
    visit.tick(LIMIT);
    assert!(visit.is_over());
    let report = visit.report();
    assert_eq!(report.speeds.len(), 2, "the others have gone on");
    let expected = ["Error c: no key", "Error d: it has not answered within 3 s"];
    assert_eq!(lines(&report), expected);
    assert!(!report.is_well());
}

#[test]
fn a_host_that_answers_and_then_stands_still_is_named_too() {
    let mut visit = visit(&[("b", false)]);
    visit.on(0, Event::Hello { version: VERSION.into() }, ms(1));
    assert_eq!(visit.next_wakeup(), LIMIT + WORK);
    visit.tick(LIMIT + WORK);
    assert!(visit.is_over());
    assert_eq!(lines(&visit.report()), ["Error b: it has answered, and then not told how it is"]);
}

#[test]
fn another_version_of_ronde_stops_a_job() {
    let mut visit = visit(&[("b", false)]);
    assert_eq!(visit.on(0, Event::Hello { version: "0".into() }, ms(1)), []);
    assert!(visit.is_over());
    let expected = [format!("Error b: it runs Ronde 0, and this launcher is Ronde {VERSION}")];
    assert_eq!(lines(&visit.report()), expected);
}

#[test]
fn who_cannot_reach_whom_is_told_once_with_addresses() {
    let mut visit = visit(&[("a", true), ("b", false), ("c", false)]);
    let mut commands = Vec::new();
    for host in 0..3 {
        commands.extend(greet(&mut visit, host, facts(), &["172.17.0.1"]));
    }
    let outcome = |from: usize, callee: Callee, address: SocketAddr| {
        let blocked = [(1, Callee::Host(2)), (2, Callee::Host(1))].contains(&(from, callee));
        match address.ip().to_string().as_str() {
            "172.17.0.1" => Dial::Stranger,
            _ if blocked => Dial::TimedOut,
            _ => Dial::Reached { micros: 80 },
        }
    };
    go_on(&mut visit, commands, outcome, fast);
    let report = visit.report();
    let lines = lines(&report);
    let errors: Vec<&String> = lines.iter().filter(|line| line.starts_with("Error")).collect();
    assert_eq!(errors.len(), 1, "{lines:?}");
    assert!(
        errors[0].starts_with("Error c: cannot reach `b`: 10.0.0.2:4000 timed out"),
        "{lines:?}"
    );
    assert!(report.findings[0].fix.contains("firewall"));
    let note = "Note a+b+c: nobody reaches it at 172.17.0.1 (`eth0`), and other hosts have the \
                same one; it is not used";
    assert!(lines.contains(&note.to_owned()), "{lines:?}");
    assert_eq!(report.speeds.len(), 4, "blocked ways are not measured");
}

#[test]
fn a_firewall_that_lets_some_ports_through_and_a_way_in_one_direction_are_warnings() {
    let mut visit = visit(&[("a", true), ("b", false)]);
    let mut commands = greet(&mut visit, 0, facts(), &[]);
    commands.extend(greet(&mut visit, 1, facts(), &[]));
    let outcome = |from: usize, callee: Callee, address: SocketAddr| match (from, callee) {
        (0, Callee::Host(1)) => Dial::Refused,
        (1, Callee::Host(0)) if address.port() == 4001 => Dial::TimedOut,
        _ => Dial::Reached { micros: 80 },
    };
    go_on(&mut visit, commands, outcome, fast);
    let report = visit.report();
    assert!(report.is_well(), "{report:?}");
    let expected = [
        "Warning a: cannot reach `b`, as it must in jobs that name it behind `b`: 10.0.0.2:4000 \
         refused, 10.0.0.2:4001 refused, 10.0.0.2:4002 refused",
        "Warning b: reaches `a` on some ports only: 10.0.0.1:4001 timed out",
    ];
    assert_eq!(lines(&report), expected);
}

#[test]
fn packages_and_pythons_that_differ_are_told_with_what_to_install() {
    let mut other = facts();
    other.python.packages.insert("torch".into(), "2.8.0".into());
    other.python.packages.insert("ronde".into(), "0.0.9".into());
    other.python.packages.remove("numpy");
    other.python.version = Some("3.12.1".into());
    let mut patch = facts();
    patch.python.version = Some("3.11.9".into());
    let report = looked_at([facts(), other, patch]);
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
fn of_as_many_the_host_that_was_named_first_is_right() {
    let mut other = facts();
    other.python.packages.insert("torch".into(), "3.0.0".into());
    let mut none = facts();
    none.python.packages.remove("torch");
    let report = looked_at([facts(), other, none]);
    let expected = "Warning b+c: torch differs: 2.9.0 on `a`; missing on `c`; 3.0.0 on `b`";
    assert_eq!(lines(&report), [expected]);
}

#[test]
fn what_a_machine_lacks_is_told_with_how_to_give_it() {
    let limit = |soft| Limit { soft: Some(soft), hard: None };
    let mut small = facts();
    small.cpus.usable = 1;
    small.memory.available_bytes = 600 << 20;
    small.shm_bytes = Some(64 << 20);
    small.limits = Limits { files: limit(64), processes: limit(100) };
    let mut tight = facts();
    tight.limits.files = limit(512);
    let report = looked_at([facts(), small, tight]);
    let expected = [
        "Error b: a process may open only 64 files and sockets (`ulimit -n`); a rank of 6 needs \
         about 88",
        "Warning b: its user may have only 100 processes and threads (`ulimit -u`)",
        "Warning b: it takes 2 ranks and lets a process use 1 of its CPUs",
        "Warning b: it takes 2 ranks and has 600 MiB of memory free",
        "Warning b: its `/dev/shm` has 64 MiB",
        "Warning c: a process may open only 512 files and sockets (`ulimit -n`); programs with \
         data loaders need more",
    ];
    assert_eq!(lines(&report), expected);
    assert!(report.findings[0].fix.contains("nofile"));
}

#[test]
fn gpus_that_are_fewer_than_ranks_or_than_elsewhere_are_told() {
    let with = |count: usize, driver: &str| {
        let devices = vec![Gpu { name: "NVIDIA H200".into(), memory: "143771 MiB".into() }; count];
        let gpus = Gpus { devices, driver: Some(driver.into()), problem: None };
        Facts { gpus, ..facts() }
    };
    let report = looked_at([with(2, "570"), with(1, "560"), with(2, "570")]);
    let expected = [
        "Warning b: it takes 2 ranks and has one GPU",
        "Warning b: the number of GPUs differs: 2 on `a`, `c`; 1 on `b`",
        "Warning b: NVIDIA's driver differs: 570 on `a`, `c`; 560 on `b`",
    ];
    assert_eq!(lines(&report), expected);
}

#[test]
fn a_python_that_does_not_run_or_has_horovod_is_told() {
    let broken = Python {
        executable: "python3".into(),
        problem: Some("`python3` was not found".into()),
        ..Python::default()
    };
    let mut old = facts();
    old.python.packages.remove("ronde");
    old.python.packages.insert("horovod".into(), "0.28.1".into());
    let report = looked_at([facts(), Facts { python: broken, ..facts() }, old]);
    let ours = crate::PACKAGE_VERSION;
    let expected = [
        "Error c: `/venv/bin/python` has Horovod 0.28.1 and not Ronde".to_owned(),
        "Warning b: its Python cannot be asked: `python3` was not found".into(),
        format!("Warning c: ronde differs: {ours} on `a`; missing on `c`"),
    ];
    assert_eq!(lines(&report), expected);
}

#[test]
fn a_clock_is_off_only_beyond_what_the_question_took() {
    for (ahead, round_trip, expected) in [
        (900_000, 100, None),
        (1_400_000, 1_000_000, None),
        (90_000_000, 100, Some("Warning a: its clock is 90.0 s ahead of the launcher's")),
        (-2_500_000, 100, Some("Warning a: its clock is 2.5 s behind the launcher's")),
    ] {
        let clock = Some(Clock { ahead_micros: ahead, round_trip_micros: round_trip });
        let host = HostReport { name: "a".into(), clock, ..HostReport::default() };
        let report = Report { findings: machines::findings(&[host]), ..Report::default() };
        assert_eq!(lines(&report), expected.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn a_way_that_is_much_slower_than_the_others_is_told() {
    let mut visit = visit(&[("a", true), ("b", false), ("c", false)]);
    let mut commands = Vec::new();
    for host in 0..3 {
        commands.extend(greet(&mut visit, host, facts(), &[]));
    }
    let rate = |from: usize, to: usize| match (from, to) {
        (2, 0) => Ok(Rate { bytes_per_second: 11_000_000, round_trip_micros: 9_000 }),
        (2, 1) => Err("10.0.0.2:4000 timed out".into()),
        _ => fast(from, to),
    };
    go_on(&mut visit, commands, reached, rate);
    let expected = [
        "Warning c: sends 0.09 Gb/s to `a`, and most send 8.00 Gb/s",
        "Warning c: is 9.0 ms there and back from `a`, most are 0.1 ms",
        "Warning c: could not measure the way to `b`: 10.0.0.2:4000 timed out",
    ];
    assert_eq!(lines(&visit.report()), expected);
}

#[test]
fn of_many_hosts_each_is_measured_with_some() {
    const HOSTS: usize = 40;
    let names: Vec<String> = (0..HOSTS).map(|number| format!("n{number}")).collect();
    let names: Vec<(&str, bool)> = names.iter().map(|name| (name.as_str(), false)).collect();
    let mut visit = visit(&names);
    let mut commands = Vec::new();
    for host in 0..HOSTS {
        commands.extend(greet(&mut visit, host, facts(), &[]));
    }
    go_on(&mut visit, commands, reached, fast);
    assert!(visit.is_over());
    let report = visit.report();
    assert_eq!(report.findings, []);
    // To the hosts that are 1, 2, 4, 8, 16 and 32 places further on.
    assert_eq!(report.speeds.len(), 6 * HOSTS);
}
