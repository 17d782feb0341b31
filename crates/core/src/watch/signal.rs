//! SIGUSR1 asks a rank to write its flight recorder down.
//!
//! The handler writes to an eventfd and does nothing else; a thread that sleeps on it does the work.
//! It is put in place only where nobody else has one, and stays for the rest of the process: a
//! program that installs its own later replaces it, as it would replace the default.
#![expect(unsafe_code, reason = "a signal handler is a promise that the compiler cannot check")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};
use rustix::process::{Pid, getpid};

/// SIGUSR1 on all machines that Ronde runs on.
const SIGUSR1: i32 = rustix::process::Signal::USR1.as_raw();

static BELL: OnceLock<Option<Bell>> = OnceLock::new();

/// Rung by SIGUSR1.
pub(super) struct Bell {
    fd: OwnedFd,
    /// A forked child inherits the handler and the descriptor, but is not meant.
    owner: Pid,
}

impl Bell {
    /// The bell of this process, unless the program handles or ignores the signal itself.
    pub(super) fn of_process() -> Option<&'static Bell> {
        BELL.get_or_init(install).as_ref().filter(|bell| bell.owner == getpid())
    }

    pub(super) fn hush(&self) {
        let _ = read(&self.fd, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn install() -> Option<Bell> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    if !is_default(&status, SIGUSR1) {
        tracing::debug!("the program has its own use for SIGUSR1");
        return None;
    }
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
    let (rung, owner) = (fd.try_clone().ok()?, getpid());
    let ring = move || {
        if getpid() == owner {
            let _ = write(&rung, &1u64.to_ne_bytes());
        }
    };
    // SAFETY: the action makes two system calls that are allowed in a handler; rustix makes them
    // without the C library, so that `errno` of the interrupted code stays; it neither allocates, nor
    // locks, nor panics.
    unsafe { signal_hook_registry::register(SIGUSR1, ring) }.ok()?;
    Some(Bell { fd, owner })
}

/// Whether a process, by its status in `/proc`, neither catches nor ignores a signal.
fn is_default(status: &str, signal: i32) -> bool {
    let is_in = |field: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(field));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_none_or(|mask| mask >> (signal - 1) & 1 == 1)
    };
    !is_in("SigCgt:") && !is_in("SigIgn:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_somebody_handles_is_left_alone() {
        let status =
            |caught: &str, ignored: &str| format!("SigIgn:\t{ignored}\nSigCgt:\t{caught}\n");
        assert!(is_default(&status("0000000180004002", "0000000001001000"), 10));
        assert!(!is_default(&status("0000000000000200", "0000000000000000"), 10));
        assert!(!is_default(&status("0000000000000000", "0000000000000200"), 10));
        assert!(!is_default("Name:\tx\n", 10));
    }
}
