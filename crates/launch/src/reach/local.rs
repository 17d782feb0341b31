//! An agent on this machine: a child process, with its pipe on standard input and output.

use std::io;
use std::path::Path;
use std::process::Stdio;

use tokio::process::{Child, Command};

use crate::hidden;

/// Starts the guardian, which starts the agent. `program` is this executable and `mark` is what all
/// processes of the ranks will carry in their environment.
pub fn start(program: &Path, mark: &str) -> io::Result<Child> {
    Command::new(program)
        .args([hidden::GUARDIAN, mark])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
}
