//! Musters without hosts: every answer is made up, and so is the time.

use super::*;

const LIMIT: Duration = Duration::from_secs(30);

fn ms(millis: u64) -> Time {
    Duration::from_millis(millis)
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn muster(names: &[(&str, bool)]) -> Muster {
    let guest = |(number, (name, here)): (usize, &(&str, bool))| {
        (AgentId(number as u32), Guest { name: (*name).into(), here: *here })
    };
    let guests = names.iter().enumerate().map(guest).collect();
    Muster::new("1", guests, vec![at("10.0.0.1:9")], (LIMIT, ms(0)))
}

fn hello() -> Event {
    Event::Hello { version: "1".into() }
}

fn listening(addresses: &[&str]) -> Event {
    let listener = |address: &&str| Listener { interface: "eth0".into(), address: at(address) };
    let listeners = addresses.iter().map(listener).collect();
    Event::Listening { listeners, known: vec!["eth0".into()], ports: vec![4000] }
}

fn dialled(callee: Callee, address: &str, outcome: Dial) -> Event {
    Event::Dialled { callee, address: at(address), outcome }
}

fn reached(micros: u32) -> Dial {
    Dial::Reached { micros }
}

/// Three hosts, of which the second has two addresses, up to the calls.
fn dialling() -> Muster {
    let mut muster = muster(&[("a", true), ("b", false), ("c", false)]);
    for host in 0..3 {
        assert_eq!(muster.on(AgentId(host), hello(), ms(10)), [Action::Listen(AgentId(host))]);
    }
    assert_eq!(muster.on(AgentId(0), listening(&["10.0.0.1:40"]), ms(20)), []);
    assert_eq!(muster.on(AgentId(1), listening(&["172.17.0.1:41", "10.0.0.2:41"]), ms(20)), []);
    let calls = muster.on(AgentId(2), listening(&["10.0.0.3:42"]), ms(20));
    assert_eq!(calls.len(), 3);
    let Action::Dial(AgentId(2), targets) = &calls[2] else { panic!("{calls:?}") };
    let callees: Vec<Callee> = targets.iter().map(|target| target.callee).collect();
    assert_eq!(callees, [Callee::Launcher, Callee::Host(0), Callee::Host(1)]);
    muster
}

/// Everything that is needed but the way from `c` to `b`.
fn most(muster: &mut Muster) {
    for host in 0..3 {
        assert_eq!(
            muster.on(AgentId(host), dialled(Callee::Launcher, "10.0.0.1:9", reached(90)), ms(30)),
            []
        );
    }
    for host in 1..3 {
        let event = dialled(Callee::Host(0), "10.0.0.1:40", reached(100));
        assert_eq!(muster.on(AgentId(host), event, ms(30)), []);
    }
}

#[test]
fn ranks_of_this_machine_start_as_soon_as_its_agents_are_there() {
    let mut muster = muster(&[("localhost", true), ("127.0.0.1", true)]);
    assert_eq!(muster.on(AgentId(0), hello(), ms(1)), []);
    let plan = Plan { rendezvous: vec![at("10.0.0.1:9")], ..Plan::default() };
    assert_eq!(
        muster.on(AgentId(1), hello(), ms(2)),
        [Action::Start(vec![(AgentId(0), plan.clone()), (AgentId(1), plan)])]
    );
    assert!(muster.is_over() && muster.next_wakeup().is_none());
}

#[test]
fn the_addresses_that_work_are_used_and_dead_ones_hold_nobody_up() {
    let mut muster = dialling();
    most(&mut muster);
    let stranger = dialled(Callee::Host(1), "172.17.0.1:41", Dial::Stranger);
    assert_eq!(muster.on(AgentId(2), stranger, ms(31)), []);
    assert_eq!(
        muster.on(AgentId(2), dialled(Callee::Host(1), "10.0.0.2:41", reached(80)), ms(32)),
        []
    );
    // Calls from the front to the back are still open, and are waited for only a moment.
    assert_eq!(muster.next_wakeup(), Some(ms(32) + SETTLING));
    assert_eq!(muster.tick(ms(33)), []);
    let started = muster.tick(ms(32) + SETTLING);
    let [Action::Start(plans)] = started.as_slice() else { panic!("{started:?}") };
    let plans: Vec<&Plan> = plans.iter().map(|(_, plan)| plan).collect();
    let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
    assert_eq!(plans[1].listen, [ip("10.0.0.2")]);
    // Nobody has reached the last host yet; it listens wherever it can.
    assert_eq!(plans[2].listen, [ip("10.0.0.3")]);
    assert_eq!(plans[2].rendezvous, [at("10.0.0.1:9")]);
    assert_eq!(plans.iter().map(|plan| plan.first).collect::<Vec<_>>(), [Some(ip("10.0.0.1")); 3]);
    assert_eq!(plans[2].ports, [4000]);
}

#[test]
fn the_fastest_address_comes_first_unless_fewer_can_use_it() {
    let mut paths = Paths::new(3);
    let addresses = vec![at("10.0.0.1:1"), at("10.1.0.1:1"), at("10.2.0.1:1")];
    let target = Target { callee: Callee::Host(0), addresses: addresses.clone() };
    for from in 1..3 {
        paths.expect(from, &target);
        paths.note(from, target.callee, addresses[0], &reached(900));
        paths.note(from, target.callee, addresses[1], &reached(100));
    }
    paths.note(1, target.callee, addresses[2], &reached(1));
    assert_eq!(paths.best_of(0), [addresses[1], addresses[0], addresses[2]]);
    assert_eq!(paths.reached(1, target.callee)[0], addresses[2]);
    assert!(paths.is_complete() && paths.is_waiting());
}

#[test]
fn who_cannot_reach_whom_is_said_with_addresses() {
    let mut muster = dialling();
    most(&mut muster);
    let to_b = |address, outcome| dialled(Callee::Host(1), address, outcome);
    assert_eq!(muster.on(AgentId(2), to_b("172.17.0.1:41", Dial::Refused), ms(31)), []);
    assert_eq!(muster.on(AgentId(2), to_b("10.0.0.2:41", Dial::TimedOut), ms(5031)), []);
    for (from, to, address) in
        [(0, 1, "172.17.0.1:41"), (0, 1, "10.0.0.2:41"), (0, 2, "10.0.0.3:42")]
    {
        let event = dialled(Callee::Host(to), address, reached(1));
        assert_eq!(muster.on(AgentId(from), event, ms(5040)), []);
    }
    let last = dialled(Callee::Host(2), "10.0.0.3:42", Dial::TimedOut);
    let ended = muster.on(AgentId(1), last, ms(5050));
    let [Action::Fail(troubles, text)] = ended.as_slice() else { panic!("{ended:?}") };
    let line = "  `c` cannot reach `b`: 172.17.0.1:41 refused, 10.0.0.2:41 timed out\n";
    assert!(text.contains(line), "{text}");
    // From `b` to `c` nobody needs a way.
    assert!(!text.contains("`b` cannot"), "{text}");
    assert!(text.contains("firewall"), "{text}");
    let [(AgentId(2), Trouble { reason, .. })] = troubles.as_slice() else {
        panic!("{troubles:?}")
    };
    assert!(reason.starts_with("it cannot reach `b`: "), "{reason}");
}

#[test]
fn all_hosts_that_fail_within_a_moment_are_named_together() {
    let mut muster = muster(&[("a", true), ("b", false), ("c", false), ("d", false)]);
    muster.on(AgentId(0), hello(), ms(1));
    let gone = |reason: &str| Event::Gone(Trouble::new(reason, "do this"));
    assert_eq!(muster.on(AgentId(1), gone("no key"), ms(100)), []);
    assert_eq!(muster.on(AgentId(2), gone("no name"), ms(200)), []);
    assert_eq!(muster.next_wakeup(), Some(ms(100) + TOGETHER));
    let ended = muster.tick(ms(100) + TOGETHER);
    let text =
        "error: 2 of 4 hosts cannot take part\n  `b`: no key\n  `c`: no name\n\nhint: do this\n";
    let [Action::Fail(troubles, told)] = ended.as_slice() else { panic!("{ended:?}") };
    assert_eq!(told, text);
    let hosts: Vec<AgentId> = troubles.iter().map(|(host, _)| *host).collect();
    assert_eq!(hosts, [AgentId(1), AgentId(2)], "nobody knows what is wrong with the last one");
}

#[test]
fn hosts_that_never_answer_are_named_when_time_is_up() {
    let mut muster = muster(&[("a", true), ("b", false)]);
    muster.on(AgentId(0), hello(), ms(1));
    assert_eq!(muster.next_wakeup(), Some(LIMIT));
    let ended = muster.tick(LIMIT);
    let [Action::Fail(_, text)] = ended.as_slice() else { panic!("{ended:?}") };
    assert!(text.contains("`b`: it has not answered within 30 s"), "{text}");
}

#[test]
fn another_version_is_refused_with_what_to_install() {
    let mut muster = muster(&[("b", false)]);
    let ended = muster.on(AgentId(0), Event::Hello { version: "0".into() }, ms(1));
    let install = crate::install::command("1");
    let text = format!(
        "error: `b`: it runs Ronde 0, and this launcher is Ronde 1\n\nhint: install the same \
         version there: {install}\n"
    );
    let [Action::Fail(_, told)] = ended.as_slice() else { panic!("{ended:?}") };
    assert_eq!(*told, text);
    // What is installed has Ronde's own version.
    let Trouble { hint, .. } = words::other_version("x", crate::VERSION);
    assert!(hint.ends_with(&crate::install::command(crate::PACKAGE_VERSION)), "{hint}");
}

#[test]
fn interfaces_that_a_host_lacks_are_answered_with_what_it_has() {
    let mut muster = muster(&[("b", false)]);
    muster.on(AgentId(0), hello(), ms(1));
    let ended = muster.on(AgentId(0), listening(&[]), ms(2));
    let [Action::Fail(_, text)] = ended.as_slice() else { panic!("{ended:?}") };
    assert!(text.contains("name what it has, too: `eth0`"), "{text}");
}

#[test]
fn of_very_many_hosts_each_dials_only_some() {
    let names: Vec<String> = (0..500).map(|number| format!("n{number}")).collect();
    let guests: Vec<(&str, bool)> = names.iter().map(|name| (name.as_str(), false)).collect();
    let mut muster = muster(&guests);
    let mut calls = Vec::new();
    for host in 0..500 {
        muster.on(AgentId(host), hello(), ms(1));
    }
    for host in 0..500 {
        calls.extend(muster.on(AgentId(host), listening(&["10.0.0.1:40"]), ms(1)));
    }
    let most = calls.iter().map(|action| match action {
        Action::Dial(_, targets) => targets.len(),
        _ => 0,
    });
    assert_eq!(calls.len(), 500);
    assert!(most.max().unwrap() < 25);
}

/// A host by itself, which set out late and need only reach the launcher.
fn newcomer() -> Muster {
    let guest = Guest { name: "node".into(), here: false };
    let launcher = vec![at("10.0.0.1:9")];
    Muster::new("1", vec![(NEWCOMER, guest)], launcher, (LIMIT, ms(100_000))).among_others()
}

const NEWCOMER: AgentId = AgentId(7);

#[test]
fn a_host_that_comes_later_has_arrived_once_it_has_reached_the_launcher() {
    let mut muster = newcomer();
    assert!(muster.awaits(NEWCOMER) && !muster.awaits(AgentId(0)));
    assert_eq!(muster.next_wakeup(), Some(ms(130_000)));
    assert_eq!(muster.on(NEWCOMER, hello(), ms(101_000)), [Action::Listen(NEWCOMER)]);
    let steps = muster.on(NEWCOMER, listening(&["10.0.0.2:40"]), ms(102_000));
    assert!(matches!(steps.as_slice(), [Action::Dial(NEWCOMER, targets)] if targets.len() == 1));
    let event = dialled(Callee::Launcher, "10.0.0.1:9", reached(90));
    let steps = muster.on(NEWCOMER, event, ms(103_000));
    let [Action::Start(plans)] = steps.as_slice() else { panic!("{steps:?}") };
    let (_, plan) = &plans[0];
    assert_eq!(plan.listen, ["10.0.0.2".parse::<IpAddr>().unwrap()]);
    assert_eq!((plan.rendezvous.len(), plan.ports.as_slice()), (1, &[4000][..]));
}

#[test]
fn a_host_that_comes_later_and_says_nothing_fails_after_its_own_time() {
    let mut muster = newcomer();
    assert_eq!(muster.tick(ms(129_000)), []);
    let steps = muster.tick(ms(130_000));
    let [Action::Fail(troubles, _)] = steps.as_slice() else { panic!("{steps:?}") };
    let [(NEWCOMER, Trouble { reason, hint })] = troubles.as_slice() else {
        panic!("{troubles:?}")
    };
    assert_eq!(reason, "it has not answered within 30 s");
    assert!(hint.contains("ssh node true"), "{hint}");
}

#[test]
fn a_host_that_cannot_reach_the_launcher_fails_with_what_it_saw() {
    let mut muster = newcomer();
    muster.on(NEWCOMER, hello(), ms(101_000));
    muster.on(NEWCOMER, listening(&["10.0.0.2:40"]), ms(101_000));
    let event = dialled(Callee::Launcher, "10.0.0.1:9", Dial::TimedOut);
    let steps = muster.on(NEWCOMER, event, ms(106_000));
    let [Action::Fail(troubles, _)] = steps.as_slice() else { panic!("{steps:?}") };
    let [(NEWCOMER, Trouble { reason, hint })] = troubles.as_slice() else {
        panic!("{troubles:?}")
    };
    assert!(reason.starts_with("it cannot reach the launcher: 10.0.0.1:9 "), "{reason}");
    assert!(hint.contains("firewall"), "{hint}");
}
