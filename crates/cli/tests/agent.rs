//! Agents that dial in, against a small driver that they cannot tell from a real one: the
//! launcher's own service accepts them and returns the same link that every driver has.
#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod support;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ronde_control::wire::agent::{
    self, AgentToDriver, DriverToAgent, Exit, OutputStream, Terminal, WindowSize, WorkerSpec,
    output_cost,
};
use ronde_control::wire::{JobKey, decode};
use ronde_control::{VERSION, Worker};
use ronde_launch::driver::service;
use ronde_launch::reach::AgentLink;
use ronde_launch::reach::dialed::DialedAgent;
use support::rank::{PRINT_RENDEZVOUS, TestRendezvous};
use support::{TIME_LIMIT, alive, eventually, launch, signal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;

fn key(seed: u8) -> JobKey {
    JobKey::from_entropy([seed; 32])
}

fn within<T>(runtime: &tokio::runtime::Runtime, future: impl Future<Output = T>) -> T {
    runtime.block_on(async { timeout(TIME_LIMIT, future).await.expect("it happens in time") })
}

/// A minimal launcher that accepts agents.
struct Driver {
    runtime: tokio::runtime::Runtime,
    offers: mpsc::Receiver<DialedAgent>,
    address: String,
}

impl Driver {
    fn open() -> Driver {
        Driver::open_at("127.0.0.1:0")
    }

    fn open_at(address: &str) -> Driver {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind(address)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sender, offers) = mpsc::channel(16);
        runtime.spawn(service::offers(listener, key(1), sender));
        Driver { runtime, offers, address }
    }

    /// The next agent that dials in.
    fn offer(&mut self) -> DialedAgent {
        within(&self.runtime, self.offers.recv()).unwrap()
    }

    /// Accepts the next agent and waits for its first line of output.
    fn accept(&mut self) -> AcceptedAgent<'_> {
        let offer = self.offer();
        let mark = offer.mark.clone();
        let _inside = self.runtime.enter();
        let mut accepted = AcceptedAgent { driver: self, link: Some(offer.take().unwrap()), mark };
        assert_eq!(accepted.line(), format!("ronde-agent {VERSION}"));
        accepted
    }
}

/// An agent that the driver has accepted.
struct AcceptedAgent<'a> {
    driver: &'a Driver,
    link: Option<AgentLink>,
    mark: String,
}

