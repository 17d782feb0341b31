//! Ranks join through a real launcher, despite unauthenticated connections and dying ranks.
#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod support;

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ronde_control::cause::{CauseKind, Raised};
use ronde_control::status::RankReport;
use ronde_control::wire::remote_call::CallMessage;
use ronde_control::wire::{DriverToRank, Greeting, Milestone, RankToDriver};
use ronde_control::{Epoch, Rank, Worker};
use support::rank::{FakeRank, PRINT_RENDEZVOUS, TestRendezvous, is_dropped};
use support::{Launched, eventually, launch, signal};

fn open(size: u32) -> (Launched, TestRendezvous) {
    let launched = launch(&["-np", &size.to_string()], PRINT_RENDEZVOUS);
    let rendezvous = TestRendezvous::printed_by(&launched);
    (launched, rendezvous)
}

fn world(rendezvous: &TestRendezvous, size: u32) -> Vec<FakeRank> {
    let mut ranks: Vec<_> = (0..size).map(|rank| FakeRank::join(rendezvous, rank)).collect();
    for rank in &mut ranks {
        let DriverToRank::World { peers, .. } = rank.receive() else { panic!("no world") };
        assert_eq!(peers.len(), size as usize);
        rank.send(&RankToDriver::Located { leader: Rank(0) });
    }
    for rank in &mut ranks {
        assert!(matches!(rank.receive(), DriverToRank::Layout { .. }));
    }
    ranks
}

/// Runs each rank on its own thread, so that ranks leave and rejoin in any order.
fn cycles(size: u32, rounds: u64) {
    let (launched, rendezvous) = open(size);
    let ranks: Vec<_> = (0..size)
        .map(|rank| {
            let rendezvous = rendezvous.clone();
            std::thread::spawn(move || {
                for round in 1..=rounds {
                    let mut fake = FakeRank::join(&rendezvous, rank);
                    assert_eq!(fake.join_world(), (round, size as usize));
                    fake.leave();
                }
            })
        })
        .collect();
    for rank in ranks {
        rank.join().unwrap();
    }
    launched.signal("TERM");
    assert_eq!(launched.end().code, Some(143));
}

#[test]
fn two_ranks_join_and_leave_three_hundred_times() {
    cycles(2, 300);
}

#[test]
fn sixty_four_ranks_join_and_leave_ten_times() {
    cycles(64, 10);
}

#[test]
fn the_others_learn_of_a_killed_rank_at_once() {
    let (launched, rendezvous) = open(2);
    let mut ranks = world(&rendezvous, 2);
    let start = Instant::now();
    let victim = eventually("rank 1 runs", Duration::from_secs(5), || {
        let sleeping = launched.part("sleep");
        sleeping.into_iter().find(|pid| {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environ.split(|byte| *byte == 0).any(|entry| entry == b"RANK=1")
        })
    });
    signal(victim, "KILL");
    let lost = ranks[0].receive();
    let cause = "was killed by signal 9 (SIGKILL)".to_owned();
    let (rank, host, kind) = (Rank(1), "localhost".into(), CauseKind::Signal);
    assert_eq!(lost, DriverToRank::Lost { rank, host, kind, cause });
    assert!(start.elapsed() < Duration::from_secs(2));
    assert_eq!(launched.end().code, Some(137));
}

#[test]
fn a_rendezvous_missing_a_dead_rank_is_refused() {
    let script = r#"test "$RANK" = 0 || exit 0
echo "rendezvous $RONDE_RENDEZVOUS $RONDE_JOB_KEY"; exec sleep 300"#;
    let launched = launch(&["-np", "2"], script);
    let rendezvous = TestRendezvous::printed_by(&launched);
    let mut waiting = FakeRank::join(&rendezvous, 0);
    let DriverToRank::Refused { reason } = waiting.receive() else { panic!("no refusal") };
    assert!(reason.starts_with("rank 1 (localhost, slot 1) exited with code 0"), "{reason}");
    assert!(waiting.try_receive::<DriverToRank>().is_err(), "the connection is closed");
}

#[test]
fn a_closed_connection_counts_as_lost_after_a_second() {
    let (_launched, rendezvous) = open(2);
    let mut ranks = world(&rendezvous, 2);
    drop(ranks.pop());
    let DriverToRank::Lost { rank, cause, .. } = ranks[0].receive() else { panic!("no loss") };
    assert_eq!((rank, cause.as_str()), (Rank(1), "its connection to the launcher closed"));
}

