//! An agent on this machine: a child process, with its pipe on standard input and output.

use std::io;
use std::path::Path;
use std::process::Stdio;

use tokio::process::Command;

use super::{AgentLink, AgentTraits, HostProblem, ProcessEnd, VERBOSE};
use crate::hidden;
use crate::supervise::ended;

/// An agent on this machine shares everything with the driver.
pub const TRAITS: AgentTraits = AgentTraits { child: true, network: true, environment: true };

/// Starts the guardian, which starts the agent. `program` is this executable; all processes of the
/// ranks carry `mark` in their environment.
pub fn start(program: &Path, mark: &str) -> io::Result<AgentLink> {
    let child = Command::new(program)
        .args([hidden::GUARDIAN, mark])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    AgentLink::from_child(child, ("localhost", TRAITS), explain)
}

fn explain(end: &ProcessEnd<'_>) -> HostProblem {
    let reason = match &end.status {
        Ok(status) => format!("its agent {}", ended(*status)),
        Err(error) => format!("cannot wait for its agent: {error}"),
    };
    HostProblem::new(reason, VERBOSE)
}
