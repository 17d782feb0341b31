//! Ways to get an agent onto a host, one each.
//!
//! Whatever the way, the driver gets a child process whose standard input and output are the pipe to
//! the agent, and, if it ends too early, words about what went wrong and what to do.

pub mod local;
pub mod ssh;

use std::io;
use std::path::Path;
use std::process::ExitStatus;

use tokio::process::Child;

use crate::supervise::ended;

/// How a host is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// It is this machine.
    Local,
    /// By the system's ssh.
    Ssh(ssh::Destination),
}

/// What went wrong with a host, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// What was seen.
    pub reason: String,
    /// What to do.
    pub hint: String,
}

/// What is known of an agent's pipe when it has closed.
pub struct Remains<'a> {
    /// How the child process ended.
    pub status: io::Result<ExitStatus>,
    /// Whether the agent had been there.
    pub greeted: bool,
    /// What was written before, or instead of, what an agent says: on standard output, then error.
    pub said: &'a str,
}

impl Way {
    /// Starts an agent. `program` is this executable and `mark` is what all processes of its ranks
    /// will carry in their environment.
    pub fn start(&self, program: &Path, mark: &str) -> io::Result<Child> {
        match self {
            Way::Local => local::start(program, mark),
            Way::Ssh(destination) => ssh::start(destination, program, mark),
        }
    }

    /// Whether the host is this machine.
    pub fn is_local(&self) -> bool {
        *self == Way::Local
    }

    /// Explains why a pipe has closed.
    pub fn explain(&self, remains: &Remains<'_>) -> Trouble {
        match self {
            Way::Local => Trouble {
                reason: match &remains.status {
                    Ok(status) => format!("its agent {}", ended(*status)),
                    Err(error) => format!("its agent cannot be waited for: {error}"),
                },
                hint: "run it again with `--verbose` to see each step".into(),
            },
            Way::Ssh(destination) => ssh::words::explain(destination, remains),
        }
    }
}
