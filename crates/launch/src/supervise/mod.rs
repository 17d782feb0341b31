//! Starting and ending processes so that none is left behind.
//!
//! Every rank is the leader of its own session and process group. A signal for a rank goes to its
//! group; what has left the group is found in two ways: as a descendant of whoever supervises (who
//! is the subreaper, so that no orphan falls to anybody else), and by the job's mark in its
//! environment. Only processes of this user are looked at, and only through a file descriptor that
//! names the process itself, never a number that may have been given to another one.

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

/// How often and after which pauses a sweep looks again.
const ROUNDS: u32 = 200;
const PAUSE: Duration = Duration::from_millis(10);

/// Whom a sweep finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Who carries the mark.
    Marked,
    /// Who carries the mark or descends from this process.
    Family,
}

/// Sends a signal to all that a mark and a scope find; gives their number. This process is never
/// among them.
pub fn signal_all(mark: &str, scope: Scope, signal: Signal) -> usize {
    let found = processes::find(mark, scope, getpid());
    for process in &found {
        send(process, signal);
    }
    found.len()
}

/// Whether a mark and a scope find anybody but this process.
pub fn any_left(mark: &str, scope: Scope) -> bool {
    !processes::find(mark, scope, getpid()).is_empty()
}

/// Kills all that a mark and a scope find, again and again until nothing is found. Gives whether
/// that was reached: a process may hang in the kernel. In the scope of the family the dead among the
/// children of this process are buried.
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

/// Has this process get a signal when its parent, the process of this number, dies. Gives whether it
/// lives: one that has died already would never send it.
pub(crate) fn end_with(parent: &OsStr, signal: Signal) -> bool {
    let _ = set_parent_process_death_signal(Some(signal));
    let number = getppid().map(|pid| pid.as_raw_nonzero().get());
    parent.to_str().and_then(|text| text.parse().ok()) == number
}

/// Sends a signal of this number to a child, unless it has ended.
pub(crate) fn signal_child(child: &Child, signal: i32) {
    let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32));
    if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(signal)) {
        let _ = kill_process(pid, signal);
    }
}

/// How a process that guards another one ended; it reports the other's signal as a shell would.
pub fn ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code @ 129..=192), _) => format!("was killed by {}", signal_name(code - 128)),
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("lost its guardian, killed by {}", signal_name(signal)),
        (None, None) => "ended".into(),
    }
}

/// The code that a shell would give for how a process ended.
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
            // The number may have changed hands between the look and the opening.
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
