//! Memory for results whose sizes become known when their bucket is released.

use std::sync::Arc;

use crate::buffer::{DeviceMemory, Output};
use crate::device::{DeviceBuffer, Event, Gpu};
use crate::engine::gpu_tensors::AllocateOnGpu;
use crate::engine::ticket::Outcome;
use crate::error::Error;

/// The results of collectives whose sizes have just become known.
#[derive(Default)]
pub(super) struct GpuResults {
    placed: Vec<(Output<DeviceMemory>, Vec<u64>)>,
    /// In place of memory that the caller could not allocate; dropped behind the collective.
    spare: Vec<DeviceBuffer>,
    refused: Option<String>,
}

impl GpuResults {
    /// Memory for the next result. If the caller cannot allocate it, the collective still runs, so
    /// that the other ranks do not wait.
    pub(super) fn place(
        &mut self,
        gpu: &Arc<Gpu>,
        (rows, length): (Vec<u64>, usize),
        allocate: &AllocateOnGpu,
    ) -> Result<&Output<DeviceMemory>, Error> {
        let output = match allocate(self.placed.len(), &rows) {
            Ok((output, ready)) if output.length() == length => {
                gpu.wait_for(&ready)?;
                output
            }
            Ok((output, _)) => {
                let given = output.length();
                self.refuse(format!("memory for a result of {length} bytes has {given} bytes"));
                self.spare(gpu, length)?
            }
            Err(reason) => {
                self.refuse(reason);
                self.spare(gpu, length)?
            }
        };
        self.placed.push((output, rows));
        Ok(&self.placed[self.placed.len() - 1].0)
    }

    fn refuse(&mut self, reason: String) {
        self.refused.get_or_insert(reason);
    }

    fn spare(&mut self, gpu: &Arc<Gpu>, length: usize) -> Result<Output<DeviceMemory>, Error> {
        let mut buffer = DeviceBuffer::new(gpu, length)?;
        let output = buffer.part(length);
        self.spare.push(buffer);
        Ok(output)
    }

    pub(super) fn outcome(self, done: Event) -> Result<Outcome, Error> {
        let done = Arc::new(done);
        match self.refused {
            Some(reason) => Err(Error::Invalid(reason)),
            None => {
                let rows = self.placed.into_iter().map(|(_, rows)| rows).collect();
                Ok(Outcome::Launched { done, rows })
            }
        }
    }
}
