//! Starts and ends processes so that none is left behind.
//!
//! Every rank is the leader of its own session and process group. A signal for a rank goes to its
//! group. Processes that have left the group are found in two ways: as descendants of the
//! supervising process (which is the subreaper, so that it inherits all orphans), and by the job's
//! mark in their environment. Only processes of this user are considered, and they are signalled
//! through a file descriptor, never through a process ID that may have been reused.

pub mod delegate;
pub mod guardian;
pub mod memory;
mod processes;
pub mod shim;

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use ronde_control::settings;
use ronde_control::wire::agent::signal_name;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, getppid, kill_process, pidfd_open,
    pidfd_send_signal, set_parent_process_death_signal, wait,
};
use tokio::process::Child;

pub(crate) use processes::{Process, living, origin};

/// The name of the environment variable that marks the processes of a job.
pub const MARK: &str = settings::RONDE_JOB.name;

/// How many times a sweep searches again, and how long it waits in between.
const ROUNDS: u32 = 200;
const PAUSE: Duration = Duration::from_millis(10);

/// Which processes a sweep finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Processes that carry the mark.
    Marked,
    /// Processes that carry the mark or descend from this process.
    Family,
}

/// Sends a signal to all processes found by a mark and a scope, except this one; returns how many
/// there are.
pub fn signal_all(mark: &str, scope: Scope, signal: Signal) -> usize {
    let found = processes::find(mark, scope, getpid());
    for process in &found {
        send(process, signal);
    }
    found.len()
}

/// Whether a mark and a scope find any process but this one.
pub fn any_left(mark: &str, scope: Scope) -> bool {
    !processes::find(mark, scope, getpid()).is_empty()
}

/// Kills all processes found by a mark and a scope, repeatedly until none is found. Returns whether
/// none is left: a process may hang in the kernel. With [`Scope::Family`], also reaps the children
/// of this process.
pub fn sweep(mark: &str, scope: Scope) -> bool {
    for _ in 0..ROUNDS {
        if signal_all(mark, scope, Signal::KILL) == 0 {
            return true;
        }
        if scope == Scope::Family {
            reap_children();
        }
        std::thread::sleep(PAUSE);
    }
    false
}

/// Makes this process get a signal when its parent, which has this process ID, dies. Returns
/// whether the parent is still alive: if it has already died, the signal would never come.
pub(crate) fn end_with(parent: &OsStr, signal: Signal) -> bool {
    let _ = set_parent_process_death_signal(Some(signal));
    let number = getppid().map(|pid| pid.as_raw_nonzero().get());
    parent.to_str().and_then(|text| text.parse().ok()) == number
}

/// Sends the signal with this number to a child, unless it has ended.
pub(crate) fn signal_child(child: &Child, signal: i32) {
    let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32));
    if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(signal)) {
        let _ = kill_process(pid, signal);
    }
}

/// Describes how a guardian ended; a guardian reports the signal of its child like a shell.
pub fn ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code @ 129..=192), _) => format!("was killed by {}", signal_name(code - 128)),
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("lost its guardian, killed by {}", signal_name(signal)),
        (None, None) => "ended".into(),
    }
}

/// The exit code that a shell would report for a process.
pub fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => 128 + signal as u8,
        (None, None) => 1,
    }
}

fn send(process: &Process, signal: Signal) {
    let Some(pid) = Pid::from_raw(process.pid) else { return };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(descriptor) => {
            // The process ID may have been reused between the search and the opening.
            if Process::of(process.pid).is_some_and(|now| now.started == process.started) {
                let _ = pidfd_send_signal(descriptor, signal);
            }
        }
        // Kernels before 5.3 and some sandboxes have no such descriptors.
        Err(Errno::NOSYS | Errno::INVAL | Errno::PERM) => {
            let _ = kill_process(pid, signal);
        }
        Err(_) => {}
    }
}

fn reap_children() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}
