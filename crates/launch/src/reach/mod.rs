//! The methods of getting an agent onto a host, one per module.
//!
//! Each of them gives the driver an [`AgentLink`]: messages in both directions and, if the agent
//! ends too early, what went wrong and what to do about it.

pub mod dialed;
pub mod link;
pub mod local;
pub mod rsh;
pub mod ssh;
pub mod standing;

use std::io;
use std::path::Path;
use std::time::Duration;

pub use link::{AgentLink, AgentTraits, ProcessEnd};
pub use ronde_control::host_setup::HostProblem;
use ronde_control::wire::JobKey;

/// Hint for an agent that ended without an error message.
const VERBOSE: &str = "run it again with `--verbose` to see each step";

/// How a host is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReachMethod {
    /// The host is this machine.
    Local,
    /// Through the system's ssh.
    Ssh(ssh::Destination),
    /// Through a command of the user, to the host of this name.
    Rsh(rsh::RshCommand, String),
    /// Through the standing agent of the host.
    Standing(standing::StandingAgent),
}

impl ReachMethod {
    /// Starts an agent. `program` is this executable; all processes of its ranks carry `mark` in
    /// their environment.
    pub fn start(&self, program: &Path, mark: &str) -> io::Result<AgentLink> {
        match self {
            ReachMethod::Local => local::start(program, mark),
            ReachMethod::Ssh(destination) => ssh::start(destination, program, mark),
            ReachMethod::Rsh(command, host) => rsh::start((command, host), program, mark),
            ReachMethod::Standing(agent) => Ok(standing::start(agent, mark)),
        }
    }

    /// What an agent that is reached this way shares with the driver.
    pub fn traits(&self) -> AgentTraits {
        match self {
            ReachMethod::Local => local::TRAITS,
            ReachMethod::Ssh(_) => ssh::TRAITS,
            ReachMethod::Rsh(..) => rsh::TRAITS,
            ReachMethod::Standing(agent) => agent.traits(),
        }
    }
}

/// The user's options for reaching hosts other than this machine.
#[derive(Clone, Debug, Default)]
pub struct ReachOptions {
    /// Options for ssh.
    pub ssh: ssh::SshOptions,
    /// Which way to take.
    pub way: ReachWay,
}

/// The way to hosts other than this machine.
#[derive(Clone, Debug, Default)]
pub enum ReachWay {
    /// Through ssh.
    #[default]
    Ssh,
    /// Through a command of the user.
    Rsh(rsh::RshCommand),
    /// Through standing agents.
    Agent(AgentAccess),
    /// Through a standing agent where one answers, otherwise through ssh.
    AgentOrSsh(AgentAccess),
}

/// What it takes to use standing agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentAccess {
    /// The port that they listen on.
    pub port: u16,
    /// The key that they hold.
    pub key: JobKey,
    /// How long to wait for them.
    pub time_limit: Duration,
}

impl AgentAccess {
    /// The standing agent of another host.
    pub fn to(&self, host: &str) -> standing::StandingAgent {
        let AgentAccess { port, key, time_limit } = self.clone();
        standing::StandingAgent {
            host: host.to_owned(),
            port,
            key,
            time_limit,
            is_here: false,
            last: standing::LastInstance::default(),
        }
    }
}
