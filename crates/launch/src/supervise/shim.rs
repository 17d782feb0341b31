//! The step between the agent and the user's program.
//!
//! A rank starts as this shim, which makes itself the leader of a new session, asks the kernel to
//! kill it when the agent dies, and then becomes the user's program. These calls must happen in the
//! new process, where only a program of our own can make them safely.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, setsid};

use super::end_with;

/// Becomes `command`. Returns only on failure, with the exit code that a shell would use.
pub fn run(parent: &OsStr, command: &OsString, arguments: &[OsString]) -> u8 {
    let _ = setsid();
    if !end_with(parent, Signal::KILL) {
        return 1;
    }
    not_run(command, &Command::new(command).args(arguments).exec())
}

/// Reports that a command cannot be run; returns the exit code that a shell would use.
pub(super) fn not_run(command: &OsStr, error: &io::Error) -> u8 {
    let _ = writeln!(io::stderr(), "horovodrun: cannot run `{}`: {error}", command.display());
    if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}
