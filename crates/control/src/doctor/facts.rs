//! What an agent finds out about its host. The names of the fields are those of `ronde doctor --json`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// A host, as its own agent sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// What the machine calls itself.
    pub hostname: String,
    /// The release of its kernel.
    pub kernel: String,
    /// Its processors.
    pub cpus: Cpus,
    /// Its memory.
    pub memory: Memory,
    /// The size of `/dev/shm`, if there is one.
    pub shm_bytes: Option<u64>,
    /// What a process there may have.
    pub limits: Limits,
    /// The addresses by which others might reach it.
    pub addresses: Vec<Address>,
    /// Its GPUs.
    pub gpus: Gpus,
    /// The Python beside the command, or the first on the PATH.
    pub python: Python,
}

/// One address of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The interface that has it.
    pub interface: String,
    /// The address.
    pub address: IpAddr,
}

/// Processors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpus {
    /// What they are.
    pub model: String,
    /// How many a process may use, by its affinity and its share.
    pub usable: u32,
    /// How many there are.
    pub online: u32,
}

/// Memory, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// All of it, or what the container may have.
    pub total_bytes: u64,
    /// What programs could have now.
    pub available_bytes: u64,
}

/// What a process may have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Open files and sockets.
    pub files: Limit,
    /// Processes and threads of the user.
    pub processes: Limit,
}

/// One limit; none means that there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// What holds.
    pub soft: Option<u64>,
    /// What a process may raise it to.
    pub hard: Option<u64>,
}

/// The GPUs that `nvidia-smi` shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpus {
    /// Each of them.
    pub devices: Vec<Gpu>,
    /// The version of their driver.
    pub driver: Option<String>,
    /// What `nvidia-smi` complained about.
    pub problem: Option<String>,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// What it is.
    pub name: String,
    /// Its memory, as `nvidia-smi` writes it.
    pub memory: String,
}

/// A Python and what is installed for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Python {
    /// Where it is.
    pub executable: String,
    /// Its version; none if it does not run.
    pub version: Option<String>,
    /// Those of `ronde`, `horovod` and the frameworks that are installed, with their versions.
    pub packages: BTreeMap<String, String>,
    /// Why it does not run.
    pub problem: Option<String>,
}
