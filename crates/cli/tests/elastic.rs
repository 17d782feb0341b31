//! Elastic jobs with real launchers, agents and processes. The tests send the workers' messages to
//! the launcher themselves, so that they control the timing of every step.
#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ronde_control::cause::{CauseKind, Raised};
use ronde_control::wire::{Change, DriverToRank, Greeting, JobKey, Milestone, Peer, RankToDriver};
use ronde_control::{Rank, VERSION, Worker};
use support::rank::{FakeRank, TestRendezvous};
use support::{Ended, Launched, TIME_LIMIT, eventually, signal, start};
use tempfile::TempDir;

/// A worker's process: prints its identity and exits with 0 when a file appears.
const WORKER: &str = r#"echo "worker $RONDE_WORKER $$ $RONDE_RENDEZVOUS $RONDE_JOB_KEY"
until [ -e "$FOLDER/done" ]; do sleep 0.05; done"#;

/// A job and the folder whose files control it.
struct Job {
    launched: Launched,
    folder: TempDir,
}

/// A worker: its process, and the connection on which the test sends its messages.
struct TestWorker {
    worker: u32,
    pid: i32,
    rendezvous: TestRendezvous,
    connection: Option<FakeRank>,
}

impl Job {
    fn start(arguments: &str, env: &[(&str, &str)]) -> Job {
        Job::start_in(tempfile::tempdir().unwrap(), arguments, env)
    }

    /// Replaces `FOLDER` in `arguments` with the folder's path.
    fn start_in(folder: TempDir, arguments: &str, env: &[(&str, &str)]) -> Job {
        let path = folder.path().to_str().unwrap().to_owned();
        let arguments = arguments.replace("FOLDER", &path);
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        let env = [&[("FOLDER", path.as_str())], env].concat();
        let launched = start(&arguments, &["sh", "-c", WORKER], Stdio::null(), &env);
        Job { launched, folder }
    }

    /// Waits for the next `count` workers to start; returns them ordered by number.
    fn workers(&self, count: usize) -> Vec<TestWorker> {
        let lines = self.launched.wait_for("worker", count);
        let mut workers: Vec<TestWorker> =
            lines.iter().map(|line| TestWorker::read(line)).collect();
        workers.sort_by_key(|worker| worker.worker);
        workers
    }

    /// Lets all processes exit with 0.
    fn finish(self) -> Ended {
        fs::write(self.folder.path().join("done"), "").unwrap();
        self.launched.end()
    }

    /// The PID of the agent on the host with this number.
    fn agent(&self, number: usize) -> i32 {
        let agents = self.launched.part("__ronde-agent");
        let mark = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&format!("-{number}\0"))
        };
        agents.into_iter().find(mark).unwrap()
    }
}

impl TestWorker {
    fn read(line: &str) -> TestWorker {
        let words: Vec<&str> = line.split_whitespace().collect();
        let address = words[2].split(',').next().unwrap().parse().unwrap();
        let rendezvous = TestRendezvous { address, key: JobKey::from_hex(words[3]).unwrap() };
        let (worker, pid) = (words[0].parse().unwrap(), words[1].parse().unwrap());
        TestWorker { worker, pid, rendezvous, connection: None }
    }

    fn join(&mut self) {
        let greeting = Greeting::Worker { version: VERSION.into(), worker: Worker(self.worker) };
        let mut connection = FakeRank::connect(&self.rendezvous, self.worker, &greeting);
        let (pid, host) = (self.pid as u32, "test".into());
        let (addresses, unix) = (Vec::new(), None);
        connection.send(&RankToDriver::Join(Peer {
            pid,
            host,
            machine: String::new(),
            local_rank: 0,
            addresses,
            unix,
        }));
        self.connection = Some(connection);
    }

    fn receive(&mut self) -> DriverToRank {
        self.connection.as_mut().unwrap().receive()
    }

    fn send(&mut self, message: &RankToDriver) {
        self.connection.as_mut().unwrap().send(message);
    }

    /// Leaves the world, like `hvd.shutdown()`.
    fn leave(&mut self) {
        self.send(&RankToDriver::Leaving { error: None, blames: None });
        self.connection = None;
    }
}

/// Forms a world of these workers, joining those that are not waiting yet; returns their ranks.
fn world(workers: &mut [&mut TestWorker]) -> Vec<u32> {
    let absent = workers.iter_mut().filter(|worker| worker.connection.is_none());
    absent.for_each(|worker| worker.join());
    let mut ranks = Vec::new();
    for worker in workers.iter_mut() {
        let DriverToRank::Assign { rank } = worker.receive() else { panic!("no assignment") };
        ranks.push(rank.0);
    }
    for worker in workers.iter_mut() {
        let DriverToRank::World { peers, .. } = worker.receive() else { panic!("no world") };
        assert_eq!(peers.len(), ranks.len());
        worker.send(&RankToDriver::Located { leader: Rank(0) });
    }
    for worker in workers.iter_mut() {
        assert!(matches!(worker.receive(), DriverToRank::Layout { .. }));
        worker.send(&RankToDriver::Reached(Milestone::State));
        worker.send(&RankToDriver::Reached(Milestone::Commit));
    }
    ranks
}

