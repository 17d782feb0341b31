//! Standing agents: real `ronde agent --listen` processes on loopback, and launchers that use them.
#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use support::{Ended, Launched, TIME_LIMIT, alive, eventually, signal};

/// A folder with a key file.
struct Site {
    _folder: tempfile::TempDir,
    key: PathBuf,
}

impl Site {
    fn new() -> Site {
        Site::with_key(&"5".repeat(64))
    }

    fn with_key(key: &str) -> Site {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.key");
        std::fs::write(&path, format!("{key}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        Site { _folder: folder, key: path }
    }

    /// Starts a standing agent; port 0 means any port.
    fn stand(&self, port: u16, slots: u32) -> Standing {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ronde"))
            .args(["agent", "--listen", &format!("127.0.0.1:{port}"), "--name", "node-x"])
            .args(["--slots", &slots.to_string(), "--key-file"])
            .arg(&self.key)
            .env("RONDE_AGENT_KEY", "7".repeat(64))
            .envs([("RONDE_HOST_ENV", "PLACE, NOT_SET"), ("PLACE", "node-x")])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        let address = line.split(" at ").nth(1).and_then(|rest| rest.split(' ').next());
        let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            errors.lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
        });
        Standing { child, address, lines }
    }

    /// Starts a job on these addresses.
    fn launch(&self, np: &str, addresses: &[&str], options: &[&str], script: &str) -> Launched {
        let named = addresses.join(",");
        let key = self.key.to_str().unwrap();
        let arguments = [&["-np", np, "--agent-key-file", key][..], options].concat();
        let env = [
            ("HOROVOD_HOSTNAME", named.as_str()),
            ("RONDE_AGENT_KEY", SECRET),
            ("PLACE", "the launcher's"),
            ("NOT_SET", "there"),
        ];
        support::start(&arguments, &["sh", "-c", script], Stdio::null(), &env)
    }

    fn run(&self, np: &str, addresses: &[&str], options: &[&str], script: &str) -> Ended {
        self.launch(np, addresses, options, script).end()
    }
}

/// Another key, which the options replace, and which no rank may see.
const SECRET: &str = "abababababababababababababababababababababababababababababababab";

struct Standing {
    child: Child,
    address: String,
    lines: Receiver<String>,
}

