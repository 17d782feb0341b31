//! What an agent finds out about its host. The fields have the names of `ronde doctor --json`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::confinement::Confinement;
use crate::{CudaVersion, NcclVersion};

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
    /// What the container of its agent, if it is in one, leaves it.
    pub confinement: Confinement,
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

/// GPUs, and the libraries for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpus {
    /// One entry per GPU of the host, as `nvidia-smi` or else the driver lists them.
    pub devices: Vec<GpuInfo>,
    /// How many of them `CUDA_VISIBLE_DEVICES` names there, if it is set.
    pub visible: Option<u32>,
    /// Version of the driver, if `nvidia-smi` is there.
    pub driver: Option<String>,
    /// The driver's library, with the newest CUDA that it supports; `None` if it is not known,
    /// because the Python there has no Ronde.
    pub cuda: Option<GpuLibrary>,
    /// NCCL; `None` for the same reason.
    pub nccl: Option<GpuLibrary>,
    /// Why these libraries could not be looked for, if that failed.
    pub unknown: Option<String>,
    /// The error of `nvidia-smi`, if it failed.
    pub problem: Option<String>,
}

impl Gpus {
    /// How many GPUs the ranks of the host see.
    pub fn usable(&self) -> u32 {
        let count = self.devices.len() as u32;
        self.visible.map_or(count, |visible| visible.min(count))
    }

    /// Whether ranks would use NCCL: it and the driver are there, and new enough.
    pub fn has_nccl(&self) -> bool {
        let version = |library: &Option<GpuLibrary>| library.as_ref()?.version;
        version(&self.cuda).map(CudaVersion) >= Some(CudaVersion::OLDEST)
            && version(&self.nccl).map(NcclVersion) >= Some(NcclVersion::OLDEST)
    }
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// Product name.
    pub name: String,
    /// All of its memory; 0 if it is not known.
    pub memory_bytes: u64,
    /// Memory that no process uses, if it is known.
    #[serde(default)]
    pub free_bytes: Option<u64>,
}

/// A library that ranks would open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuLibrary {
    /// Its version as one number, as NVIDIA writes it: 13000 is CUDA 13.0, and 22809 NCCL 2.28.9.
    #[serde(default)]
    pub version: Option<u32>,
    /// The file that it is in.
    #[serde(default)]
    pub path: Option<String>,
    /// Why it cannot be opened.
    #[serde(default)]
    pub problem: Option<String>,
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