impl AcceptedAgent<'_> {
    fn link(&mut self) -> (&tokio::runtime::Runtime, &mut AgentLink) {
        (&self.driver.runtime, self.link.as_mut().unwrap())
    }

    fn line(&mut self) -> String {
        let (runtime, link) = self.link();
        runtime.block_on(async {
            let mut line = Vec::new();
            loop {
                match timeout(TIME_LIMIT, link.reader.read_u8()).await.unwrap().unwrap() {
                    b'\n' => return String::from_utf8(line).unwrap(),
                    byte => line.push(byte),
                }
            }
        })
    }

    fn send(&mut self, command: &DriverToAgent) {
        let (runtime, link) = self.link();
        let frame = agent::frame(command);
        runtime.block_on(async {
            link.writer.write_all(&frame).await.unwrap();
            link.writer.flush().await.unwrap();
        });
    }

    /// Its next message, or `None` once the link has ended.
    fn next(&mut self) -> Option<AgentToDriver> {
        let (runtime, link) = self.link();
        within(runtime, async {
            let mut header = [0; 4];
            link.reader.read_exact(&mut header).await.ok()?;
            let mut body = vec![0; agent::length(header).unwrap()];
            link.reader.read_exact(&mut body).await.unwrap();
            Some(decode(&body).unwrap())
        })
    }

    /// Has it run a script; returns the PID.
    fn start(&mut self, worker: u32, script: &str) -> i32 {
        self.start_on(worker, script, None)
    }

    /// The same on a terminal.
    fn start_on(&mut self, worker: u32, script: &str, terminal: Option<Terminal>) -> i32 {
        let bytes = |text: &str| text.as_bytes().to_vec();
        let path = std::env::var("PATH").unwrap();
        let env = [("RONDE_JOB", self.mark.as_str()), ("PATH", &path)];
        let env = env.map(|(name, value)| (bytes(name), bytes(value)));
        let spec = WorkerSpec {
            worker: Worker(worker),
            argv: ["sh", "-c", script].map(bytes).into(),
            cwd: bytes("/"),
            env: env.into(),
            own: vec![],
            terminal,
            gpus: None,
        };
        self.send(&DriverToAgent::Start { workers: vec![spec] });
        match self.next() {
            Some(AgentToDriver::Started { worker: Worker(number), pid }) if number == worker => {
                pid as i32
            }
            other => panic!("{other:?}"),
        }
    }

    /// Reads messages until a worker and both its streams have ended; returns the output and how
    /// the worker exited.
    fn until_ended(&mut self) -> (String, Exit) {
        let (mut output, mut how, mut streams) = (Vec::new(), None, 2);
        loop {
            match self.next().expect("the link holds") {
                AgentToDriver::Output { bytes, stream: OutputStream::Stdout, .. } => {
                    self.send(&DriverToAgent::Printed { cost: output_cost(bytes.len()) });
                    output.extend(bytes);
                }
                AgentToDriver::OutputEnd { .. } => streams -= 1,
                AgentToDriver::Exited { exit, .. } => how = Some(exit),
                other => panic!("{other:?}"),
            }
            if let (0, Some(exit)) = (streams, &how) {
                return (String::from_utf8(output).unwrap(), exit.clone());
            }
        }
    }

    /// Waits for the link to end; returns the reason.
    fn ended(mut self) -> String {
        let AgentLink { ended, reader, writer, .. } = self.link.take().unwrap();
        drop((reader, writer));
        within(&self.driver.runtime, ended).reason
    }
}

/// A real `ronde agent` process.
struct Agent {
    child: Child,
    _folder: tempfile::TempDir,
}

/// What `ronde agent` printed, and its exit code.
struct AgentResult {
    code: Option<i32>,
    text: String,
}

fn key_file(key: &JobKey) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    std::fs::write(&path, format!("{}\n", key.to_hex())).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    (folder, path)
}

fn join_with(address: &str, key: &JobKey, options: &[&str]) -> Agent {
    let (folder, path) = key_file(key);
    let child = Command::new(env!("CARGO_BIN_EXE_ronde"))
        .args(["agent", "--join", address, "--name", "node-x", "--slots", "3", "--key-file"])
        .arg(path)
        .args(options)
        .env_remove("RONDE_JOB_KEY")
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    Agent { child, _folder: folder }
}

fn join(driver: &Driver) -> Agent {
    join_with(&driver.address, &key(1), &[])
}

impl Agent {
    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The process that dialed in, a child of the one that the test started.
    fn dialler(&self) -> i32 {
        let children = format!("/proc/{0}/task/{0}/children", self.pid());
        eventually("the agent has a process that dials", TIME_LIMIT, || {
            let text = std::fs::read_to_string(&children).unwrap_or_default();
            text.split_whitespace().next()?.parse().ok()
        })
    }