fn contains_in_order(text: &str, parts: &[&str]) {
    let mut rest = text;
    for part in parts {
        let at = rest.find(part);
        rest = &rest[at.unwrap_or_else(|| panic!("`{part}` is missing in\n{text}"))..];
    }
}

#[test]
fn the_job_survives_a_killed_worker_and_reports_the_recovery() {
    let job = Job::start("-np 3 --min-np 2 -H localhost:3", &[]);
    let mut workers = job.workers(3);
    let [one, two, three] = workers.as_mut_slice() else { panic!() };
    assert_eq!(world(&mut [one, two, three]), [0, 1, 2]);
    signal(two.pid, "KILL");
    let begin = Instant::now();
    for survivor in [&mut *one, &mut *three] {
        let DriverToRank::Lost { rank, host, kind, cause } = survivor.receive() else {
            panic!("not lost")
        };
        assert_eq!((rank, host.as_str(), kind), (Rank(1), "localhost", CauseKind::Signal));
        assert_eq!(cause, "was killed by signal 9 (SIGKILL)");
    }
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    for survivor in [&mut *one, &mut *three] {
        survivor.leave();
    }
    assert_eq!(world(&mut [one, three]), [0, 1]);
    one.leave();
    three.leave();
    let ended = job.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    contains_in_order(
        &ended.stderr,
        &[
            "[ronde] world 1 is formed: 3 ranks, 3 of them new\n",
            "[ronde] lost rank 1 (localhost, slot 1): was killed by signal 9 (SIGKILL)\n",
            "[ronde] host `localhost` gets no new ranks for the rest of the job\n",
            "[ronde] world 2 is formed: 2 ranks, 0 of them new\n",
            "[ronde] recovered with 2 ranks: rejoined after ",
        ],
    );
}

#[test]
fn a_lost_host_returns_and_its_new_workers_append_to_the_same_files() {
    let arguments = "-np 2 --min-np 1 -H localhost:1,127.0.0.2:1 --output-filename FOLDER/logs \
                     --blacklist-cooldown-range 1 1";
    let job = Job::start(arguments, &[]);
    let mut workers = job.workers(2);
    let [one, two] = workers.as_mut_slice() else { panic!() };
    assert_eq!(world(&mut [one, two]), [0, 1]);
    signal(job.agent(1), "KILL");
    assert!(matches!(one.receive(), DriverToRank::Lost { rank: Rank(1), .. }));
    one.leave();
    assert_eq!(world(&mut [one]), [0]);
    let mut new_worker = job.workers(1).remove(0);
    assert_eq!(new_worker.worker, 2);
    let coming = Change { coming: true, ..Change::default() };
    assert_eq!(one.receive(), DriverToRank::Update { change: coming });
    new_worker.join();
    let added = Change { added: true, ..Change::default() };
    assert_eq!(one.receive(), DriverToRank::Update { change: added });
    one.leave();
    assert_eq!(world(&mut [one, &mut new_worker]), [0, 1]);
    one.leave();
    new_worker.leave();
    let logs = job.folder.path().join("logs");
    let wrote = |path: &Path| fs::read_to_string(path).unwrap();
    let text = wrote(&logs.join("rank.1/stdout"));
    contains_in_order(&text, &["[1]<stdout>:worker 1 ", "[1]<stdout>:worker 2 "]);
    let ended = job.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    contains_in_order(
        &ended.stderr,
        &[
            "[ronde] lost host `127.0.0.2`: its agent was killed by signal 9 (SIGKILL) (hint: ",
            "[ronde] lost rank 1 (127.0.0.2, slot 0): was lost with its host: its agent",
            "[ronde] host `127.0.0.2` is not used for 1 s\n",
            "[ronde] world 2 is formed: 1 rank, 0 of them new\n",
            "[ronde] host `127.0.0.2` may be used again\n",
            "[ronde] world 3 is formed: 2 ranks, 1 of them new\n",
        ],
    );
}

