//! Rank processes, one of them killed with signal 9 at any moment of any algorithm, in shared
//! memory, over sockets and on islands. The others end with an error that names it, in time, and
//! everything that completed before is correct.
//!
//! The test runs its own executable for each rank, with the name of the test that acts as one.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use ronde_control::Rank;
use ronde_control::settings::{RankInfo, RendezvousInfo, RendezvousOwner, Transport};
use ronde_control::wire::JobKey;
use ronde_core::engine::Engine;
use ronde_testkit::{Routes, TestLauncher, TestRng, drill, effort, seed};

const SIZE: u32 = 3;
/// No rank learns of a death later than this, however busy the machine.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// How the ranks are connected.
#[derive(Clone, Copy, Debug)]
enum Ways {
    Memory,
    Sockets,
    Both,
}

/// Who reports the death to the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Witness {
    Launcher,
    Nobody,
}

struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(rank: u32, ways: Ways, launcher: &TestLauncher) -> Process {
        let mut child = Command::new(std::env::current_exe().expect("a test knows its file"))
            .args(["--ignored", "--exact", "a_rank", "--nocapture"])
            .env("RONDE_TEST_RANK", format!("{rank} {ways:?} {}", launcher.address()))
            .env("RONDE_TEST_KEY", launcher.key().to_hex())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a test can be started again");
        let lines = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
        Process { child, lines }
    }

    /// The rank's next message; the test harness around it prints other lines.
    fn message(&mut self) -> String {
        let lines = self.lines.by_ref().map_while(Result::ok);
        lines
            .filter_map(|line| Some(line.split_once("rank says ")?.1.to_owned()))
            .next()
            .unwrap_or_else(|| "nothing".into())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_rank_that_is_killed_at_any_moment_is_named_by_all_others() {
    let seed = seed();
    let mut rng = TestRng::of(seed);
    for round in 0..effort(3) {
        for ways in [Ways::Memory, Ways::Sockets, Ways::Both] {
            let witness = rng.pick(&[Witness::Launcher, Witness::Nobody]);
            let victim = rng.below(SIZE as usize);
            let context =
                format!("seed {seed}, {round}: rank {victim}, {ways:?}, seen by {witness:?}");
            let launcher = TestLauncher::start(SIZE as usize, Routes::default());
            let mut ranks: Vec<Process> =
                (0..SIZE).map(|rank| Process::start(rank, ways, &launcher)).collect();
            ranks.iter_mut().for_each(|rank| assert_eq!(rank.message(), "ready", "{context}"));
            // The random moment, somewhere in a series of collectives, is the point of this test.
            std::thread::sleep(Duration::from_micros(rng.below(40_000) as u64));
            ranks[victim].child.kill().unwrap();
            let start = Instant::now();
            if witness == Witness::Launcher {
                launcher.lose(Rank(victim as u32), "was killed by signal 9 (SIGKILL)");
            }
            for (rank, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != victim)
            {
                let message = process.message();
                let blamed = message.strip_prefix("lost ").unwrap_or("nobody");
                assert_eq!(blamed, victim.to_string(), "{context}: rank {rank} says {message}");
                assert!(start.elapsed() < TIME_LIMIT, "{context}: after {:?}", start.elapsed());
            }
        }
    }
}

#[test]
#[ignore = "it is a rank process that the other test starts"]
fn a_rank() {
    let Ok(text) = std::env::var("RONDE_TEST_RANK") else { return };
    let [rank, ways, address] = text.split(' ').collect::<Vec<_>>()[..] else { panic!("{text}") };
    let key = JobKey::from_hex(&std::env::var("RONDE_TEST_KEY").unwrap()).unwrap();
    let rank = Rank(rank.parse().unwrap());
    let place = RankInfo {
        rank,
        size: SIZE,
        local_rank: rank.0,
        local_size: SIZE,
        cross_rank: 0,
        cross_size: 1,
        host: "testhost".into(),
        rendezvous_info: Some(RendezvousInfo {
            addresses: vec![address.parse().unwrap()],
            key,
            listen: Vec::new(),
            ports: ronde_control::PortRange::default(),
            keeper: RendezvousOwner::Launcher,
        }),
    };
    let (mut settings, _) = ronde_control::settings::read(|_| None).unwrap();
    match ways {
        "Sockets" => settings.transport = Transport::Tcp,
        "Both" => settings.shared_ranks = Some(2),
        _ => {}
    }
    let engine = Engine::join(&settings, place).unwrap();
    for round in 0.. {
        match drill(&engine, &[3, 20_000, 300_000]) {
            Ok(()) if round == 0 => report("ready"),
            Ok(()) => {}
            Err(error) => {
                let blamed = error.blames().map(|rank| rank.0.to_string());
                return report(&format!("lost {}", blamed.unwrap_or_else(|| error.to_string())));
            }
        }
    }
}

#[expect(clippy::print_stdout, reason = "this is how a rank of this test reports")]
fn report(message: &str) {
    println!("\nrank says {message}");
}
