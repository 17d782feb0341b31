//! SIGUSR1 makes a rank dump its flight recorder.
//!
//! The handler only writes to an eventfd; a thread that sleeps on it does the work. It is installed
//! only if the program has no handler, and stays for the rest of the process: a handler that the
//! program installs later replaces it, just as it would replace the default.
#![expect(unsafe_code, reason = "the compiler cannot check what a signal handler may do")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};
use rustix::process::{Pid, getpid};

/// SIGUSR1 on all machines that Ronde runs on.
const SIGUSR1: i32 = rustix::process::Signal::USR1.as_raw();

static BELL: OnceLock<Option<DumpSignal>> = OnceLock::new();

/// Wakes the observer when SIGUSR1 arrives.
pub(super) struct DumpSignal {
    fd: OwnedFd,
    /// A forked child inherits the handler and the descriptor, but must not react.
    owner: Pid,
}

impl DumpSignal {
    /// The dump signal of this process, unless the program handles or ignores SIGUSR1 itself.
    pub(super) fn of_process() -> Option<&'static DumpSignal> {
        BELL.get_or_init(install).as_ref().filter(|bell| bell.owner == getpid())
    }

    pub(super) fn hush(&self) {
        let _ = read(&self.fd, &mut [0; 8]);
    }
}

impl AsFd for DumpSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn install() -> Option<DumpSignal> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    if !is_default(&status, SIGUSR1) {
        tracing::debug!(
            "SIGUSR1 does not dump the flight recorder: the program handles or ignores it"
        );
        return None;
    }
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
    let (bell, owner) = (fd.try_clone().ok()?, getpid());
    let ring = move || {
        if getpid() == owner {
            let _ = write(&bell, &1u64.to_ne_bytes());
        }
    };
    // SAFETY: the action makes two system calls that are allowed in a handler. rustix makes them
    // without the C library, so `errno` of the interrupted code is preserved. The action does not
    // allocate, lock or panic.
    unsafe { signal_hook_registry::register(SIGUSR1, ring) }.ok()?;
    Some(DumpSignal { fd, owner })
}

/// Whether a process, according to its status in `/proc`, neither catches nor ignores a signal.
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
    fn a_signal_that_the_program_handles_is_left_alone() {
        let status =
            |caught: &str, ignored: &str| format!("SigIgn:\t{ignored}\nSigCgt:\t{caught}\n");
        assert!(is_default(&status("0000000180004002", "0000000001001000"), 10));
        assert!(!is_default(&status("0000000000000200", "0000000000000000"), 10));
        assert!(!is_default(&status("0000000000000000", "0000000000000200"), 10));
        assert!(!is_default("Name:\tx\n", 10));
    }
}
