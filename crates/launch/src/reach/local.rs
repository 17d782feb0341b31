//! An agent on this machine: a child process, with its pipe on standard input and output.

use std::io;
use std::path::Path;
use std::process::Stdio;

use tokio::process::Command;

use super::{AgentLink, AgentTraits, HostProblem, ProcessEnd, VERBOSE};
use crate::hidden;
use crate::supervise::ended;

/// What such an agent shares with the driver: everything.
pub const TIES: AgentTraits = AgentTraits { child: true, network: true, environment: true };

/// Starts the guardian, which starts the agent. `program` is this executable and `mark` is what all
/// processes of the ranks will carry in their environment.
pub fn start(program: &Path, mark: &str) -> io::Result<AgentLink> {
    let child = Command::new(program)
        .args([hidden::GUARDIAN, mark])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    AgentLink::from_child(child, ("localhost", TIES), explain)
}

fn explain(remains: &ProcessEnd<'_>) -> HostProblem {
    let reason = match &remains.status {
        Ok(status) => format!("its agent {}", ended(*status)),
        Err(error) => format!("its agent cannot be waited for: {error}"),
    };
    HostProblem::new(reason, VERBOSE)
}
