//! Ways to get an agent onto a host, one each.
//!
//! Whatever the way, the driver gets an [`AgentLink`]: what the agent says, what it is told, and, if it
//! ends too early, words about what went wrong and what to do.

pub mod dialled;
pub mod link;
pub mod local;
pub mod ssh;

use std::io;
use std::path::Path;

pub use link::{AgentLink, AgentTraits, ProcessEnd};
pub use ronde_control::host_setup::HostProblem;

/// What to do about an agent that ends without a word.
const VERBOSE: &str = "run it again with `--verbose` to see each step";

/// How a host is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReachMethod {
    /// It is this machine.
    Local,
    /// By the system's ssh.
    Ssh(ssh::Destination),
}

impl ReachMethod {
    /// Starts an agent. `program` is this executable and `mark` is what all processes of its ranks
    /// will carry in their environment.
    pub fn start(&self, program: &Path, mark: &str) -> io::Result<AgentLink> {
        match self {
            ReachMethod::Local => local::start(program, mark),
            ReachMethod::Ssh(destination) => ssh::start(destination, program, mark),
        }
    }

    /// What an agent that is reached so shares with the driver.
    pub fn traits(&self) -> AgentTraits {
        match self {
            ReachMethod::Local => local::TIES,
            ReachMethod::Ssh(_) => ssh::TIES,
        }
    }
}
