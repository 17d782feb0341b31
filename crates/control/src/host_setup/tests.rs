//! Set-ups without hosts: the tests make up every answer, and the time.

use super::*;

const LIMIT: Duration = Duration::from_secs(30);

fn ms(millis: u64) -> Time {
    Duration::from_millis(millis)
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn host_setup(names: &[(&str, bool)]) -> HostSetup {
    let setup_host = |(number, (name, here)): (usize, &(&str, bool))| {
        (AgentId(number as u32), SetupHost { name: (*name).into(), here: *here })
    };
    let setup_hosts = names.iter().enumerate().map(setup_host).collect();
    HostSetup::new("1", setup_hosts, vec![at("10.0.0.1:9")], (LIMIT, ms(0)))
}

fn hello() -> HostSetupInput {
    HostSetupInput::Hello { version: "1".into() }
}

fn listening(addresses: &[&str]) -> HostSetupInput {
    let listener =
        |address: &&str| Listener { interface: Some("eth0".into()), address: at(address) };
    let listeners = addresses.iter().map(listener).collect();
    let (known, ports, range) = (vec!["eth0".into()], vec![4000], PortRange::default());
    HostSetupInput::Listening { listeners, known, ports, range }
}

fn dialed(callee: Callee, address: &str, outcome: Dial) -> HostSetupInput {
    HostSetupInput::Dialed { callee, address: at(address), outcome }
}

fn reached(micros: u32) -> Dial {
    Dial::Reached { micros }
}

/// Three hosts, the second with two addresses, ready to dial.
fn dialing() -> HostSetup {
    let mut host_setup = host_setup(&[("a", true), ("b", false), ("c", false)]);
    for host in 0..3 {
        assert_eq!(
            host_setup.on(AgentId(host), hello(), ms(10)),
            [HostSetupAction::Listen(AgentId(host))]
        );
    }
    assert_eq!(host_setup.on(AgentId(0), listening(&["10.0.0.1:40"]), ms(20)), []);
    assert_eq!(host_setup.on(AgentId(1), listening(&["172.17.0.1:41", "10.0.0.2:41"]), ms(20)), []);
    let calls = host_setup.on(AgentId(2), listening(&["10.0.0.3:42"]), ms(20));
    assert_eq!(calls.len(), 3);
    let HostSetupAction::Dial(AgentId(2), targets) = &calls[2] else { panic!("{calls:?}") };
    let callees: Vec<Callee> = targets.iter().map(|target| target.callee).collect();
    assert_eq!(callees, [Callee::Launcher, Callee::Host(0), Callee::Host(1)]);
    host_setup
}

/// All needed calls except those from `c` to `b`.
fn most(host_setup: &mut HostSetup) {
    for host in 0..3 {
        assert_eq!(
            host_setup.on(
                AgentId(host),
                dialed(Callee::Launcher, "10.0.0.1:9", reached(90)),
                ms(30)
            ),
            []
        );
    }
    for host in 1..3 {
        let event = dialed(Callee::Host(0), "10.0.0.1:40", reached(100));
        assert_eq!(host_setup.on(AgentId(host), event, ms(30)), []);
    }
}

#[test]
fn ranks_of_this_machine_start_as_soon_as_its_agents_have_connected() {
    let mut host_setup = host_setup(&[("localhost", true), ("127.0.0.1", true)]);
    assert_eq!(host_setup.on(AgentId(0), hello(), ms(1)), []);
    let plan = HostPlan { rendezvous: vec![at("10.0.0.1:9")], ..HostPlan::default() };
    assert_eq!(
        host_setup.on(AgentId(1), hello(), ms(2)),
        [HostSetupAction::Start(vec![(AgentId(0), plan.clone()), (AgentId(1), plan)])]
    );
    assert!(host_setup.is_over() && host_setup.next_wakeup().is_none());
}

#[test]
fn working_addresses_are_used_and_dead_ones_delay_nothing() {
    let mut host_setup = dialing();
    most(&mut host_setup);
    let other = dialed(Callee::Host(1), "172.17.0.1:41", Dial::WrongProcess);
    assert_eq!(host_setup.on(AgentId(2), other, ms(31)), []);
    assert_eq!(
        host_setup.on(AgentId(2), dialed(Callee::Host(1), "10.0.0.2:41", reached(80)), ms(32)),
        []
    );
    // Calls to later hosts are still open, and are waited for only briefly.
    assert_eq!(host_setup.next_wakeup(), Some(ms(32) + SETTLING));
    assert_eq!(host_setup.tick(ms(33)), []);
    let started = host_setup.tick(ms(32) + SETTLING);
    let [HostSetupAction::Start(plans)] = started.as_slice() else { panic!("{started:?}") };
    let plans: Vec<&HostPlan> = plans.iter().map(|(_, plan)| plan).collect();
    let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
    assert_eq!(plans[1].listen, [ip("10.0.0.2")]);
    // No host has reached the last one yet; it listens on all its addresses.
    assert_eq!(plans[2].listen, [ip("10.0.0.3")]);
    assert_eq!(plans[2].rendezvous, [at("10.0.0.1:9")]);
    assert_eq!(plans.iter().map(|plan| plan.first).collect::<Vec<_>>(), [Some(ip("10.0.0.1")); 3]);
    assert_eq!(plans[2].ports, [4000]);
}

#[test]
fn the_fastest_address_comes_first_unless_fewer_can_use_it() {
    let mut paths = Paths::new(3);
    let addresses = vec![at("10.0.0.1:1"), at("10.1.0.1:1"), at("10.2.0.1:1")];
    let target = DialTarget { callee: Callee::Host(0), addresses: addresses.clone() };
    for from in 1..3 {
        paths.expect(from, &target);
        paths.record(from, target.callee, addresses[0], &reached(900));
        paths.record(from, target.callee, addresses[1], &reached(100));
    }
    paths.record(1, target.callee, addresses[2], &reached(1));
    assert_eq!(paths.best_of(0), [addresses[1], addresses[0], addresses[2]]);
    assert_eq!(paths.reached(1, target.callee)[0], addresses[2]);
    assert!(paths.is_complete() && paths.is_waiting());
}

#[test]
fn unreachable_hosts_are_reported_with_addresses() {
    let mut host_setup = dialing();
    most(&mut host_setup);
    let to_b = |address, outcome| dialed(Callee::Host(1), address, outcome);
    assert_eq!(host_setup.on(AgentId(2), to_b("172.17.0.1:41", Dial::Refused), ms(31)), []);
    assert_eq!(host_setup.on(AgentId(2), to_b("10.0.0.2:41", Dial::TimedOut), ms(5031)), []);
    for (from, to, address) in
        [(0, 1, "172.17.0.1:41"), (0, 1, "10.0.0.2:41"), (0, 2, "10.0.0.3:42")]
    {
        let event = dialed(Callee::Host(to), address, reached(1));
        assert_eq!(host_setup.on(AgentId(from), event, ms(5040)), []);
    }
    let last = dialed(Callee::Host(2), "10.0.0.3:42", Dial::TimedOut);
    let ended = host_setup.on(AgentId(1), last, ms(5050));
    let [HostSetupAction::Fail(problems, text)] = ended.as_slice() else { panic!("{ended:?}") };
    let line = "  `c` cannot reach `b`: 172.17.0.1:41 refused, 10.0.0.2:41 timed out\n";
    assert!(text.contains(line), "{text}");
    // The path from `b` to `c` is not needed.
    assert!(!text.contains("`b` cannot"), "{text}");
    assert!(text.contains("firewall"), "{text}");
    let [(AgentId(2), HostProblem { reason, .. })] = problems.as_slice() else {
        panic!("{problems:?}")
    };
    assert!(reason.starts_with("it cannot reach `b`: "), "{reason}");
}

#[test]
fn hosts_that_fail_at_about_the_same_time_are_named_together() {
    let mut host_setup = host_setup(&[("a", true), ("b", false), ("c", false), ("d", false)]);
    host_setup.on(AgentId(0), hello(), ms(1));
    let gone = |reason: &str| HostSetupInput::Gone(HostProblem::new(reason, "do this"));
    assert_eq!(host_setup.on(AgentId(1), gone("no key"), ms(100)), []);
    assert_eq!(host_setup.on(AgentId(2), gone("no name"), ms(200)), []);
    assert_eq!(host_setup.next_wakeup(), Some(ms(100) + TOGETHER));
    let ended = host_setup.tick(ms(100) + TOGETHER);
    let text =
        "error: 2 of 4 hosts cannot take part\n  `b`: no key\n  `c`: no name\n\nhint: do this\n";
    let [HostSetupAction::Fail(problems, error)] = ended.as_slice() else { panic!("{ended:?}") };
    assert_eq!(error, text);
    let hosts: Vec<AgentId> = problems.iter().map(|(host, _)| *host).collect();
    assert_eq!(hosts, [AgentId(1), AgentId(2)], "it is unknown what is wrong with the last one");
}

#[test]
fn hosts_that_never_answer_are_named_when_time_is_up() {
    let mut host_setup = host_setup(&[("a", true), ("b", false)]);
    host_setup.on(AgentId(0), hello(), ms(1));
    assert_eq!(host_setup.next_wakeup(), Some(LIMIT));
    let ended = host_setup.tick(LIMIT);
    let [HostSetupAction::Fail(_, text)] = ended.as_slice() else { panic!("{ended:?}") };
    assert!(text.contains("`b`: it has not answered within 30 s"), "{text}");
}

#[test]
fn another_version_is_refused_with_the_version_to_install() {
    let mut host_setup = host_setup(&[("b", false)]);
    let ended = host_setup.on(AgentId(0), HostSetupInput::Hello { version: "0".into() }, ms(1));
    let install = crate::install::command("1");
    let text = format!(
        "error: `b`: it runs Ronde 0, but this launcher is Ronde 1\n\nhint: install the same \
         version there: {install}\n"
    );
    let [HostSetupAction::Fail(_, error)] = ended.as_slice() else { panic!("{ended:?}") };
    assert_eq!(*error, text);
    // The package has Ronde's own version.
    let HostProblem { hint, .. } = messages::other_version("x", crate::VERSION);
    assert!(hint.ends_with(&crate::install::command(crate::PACKAGE_VERSION)), "{hint}");
}

#[test]
fn a_host_without_the_named_interfaces_is_reported_with_those_it_has() {
    let mut host_setup = host_setup(&[("b", false)]);
    host_setup.on(AgentId(0), hello(), ms(1));
    let ended = host_setup.on(AgentId(0), listening(&[]), ms(2));
    let [HostSetupAction::Fail(_, text)] = ended.as_slice() else { panic!("{ended:?}") };
    assert!(text.contains("also name one of its interfaces: `eth0`"), "{text}");
}

#[test]
fn if_there_are_very_many_hosts_each_dials_only_some() {
    let names: Vec<String> = (0..500).map(|number| format!("n{number}")).collect();
    let setup_hosts: Vec<(&str, bool)> = names.iter().map(|name| (name.as_str(), false)).collect();
    let mut host_setup = host_setup(&setup_hosts);
    let mut calls = Vec::new();
    for host in 0..500 {
        host_setup.on(AgentId(host), hello(), ms(1));
    }
    for host in 0..500 {
        calls.extend(host_setup.on(AgentId(host), listening(&["10.0.0.1:40"]), ms(1)));
    }
    let most = calls.iter().map(|action| match action {
        HostSetupAction::Dial(_, targets) => targets.len(),
        _ => 0,
    });
    assert_eq!(calls.len(), 500);
    assert!(most.max().unwrap() < 25);
}

/// A single host that is added late and only needs to reach the launcher.
fn late_host() -> HostSetup {
    let setup_host = SetupHost { name: "node".into(), here: false };
    let launcher = vec![at("10.0.0.1:9")];
    HostSetup::new("1", vec![(LATE_HOST, setup_host)], launcher, (LIMIT, ms(100_000)))
        .among_others()
}

const LATE_HOST: AgentId = AgentId(7);

#[test]
fn a_late_host_is_ready_once_it_has_reached_the_launcher() {
    let mut host_setup = late_host();
    assert!(host_setup.awaits(LATE_HOST) && !host_setup.awaits(AgentId(0)));
    assert_eq!(host_setup.next_wakeup(), Some(ms(130_000)));
    assert_eq!(
        host_setup.on(LATE_HOST, hello(), ms(101_000)),
        [HostSetupAction::Listen(LATE_HOST)]
    );
    let steps = host_setup.on(LATE_HOST, listening(&["10.0.0.2:40"]), ms(102_000));
    assert!(
        matches!(steps.as_slice(), [HostSetupAction::Dial(LATE_HOST, targets)] if targets.len() == 1)
    );
    let event = dialed(Callee::Launcher, "10.0.0.1:9", reached(90));
    let steps = host_setup.on(LATE_HOST, event, ms(103_000));
    let [HostSetupAction::Start(plans)] = steps.as_slice() else { panic!("{steps:?}") };
    let (_, plan) = &plans[0];
    assert_eq!(plan.listen, ["10.0.0.2".parse::<IpAddr>().unwrap()]);
    assert_eq!((plan.rendezvous.len(), plan.ports.as_slice()), (1, &[4000][..]));
}

#[test]
fn a_silent_late_host_fails_after_its_own_time_limit() {
    let mut host_setup = late_host();
    assert_eq!(host_setup.tick(ms(129_000)), []);
    let steps = host_setup.tick(ms(130_000));
    let [HostSetupAction::Fail(problems, _)] = steps.as_slice() else { panic!("{steps:?}") };
    let [(LATE_HOST, HostProblem { reason, hint })] = problems.as_slice() else {
        panic!("{problems:?}")
    };
    assert_eq!(reason, "it has not answered within 30 s");
    assert!(hint.contains("ssh node true"), "{hint}");
}

#[test]
fn a_host_that_cannot_reach_the_launcher_fails_with_what_it_observed() {
    let mut host_setup = late_host();
    host_setup.on(LATE_HOST, hello(), ms(101_000));
    host_setup.on(LATE_HOST, listening(&["10.0.0.2:40"]), ms(101_000));
    let event = dialed(Callee::Launcher, "10.0.0.1:9", Dial::TimedOut);
    let steps = host_setup.on(LATE_HOST, event, ms(106_000));
    let [HostSetupAction::Fail(problems, _)] = steps.as_slice() else { panic!("{steps:?}") };
    let [(LATE_HOST, HostProblem { reason, hint })] = problems.as_slice() else {
        panic!("{problems:?}")
    };
    assert!(reason.starts_with("it cannot reach the launcher: 10.0.0.1:9 "), "{reason}");
    assert!(hint.contains("firewall"), "{hint}");
}

/// Two containers behind published ports: `b` reaches `a` only where `a` says.
#[test]
fn an_advertised_address_is_used_where_it_is_the_one_that_works() {
    let mut host_setup = host_setup(&[("a", false), ("b", false)]);
    let advertising = |outside: &str, inside: &str| {
        let inner = Listener { interface: Some("eth0".into()), address: at(inside) };
        let listeners = vec![Listener { interface: None, address: at(outside) }, inner];
        let (known, range) = (vec![], "41-49".parse().unwrap());
        HostSetupInput::Listening { listeners, known, ports: vec![45], range }
    };
    for host in 0..2 {
        host_setup.on(AgentId(host), hello(), ms(10));
    }
    host_setup.on(AgentId(0), advertising("192.0.2.1:41", "172.17.0.2:41"), ms(20));
    host_setup.on(AgentId(1), advertising("192.0.2.2:42", "172.17.0.2:42"), ms(20));
    for host in 0..2 {
        host_setup.on(AgentId(host), dialed(Callee::Launcher, "10.0.0.1:9", reached(90)), ms(30));
    }
    let inner = dialed(Callee::Host(0), "172.17.0.2:41", Dial::WrongProcess);
    host_setup.on(AgentId(1), inner, ms(30));
    let outer = dialed(Callee::Host(0), "192.0.2.1:41", reached(100));
    host_setup.on(AgentId(1), outer, ms(30));
    let started = host_setup.tick(ms(30) + SETTLING);
    let [HostSetupAction::Start(plans)] = started.as_slice() else { panic!("{started:?}") };
    let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
    let (first, second) = (&plans[0].1, &plans[1].1);
    // Ranks of the same host may not reach each other at the address outside.
    assert_eq!(first.listen, [ip("192.0.2.1"), ip("172.17.0.2")]);
    assert_eq!(second.listen, [ip("192.0.2.2"), ip("172.17.0.2")]);
    assert_eq!((first.first, second.first), (Some(ip("172.17.0.2")), Some(ip("192.0.2.1"))));
    assert_eq!(second.range.to_string(), "41-49");
}