#[test]
fn other_versions_and_duplicate_ranks_are_refused() {
    let (_launched, rendezvous) = open(2);
    let mut old = FakeRank::greet(&rendezvous, 1, "0.0.1");
    let DriverToRank::Refused { reason } = old.receive() else { panic!("no refusal") };
    assert!(reason.contains("install the same version"), "{reason}");
    let _first = FakeRank::join(&rendezvous, 1);
    let mut second = FakeRank::join(&rendezvous, 1);
    let DriverToRank::Refused { reason } = second.receive() else { panic!("no refusal") };
    assert!(reason.contains("two processes have the same HOROVOD_RANK"), "{reason}");
}

#[test]
fn asking_a_job_without_a_function_for_one_is_refused() {
    let (_launched, rendezvous) = open(2);
    let version = ronde_control::VERSION.to_owned();
    for greeting in [
        Greeting::Fetch { version: version.clone(), rank: Rank(0) },
        Greeting::Deliver { version, rank: Rank(0) },
    ] {
        let mut curious = FakeRank::connect(&rendezvous, 0, &greeting);
        let Ok(CallMessage::Refused { reason }) = curious.try_receive() else {
            panic!("no refusal")
        };
        assert!(reason.contains("not started by `horovod.run`"), "{reason}");
    }
}

#[test]
fn unauthenticated_connections_are_dropped_and_delay_no_rank() {
    let (_launched, rendezvous) = open(2);
    let first = FakeRank::join(&rendezvous, 0);

    let mut garbage = TcpStream::connect(rendezvous.address).unwrap();
    garbage.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(is_dropped(&mut garbage, Duration::from_secs(2)));

    let mut replay = TcpStream::connect(rendezvous.address).unwrap();
    replay.write_all(&first.recorded).unwrap();
    assert!(is_dropped(&mut replay, Duration::from_secs(2)));

    // More silent connections than the launcher keeps, and one that sends half a message.
    let mut silent: Vec<_> =
        (0..300).map(|_| TcpStream::connect(rendezvous.address).unwrap()).collect();
    silent[7].write_all(&[48]).unwrap();
    let start = Instant::now();
    let mut second = FakeRank::join(&rendezvous, 1);
    assert_eq!(second.receive_world(), 2);
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    for stream in &mut silent {
        assert!(is_dropped(stream, Duration::from_secs(10)));
    }
    drop(first);
}

impl FakeRank {
    fn receive_world(&mut self) -> usize {
        match self.receive() {
            DriverToRank::World { peers, .. } => peers.len(),
            other => panic!("no world but {other:?}"),
        }
    }
}

/// Malformed messages from a member of the job, with numbers at the limits of their types.
fn malformed_messages() -> (Vec<Greeting>, Vec<RankToDriver>) {
    let (version, rank, epoch) = (ronde_control::VERSION.to_owned(), Rank(u32::MAX), Epoch(9));
    let worker = Worker(u32::MAX);
    let greetings = vec![
        Greeting::Lifeline { host: u32::MAX },
        Greeting::Lifeline { host: 1 },
        Greeting::Rendezvous { version: version.clone(), rank },
        Greeting::Segment { epoch, rank },
        Greeting::Link { epoch, rank, connection: u32::MAX, keys: None },
        Greeting::Control { epoch, rank },
        Greeting::Fetch { version: version.clone(), rank },
        Greeting::Deliver { version: version.clone(), rank },
        Greeting::Worker { version, worker },
        Greeting::Watch { version: String::new() },
        Greeting::Agent {
            version: String::new(),
            name: "\u{1b}[2J".into(),
            slots: u32::MAX,
            mark: String::new(),
            shared_host: Some("\u{1b}[2J".into()),
        },
    ];
    let messages = vec![
        RankToDriver::Located { leader: rank },
        RankToDriver::GivenUp { rank, cause: "\u{1b}[2J".into() },
        RankToDriver::Report(RankReport::default()),
        RankToDriver::Reached(Milestone::Commit),
        RankToDriver::Departing { reason: String::new() },
        RankToDriver::Leaving { error: Some(Raised::by_program("x")), blames: Some(rank) },
    ];
    (greetings, messages)
}

/// Checks that the launcher survives malformed messages; one that panics exits with 101.
fn survives_its_members(arguments: &[&str]) {
    let launched = launch(arguments, PRINT_RENDEZVOUS);
    let rendezvous = TestRendezvous::printed_by(&launched);
    let (greetings, messages) = malformed_messages();
    for greeting in &greetings {
        drop(FakeRank::connect(&rendezvous, 0, greeting));
    }
    for message in &messages {
        let mut fake = FakeRank::join(&rendezvous, 1);
        fake.send(message);
        drop(fake);
    }
    launched.signal("TERM");
    let ended = launched.end();
    assert_eq!(ended.code, Some(143), "{}", ended.stderr);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
}

#[test]
fn no_member_can_crash_the_launcher() {
    survives_its_members(&["-np", "2"]);
    survives_its_members(&["-np", "2", "--min-np", "1"]);
}
