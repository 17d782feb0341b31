//! The methods of getting an agent onto a host, one per module.
//!
//! Each of them gives the driver an [`AgentLink`]: messages in both directions and, if the agent
//! ends too early, what went wrong and what to do about it.

pub mod dialed;
pub mod link;
pub mod local;
pub mod ssh;

use std::io;
use std::path::Path;

pub use link::{AgentLink, AgentTraits, ProcessEnd};
pub use ronde_control::host_setup::HostProblem;

/// Hint for an agent that ended without an error message.
const VERBOSE: &str = "run it again with `--verbose` to see each step";

/// How a host is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReachMethod {
    /// The host is this machine.
    Local,
    /// Through the system's ssh.
    Ssh(ssh::Destination),
}

impl ReachMethod {
    /// Starts an agent. `program` is this executable; all processes of its ranks carry `mark` in
    /// their environment.
    pub fn start(&self, program: &Path, mark: &str) -> io::Result<AgentLink> {
        match self {
            ReachMethod::Local => local::start(program, mark),
            ReachMethod::Ssh(destination) => ssh::start(destination, program, mark),
        }
    }

    /// What an agent that is reached this way shares with the driver.
    pub fn traits(&self) -> AgentTraits {
        match self {
            ReachMethod::Local => local::TRAITS,
            ReachMethod::Ssh(_) => ssh::TRAITS,
        }
    }
}