impl Standing {
    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn exit_code(&mut self) -> Option<i32> {
        eventually("it ends", TIME_LIMIT, || self.child.try_wait().unwrap()).code()
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn jobs_run_on_the_standing_agents_that_a_variable_names() {
    let site = Site::new();
    let (one, two) = (site.stand(0, 2), site.stand(0, 1));
    let addresses = [one.address.as_str(), two.address.as_str()];
    // Two at the same time, then one more.
    let script = "echo here $HOROVOD_RANK $HOROVOD_LOCAL_RANK ${RONDE_AGENT_KEY-none}; read line";
    let (first, second) =
        (site.launch("3", &addresses, &[], script), site.launch("auto", &addresses, &[], script));
    for launched in [first, second] {
        let mut lines = launched.wait_for("here", 3);
        lines.sort();
        assert_eq!(lines, ["0 0 none", "1 1 none", "2 0 none"]);
    }
    let ended = site.run("1", &addresses[1..], &[], "exit 7");
    assert_eq!(ended.code, Some(7), "{}", ended.stderr);
    let too_many = site.run("4", &addresses, &[], "true");
    assert_eq!(too_many.code, Some(2));
    assert!(too_many.stderr.contains("available slots (3)"), "{}", too_many.stderr);
}

#[test]
fn every_host_that_the_variable_names_takes_part() {
    let site = Site::new();
    let agents: Vec<Standing> = (0..3).map(|_| site.stand(0, 4)).collect();
    let addresses: Vec<&str> = agents.iter().map(|agent| agent.address.as_str()).collect();
    let script = "echo here $HOROVOD_RANK $HOROVOD_CROSS_RANK $HOROVOD_LOCAL_SIZE";
    let mut lines = site.launch("3", &addresses, &[], script).wait_for("here", 3);
    lines.sort();
    assert_eq!(lines, ["0 0 1", "1 1 1", "2 2 1"]);
}

#[test]
fn variables_that_belong_to_a_host_keep_its_values() {
    let site = Site::new();
    let agent = site.stand(0, 1);
    let launched = site.launch("1", &[&agent.address], &[], "echo here $PLACE $NOT_SET");
    assert_eq!(launched.wait_for("here", 1), ["node-x there"]);
}

#[test]
fn a_late_standing_agent_is_waited_for() {
    let site = Site::new();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let launched = site.launch("1", &[&free.to_string()], &[], "echo here; exit 4");
    std::thread::sleep(Duration::from_millis(300));
    let _agent = site.stand(free.port(), 1);
    launched.wait_for("here", 1);
    assert_eq!(launched.end().code, Some(4));
}

#[test]
fn a_missing_agent_a_wrong_key_and_a_missing_key_are_told_apart() {
    let site = Site::new();
    let agent = site.stand(0, 1);
    let other = Site::with_key(&"6".repeat(64));
    let ended = other.run("1", &[&agent.address], &["--start-timeout", "5"], "true");
    assert_eq!(ended.code, Some(2));
    let text = format!("the process listening at {} does not hold the key", agent.address);
    assert!(ended.stderr.contains(&text), "{}", ended.stderr);
    assert!(ended.stderr.contains("hint: use the same key on both sides"), "{}", ended.stderr);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let ended = site.run("1", &[&free], &["--start-timeout", "1"], "true");
    assert!(ended.stderr.contains(&format!("no standing agent answers at {free}")));
    let arguments = ["-np", "1", "-H", "192.0.2.1:1", "--reach", "agent"];
    let ended = support::launch_in(&arguments, "true", &[("HOME", "/nonexistent")]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("`--reach agent` needs the key"), "{}", ended.stderr);
}

#[test]
fn nothing_is_left_on_a_host_whose_launcher_is_killed() {
    let site = Site::new();
    let agent = site.stand(0, 1);
    let mut launched = site.launch("1", &[&agent.address], &[], "echo pid $$; exec sleep 1000");
    let pid = launched.wait_for("pid", 1)[0].parse().unwrap();
    launched.signal("KILL");
    launched.status();
    eventually("the rank is gone", TIME_LIMIT, || (!alive(pid)).then_some(()));
    // It serves the next launcher.
    assert_eq!(site.run("1", &[&agent.address], &[], "exit 3").code, Some(3));
}

#[test]
fn nothing_is_left_of_a_standing_agent_that_is_killed() {
    let site = Site::new();
    let agent = site.stand(0, 1);
    let launched = site.launch("1", &[&agent.address], &[], "echo pid $$; exec sleep 1000");
    let pid = launched.wait_for("pid", 1)[0].parse().unwrap();
    signal(agent.pid(), "KILL");
    eventually("the rank is gone", TIME_LIMIT, || (!alive(pid)).then_some(()));
    let ended = launched.end();
    assert_ne!(ended.code, Some(0));
    assert!(ended.stderr.contains("127.0.0.1"), "{}", ended.stderr);
}

#[test]
fn a_standing_agent_that_is_stopped_ends_its_ranks_and_exits() {
    let site = Site::new();
    let mut agent = site.stand(0, 1);
    let launched = site.launch("1", &[&agent.address], &[], "echo pid $$; exec sleep 1000");
    let pid = launched.wait_for("pid", 1)[0].parse().unwrap();
    let said = agent.lines.recv_timeout(TIME_LIMIT).unwrap();
    assert!(said.contains("a launcher has started a job"), "{said}");
    signal(agent.pid(), "TERM");
    assert_eq!(agent.exit_code(), Some(0));
    assert!(!alive(pid));
    assert_ne!(launched.end().code, Some(0));
}

#[test]
fn unauthenticated_connections_do_not_keep_launchers_out() {
    let site = Site::new();
    let agent = site.stand(0, 1);
    let mut strangers: Vec<_> =
        (0..400).map(|_| TcpStream::connect(&agent.address).unwrap()).collect();
    for stranger in strangers.iter_mut().step_by(2) {
        let _ = stranger.write_all(b"GET / HTTP/1.1\r\n\r\n");
    }
    assert_eq!(site.run("1", &[&agent.address], &[], "exit 5").code, Some(5));
    strangers[0].set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut answer = Vec::new();
    let _ = strangers[0].read_to_end(&mut answer);
    assert_eq!(answer, b"", "strangers get no answer");
}

#[test]
fn a_standing_agent_needs_a_key_and_a_free_port() {
    let stand = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_ronde"))
            .arg("agent")
            .args(arguments)
            .env("HOME", "/nonexistent")
            .env_remove("RONDE_AGENT_KEY")
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = stand(&["--listen", "127.0.0.1:0"]);
    assert_eq!(code, Some(2));
    assert!(text.contains("the key of the standing agents is missing"), "{text}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let site = Site::new();
    let (code, text) = stand(&["--listen", &address, "--key-file", site.key.to_str().unwrap()]);
    assert_eq!(code, Some(2));
    assert!(text.contains(&format!("cannot listen on {address}")), "{text}");
}