#[test]
fn a_host_whose_agent_gets_sigterm_is_drained() {
    let job = Job::start("-np 2 --min-np 1 -H localhost:1,127.0.0.2:1", &[]);
    let mut workers = job.workers(2);
    let [one, two] = workers.as_mut_slice() else { panic!() };
    world(&mut [one, two]);
    signal(job.agent(1), "TERM");
    let change = Change { removed: true, ..Change::default() };
    assert_eq!(one.receive(), DriverToRank::Update { change });
    assert_eq!(two.receive(), DriverToRank::Update { change });
    assert!(support::alive(two.pid));
    one.leave();
    two.leave();
    two.join();
    assert!(matches!(two.receive(), DriverToRank::Removed { .. }));
    assert_eq!(world(&mut [one]), [0]);
    signal(two.pid, "KILL");
    eventually("its agent ends", TIME_LIMIT, || {
        (job.launched.part("__ronde-agent").len() == 1).then_some(())
    });
    one.leave();
    let ended = job.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    contains_in_order(
        &ended.stderr,
        &[
            "[ronde] the agent on host `127.0.0.2` was told to stop: its ranks have 30 s to leave at a \
             commit\n",
            "[ronde] rank 1 (127.0.0.2, slot 0) leaves the job: ",
            "[ronde] world 2 is formed: 1 rank, 0 of them new\n",
        ],
    );
    assert!(!ended.stderr.contains("lost"), "{}", ended.stderr);
}

#[test]
fn a_script_adds_and_removes_hosts_and_each_of_its_failures_is_reported_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    fs::write(path.join("discover"), "sh \"$FOLDER/hosts\"").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(path.join("discover"), mode).unwrap();
    // Sets what the script does from its next run on.
    let hosts = |text: &str| {
        fs::write(path.join("next"), text).unwrap();
        fs::rename(path.join("next"), path.join("hosts")).unwrap();
    };
    hosts("echo localhost");
    let job = Job::start_in(
        folder,
        "-np 1 --slots-per-host 1 --host-discovery-script FOLDER/discover",
        &[("RONDE_DISCOVERY_INTERVAL_SECONDS", "0"), ("RONDE_DISCOVERY_TIMEOUT_SECONDS", "1")],
    );
    let mut one = job.workers(1).remove(0);
    assert_eq!(world(&mut [&mut one]), [0]);
    let failures =
        ["echo no such host", "exit 0", "echo the cloud is gone >&2; exit 3", "sleep 77"];
    for (number, failure) in failures.iter().enumerate() {
        // Each version has its own marker, because the previous one may still be running.
        hosts(&format!("touch $FOLDER/seen-{number}; {failure}"));
        let seen = path.join(format!("seen-{number}"));
        eventually("the script runs", TIME_LIMIT, || seen.exists().then_some(()));
    }
    let sleeping = eventually("it hangs", TIME_LIMIT, || job.launched.part("sleep\x0077").pop());
    eventually("it is killed", TIME_LIMIT, || (!support::alive(sleeping)).then_some(()));
    hosts("echo localhost; echo 127.0.0.2:1");
    let change = Change { coming: true, ..Change::default() };
    assert_eq!(one.receive(), DriverToRank::Update { change });
    let mut two = job.workers(1).remove(0);
    two.join();
    let change = Change { added: true, ..Change::default() };
    assert_eq!(one.receive(), DriverToRank::Update { change });
    one.leave();
    assert_eq!(world(&mut [&mut one, &mut two]), [0, 1]);
    hosts("echo 127.0.0.2:1");
    let change = Change { removed: true, ..Change::default() };
    assert_eq!(one.receive(), DriverToRank::Update { change });
    assert_eq!(two.receive(), DriverToRank::Update { change });
    one.leave();
    two.leave();
    one.join();
    let reason = "its host is no longer listed".into();
    assert_eq!(one.receive(), DriverToRank::Removed { reason });
    assert_eq!(world(&mut [&mut two]), [0]);
    signal(one.pid, "KILL");
    eventually("its agent is released", TIME_LIMIT, || {
        (job.launched.part("__ronde-agent").len() == 1).then_some(())
    });
    two.leave();
    let ended = job.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let prefix = "[ronde] host discovery failed, continuing with the known hosts: ";
    let reported = |what: &str| format!("{prefix}`{}/discover` {what}", path.display());
    let garbage =
        reported("printed an invalid list of hosts: line 1: `no such host` is not a host\n");
    let nothing = reported("printed an invalid list of hosts: it lists no hosts\n");
    let failed = reported("exited with code 3: the cloud is gone\n");
    let hung = reported("took longer than 1 s and was killed\n");
    contains_in_order(
        &ended.stderr,
        &[
            "[ronde] found host `localhost` with 1 slot\n",
            &garbage,
            &nothing,
            &failed,
            &hung,
            "[ronde] host discovery works again\n",
            "[ronde] found host `127.0.0.2` with 1 slot\n",
            "[ronde] host `localhost` is no longer listed: any ranks there leave at the next commit\n",
        ],
    );
    for line in [&garbage, &nothing, &failed] {
        assert_eq!(ended.stderr.matches(line.as_str()).count(), 1, "{}", ended.stderr);
    }
}

