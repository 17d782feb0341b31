//! Workers of an elastic job that are processes, one of them killed or stopped at every step of the way
//! into a world and inside of it, in shared memory, over sockets and on islands: the others, which are
//! never started again, are the next world, and what they compute there is right.
//!
//! The test starts its own executable again for each worker, with the name of the test that is one.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ronde_control::settings::Transport;
use ronde_control::watching::DumpTo;
use ronde_control::wire::{DriverToRank, JobKey};
use ronde_core::Error;
use ronde_core::engine::Engine;
use ronde_testkit::{Dice, ElasticLauncher, drill, effort, elastic_place, seed};
use rustix::process::{Pid, Signal, kill_process};

const SIZE: usize = 3;
/// Nobody waits longer for anything here, on however busy a machine.
const PROMISE: Duration = Duration::from_secs(20);

/// How the workers are connected.
#[derive(Clone, Copy, Debug)]
enum Ways {
    Memory,
    Sockets,
    Both,
}

/// What happens to one of them, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Killed while all wait for their world.
    Waiting,
    /// Killed when it has heard who the others are.
    Met,
    /// Killed while all share their memory and call each other.
    Uniting,
    /// Stopped then, and never heard of again.
    Stopped,
    /// Killed somewhere in a row of negotiations and collectives.
    Working,
}

const FAULTS: [Fault; 5] =
    [Fault::Waiting, Fault::Met, Fault::Uniting, Fault::Stopped, Fault::Working];

struct Process {
    worker: u32,
    child: Child,
    words: Receiver<String>,
}

