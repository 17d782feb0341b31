//! Condition of a worker's processes: running, stopped, frozen or stuck in the kernel.
//!
//! A worker may be a shell waiting for a Python that was stopped, so we check every process in the
//! worker's session and report the one in the worst state.

use std::fs;
use std::path::Path;

use ronde_control::Worker;
use ronde_control::wire::agent::{Condition, ProcessState};
use rustix::process::Pid;

use crate::supervise;

/// The worst state among the processes of each worker; each worker is given with its session
/// leader.
pub(super) fn of(workers: &[(Worker, Pid)]) -> Vec<(Worker, Condition)> {
    if workers.is_empty() {
        return Vec::new();
    }
    let all = supervise::living();
    let condition = |(worker, leader): &(Worker, Pid)| {
        let session = leader.as_raw_nonzero().get();
        let members = all.iter().filter(|process| process.session == session);
        let states = members.map(|process| (state(process.state, process.pid), process));
        // On a tie, the worker's own process is reported.
        let (state, worst) = states.max_by_key(|(state, one)| (*state, one.pid == session))?;
        let (pid, command) = (worst.pid.unsigned_abs(), worst.command.clone());
        Some((*worker, Condition { pid, command, state }))
    };
    workers.iter().filter_map(condition).collect()
}

fn state(letter: char, pid: i32) -> ProcessState {
    match letter {
        'T' => ProcessState::Stopped,
        't' => ProcessState::Traced,
        _ if is_frozen(pid) => ProcessState::Frozen,
        'D' => ProcessState::Blocked,
        _ => ProcessState::Runs,
    }
}

/// Whether a process is in a frozen cgroup (v1 or v2).
fn is_frozen(pid: i32) -> bool {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    groups.lines().any(|line| match line.splitn(3, ':').collect::<Vec<_>>()[..] {
        ["0", "", group] => has("/sys/fs/cgroup", group, "cgroup.events", "frozen 1"),
        [_, "freezer", group] => has("/sys/fs/cgroup/freezer", group, "freezer.state", "FROZEN"),
        _ => false,
    })
}

fn has(root: &str, group: &str, file: &str, line: &str) -> bool {
    let path = Path::new(root).join(group.trim_start_matches('/')).join(file);
    fs::read_to_string(path).is_ok_and(|text| text.lines().any(|known| known == line))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use rustix::process::{Signal, kill_process};

    use super::*;

    #[test]
    fn a_stopped_grandchild_is_reported_for_its_worker() {
        let script = "sleep 100 & echo $!; wait";
        let mut worker = Command::new("setsid")
            .args(["sh", "-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = worker.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
        let child = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        let workers = [(Worker(3), Pid::from_child(&worker))];
        let deadline = Instant::now() + Duration::from_secs(60);
        let until = |wanted: ProcessState| loop {
            let found = of(&workers);
            assert_eq!(found[0].0, Worker(3));
            if found[0].1.state == wanted {
                return found[0].1.pid;
            }
            assert!(Instant::now() < deadline, "{found:?}");
            std::thread::sleep(Duration::from_millis(5));
        };
        until(ProcessState::Runs);
        kill_process(child, Signal::STOP).unwrap();
        let pid = until(ProcessState::Stopped);
        assert_eq!(pid, child.as_raw_nonzero().get().unsigned_abs());
        kill_process(child, Signal::KILL).unwrap();
        worker.wait().unwrap();
        assert_eq!(of(&workers), [], "no process is left");
    }
}
