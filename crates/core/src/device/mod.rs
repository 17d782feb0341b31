//! GPUs: the driver and NCCL, opened at run time, and everything that happens on a GPU.
//!
//! Nothing is linked, so one wheel serves machines with and without a GPU, and a process that never
//! submits a GPU tensor opens nothing. A [`Gpu`] is this rank's GPU with a stream of ours. Work on
//! it is ordered by events: our stream waits for the event that the caller recorded when it
//! submitted, and the caller's stream waits for the one that we record behind the collective. The
//! host waits for neither.
//!
//! `docs/design/0015-gpu.md` has the reasons.
#![expect(unsafe_code, reason = "the driver and NCCL are C libraries")]

mod clock;
mod communicator;
mod driver;
mod event;
mod gpu;
mod inventory;
mod kernel;
mod libraries;
mod memory;
mod nccl;

pub(crate) use self::clock::GpuClock;
pub(crate) use self::communicator::{Communicator, NcclReduction};
pub use self::event::Event;
pub use self::gpu::{Gpu, GpuId};
pub use self::inventory::{FoundGpu, FoundLibrary};
pub(crate) use self::kernel::CopyRange;
pub use self::libraries::{GpuLibraries, LibraryPaths};
pub(crate) use self::memory::{DeviceBuffer, PAGE, PinnedBuffer, copy};
pub use self::nccl::Nccl;
pub(crate) use self::nccl::{ID_BYTES, UniqueId};

/// A call of the driver or of NCCL that failed, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DeviceError(pub(crate) String);
