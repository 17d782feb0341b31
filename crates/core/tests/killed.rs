//! Ranks that are processes, and one of them killed with signal 9 at any moment of any algorithm, in
//! shared memory, over sockets and on islands: the others end with an error that names it, in time,
//! and whatever completed before was right.
//!
//! The test starts its own executable again for each rank, with the name of the test that is a rank.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use ronde_control::Rank;
use ronde_control::settings::{Keeper, Meeting, Place, Transport};
use ronde_control::wire::JobKey;
use ronde_core::engine::Engine;
use ronde_testkit::{Dice, Launcher, Roads, drill, effort, seed};

const SIZE: u32 = 3;
/// Nobody waits longer for the news of a death, on however busy a machine.
const PROMISE: Duration = Duration::from_secs(10);

/// How the ranks are connected.
#[derive(Clone, Copy, Debug)]
enum Ways {
    Memory,
    Sockets,
    Both,
}

/// Who tells the ranks of the death.
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
    fn start(rank: u32, ways: Ways, launcher: &Launcher) -> Process {
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

    /// What the rank says next; the test frame around it says something too.
    fn hear(&mut self) -> String {
        let said = self.lines.by_ref().map_while(Result::ok);
        said.filter_map(|line| Some(line.split_once("rank says ")?.1.to_owned()))
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
    let mut dice = Dice::of(seed);
    for round in 0..effort(3) {
        for ways in [Ways::Memory, Ways::Sockets, Ways::Both] {
            let witness = dice.pick(&[Witness::Launcher, Witness::Nobody]);
            let victim = dice.below(SIZE as usize);
            let story =
                format!("seed {seed}, {round}: rank {victim}, {ways:?}, seen by {witness:?}");
            let launcher = Launcher::start(SIZE as usize, Roads::default());
            let mut ranks: Vec<Process> =
                (0..SIZE).map(|rank| Process::start(rank, ways, &launcher)).collect();
            ranks.iter_mut().for_each(|rank| assert_eq!(rank.hear(), "ready", "{story}"));
            // The moment is what this is about: somewhere in a row of collectives.
            std::thread::sleep(Duration::from_micros(dice.below(40_000) as u64));
            ranks[victim].child.kill().unwrap();
            let start = Instant::now();
            if witness == Witness::Launcher {
                launcher.lose(Rank(victim as u32), "was killed by signal 9 (SIGKILL)");
            }
            for (rank, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != victim)
            {
                let said = process.hear();
                let blamed = said.strip_prefix("lost ").unwrap_or("nobody");
                assert_eq!(blamed, victim.to_string(), "{story}: rank {rank} says {said}");
                assert!(start.elapsed() < PROMISE, "{story}: after {:?}", start.elapsed());
            }
        }
    }
}

#[test]
#[ignore = "it is a rank of the other test, which starts it"]
fn a_rank() {
    let Ok(text) = std::env::var("RONDE_TEST_RANK") else { return };
    let [rank, ways, address] = text.split(' ').collect::<Vec<_>>()[..] else { panic!("{text}") };
    let key = JobKey::from_hex(&std::env::var("RONDE_TEST_KEY").unwrap()).unwrap();
    let rank = Rank(rank.parse().unwrap());
    let place = Place {
        rank,
        size: SIZE,
        local_rank: rank.0,
        local_size: SIZE,
        cross_rank: 0,
        cross_size: 1,
        host: "testhost".into(),
        meeting: Some(Meeting {
            addresses: vec![address.parse().unwrap()],
            key,
            listen: Vec::new(),
            keeper: Keeper::Launcher,
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
            Ok(()) if round == 0 => say("ready"),
            Ok(()) => {}
            Err(error) => {
                let blamed = error.blames().map(|rank| rank.0.to_string());
                return say(&format!("lost {}", blamed.unwrap_or_else(|| error.to_string())));
            }
        }
    }
}

#[expect(clippy::print_stdout, reason = "this is how a rank of this test speaks")]
fn say(word: &str) {
    println!("\nrank says {word}");
}
