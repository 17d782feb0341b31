//! Packs the tensors of a bucket into one, and unpacks the result: NCCL takes about as long for a
//! small tensor as for a large one.

use std::sync::Arc;

use super::spans::BucketSpan;
use crate::buffer::{DeviceMemory, Output};
use crate::device::{CopyRange, DeviceBuffer, DeviceError, Gpu};

/// Every tensor starts at a multiple of this, so that it is copied in large words. All ranks leave
/// the same gaps: none if there is one tensor, which ranks that have not joined do not pack.
const ALIGNMENT: usize = 16;

/// Where the tensors of a bucket are in the packed one.
pub(super) struct PackedBucket<'a> {
    spans: &'a [BucketSpan<'a>],
    starts: Vec<usize>,
    length: usize,
}

impl<'a> PackedBucket<'a> {
    pub(super) fn new(spans: &'a [BucketSpan<'a>]) -> PackedBucket<'a> {
        let (mut starts, mut length) = (Vec::with_capacity(spans.len()), 0);
        for span in spans {
            starts.push(length);
            length += match spans.len() {
                1 => span.length(),
                _ => span.length().next_multiple_of(ALIGNMENT),
            };
        }
        PackedBucket { spans, starts, length }
    }

    /// Memory for it.
    pub(super) fn memory(
        &self,
        gpu: &Arc<Gpu>,
        kept: &mut Option<DeviceBuffer>,
    ) -> Result<Output<DeviceMemory>, DeviceError> {
        memory(gpu, kept, self.length)
    }

    /// Enqueues the copies into it.
    pub(super) fn pack(&self, gpu: &Gpu, memory: &Output<DeviceMemory>) -> Result<(), DeviceError> {
        if self.spans.iter().any(|span| matches!(span, BucketSpan::Zeros(_))) {
            gpu.fill_with_zeros(memory)?;
        }
        let range = |span: &BucketSpan<'_>, start: usize| match span {
            BucketSpan::Tensor(operand) => {
                let (from, to) = (operand.parts().0 as u64, memory.start() as u64 + start as u64);
                Some(CopyRange { from, to, length: span.length() as u64 })
            }
            BucketSpan::Zeros(_) => None,
        };
        gpu.copy_ranges(&self.ranges(range))
    }

    /// Enqueues the copies out of it.
    pub(super) fn unpack(
        &self,
        gpu: &Gpu,
        memory: &Output<DeviceMemory>,
    ) -> Result<(), DeviceError> {
        let range = |span: &BucketSpan<'_>, start: usize| match span {
            BucketSpan::Tensor(operand) => {
                let (from, to) = (memory.start() as u64 + start as u64, operand.parts().1.start());
                Some(CopyRange { from, to: to as u64, length: span.length() as u64 })
            }
            BucketSpan::Zeros(_) => None,
        };
        gpu.copy_ranges(&self.ranges(range))
    }

    fn ranges(
        &self,
        range: impl Fn(&BucketSpan<'_>, usize) -> Option<CopyRange>,
    ) -> Vec<CopyRange> {
        let spans = self.spans.iter().zip(&self.starts);
        spans.filter_map(|(span, start)| range(span, *start)).collect()
    }
}

/// The first `length` bytes of memory that is kept from bucket to bucket.
pub(super) fn memory(
    gpu: &Arc<Gpu>,
    kept: &mut Option<DeviceBuffer>,
    length: usize,
) -> Result<Output<DeviceMemory>, DeviceError> {
    if kept.as_ref().is_none_or(|buffer| buffer.length() < length) {
        // Free the old one first.
        *kept = None;
        *kept = Some(DeviceBuffer::new(gpu, length)?);
    }
    let buffer = kept.as_mut().expect("it was just made");
    Ok(buffer.part(length))
}
