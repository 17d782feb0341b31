//! A world of one on a GPU: every collective is at most a copy, and the rare factor.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ronde_control::ReduceOp;
use ronde_control::negotiate::{CollectiveKind, Request};

use super::gpu_tensors::{GpuMemory, GpuTensors};
use super::ticket::Outcome;
use crate::buffer::{DeviceMemory, Output};
use crate::device::{Gpu, PinnedBuffer, copy};
use crate::error::Error;
use crate::reduce::{Reduction, Term, combine};

/// How long the GPU may take to bring a tensor to the host.
const PATIENCE: Duration = Duration::from_secs(600);

pub(super) fn run(request: &Request, tensors: &GpuTensors) -> Result<Outcome, Error> {
    let gpu = tensors.gpu();
    gpu.wait_for(&tensors.ready)?;
    let mut rows = Vec::new();
    match &tensors.memory {
        GpuMemory::Given(operands) => {
            for operand in operands {
                let (source, target) = operand.parts();
                carry(gpu, source, target, request)?;
            }
        }
        GpuMemory::Placed(inputs, allocate) => {
            if let Some(error) = request.impossible() {
                return Err(Error::Mismatch(error.into()));
            }
            for (index, (input, shape)) in inputs.iter().zip(&request.shapes).enumerate() {
                let count = match &request.kind {
                    // Rows that no split covers are dropped.
                    CollectiveKind::Alltoall { splits } => splits.iter().sum(),
                    _ => shape[0],
                };
                let (output, ready) = allocate(index, &[count]).map_err(Error::Invalid)?;
                if output.length() > input.length() {
                    return Err(Error::Invalid("memory for a result is too long".into()));
                }
                gpu.wait_for(&ready)?;
                carry(gpu, input.start(), &output, request)?;
                rows.push(vec![count]);
            }
        }
    }
    Ok(Outcome::Launched { done: Arc::new(gpu.mark()?), rows })
}

/// Copies a tensor to its result, and applies the factors of a reduction.
fn carry(
    gpu: &Arc<Gpu>,
    source: *const u8,
    target: &Output<DeviceMemory>,
    request: &Request,
) -> Result<(), Error> {
    let length = target.length();
    match request.kind {
        CollectiveKind::Allreduce { op, prescale, postscale }
        | CollectiveKind::Reducescatter { op, prescale, postscale }
            if prescale * postscale != 1.0 || op == ReduceOp::Adasum =>
        {
            let reduction = Reduction { dtype: request.dtype, op, prescale, postscale };
            let mut memory = PinnedBuffer::new(gpu, length)?;
            memory.fetch(0, (source, 0), length)?;
            let arrived = gpu.mark()?;
            let until = Instant::now() + PATIENCE;
            while !arrived.is_done()? {
                if Instant::now() > until {
                    return Err(Error::Device(format!(
                        "the GPU has not finished `{}` within {} s",
                        request.name,
                        PATIENCE.as_secs()
                    )));
                }
                std::thread::yield_now();
            }
            combine(memory.bytes_mut(), [Term::Target], &reduction);
            memory.send(0, (target, 0), length)?;
        }
        _ if source == target.start().cast_const() => {}
        _ => copy(gpu, source, target, length)?,
    }
    Ok(())
}
