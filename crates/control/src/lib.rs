//! Identities, messages and decisions: everything about a job except carrying it out.
//!
//! This crate performs no I/O, reads no clock and no environment, and has no unsafe code. Results
//! depend only on the arguments, so every decision can be tested on its own.
#![forbid(unsafe_code)]

pub mod admission;
pub mod autotune;
pub mod bench;
pub mod cause;
pub mod choice;
mod collective;
mod counted;
mod device_kind;
pub mod doctor;
mod dtype;
pub mod event;
mod gpu_versions;
mod gpus;
pub mod host_setup;
pub mod hub;
mod ids;
pub mod install;
pub mod job;
pub mod launcher;
pub mod liveness;
pub mod negotiate;
pub mod placement;
mod ports;
mod printable;
pub mod provision;
pub mod settings;
pub mod status;
mod tuning;
mod visible_gpus;
pub mod watching;
pub mod wire;

pub use collective::Collective;
pub use counted::counted;
pub use device_kind::DeviceKind;
pub use dtype::{DType, ReduceOp};
pub use gpu_versions::{CudaVersion, NcclVersion};
pub use gpus::{GpuPath, GpuReport, gpu_path, sharing_note};
pub use ids::{ConnectionId, Epoch, Rank, SetId, Time, Worker};
pub use ports::{PortRange, WIDEN};
pub use printable::printable;
pub use tuning::{Knob, MOST_CONNECTIONS, Tuning};
pub use visible_gpus::{CUDA_VISIBLE_DEVICES, GpuShare, visible_gpus};

/// Horovod's API level with Ronde's own version as the local part.
pub const VERSION: &str = concat!("0.28.1+ronde.", env!("CARGO_PKG_VERSION"));

/// Ronde's own version, that of the Python package `ronde`.
pub const PACKAGE_VERSION: &str = env!("CARGO_PKG_VERSION");
