//! The stream that a program on an NVIDIA GPU runs on.
//!
//! Operands are ready at the point that the stream has reached when the handler is called, and
//! results may be written from that point on. The program goes on behind the collectives, because
//! its stream waits for them; the host does not.
#![expect(unsafe_code, reason = "calls functions of XLA's table")]

use std::sync::Arc;

use ronde_core::device::{Event, Gpu};
use ronde_core::engine::{GpuMemory, GpuTensors, Tensors};

use super::api::{Frame, StreamArguments, XlaApi, XlaHandle};
use super::{BatchMemory, done, given, inputs, place};
use crate::gpu;
use crate::native::Failure;

/// A stream of XLA, and the GPU that it is on.
pub(super) struct XlaStream {
    gpu: Arc<Gpu>,
    handle: usize,
}

impl XlaStream {
    /// The stream of a call; the error is one for XLA.
    pub(super) fn of(api: &XlaApi, frame: &Frame) -> Result<XlaStream, XlaHandle> {
        let mut arguments = StreamArguments::new(frame.context);
        // SAFETY: the function is from the table that was passed with this call, the context
        // belongs to the call, and the structure is ours.
        let problem = unsafe { (api.stream)(&raw mut arguments) };
        if !problem.is_null() {
            return Err(problem);
        }
        let handle = arguments.stream as usize;
        let gpu = gpu::of_stream(handle).map_err(|error| done::error(api, &error.into()))?;
        Ok(XlaStream { gpu, handle })
    }

    /// The tensors of a batch, which are on this GPU.
    pub(super) fn tensors(&self, memory: BatchMemory<'_>) -> Result<Tensors, Failure> {
        let memory = match memory {
            BatchMemory::Given { sources, targets } => GpuMemory::Given(given(sources, targets)?),
            BatchMemory::Placed { sources, targets } => {
                let stream = XlaStream { gpu: self.gpu.clone(), handle: self.handle };
                let allocate = move |index, rows: &[u64]| {
                    let output = place(&targets, index, rows)?;
                    // The handler waits, so the stream is still at the point of the call.
                    let free = stream.now().map_err(|failure| failure.text)?;
                    Ok((output, free))
                };
                GpuMemory::Placed(inputs(sources), Box::new(allocate))
            }
        };
        Ok(Tensors::OnGpu(GpuTensors { ready: self.now()?, memory }))
    }

    /// Makes the program wait for an event.
    pub(super) fn wait_for(&self, event: &Event) -> Result<(), Failure> {
        Ok(event.make_stream_wait(self.handle)?)
    }

    fn now(&self) -> Result<Event, Failure> {
        Ok(Event::on_stream(&self.gpu, self.handle)?)
    }
}
