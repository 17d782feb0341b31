//! The moment between the agent and the user's program.
//!
//! A rank starts as this shim, which makes itself the leader of a new session, asks the kernel to be
//! killed when the agent dies, and then becomes the user's program. It exists because these calls
//! belong into the new process, where only a program of our own can make them safely.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getppid, set_parent_process_death_signal, setsid};

/// Becomes `command`. Returns only if that fails, with the code that a shell would give.
pub fn run(parent: &OsStr, command: &OsString, arguments: &[OsString]) -> u8 {
    let _ = setsid();
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    // If the agent died before the line above, nobody will ever send that signal.
    if !is_parent(parent) {
        return 1;
    }
    let error = Command::new(command).args(arguments).exec();
    let _ = writeln!(io::stderr(), "horovodrun: cannot run `{}`: {error}", command.display());
    if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}

/// Whether the parent of this process is the one of this number.
pub(crate) fn is_parent(number: &OsStr) -> bool {
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get());
    number.to_str().and_then(|text| text.parse().ok()) == parent
}
