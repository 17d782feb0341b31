//! The tensors of a bucket, one after another.

use ronde_control::negotiate::ReleasedTensor;

use super::{InFlight, on_gpu};
use crate::buffer::{DeviceMemory, Operand};
use crate::engine::gpu_tensors::GpuMemory;

/// A tensor of a bucket, or zeros of a rank that has joined.
pub(super) enum BucketSpan<'a> {
    Tensor(&'a Operand<DeviceMemory>),
    Zeros(usize),
}

/// The tensors of a bucket, in order.
pub(super) fn spans<'a>(
    bucket: &[ReleasedTensor],
    flights: &'a [Option<InFlight>],
) -> Vec<BucketSpan<'a>> {
    let mut spans = Vec::new();
    for (index, work) in bucket.iter().enumerate() {
        let tensors = flights.get(index).and_then(Option::as_ref).and_then(on_gpu);
        match tensors.map(|tensors| &tensors.memory) {
            Some(GpuMemory::Given(operands)) => {
                spans.extend(operands.iter().map(BucketSpan::Tensor));
            }
            _ => {
                let size = work.request.dtype.size();
                let bytes = |shape: &Vec<u64>| shape.iter().product::<u64>() as usize * size;
                spans.extend(work.request.shapes.iter().map(bytes).map(BucketSpan::Zeros));
            }
        }
    }
    spans
}

impl BucketSpan<'_> {
    pub(super) fn length(&self) -> usize {
        match self {
            BucketSpan::Tensor(operand) => operand.parts().1.length(),
            BucketSpan::Zeros(length) => *length,
        }
    }
}
