//! What an agent finds out about its host. The fields have the names of `ronde doctor --json`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// A host, as its own agent sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The machine's own host name.
    pub hostname: String,
    /// Kernel release.
    pub kernel: String,
    /// CPUs of the host.
    pub cpus: Cpus,
    /// Memory of the host.
    pub memory: MemoryInfo,
    /// Size of `/dev/shm`, if there is one.
    pub shm_bytes: Option<u64>,
    /// Resource limits of processes there.
    pub limits: ProcessLimits,
    /// Addresses at which other hosts might reach it.
    pub addresses: Vec<Address>,
    /// GPUs of the host.
    pub gpus: Gpus,
    /// The Python next to the `ronde` command, or the first one on the PATH.
    pub python: Python,
}

/// A network address of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// Name of the network interface.
    pub interface: String,
    /// The IP address.
    pub address: IpAddr,
}

/// CPUs of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpus {
    /// Model name of the CPU, or its architecture.
    pub model: String,
    /// How many a process may use, given its affinity and CPU quota.
    pub usable: u32,
    /// How many there are.
    pub online: u32,
}

/// Memory, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryInfo {
    /// Total memory, or the container's limit.
    pub total_bytes: u64,
    /// Memory that programs could allocate now.
    pub available_bytes: u64,
}

/// Resource limits of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLimits {
    /// Open files and sockets.
    pub files: Limit,
    /// Processes and threads of the user.
    pub processes: Limit,
}

/// A resource limit; `None` means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The soft limit, which is in force.
    pub soft: Option<u64>,
    /// The hard limit, to which a process may raise it.
    pub hard: Option<u64>,
}

/// The GPUs that `nvidia-smi` lists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpus {
    /// One entry per GPU.
    pub devices: Vec<Gpu>,
    /// Version of the driver.
    pub driver: Option<String>,
    /// The error of `nvidia-smi`, if it failed.
    pub problem: Option<String>,
}

/// A GPU as `nvidia-smi` reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Product name.
    pub name: String,
    /// Its memory, as `nvidia-smi` prints it.
    pub memory: String,
}

/// A Python interpreter and its packages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Python {
    /// Path of the interpreter.
    pub executable: String,
    /// Its version; `None` if it does not run.
    pub version: Option<String>,
    /// Versions of `ronde`, `horovod` and the frameworks, if installed.
    pub packages: BTreeMap<String, String>,
    /// Why it does not run.
    pub problem: Option<String>,
}