    fn ended(mut self) -> AgentResult {
        let status = eventually("the agent ends", TIME_LIMIT, || self.child.try_wait().unwrap());
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        AgentResult { code: status.code(), text }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A script that ignores signals and prints the PID of a child that has left its session.
const FAMILY: &str = r#"
trap '' TERM INT HUP
setsid sh -c 'trap "" TERM INT HUP; echo $$; while true; do sleep 1; done' &
wait
while true; do sleep 1; done
"#;

/// Starts `FAMILY`; returns the PIDs of both processes.
fn family(accepted: &mut AcceptedAgent<'_>) -> Vec<i32> {
    let own = accepted.start(0, FAMILY);
    let Some(AgentToDriver::Output { bytes, .. }) = accepted.next() else { panic!("no output") };
    vec![own, String::from_utf8(bytes).unwrap().trim().parse().unwrap()]
}

fn assert_gone(pids: &[i32]) {
    eventually("all are gone", TIME_LIMIT, || (!pids.iter().any(|pid| alive(*pid))).then_some(()));
}

#[test]
fn an_agent_that_dials_in_behaves_like_any_agent() {
    let mut driver = Driver::open();
    let agent = join(&driver);
    let offer = driver.offer();
    assert_eq!((offer.name.as_str(), offer.slots), ("node-x", 3));
    assert_eq!(offer.mismatch(), None);
    assert!(offer.address().unwrap().is_loopback());
    let mark = offer.mark.clone();
    let link = {
        let _inside = driver.runtime.enter();
        offer.take().unwrap()
    };
    assert!(link.traits.network && !link.traits.child && !link.traits.environment);
    let mut accepted = AcceptedAgent { driver: &driver, link: Some(link), mark };
    assert_eq!(accepted.line(), format!("ronde-agent {VERSION}"));
    accepted.start(0, "echo hello; exit 3");
    assert_eq!(accepted.until_ended(), ("hello\n".into(), Exit::Code(3)));
    // More than fits into one sealed frame, or may be in flight at a time.
    accepted.start(7, "head -c 3000000 /dev/zero | tr '\\0' x");
    let (output, exit) = accepted.until_ended();
    assert_eq!((output.len(), exit), (3_000_000, Exit::Code(0)));
    accepted.send(&DriverToAgent::End);
    assert_eq!(accepted.next(), None);
    assert_eq!(accepted.ended(), "its `ronde agent` exited");
    let result = agent.ended();
    assert_eq!(result.code, Some(0), "{}", result.text);
    assert!(result.text.contains("`node-x` joined the job at "), "{}", result.text);
}

#[test]
fn a_worker_may_have_a_terminal_that_changes_its_size() {
    let mut driver = Driver::open();
    let agent = join(&driver);
    let mut accepted = driver.accept();
    let terminal = |stderr| Terminal { size: WindowSize { rows: 24, columns: 100 }, stderr };
    // Python sees the terminal as training scripts do. A signal just before a sleep does not
    // interrupt it, so the sleeps are short.
    let script = "python3 -c '
import os, signal, sys, time
size = lambda *_: print(*os.get_terminal_size(1), flush=True)
signal.signal(signal.SIGWINCH, lambda *_: (size(), os._exit(7)))
print(os.isatty(1), os.isatty(2), end=chr(13) + chr(10), flush=True)
size()
os.write(2, b\"to stderr\\n\")
while True:
    time.sleep(0.1)
'";
    accepted.start_on(1, script, Some(terminal(true)));
    let (mut output, mut exit, mut is_closed) = (Vec::new(), None, false);
    while exit.is_none() || !is_closed {
        match accepted.next().expect("the link holds") {
            AgentToDriver::Output { bytes, stream, .. } => {
                assert_eq!(stream, OutputStream::Stdout);
                output.extend(bytes);
                if output.ends_with(b"to stderr\n") {
                    let size = WindowSize { rows: 30, columns: 120 };
                    accepted.send(&DriverToAgent::Resize { worker: Worker(1), size });
                }
            }
            AgentToDriver::OutputEnd { .. } => is_closed = true,
            AgentToDriver::Exited { exit: how, .. } => exit = Some(how),
            other => panic!("{other:?}"),
        }
    }
    let written = "True True\r\n100 24\nto stderr\n120 30\n";
    assert_eq!((String::from_utf8(output).unwrap().as_str(), exit), (written, Some(Exit::Code(7))));
    // If standard error is a file, it keeps its own pipe.
    accepted.start_on(2, "test -t 1 && ! test -t 2 && echo split", Some(terminal(false)));
    let (output, exit) = accepted.until_ended();
    assert_eq!((output.as_str(), exit), ("split\n", Exit::Code(0)));
    accepted.send(&DriverToAgent::End);
    assert_eq!(accepted.next(), None);
    drop(accepted);
    assert_eq!(agent.ended().code, Some(0));
}

#[test]
fn a_cut_link_leaves_no_processes_on_the_host() {
    let mut driver = Driver::open();
    let agent = join(&driver);
    let mut accepted = driver.accept();
    let pids = family(&mut accepted);
    let AgentLink { cut, ended, reader, writer, .. } = accepted.link.take().unwrap();
    cut.send(()).unwrap();
    drop((reader, writer));
    within(&driver.runtime, ended);
    assert_gone(&pids);
    let result = agent.ended();
    assert_eq!(result.code, Some(1));
    assert!(
        result.text.contains("error: the launcher exited or cannot be reached any more"),
        "{}",
        result.text
    );
}

#[test]
fn agents_end_when_their_launcher_dies() {
    let mut driver = Driver::open();
    let agent = join(&driver);
    let mut accepted = driver.accept();
    let pids = family(&mut accepted);
    // Dropping it closes everything at once, as if it had been killed.
    let AcceptedAgent { link, .. } = accepted;
    drop(link);
    driver.runtime.shutdown_background();
    assert_gone(&pids);
    assert_eq!(agent.ended().code, Some(1));
}

#[test]
fn a_killed_agent_or_guardian_leaves_no_processes() {
    let mut driver = Driver::open();
    for kill_dialler in [true, false] {
        let agent = join(&driver);
        let mut accepted = driver.accept();
        let mut pids = family(&mut accepted);
        let dialler = agent.dialler();
        pids.push(dialler);
        signal(if kill_dialler { dialler } else { agent.pid() }, "KILL");
        while accepted.next().is_some() {}
        assert_eq!(accepted.ended(), "its `ronde agent` exited");
        assert_gone(&pids);
        let code = agent.ended().code;
        assert_eq!(code, if kill_dialler { Some(137) } else { None });
    }
}

#[test]
fn an_agent_with_a_grace_period_leaves_in_order_on_sigterm() {
    let mut driver = Driver::open();
    let agent = join(&driver);
    let mut accepted = driver.accept();
    accepted.send(&DriverToAgent::Linger { millis: 600_000 });
    let pid = accepted.start(0, "echo up; exec sleep 1000");
    assert!(matches!(accepted.next(), Some(AgentToDriver::Output { .. })));
    // A scheduler may signal every process it knows about.
    signal(agent.dialler(), "TERM");
    assert_eq!(accepted.next(), Some(AgentToDriver::Leaving));
    signal(agent.pid(), "TERM");
    accepted.send(&DriverToAgent::Look { workers: vec![] });
    assert_eq!(accepted.next(), Some(AgentToDriver::Looked { found: vec![] }));
    assert!(alive(pid));
    accepted.send(&DriverToAgent::End);
    while accepted.next().is_some() {}
    assert_gone(&[pid]);
    assert_eq!(agent.ended().code, Some(0));
}

#[test]
fn an_agent_without_a_grace_period_stops_at_once() {
    let mut driver = Driver::open();
    let agent = join(&driver);
    let mut accepted = driver.accept();
    let pids = family(&mut accepted);
    signal(agent.pid(), "TERM");
    while accepted.next().is_some() {}
    assert_gone(&pids);
    assert_eq!(agent.ended().code, Some(143));
}

#[test]
fn an_agent_may_start_before_its_launcher() {
    let place = Driver::open();
    let address = place.address.clone();
    // The socket must be closed before another one can bind its port.
    place.runtime.shutdown_timeout(TIME_LIMIT);
    let agent = join_with(&address, &key(1), &["--timeout", "60"]);
    let dialler = agent.dialler();
    let mut driver = Driver::open_at(&address);
    let mut accepted = driver.accept();
    accepted.send(&DriverToAgent::End);
    while accepted.next().is_some() {}
    let result = agent.ended();
    assert_eq!(result.code, Some(0), "{}", result.text);
    assert!(!alive(dialler));
}

#[test]
fn a_waiting_agent_can_be_stopped() {
    let place = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let agent = join_with(&place.local_addr().unwrap().to_string(), &key(1), &[]);
    // It has dialed in and gets no answer.
    let (_silent, _) = place.accept().unwrap();
    signal(agent.pid(), "TERM");
    assert_eq!(agent.ended().code, Some(143));
}

#[test]
fn an_unreachable_launcher_and_a_wrong_key_are_distinguished() {
    let place = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nowhere = place.local_addr().unwrap().to_string();
    drop(place);
    let result = join_with(&nowhere, &key(1), &["--timeout", "1"]).ended();
    assert_eq!(result.code, Some(1));
    let text = format!("error: no job accepted this agent within 1 s: cannot connect to {nowhere}");
    assert!(result.text.contains(&text), "{}", result.text);
    assert!(result.text.contains("hint: check that `horovodrun --agents` is running there"));

    let mut driver = Driver::open();
    let result = join_with(&driver.address, &key(2), &[]).ended();
    assert_eq!(result.code, Some(1));
    let text =
        format!("error: the process listening at {} has a different job key", driver.address);
    assert!(result.text.contains(&text), "{}", result.text);
    assert!(driver.offers.try_recv().is_err(), "an agent without the key is not offered");
}

#[test]
fn an_agent_prints_the_launchers_reason_for_a_refusal() {
    let mut driver = Driver::open();
    let agent = join(&driver);
    {
        let mut offer = driver.offer();
        offer.version = "0.0".into();
        let reason = offer.mismatch().unwrap();
        assert_eq!(reason, format!("the launcher has Ronde {VERSION} and the agent has 0.0"));
        let _inside = driver.runtime.enter();
        offer.refuse(&reason);
    }
    let result = agent.ended();
    assert_eq!(result.code, Some(1));
    let text = format!("refused this agent: the launcher has Ronde {VERSION}");
    assert!(result.text.contains(&text), "{}", result.text);
    assert!(
        result.text.contains("install the same version of Ronde on both sides"),
        "{}",
        result.text
    );
}

#[test]
fn a_job_that_starts_its_own_agents_accepts_no_others() {
    for options in [&["-np", "1"][..], &["-np", "1", "--min-np", "1"]] {
        let launched = launch(options, PRINT_RENDEZVOUS);
        let rendezvous = TestRendezvous::printed_by(&launched);
        let result = join_with(&rendezvous.address.to_string(), &rendezvous.key, &[]).ended();
        assert_eq!(result.code, Some(1));
        let text = "refused this agent: this job starts its agents itself";
        assert!(result.text.contains(text), "{}", result.text);
        launched.signal("TERM");
        assert_eq!(launched.end().code, Some(143));
    }
}

#[test]
fn unauthenticated_connections_do_not_delay_agents() {
    let mut driver = Driver::open();
    let mut unauthenticated: Vec<_> =
        (0..400).map(|_| std::net::TcpStream::connect(&driver.address).unwrap()).collect();
    for connection in unauthenticated.iter_mut().step_by(2) {
        let _ = connection.write_all(b"GET / HTTP/1.1\r\n\r\n");
    }
    let agent = join(&driver);
    let mut accepted = driver.accept();
    accepted.start(0, "exit 0");
    assert_eq!(accepted.until_ended().1, Exit::Code(0));
    accepted.send(&DriverToAgent::End);
    while accepted.next().is_some() {}
    assert_eq!(agent.ended().code, Some(0));
    // Those that sent data got no answer.
    unauthenticated[0].set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut answer = Vec::new();
    let _ = unauthenticated[0].read_to_end(&mut answer);
    assert_eq!(answer, b"");
}

#[test]
fn the_key_comes_only_from_a_file_a_descriptor_or_the_environment() {
    let run = |shell: &str, env: Option<&str>| {
        let (_folder, path) = key_file(&key(1));
        let mut command = Command::new("sh");
        command.args(["-c", shell]).env("RONDE", env!("CARGO_BIN_EXE_ronde")).env("KEY", path);
        command.env_remove("RONDE_JOB_KEY").envs(env.map(|value| ("RONDE_JOB_KEY", value)));
        let output = command.stdin(Stdio::null()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let join = "--join 127.0.0.1:1 --timeout 0";
    let hex = key(1).to_hex();
    for (options, env) in
        [("--key-file $KEY", None), ("--key-fd 3 3<$KEY", None), ("", Some(hex.as_str()))]
    {
        let (code, text) = run(&format!("$RONDE agent {join} {options}"), env);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("no job accepted this agent"), "{text}");
    }
    for (shell, env, expected) in [
        ("$RONDE agent {join}", None, "error: the job's key is missing"),
        ("chmod 644 $KEY; $RONDE agent {join} --key-file $KEY", None, "run `chmod 600` on it"),
        ("$RONDE agent {join} --key-fd 9", None, "cannot read a key from descriptor 9"),
        ("$RONDE agent {join}", Some("abc"), "RONDE_JOB_KEY is not a valid key"),
        ("$RONDE agent --join here --key-file $KEY", None, "`here` is not an address with a port"),
    ] {
        let (code, text) = run(&shell.replace("{join}", join), env);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(expected) && !text.contains(&hex), "{text}");
    }
}

#[test]
fn a_launcher_that_waits_for_agents_does_not_print_its_key() {
    let run = |options: &str, env: Option<&str>| {
        let (folder, path) = key_file(&key(1));
        let mut command = Command::new("sh");
        command.args(["-c", &format!("$HOROVODRUN {options} true")]);
        command.env("HOROVODRUN", env!("CARGO_BIN_EXE_horovodrun")).env("KEY", path);
        command.env_remove("XDG_RUNTIME_DIR").env("TMPDIR", folder.path());
        command.env_remove("RONDE_JOB_KEY").envs(env.map(|value| ("RONDE_JOB_KEY", value)));
        let output = command.stdin(Stdio::null()).output().unwrap();
        let left = std::fs::read_dir(folder.path()).unwrap().flatten();
        let private = left.filter(|entry| entry.path().is_dir());
        let files = private.flat_map(|entry| std::fs::read_dir(entry.path()).unwrap()).count();
        assert_eq!(files, 0, "a generated key is removed with the job");
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let hex = key(1).to_hex();
    for (options, env, code, expected) in [
        ("-np 2 --agents 2 -H a:2", None, 2, "cannot be used with"),
        ("-np 2 --agents 2 --host-discovery-script x", None, 2, "cannot be used with"),
        ("-np 2 --listen :4000", None, 2, "--agents <N>"),
        ("-np 2 --key-file $KEY", None, 2, "--agents <N>"),
        ("-np 2 --agents 2 --listen node", None, 2, "must be an address and a port"),
        ("-np 2 --agents 0", None, 2, "a positive integer"),
        ("--agents 2", None, 2, "the number of processes was not given"),
        ("-np 2 --mpi --agents 2", None, 2, "`--mpi` cannot be combined with `--agents`"),
        ("-np 2 --agents 2 --key-file /no/such", None, 2, "the key file `/no/such` cannot be read"),
        ("-np 2 --agents 2", Some("abc"), 2, "RONDE_JOB_KEY is not a valid key"),
        (
            "-np 2 --agents 2 --start-timeout 1",
            Some(hex.as_str()),
            1,
            "longer with `--start-timeout`",
        ),
        ("-np 2 --agents 2 --start-timeout 1", None, 1, "0 agents with 0 slots connected"),
        (
            "-np 2 --min-np 1 --agents 2 --elastic-timeout 1 --key-file $KEY",
            None,
            1,
            "longer with `--elastic-timeout`",
        ),
    ] {
        let (given, text) = run(options, env);
        assert_eq!(given, Some(code), "{options}: {text}");
        assert!(text.contains(expected) && !text.contains(&hex), "{options}: {text}");
    }
}