#[test]
fn a_worker_suspended_too_long_is_lost_and_the_reset_limit_ends_the_job() {
    let job =
        Job::start("-np 2 --min-np 1 --reset-limit 0", &[("RONDE_ELASTIC_STOPPED_SECONDS", "1")]);
    let mut workers = job.workers(2);
    let [one, two] = workers.as_mut_slice() else { panic!() };
    world(&mut [one, two]);
    // A worker that resumes in time is not lost.
    signal(one.pid, "STOP");
    signal(one.pid, "CONT");
    signal(two.pid, "STOP");
    let DriverToRank::Lost { rank, kind, cause, .. } = one.receive() else { panic!("not lost") };
    assert_eq!((rank, kind), (Rank(1), CauseKind::Halted));
    assert_eq!(
        cause,
        "was stopped (for example by SIGSTOP) for 1 s and was killed (RONDE_ELASTIC_STOPPED_SECONDS)"
    );
    eventually("it is killed", TIME_LIMIT, || (!support::alive(two.pid)).then_some(()));
    one.leave();
    one.join();
    let ended = job.launched.end();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    contains_in_order(
        &ended.stderr,
        &[
            "error: Horovod was shutdown because number of resets during elastic job exceeded \
             limit: 0\n  the last one: rank 1 (localhost, slot 1) was stopped",
            "hint: ",
        ],
    );
}

#[test]
fn too_few_hosts_end_the_job_after_a_timeout_and_a_signal_at_once() {
    let arguments = ["-np", "2", "--elastic-timeout", "3", "--host-discovery-script"];
    let arguments = [&arguments[..], &["echo localhost:1"]].concat();
    let ended = start(&arguments, &["true"], Stdio::null(), &[]).end();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    contains_in_order(
        &ended.stderr,
        &[
            "[ronde] 1 of at least 2 ranks ready: waiting up to 3 s for more\n",
            "error: Timed out waiting for 2 ranks: 1 ready. Timeout after 3 seconds.\n",
            "  `localhost`: 1 slot, ready\n",
        ],
    );
    let job = Job::start("-np 2 --min-np 1", &[]);
    let mut workers = job.workers(2);
    let [one, two] = workers.as_mut_slice() else { panic!() };
    world(&mut [one, two]);
    job.launched.signal("TERM");
    let Job { mut launched, folder: _folder } = job;
    assert_eq!(launched.status().code(), Some(143));
    launched.assert_nothing_left(Duration::from_secs(5));
    let text = "error: stopped by signal 15 (SIGTERM), along with its 2 ranks\n";
    let ended = launched.end();
    assert!(ended.stderr.ends_with(text), "{}", ended.stderr);
}

#[test]
fn if_all_workers_fail_the_job_ends_with_the_first_ones_code_and_error() {
    let job = Job::start("-np 2 --min-np 1 -H localhost:1,127.0.0.2:1", &[]);
    let mut workers = job.workers(2);
    let [one, two] = workers.as_mut_slice() else { panic!() };
    world(&mut [one, two]);
    let error = Some(Raised::by_program("ValueError: no such file"));
    one.send(&RankToDriver::Leaving { error, blames: None });
    assert!(matches!(two.receive(), DriverToRank::Lost { rank: Rank(0), .. }));
    signal(one.pid, "KILL");
    signal(two.pid, "KILL");
    let ended = job.launched.end();
    assert_eq!(ended.code, Some(137), "{}", ended.stderr);
    assert!(ended.stderr.contains("ValueError: no such file"), "{}", ended.stderr);
}

#[test]
fn control_characters_in_script_output_are_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("hosts.sh");
    fs::write(&script, "printf 'node\\033[2Ja\\007:1\\n'\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let arguments = "-np 1 --host-discovery-script FOLDER/hosts.sh --elastic-timeout 1";
    let ended = Job::start_in(folder, arguments, &[]).launched.end();
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains(r"`nodea\u{7}:1` is not a host"), "{}", ended.stderr);
    assert!(!ended.stderr.contains(['\u{1b}', '\u{7}']), "{:?}", ended.stderr);
}

#[test]
fn the_exception_of_a_script_that_always_raises_is_printed_last() {
    let script = "raise ValueError('the config has no `lr`')";
    let launched =
        start(&["-np", "2", "--min-np", "2"], &["python3", "-c", script], Stdio::null(), &[]);
    let ended = launched.end();
    assert_eq!(ended.code, Some(1));
    contains_in_order(
        &ended.stderr,
        &[
            "\nerror: rank ",
            " raised ValueError: the config has no `lr`\n  at <string>:1\n  process ",
            "\n  1 of at least 2 ranks are left and no host may start more\n",
            "\nhint: see the lines marked `[",
            "]<stderr>` above; to survive it, add hosts",
        ],
    );
}
