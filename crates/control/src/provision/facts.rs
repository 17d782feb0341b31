//! What a host reports about itself, as lines of `name=value` after a first line that separates them
//! from anything a login shell prints.

use std::collections::BTreeSet;

/// The line before the facts.
const FACTS_PREAMBLE: &str = "ronde-host 1";

/// What a host has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// The home directory; everything is installed below it.
    pub home: String,
    /// Name of the user there.
    pub user: String,
    /// Whether the user can write to the home directory.
    pub is_writable: bool,
    /// The kind of processor, as `uname -m` prints it.
    pub machine: String,
    /// The time there, in seconds since 1970.
    pub unix_seconds: Option<u64>,
    /// Path of the interpreter, if there is one.
    pub python: Option<String>,
    /// Its version.
    pub python_version: Option<(u32, u32)>,
    /// Free space below the home directory, in KiB.
    pub free_kib: Option<u64>,
    /// Path of uv, if there is one.
    pub uv: Option<String>,
    /// The agents' key there.
    pub key: KeyState,
    /// Digests of the environments that are complete.
    pub environments: BTreeSet<String>,
    /// How the agent that was started by us runs; `None` if it does not.
    pub agent: Option<AgentKind>,
    /// What it was started with.
    pub agent_spec: Option<String>,
    /// What listens at the wanted port.
    pub port: PortState,
    /// Number of GPUs that the host itself sees.
    pub gpus: u32,
    /// Docker there.
    pub docker: DockerState,
    /// Whether the image has changed since the container was started.
    pub image_changed: bool,
}

/// The agents' key on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KeyState {
    /// There is none.
    #[default]
    Missing,
    /// It has this SHA-256.
    Digest(String),
    /// Other users can read it, or this one cannot.
    Unusable,
}

/// How an agent runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentKind {
    /// As a process of the user.
    Process,
    /// As a service of the user's systemd.
    Service,
    /// As a container.
    Container,
}

/// What listens at a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PortState {
    /// Nothing.
    #[default]
    Free,
    /// The agent that we started.
    Ours,
    /// Something else, with its name if that could be found out.
    Taken(Option<String>),
}

/// Docker on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DockerState {
    /// Nobody asked.
    #[default]
    Unknown,
    /// It is not installed.
    Missing,
    /// The user may not use it.
    Denied,
    /// Its engine does not answer, and what it said instead.
    Down(String),
    /// It works.
    Works {
        /// Whether containers can have GPUs.
        gives_gpus: bool,
    },
}

/// A host's answer that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the host did not report its state; it said: {said}")]
pub struct FactsError {
    /// The end of what it said instead.
    pub said: String,
}

impl HostFacts {
    /// Reads the output of the script.
    pub fn parse(output: &str) -> Result<HostFacts, FactsError> {
        let mut lines = output.lines().skip_while(|line| *line != FACTS_PREAMBLE);
        if lines.next().is_none() {
            let said = output.trim().lines().last().unwrap_or("nothing").to_owned();
            return Err(FactsError { said });
        }
        let mut facts = HostFacts::default();
        for (name, value) in lines.filter_map(|line| line.split_once('=')) {
            facts.set(name, value);
        }
        Ok(facts)
    }

    fn set(&mut self, name: &str, value: &str) {
        let text = || (!value.is_empty()).then(|| value.to_owned());
        match name {
            "home" => value.clone_into(&mut self.home),
            "user" => value.clone_into(&mut self.user),
            "writable" => self.is_writable = value == "yes",
            "machine" => value.clone_into(&mut self.machine),
            "time" => self.unix_seconds = value.parse().ok(),
            "python" => self.python = text(),
            "python_version" => self.python_version = version(value),
            "free_kib" => self.free_kib = value.parse().ok(),
            "uv" => self.uv = text(),
            "key" => {
                self.key = match value {
                    "missing" => KeyState::Missing,
                    "unusable" => KeyState::Unusable,
                    digest => KeyState::Digest(digest.to_owned()),
                }
            }
            "environment" => drop(self.environments.insert(value.to_owned())),
            "agent" => self.agent = agent_kind(value),
            "agent_spec" => self.agent_spec = text(),
            "port" => {
                self.port = match value {
                    "free" => PortState::Free,
                    "ours" => PortState::Ours,
                    _ => PortState::Taken(None),
                }
            }
            "port_owner" if matches!(self.port, PortState::Taken(_)) => {
                self.port = PortState::Taken(text());
            }
            "gpus" => self.gpus = value.parse().unwrap_or(0),
            "docker" => {
                self.docker = match value {
                    "missing" => DockerState::Missing,
                    "denied" => DockerState::Denied,
                    "works" => DockerState::Works { gives_gpus: false },
                    _ => DockerState::Down(value.to_owned()),
                }
            }
            "docker_gpus" if matches!(self.docker, DockerState::Works { .. }) => {
                self.docker = DockerState::Works { gives_gpus: value == "yes" };
            }
            "image_changed" => self.image_changed = value == "yes",
            // A newer script may report more.
            _ => {}
        }
    }
}

fn version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn agent_kind(text: &str) -> Option<AgentKind> {
    match text {
        "process" => Some(AgentKind::Process),
        "service" => Some(AgentKind::Service),
        "container" => Some(AgentKind::Container),
        _ => None,
    }
}
