//! Worker processes of an elastic job, one of them killed or stopped at every step of joining and
//! inside a world, in shared memory, over sockets and on islands. The others, which are never
//! restarted, form the next world, and compute correct results there.
//!
//! The test runs its own executable for each worker, with the name of the test that acts as one.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ronde_control::settings::Transport;
use ronde_control::watching::DumpTo;
use ronde_control::wire::{DriverToRank, JobKey};
use ronde_core::Error;
use ronde_core::engine::Engine;
use ronde_testkit::{ElasticLauncher, TestRng, drill, effort, elastic_place, seed};
use rustix::process::{Pid, Signal, kill_process};

const SIZE: usize = 3;
/// Nothing here waits longer, however busy the machine.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// How the workers are connected.
#[derive(Clone, Copy, Debug)]
enum Ways {
    Memory,
    Sockets,
    Both,
}

/// What happens to one of the workers, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Killed while all wait for their world.
    Waiting,
    /// Killed when it has learned who the others are.
    Met,
    /// Killed while all share their memory and connect to each other.
    Connecting,
    /// Stopped at that point, and never resumed.
    Stopped,
    /// Killed somewhere in a series of negotiations and collectives.
    Working,
}

const FAULTS: [Fault; 5] =
    [Fault::Waiting, Fault::Met, Fault::Connecting, Fault::Stopped, Fault::Working];

struct Process {
    worker: u32,
    child: Child,
    messages: Receiver<String>,
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
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some((_, message)) = line.split_once("worker says ") {
                    let _ = sender.send(message.to_owned());
                }
            }
        });
        Process { worker, child, messages }
    }

    /// The worker's next message.
    fn message(&self) -> String {
        self.messages.recv_timeout(TIME_LIMIT).unwrap_or_else(|error| format!("nothing: {error}"))
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
    processes: Vec<Process>,
    started: u32,
}

impl Job {
    /// Starts workers until there are enough of them; new workers get the highest ranks.
    fn start_missing(&mut self) {
        while self.processes.len() < SIZE {
            self.processes.push(Process::start(self.started, self.ways, &self.launcher));
            self.started += 1;
        }
    }

    fn workers(&self) -> Vec<u32> {
        self.processes.iter().map(|process| process.worker).collect()
    }

    /// Forms a world of all workers, and waits until it has computed something.
    fn form(&self, context: &str) {
        self.launcher.form(&self.workers());
        for (rank, process) in self.processes.iter().enumerate() {
            let joined = format!("joined {rank} of {}", self.processes.len());
            assert_eq!(process.message(), joined, "{context}");
            assert_eq!(process.message(), "works", "{context}");
        }
    }

    /// The same after a fault, when some workers may already have joined a world and lost it.
    fn form_after(&self, victim: usize, context: &str) {
        self.launcher.form(&self.workers());
        for (rank, process) in self.processes.iter().enumerate() {
            let joined = format!("joined {rank} of {}", self.processes.len());
            loop {
                let message = process.message();
                if message == joined {
                    break;
                }
                let lost = format!("lost {victim}");
                let is_before = message.ends_with(&format!("of {SIZE}")) || message == "works";
                assert!(
                    is_before || message == lost,
                    "{context}: worker {} {message}",
                    process.worker
                );
            }
            assert_eq!(process.message(), "works", "{context}");
        }
    }

    /// Makes the world form again, because a worker is new.
    fn form_again(&self, survivors: usize, context: &str) {
        let workers = self.workers();
        self.launcher.lose(&workers[..survivors], 0, "a worker is new");
        for process in &self.processes[..survivors] {
            assert_eq!(process.message(), "lost 0", "{context}");
        }
    }

    /// Applies a fault to one worker while it joins or inside a world, and notifies the survivors.
    fn inject(&mut self, fault: Fault, victim: usize, rng: &mut TestRng, context: &str) {
        let workers = self.workers();
        let mut survivors = workers.clone();
        survivors.remove(victim);
        if fault == Fault::Working {
            self.form(context);
            // The random moment is the point of this test.
            std::thread::sleep(Duration::from_micros(rng.below(40_000) as u64));
            self.processes[victim].signal(Signal::KILL);
            self.launcher.lose(&survivors, victim as u32, "was killed by signal 9 (SIGKILL)");
            for (_, process) in
                self.processes.iter().enumerate().filter(|(rank, _)| *rank != victim)
            {
                assert_eq!(process.message(), format!("lost {victim}"), "{context}");
            }
            return;
        }
        self.launcher.await_all(&workers);
        if fault != Fault::Waiting {
            self.launcher.assign(&workers);
        }
        if fault == Fault::Met {
            std::thread::sleep(Duration::from_micros(rng.below(2000) as u64));
        }
        if matches!(fault, Fault::Connecting | Fault::Stopped) {
            let leaders = self.launcher.located(&workers);
            if fault == Fault::Stopped {
                self.processes[victim].signal(Signal::STOP);
            }
            self.launcher.tell(&workers, &DriverToRank::Layout { leaders });
            std::thread::sleep(Duration::from_micros(rng.below(2000) as u64));
        }
        if fault != Fault::Stopped {
            self.processes[victim].signal(Signal::KILL);
        }
        match fault {
            Fault::Waiting => {}
            Fault::Met => {
                let again = DriverToRank::Again { reason: "a worker was killed".into() };
                self.launcher.tell(&survivors, &again);
            }
            _ => self.launcher.lose(&survivors, victim as u32, "was killed or stopped"),
        }
    }
}

#[test]
fn survivors_continue_after_any_fault_at_any_time() {
    let seed = seed();
    let mut rng = TestRng::of(seed);
    for ways in [Ways::Memory, Ways::Sockets, Ways::Both] {
        let launcher = ElasticLauncher::start();
        let mut job = Job { launcher, ways, processes: Vec::new(), started: 0 };
        for round in 0..effort(1) {
            for fault in FAULTS {
                let victim = rng.below(SIZE);
                let context = format!("seed {seed}, {round}: {fault:?} of rank {victim}, {ways:?}");
                job.start_missing();
                job.inject(fault, victim, &mut rng, &context);
                let start = Instant::now();
                // A stopped worker is killed only when the others have continued without it.
                let gone = job.processes.remove(victim);
                job.form_after(victim, &context);
                drop(gone);
                assert!(start.elapsed() < TIME_LIMIT, "{context}: after {:?}", start.elapsed());
                job.form_again(SIZE - 1, &context);
            }
        }
        let removed = DriverToRank::Removed { reason: "the test is over".into() };
        job.launcher.await_all(&job.workers());
        job.launcher.tell(&job.workers(), &removed);
        job.processes.iter().for_each(|process| assert_eq!(process.message(), "removed"));
    }
}

#[test]
#[ignore = "it is a worker process that the other test starts"]
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
            Err(Error::Removed { .. }) => return report("removed"),
            Err(error) => return report(&format!("cannot join: {error}")),
        };
        report(&format!("joined {} of {}", engine.place().rank.0, engine.place().size));
        let error = (0..).find_map(|round| match drill(&engine, &[3, 20_000]) {
            Ok(()) if round == 0 => {
                report("works");
                None
            }
            Ok(()) => None,
            Err(error) => Some(error),
        });
        let error = error.expect("a world ends only with an error");
        let blamed = error.blames().map(|rank| rank.0.to_string());
        report(&format!("lost {}", blamed.unwrap_or_else(|| error.to_string())));
    }
}

#[expect(clippy::print_stdout, reason = "this is how a worker of this test reports")]
fn report(message: &str) {
    println!("\nworker says {message}");
}
