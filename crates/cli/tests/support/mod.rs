//! Real launchers for tests. Each has a token in its environment, which every process it starts
//! inherits, so that `/proc` shows which of its processes are left.
#![expect(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod rank;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longer than any step takes on a busy machine; a test that waits this long has failed.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(30);

/// A running launcher.
pub(crate) struct Launched {
    child: Child,
    token: String,
    lines: Receiver<String>,
    errors: Option<JoinHandle<String>>,
}

/// A launcher that has ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Starts `horovodrun` with these arguments and a script for `sh -c`.
pub(crate) fn launch(arguments: &[&str], script: &str) -> Launched {
    launch_with(arguments, &["sh", "-c", script], Stdio::null())
}

/// Does the same with additional variables and waits for the end.
pub(crate) fn launch_in(arguments: &[&str], script: &str, env: &[(&str, &str)]) -> Ended {
    start(arguments, &["sh", "-c", script], Stdio::null(), env).end()
}

pub(crate) fn launch_with(arguments: &[&str], command: &[&str], stdin: Stdio) -> Launched {
    start(arguments, command, stdin, &[])
}

pub(crate) fn start(
    arguments: &[&str],
    command: &[&str],
    stdin: Stdio,
    env: &[(&str, &str)],
) -> Launched {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let token = format!("RONDE_TEST_TOKEN={}-{number}", std::process::id());
    let (name, value) = token.split_once('=').unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_horovodrun"))
        .args(arguments)
        .args(command)
        .env(name, value)
        .env_remove("CUDA_VISIBLE_DEVICES")
        .envs(env.iter().copied())
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let mut stderr = child.stderr.take().unwrap();
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in stdout.lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let errors = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stderr.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    Launched { child, token, lines, errors: Some(errors) }
}

impl Launched {
    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        let _ = self.child.stdin.take().unwrap().write_all(bytes);
    }

    /// The next line of standard output.
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(TIME_LIMIT).expect("a line of output")
    }

    /// Reads lines until `count` of them start with a rank's prefix and `word`; returns the text
    /// after the word.
    pub(crate) fn wait_for(&self, word: &str, count: usize) -> Vec<String> {
        let mut found = Vec::new();
        while found.len() < count {
            let line = self.line();
            let text = line.split_once(">:").map_or("", |(_, text)| text);
            if let Some(rest) = text.strip_prefix(word) {
                found.push(rest.trim().to_owned());
            }
        }
        found
    }

    /// Sends the launcher a signal.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Sends the launcher a signal unless it has ended; returns whether it has.
    pub(crate) fn signal_if_alive(&mut self, name: &str) -> bool {
        let ended = self.child.try_wait().unwrap().is_some();
        if !ended {
            self.signal(name);
        }
        ended
    }

    /// The live processes that this launcher has started, directly or indirectly.
    pub(crate) fn family(&self) -> Vec<i32> {
        let living = fs::read_dir("/proc").unwrap().flatten();
        let numbers = living.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers.filter(|pid| *pid != self.pid() && has(*pid, &self.token)).collect()
    }

    /// Those whose command line contains this word.
    pub(crate) fn part(&self, word: &str) -> Vec<i32> {
        let with_word = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(word)
        };
        self.family().into_iter().filter(with_word).collect()
    }

    /// Waits for the launcher to end.
    pub(crate) fn end(mut self) -> Ended {
        let status = self.status();
        let stdout: Vec<String> = self.lines.iter().collect();
        let stderr = self.errors.take().unwrap().join().unwrap();
        Ended { code: status.code(), stdout: stdout.join("\n"), stderr }
    }

    pub(crate) fn status(&mut self) -> ExitStatus {
        eventually("the launcher ends", TIME_LIMIT, || self.child.try_wait().unwrap())
    }

    /// Checks that no process of the job is left within `limit`.
    pub(crate) fn assert_nothing_left(&self, limit: Duration) {
        let start = Instant::now();
        while !self.family().is_empty() {
            assert!(start.elapsed() < limit, "left after {limit:?}: {:?}", self.family());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn signal(pid: i32, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(status.unwrap().success(), "kill -{name} {pid}");
}

/// Polls until `look` returns a value.
pub(crate) fn eventually<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

fn has(pid: i32, token: &str) -> bool {
    let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environ.split(|byte| *byte == 0).any(|entry| entry == token.as_bytes()) && alive(pid)
}
