//! The memory of a submission whose tensors are on a GPU.

use std::fmt;
use std::sync::Arc;

use crate::buffer::{DeviceMemory, Input, Operand, Output};
use crate::device::{Event, Gpu};

/// Allocates GPU memory for one result, like `AllocateResult`. The event is one behind which the
/// memory may be written.
pub type AllocateOnGpu =
    Box<dyn Fn(usize, &[u64]) -> Result<(Output<DeviceMemory>, Event), String> + Send>;

/// Tensors on a GPU.
///
/// The engine drops these handles when the collective is launched, not when it is done: the caller
/// keeps the memory until its own stream waits for the event in the outcome.
pub struct GpuTensors {
    /// The point in the order of the caller's stream at which the tensors are ready.
    pub ready: Event,
    /// The tensors.
    pub memory: GpuMemory,
}

/// Where the tensors and their results are.
pub enum GpuMemory {
    /// Results are as long as their tensors and go to memory that the caller provides.
    Given(Vec<Operand<DeviceMemory>>),
    /// Results go to memory that the caller allocates when their sizes are known.
    Placed(Vec<Input<DeviceMemory>>, AllocateOnGpu),
}

impl GpuTensors {
    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        self.ready.gpu()
    }
}

impl fmt::Debug for GpuTensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuTensors").finish_non_exhaustive()
    }
}
