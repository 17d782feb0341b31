//! A bucket as one call of NCCL, or a few.

use std::ops::Range;
use std::sync::Arc;

use ronde_control::negotiate::{CollectiveKind, ReleasedTensor, Request};

use super::pack::{self, PackedBucket};
use super::results::GpuResults;
use super::spans::{BucketSpan, spans};
use super::{InFlight, on_gpu, wait_until};
use crate::buffer::{DeviceMemory, Input, Output};
use crate::device::{Communicator, DeviceBuffer, Gpu, NcclReduction, copy};
use crate::engine::gpu_tensors::{AllocateOnGpu, GpuMemory, GpuTensors};
use crate::engine::run::{self, BucketOutcome};
use crate::error::Error;
use crate::reduce::Reduction;
use crate::transport::waiter::Waiter;

/// A bucket that NCCL runs.
pub(super) struct NcclCall<'a> {
    pub(super) gpu: &'a Arc<Gpu>,
    pub(super) communicator: &'a mut Communicator,
    pub(super) memory: &'a mut Option<DeviceBuffer>,
    pub(super) waiter: &'a Waiter,
    pub(super) me: usize,
    pub(super) size: usize,
}

impl NcclCall<'_> {
    pub(super) fn run(
        &mut self,
        bucket: &[ReleasedTensor],
        flights: &[Option<InFlight>],
        root: Option<usize>,
    ) -> Result<BucketOutcome, Error> {
        let request = &bucket[0].request;
        let mut results = GpuResults::default();
        let algorithm = match request.kind {
            CollectiveKind::Allreduce { op, prescale, postscale } => {
                let reduction = Reduction { dtype: request.dtype, op, prescale, postscale };
                self.all_reduce(bucket, flights, &reduction)?;
                "nccl_allreduce"
            }
            CollectiveKind::Broadcast { .. } => {
                self.broadcast(bucket, flights, root.unwrap_or_default())?;
                "nccl_broadcast"
            }
            _ => {
                let tensors = flights[0].as_ref().and_then(on_gpu);
                if let Some(GpuTensors { memory: GpuMemory::Placed(inputs, allocate), .. }) =
                    tensors
                {
                    for (index, input) in inputs.iter().enumerate() {
                        self.make(&bucket[0], (index, input), allocate, &mut results)?;
                    }
                }
                match request.kind {
                    CollectiveKind::Allgather => "nccl_allgather",
                    CollectiveKind::Alltoall { .. } => "nccl_alltoall",
                    _ => "nccl_reducescatter",
                }
            }
        };
        self.settle()?;
        let done = self.gpu.mark()?;
        Ok(BucketOutcome { outcome: results.outcome(done), algorithm: Some(algorithm) })
    }

    /// One call for the whole bucket: several tensors are packed into one.
    fn all_reduce(
        &mut self,
        bucket: &[ReleasedTensor],
        flights: &[Option<InFlight>],
        reduction: &Reduction,
    ) -> Result<(), Error> {
        let reduction = NcclReduction::of(reduction, self.size)
            .ok_or_else(|| Error::Invalid("NCCL does not have this reduction".into()))?;
        let spans = spans(bucket, flights);
        if let [BucketSpan::Tensor(operand)] = spans.as_slice() {
            self.communicator.together(|group| group.all_reduce(operand.parts(), &reduction))?;
            return Ok(());
        }
        let packed = PackedBucket::new(&spans);
        let memory = packed.memory(self.gpu, self.memory)?;
        packed.pack(self.gpu, &memory)?;
        self.communicator
            .together(|group| group.all_reduce((memory.start(), &memory), &reduction))?;
        self.settle()?;
        packed.unpack(self.gpu, &memory)?;
        Ok(())
    }

    /// One call for the whole bucket, as above; only the root packs.
    fn broadcast(
        &mut self,
        bucket: &[ReleasedTensor],
        flights: &[Option<InFlight>],
        root: usize,
    ) -> Result<(), Error> {
        let spans = spans(bucket, flights);
        if let [BucketSpan::Tensor(operand)] = spans.as_slice() {
            let (input, output) = operand.parts();
            let what = (input, output.start(), output.length());
            self.communicator.together(|group| group.broadcast(what, root))?;
            return Ok(());
        }
        let packed = PackedBucket::new(&spans);
        let memory = packed.memory(self.gpu, self.memory)?;
        if self.me == root {
            packed.pack(self.gpu, &memory)?;
        }
        let what = (memory.start().cast_const(), memory.start(), memory.length());
        self.communicator.together(|group| group.broadcast(what, root))?;
        self.settle()?;
        packed.unpack(self.gpu, &memory)?;
        Ok(())
    }

    /// Waits until NCCL has enqueued what was called: only then does our stream have it.
    fn settle(&mut self) -> Result<(), Error> {
        let communicator = &*self.communicator;
        wait_until(self.waiter, || communicator.is_settled())?;
        self.communicator.tidy();
        Ok(())
    }

    /// Runs a collective whose result size has just become known, for one tensor of a group.
    fn make(
        &mut self,
        work: &ReleasedTensor,
        (index, input): (usize, &Input<DeviceMemory>),
        allocate: &AllocateOnGpu,
        results: &mut GpuResults,
    ) -> Result<(), Error> {
        let Request { kind, dtype, shapes, .. } = &work.request;
        let shape = &shapes[index];
        let unit = (shape[1..].iter().product::<u64>() as usize) * dtype.size();
        run::check_shares(work, unit, (self.me, self.size))?;
        let bytes = |rows: &u64| *rows as usize * unit;
        match kind {
            CollectiveKind::Allgather => {
                let rows: Vec<u64> = work.shares.iter().map(|share| share[index]).collect();
                let cuts = crate::collective::row(rows.iter().map(bytes));
                let length = cuts.last().map_or(0, |cut| cut.end);
                let output = results.place(self.gpu, (rows, length), allocate)?;
                self.all_gather(input, output, &cuts)
            }
            CollectiveKind::Alltoall { .. } => {
                let sent = crate::collective::row(work.shares[self.me].iter().map(bytes));
                let rows: Vec<u64> = work.shares.iter().map(|share| share[self.me]).collect();
                let received = crate::collective::row(rows.iter().map(bytes));
                let length = received.last().map_or(0, |cut| cut.end);
                let output = results.place(self.gpu, (rows, length), allocate)?;
                self.all_to_all(input, output, (&sent, &received))
            }
            CollectiveKind::Reducescatter { op, prescale, postscale } => {
                let (prescale, postscale) = (*prescale, *postscale);
                let reduction = Reduction { dtype: *dtype, op: *op, prescale, postscale };
                let cuts = run::even_cuts(shape[0], self.size, unit);
                let rows = vec![run::rows_of(shape[0], self.size, self.me)];
                let output = results.place(self.gpu, (rows, cuts[self.me].len()), allocate)?;
                self.reduce_scatter(input, output, (&reduction, &cuts))
            }
            _ => Err(Error::Invalid(format!("{} does not allocate its results", kind.name()))),
        }
    }

    /// One call if all parts have the same length; otherwise each rank's part is broadcast.
    fn all_gather(
        &mut self,
        input: &Input<DeviceMemory>,
        output: &Output<DeviceMemory>,
        cuts: &[Range<usize>],
    ) -> Result<(), Error> {
        let even = cuts.iter().all(|cut| cut.len() == cuts[0].len());
        self.communicator.together(|group| {
            if even {
                return group.all_gather(input, output);
            }
            cuts.iter().enumerate().filter(|(_, cut)| !cut.is_empty()).try_for_each(
                |(rank, cut)| {
                    let target = output.start().wrapping_add(cut.start);
                    // Only the root reads its input.
                    group.broadcast((input.start(), target, cut.len()), rank)
                },
            )
        })?;
        Ok(())
    }

    fn all_to_all(
        &mut self,
        input: &Input<DeviceMemory>,
        output: &Output<DeviceMemory>,
        (sent, received): (&[Range<usize>], &[Range<usize>]),
    ) -> Result<(), Error> {
        self.communicator.together(|group| {
            for (rank, (out, back)) in sent.iter().zip(received).enumerate() {
                if !out.is_empty() {
                    group.send((input.start().wrapping_add(out.start), out.len()), rank)?;
                }
                if !back.is_empty() {
                    group.receive((output.start().wrapping_add(back.start), back.len()), rank)?;
                }
            }
            Ok(())
        })?;
        Ok(())
    }

    /// One call if all parts have the same length; otherwise everything is reduced everywhere, and
    /// each rank keeps its part.
    fn reduce_scatter(
        &mut self,
        input: &Input<DeviceMemory>,
        output: &Output<DeviceMemory>,
        (reduction, cuts): (&Reduction, &[Range<usize>]),
    ) -> Result<(), Error> {
        let reduction = NcclReduction::of(reduction, self.size)
            .ok_or_else(|| Error::Invalid("NCCL does not have this reduction".into()))?;
        if cuts.iter().all(|cut| cut.len() == cuts[0].len()) {
            self.communicator.together(|group| group.reduce_scatter(input, output, &reduction))?;
            return Ok(());
        }
        let memory = pack::memory(self.gpu, self.memory, input.length())?;
        self.communicator
            .together(|group| group.all_reduce((input.start(), &memory), &reduction))?;
        self.settle()?;
        let part = memory.start().wrapping_add(cuts[self.me].start);
        copy(self.gpu, part, output, output.length())?;
        Ok(())
    }
}