impl Process {
    fn start(worker: u32, ways: Ways, launcher: &ElasticLauncher) -> Process {
        let mut child = Command::new(std::env::current_exe().expect("a test knows its file"))
            .args(["--ignored", "--exact", "a_worker", "--nocapture"])
            .env("RONDE_TEST_WORKER", format!("{worker} {ways:?} {}", launcher.address()))
            .env("RONDE_TEST_KEY", launcher.key().to_hex())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a test can be started again");
        let lines = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
        let (sender, words) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some((_, word)) = line.split_once("worker says ") {
                    let _ = sender.send(word.to_owned());
                }
            }
        });
        Process { worker, child, words }
    }

    /// What the worker says next.
    fn hear(&self) -> String {
        self.words.recv_timeout(PROMISE).unwrap_or_else(|error| format!("nothing: {error}"))
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it is a child of this process");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A job whose launcher is this test.
struct Job {
    launcher: ElasticLauncher,
    ways: Ways,
    crew: Vec<Process>,
    started: u32,
}

impl Job {
    /// Starts workers until there are enough of them; the new ones have the highest ranks.
    fn man(&mut self) {
        while self.crew.len() < SIZE {
            self.crew.push(Process::start(self.started, self.ways, &self.launcher));
            self.started += 1;
        }
    }

    fn workers(&self) -> Vec<u32> {
        self.crew.iter().map(|process| process.worker).collect()
    }

    /// Makes all of them a world, and waits until it has computed something.
    fn form(&self, story: &str) {
        self.launcher.form(&self.workers());
        for (rank, process) in self.crew.iter().enumerate() {
            let joined = format!("joined {rank} of {}", self.crew.len());
            assert_eq!(process.hear(), joined, "{story}");
            assert_eq!(process.hear(), "works", "{story}");
        }
    }

    /// The same after a fault, at which some may have been in a world already and lost it.
    fn form_after(&self, victim: usize, story: &str) {
        self.launcher.form(&self.workers());
        for (rank, process) in self.crew.iter().enumerate() {
            let joined = format!("joined {rank} of {}", self.crew.len());
            loop {
                let word = process.hear();
                if word == joined {
                    break;
                }
                let lost = format!("lost {victim}");
                let is_before = word.ends_with(&format!("of {SIZE}")) || word == "works";
                assert!(is_before || word == lost, "{story}: worker {} {word}", process.worker);
            }
            assert_eq!(process.hear(), "works", "{story}");
        }
    }

    /// Has the world meet again, because a worker is new.
    fn meet_again(&self, survivors: usize, story: &str) {
        let workers = self.workers();
        self.launcher.lose(&workers[..survivors], 0, "somebody has come");
        for process in &self.crew[..survivors] {
            assert_eq!(process.hear(), "lost 0", "{story}");
        }
    }

    /// Does harm to one of them on the way into a world or inside of it, and tells the others, who
    /// are `survivors`.
    fn strike(&mut self, fault: Fault, victim: usize, dice: &mut Dice, story: &str) {
        let workers = self.workers();
        let mut survivors = workers.clone();
        survivors.remove(victim);
        if fault == Fault::Working {
            self.form(story);
            // The moment is what this is about.
            std::thread::sleep(Duration::from_micros(dice.below(40_000) as u64));
            self.crew[victim].signal(Signal::KILL);
            self.launcher.lose(&survivors, victim as u32, "was killed by signal 9 (SIGKILL)");
            for (_, process) in self.crew.iter().enumerate().filter(|(rank, _)| *rank != victim) {
                assert_eq!(process.hear(), format!("lost {victim}"), "{story}");
            }
            return;
        }
        self.launcher.await_all(&workers);
        if fault != Fault::Waiting {
            self.launcher.seat(&workers);
        }
        if fault == Fault::Met {
            std::thread::sleep(Duration::from_micros(dice.below(2000) as u64));
        }
        if matches!(fault, Fault::Uniting | Fault::Stopped) {
            let leaders = self.launcher.located(&workers);
            if fault == Fault::Stopped {
                self.crew[victim].signal(Signal::STOP);
            }
            self.launcher.tell(&workers, &DriverToRank::Layout { leaders });
            std::thread::sleep(Duration::from_micros(dice.below(2000) as u64));
        }
        if fault != Fault::Stopped {
            self.crew[victim].signal(Signal::KILL);
        }
        match fault {
            Fault::Waiting => {}
            Fault::Met => {
                let again = DriverToRank::Again { reason: "somebody was killed".into() };
                self.launcher.tell(&survivors, &again);
            }
            _ => self.launcher.lose(&survivors, victim as u32, "was killed or stopped"),
        }
    }
}

#[test]
fn survivors_go_on_whatever_happens_to_one_of_them_and_whenever() {
    let seed = seed();
    let mut dice = Dice::of(seed);
    for ways in [Ways::Memory, Ways::Sockets, Ways::Both] {
        let launcher = ElasticLauncher::start();
        let mut job = Job { launcher, ways, crew: Vec::new(), started: 0 };
        for round in 0..effort(1) {
            for fault in FAULTS {
                let victim = dice.below(SIZE);
                let story = format!("seed {seed}, {round}: {fault:?} of rank {victim}, {ways:?}");
                job.man();
                job.strike(fault, victim, &mut dice, &story);
                let start = Instant::now();
                // A stopped one is killed only when the others have gone on without it.
                let gone = job.crew.remove(victim);
                job.form_after(victim, &story);
                drop(gone);
                assert!(start.elapsed() < PROMISE, "{story}: after {:?}", start.elapsed());
                job.meet_again(SIZE - 1, &story);
            }
        }
        let removed = DriverToRank::Removed { reason: "the test is over".into() };
        job.launcher.await_all(&job.workers());
        job.launcher.tell(&job.workers(), &removed);
        job.crew.iter().for_each(|process| assert_eq!(process.hear(), "removed"));
    }
}

#[test]
#[ignore = "it is a worker of the other test, which starts it"]
fn a_worker() {
    let Ok(text) = std::env::var("RONDE_TEST_WORKER") else { return };
    let [worker, ways, address] = text.split(' ').collect::<Vec<_>>()[..] else { panic!("{text}") };
    let key = JobKey::from_hex(&std::env::var("RONDE_TEST_KEY").unwrap()).unwrap();
    let place = elastic_place(worker.parse().unwrap(), address.parse().unwrap(), key);
    let (mut settings, _) = ronde_control::settings::read(|_| None).unwrap();
    settings.watching.dump = DumpTo::Nowhere;
    match ways {
        "Sockets" => settings.transport = Transport::Tcp,
        "Both" => settings.shared_ranks = Some(2),
        _ => {}
    }
    loop {
        let engine = match Engine::join(&settings, place.clone()) {
            Ok(engine) => engine,
            Err(Error::Removed { .. }) => return say("removed"),
            Err(error) => return say(&format!("cannot join: {error}")),
        };
        say(&format!("joined {} of {}", engine.place().rank.0, engine.place().size));
        let error = (0..).find_map(|round| match drill(&engine, &[3, 20_000]) {
            Ok(()) if round == 0 => {
                say("works");
                None
            }
            Ok(()) => None,
            Err(error) => Some(error),
        });
        let error = error.expect("a world ends only with an error");
        let blamed = error.blames().map(|rank| rank.0.to_string());
        say(&format!("lost {}", blamed.unwrap_or_else(|| error.to_string())));
    }
}

#[expect(clippy::print_stdout, reason = "this is how a worker of this test speaks")]
fn say(word: &str) {
    println!("\nworker says {word}");
}
