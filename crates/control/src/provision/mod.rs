//! What `ronde up` has to do on a host, given what is there already.
//!
//! A script on the host reports [`HostFacts`]; [`decide`] compares them with what is [`Wanted`] and
//! answers with everything that stands in the way, or with the steps that are missing, in the order
//! in which to take them. No step means that there is nothing to do. Nothing that the user has is
//! ever replaced: a different key on a host is a problem, not a step.

mod facts;
mod problems;
#[cfg(test)]
mod tests;

use std::fmt;

pub use facts::{AgentKind, DockerState, FactsError, HostFacts, KeyState, PortState};

use crate::host_setup::HostProblem;

/// The oldest Python that the package supports.
pub const OLDEST_PYTHON: (u32, u32) = (3, 9);

/// What every host of a cluster should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The port of the standing agents.
    pub port: u16,
    /// SHA-256 of the agents' key; `None` if this machine has yet to make one.
    pub key_digest: Option<String>,
    /// What the agents and their ranks run in.
    pub runtime: Runtime,
    /// Free space that the installation needs, in KiB.
    pub space_kib: u64,
    /// Whether this machine can send uv to hosts that lack it, and for which processors.
    pub uv_machine: Option<String>,
    /// The time here when the host was asked for its own, in seconds since 1970.
    pub unix_seconds: u64,
}

/// What the agents and their ranks run in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// A virtual environment, identified by a digest of all that is installed in it.
    Environment {
        /// The first digits of the digest.
        digest: String,
    },
    /// A container.
    Container {
        /// Name of the image.
        image: String,
        /// Bind mounts, in Docker's syntax.
        mounts: Vec<String>,
    },
}

impl Wanted {
    /// What an agent that needs no restart was started with; one line.
    pub fn agent_spec(&self) -> String {
        match &self.runtime {
            Runtime::Environment { digest } => format!("port {} environment {digest}", self.port),
            Runtime::Container { image, mounts } => {
                let mounts: String = mounts.iter().map(|mount| format!(" mount {mount}")).collect();
                format!("port {} image {image}{mounts}", self.port)
            }
        }
    }
}

/// One thing to do on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send the agents' key.
    SendKey,
    /// Send the program that installs packages.
    SendUv,
    /// Send the wheels and the lock file, and install them into a new environment.
    Install,
    /// Stop the agent, which runs with other settings.
    StopAgent,
    /// Start the agent.
    StartAgent,
}

impl Step {
    /// What is done, in the past tense and to what.
    pub fn past(self) -> String {
        let (_, past, what) = self.words();
        format!("{past} {what}")
    }

    fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Step::SendKey => ("send", "sent", "the agents' key"),
            Step::SendUv => ("send", "sent", "uv"),
            Step::Install => ("install", "installed", "the environment"),
            Step::StopAgent => ("stop", "stopped", "the old agent"),
            Step::StartAgent => ("start", "started", "the agent"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, _, what) = self.words();
        write!(f, "{verb} {what}")
    }
}

/// What to do about a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// What stands in the way. If there is anything, the steps are empty.
    pub problems: Vec<HostProblem>,
    /// What the user should know, though it stands in nobody's way.
    pub warnings: Vec<HostProblem>,
    /// What to do, in order.
    pub steps: Vec<Step>,
}

/// Compares a host with what is wanted.
pub fn decide(wanted: &Wanted, facts: &HostFacts) -> StepPlan {
    let problems = problems::of(wanted, facts);
    let warnings = problems::warnings(wanted, facts);
    let steps = if problems.is_empty() { steps(wanted, facts) } else { Vec::new() };
    StepPlan { problems, warnings, steps }
}

fn steps(wanted: &Wanted, facts: &HostFacts) -> Vec<Step> {
    let mut steps = Vec::new();
    if facts.key == KeyState::Missing {
        steps.push(Step::SendKey);
    }
    let installed = match &wanted.runtime {
        Runtime::Environment { digest } => facts.environments.contains(digest),
        Runtime::Container { .. } => true,
    };
    if !installed {
        if facts.uv.is_none() {
            steps.push(Step::SendUv);
        }
        steps.push(Step::Install);
    }
    let is_current =
        facts.agent_spec.as_deref() == Some(&wanted.agent_spec()) && !facts.image_changed;
    match (facts.agent, is_current && installed) {
        (Some(_), true) => {}
        (Some(_), false) => steps.extend([Step::StopAgent, Step::StartAgent]),
        (None, _) => steps.push(Step::StartAgent),
    }
    steps
}
