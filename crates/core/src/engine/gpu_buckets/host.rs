//! The path through pinned host memory, where there is no NCCL or NCCL cannot do what is asked.
//!
//! A reduction or a broadcast is cut into pieces: while one piece is reduced, the next one is being
//! copied from the GPU, and the previous one to it. Everything else is copied whole; so are the
//! tensors of Adasum, which depends on their boundaries.

use std::ops::Range;
use std::sync::Arc;

use ronde_control::ReduceOp;
use ronde_control::negotiate::{CollectiveKind, ReleasedTensor, Request};

use super::results::GpuResults;
use super::spans::{BucketSpan, spans};
use super::{InFlight, on_gpu, wait_until};
use crate::buffer::{Buffer, DeviceMemory, Input, Operands, Output, Row, RowMut};
use crate::collective::{self, Parts, row};
use crate::device::{DeviceError, Event, Gpu, PAGE, PinnedBuffer};
use crate::engine::gpu_tensors::{AllocateOnGpu, GpuMemory, GpuTensors};
use crate::engine::run::{self, BucketOutcome};
use crate::engine::ticket::Outcome;
use crate::error::Error;
use crate::group::{Arena, Group, Groups};
use crate::reduce::Reduction;
use crate::transport::waiter::Waiter;

/// Bytes of a piece: large enough to use a bus well, small enough to overlap.
const PIECE: usize = 4 << 20;
/// One piece arrives, one is reduced, one leaves.
const PIECES: usize = 3;

/// The pinned memory of this rank.
#[derive(Default)]
pub(super) struct HostStaging {
    pieces: [Option<StagingPiece>; PIECES],
}

/// Pinned memory, and the event behind which the GPU no longer needs it.
struct StagingPiece {
    memory: PinnedBuffer,
    free: Option<Event>,
}

/// What is done with a piece in host memory.
type Combine<'a> = dyn FnMut(&mut Group<'_>, Operands<'_>) -> Result<(), Error> + 'a;

/// How a bucket is cut.
#[derive(Clone, Copy)]
enum Cutting {
    /// Into pieces, wherever tensors begin and end.
    Anywhere,
    /// Not at all, and the algorithm sees every tensor.
    Nowhere,
}

impl HostStaging {
    pub(super) fn run(
        &mut self,
        gpu: &Arc<Gpu>,
        (groups, waiter): (&mut Groups, &Waiter),
        bucket: &[ReleasedTensor],
        flights: &[Option<InFlight>],
    ) -> Result<BucketOutcome, Error> {
        let request = &bucket[0].request;
        let place = run::place(groups, request.set)?;
        let (mut combine, cutting) = combine(groups, request)?;
        let arena = groups.arena().cloned();
        let mut group = run::group(groups, request.set)?;
        let mut results = GpuResults::default();
        let mut staged = Staged { gpu, waiter, group: &mut group, pieces: &mut self.pieces, arena };
        match &mut combine {
            Some(combine) => staged.in_pieces(&spans(bucket, flights), cutting, combine)?,
            None => {
                let tensors = flights[0].as_ref().and_then(on_gpu);
                if let Some(GpuTensors { memory: GpuMemory::Placed(inputs, allocate), .. }) =
                    tensors
                {
                    for (index, input) in inputs.iter().enumerate() {
                        let what = (&bucket[0], index, input);
                        staged.make(what, place, (allocate, &mut results))?;
                    }
                }
            }
        }
        let done = gpu.mark()?;
        Ok(BucketOutcome { outcome: results.outcome(done), algorithm: Some("through_host") })
    }

    /// The same for a rank that has joined and has no GPU: it contributes zeros.
    pub(super) fn run_without_gpu(
        groups: &mut Groups,
        bucket: &[ReleasedTensor],
    ) -> Result<BucketOutcome, Error> {
        let request = &bucket[0].request;
        let (combine, cutting) = combine(groups, request)?;
        let mut group = run::group(groups, request.set)?;
        if let Some(mut combine) = combine {
            let spans = spans(bucket, &[]);
            for cut in pieces(&spans, cutting) {
                let mut zeros = Buffer::zeros(cut.len());
                let operands = operands(&spans, (&cut, cutting), zeros.bytes_mut());
                combine(&mut group, operands)?;
            }
        }
        Ok(BucketOutcome { outcome: Ok(Outcome::Done), algorithm: Some("through_host") })
    }
}

/// What is done with each piece of a bucket, and how it is cut; nothing for collectives whose result
/// size is not known before.
fn combine(
    groups: &Groups,
    request: &Request,
) -> Result<(Option<Box<Combine<'static>>>, Cutting), Error> {
    let dtype = request.dtype;
    Ok(match request.kind {
        CollectiveKind::Allreduce { op, prescale, postscale } => {
            let reduction = Reduction { dtype, op, prescale, postscale };
            let adasum = op == ReduceOp::Adasum;
            let cutting = if adasum { Cutting::Nowhere } else { Cutting::Anywhere };
            let combine = move |group: &mut Group<'_>, mut operands: Operands<'_>| {
                collective::allreduce(group, &mut operands, &reduction).map(drop)
            };
            (Some(Box::new(combine)), cutting)
        }
        CollectiveKind::Broadcast { .. } => {
            let root = run::root(groups, request)?.unwrap_or_default();
            let combine = move |group: &mut Group<'_>, mut operands: Operands<'_>| {
                collective::broadcast(group, &mut operands, root).map(drop)
            };
            (Some(Box::new(combine)), Cutting::Anywhere)
        }
        _ => (None, Cutting::Nowhere),
    })
}

/// A bucket on its way through host memory.
struct Staged<'a, 'g> {
    gpu: &'a Arc<Gpu>,
    waiter: &'a Waiter,
    group: &'a mut Group<'g>,
    pieces: &'a mut [Option<StagingPiece>; PIECES],
    /// Memory that the ranks of this host share: what is there is reduced without a copy.
    arena: Option<Arc<Arena>>,
}

impl Staged<'_, '_> {
    fn in_pieces(
        &mut self,
        spans: &[BucketSpan<'_>],
        cutting: Cutting,
        combine: &mut Combine<'_>,
    ) -> Result<(), Error> {
        let cuts = pieces(spans, cutting);
        let mut arrived = std::collections::VecDeque::new();
        for index in 0..=cuts.len() {
            if let Some(cut) = cuts.get(index) {
                arrived.push_back(self.fetch(spans, cut, index % PIECES)?);
            }
            let Some(index) = index.checked_sub(1) else { continue };
            let event: Event = arrived.pop_front().expect("every piece is fetched first");
            wait_until(self.waiter, || event.is_done())?;
            let (cut, slot) = (&cuts[index], index % PIECES);
            let memory = &mut self.pieces[slot].as_mut().expect("it was fetched").memory;
            let piece = &mut memory.bytes_mut()[..cut.len()];
            combine(self.group, operands(spans, (cut, cutting), piece))?;
            self.send(spans, cut, slot)?;
        }
        Ok(())
    }

    /// Starts to copy a piece from the GPU; returns the event behind it.
    fn fetch(
        &mut self,
        spans: &[BucketSpan<'_>],
        cut: &Range<usize>,
        slot: usize,
    ) -> Result<Event, Error> {
        let memory = self.pinned(slot, cut.len())?;
        for (span, within, at) in parts(spans, cut) {
            match span {
                BucketSpan::Tensor(operand) => {
                    memory.fetch(at, (operand.parts().0, within.start), within.len())?;
                }
                BucketSpan::Zeros(_) => memory.bytes_mut()[at..at + within.len()].fill(0),
            }
        }
        Ok(self.gpu.mark()?)
    }

    /// Starts to copy a piece to the GPU.
    fn send(
        &mut self,
        spans: &[BucketSpan<'_>],
        cut: &Range<usize>,
        slot: usize,
    ) -> Result<(), Error> {
        let piece = self.pieces[slot].as_mut().expect("it was fetched");
        for (span, within, at) in parts(spans, cut) {
            if let BucketSpan::Tensor(operand) = span {
                piece.memory.send(at, (operand.parts().1, within.start), within.len())?;
            }
        }
        piece.free = Some(self.gpu.mark()?);
        Ok(())
    }

    /// Pinned memory of at least this length that the GPU is not using.
    fn pinned(&mut self, slot: usize, length: usize) -> Result<&mut PinnedBuffer, Error> {
        let slot = &mut self.pieces[slot];
        if let Some(free) = slot.as_mut().and_then(|piece| piece.free.take()) {
            wait_until(self.waiter, || free.is_done())?;
        }
        let piece = match slot.take().filter(|piece| piece.memory.length() >= length) {
            Some(piece) => piece,
            None => {
                StagingPiece { memory: pin(self.gpu, self.arena.as_ref(), length)?, free: None }
            }
        };
        Ok(&mut slot.insert(piece).memory)
    }

    /// Runs a collective whose result size has just become known, for one tensor of a group.
    fn make(
        &mut self,
        (work, index, input): (&ReleasedTensor, usize, &Input<DeviceMemory>),
        (me, size): (usize, usize),
        (allocate, results): (&AllocateOnGpu, &mut GpuResults),
    ) -> Result<(), Error> {
        let Request { kind, dtype, shapes, .. } = &work.request;
        let shape = &shapes[index];
        let unit = (shape[1..].iter().product::<u64>() as usize) * dtype.size();
        run::check_shares(work, unit, (me, size))?;
        let bytes = |rows: &u64| *rows as usize * unit;
        let length = input.length();
        self.pinned(0, length)?.fetch(0, (input.start(), 0), length)?;
        let arrived = self.gpu.mark()?;
        wait_until(self.waiter, || arrived.is_done())?;
        let rows: Vec<u64> = match kind {
            CollectiveKind::Allgather => work.shares.iter().map(|share| share[index]).collect(),
            CollectiveKind::Alltoall { .. } => work.shares.iter().map(|share| share[me]).collect(),
            _ => vec![run::rows_of(shape[0], size, me)],
        };
        let cuts = row(rows.iter().map(bytes));
        let result = cuts.last().map_or(0, |cut| cut.end);
        self.pinned(1, result)?;
        let [Some(source), Some(target), _] = &mut *self.pieces else {
            return Err(Error::Invalid("pinned memory is missing".into()));
        };
        let from = Row::new(vec![&source.memory.bytes_mut()[..length]]);
        let mut to = RowMut::new(vec![&mut target.memory.bytes_mut()[..result]]);
        match kind {
            CollectiveKind::Allgather => {
                collective::allgather(self.group, (&from, &mut to), &cuts)?;
            }
            CollectiveKind::Alltoall { .. } => {
                let all =
                    work.shares.iter().map(|share| share.iter().map(bytes).collect()).collect();
                collective::alltoall(self.group, (&from, &mut to), &Parts { all })?;
            }
            CollectiveKind::Reducescatter { op, prescale, postscale } => {
                let (prescale, postscale) = (*prescale, *postscale);
                let reduction = Reduction { dtype: *dtype, op: *op, prescale, postscale };
                let cuts = run::even_cuts(shape[0], size, unit);
                collective::reducescatter(self.group, (&from, &mut to), &reduction, &cuts)?;
            }
            _ => {}
        }
        let output: &Output<DeviceMemory> = results.place(self.gpu, (rows, result), allocate)?;
        target.memory.send(0, (output, 0), result)?;
        target.free = Some(self.gpu.mark()?);
        Ok(())
    }
}

/// Pinned memory, from the arena if there is one.
fn pin(
    gpu: &Arc<Gpu>,
    arena: Option<&Arc<Arena>>,
    length: usize,
) -> Result<PinnedBuffer, DeviceError> {
    let block = arena.and_then(|arena| arena.allocate(length + PAGE));
    let shared = block.and_then(|block| PinnedBuffer::of(gpu, Box::new(block), length).ok());
    shared.map_or_else(|| PinnedBuffer::new(gpu, length), Ok)
}

/// Cuts a bucket into pieces; the same on all ranks.
fn pieces(spans: &[BucketSpan<'_>], cutting: Cutting) -> Vec<Range<usize>> {
    let all: usize = spans.iter().map(BucketSpan::length).sum();
    let step = match cutting {
        Cutting::Anywhere => PIECE,
        Cutting::Nowhere => all.max(1),
    };
    (0..all).step_by(step).map(|start| start..all.min(start + step)).collect()
}

/// The parts of tensors in a piece: the tensor, the range in it, and where it is in the piece.
fn parts<'a, 'b>(
    spans: &'b [BucketSpan<'a>],
    cut: &Range<usize>,
) -> impl Iterator<Item = (&'b BucketSpan<'a>, Range<usize>, usize)> {
    let cut = cut.clone();
    let starts = spans.iter().scan(0, |at, span| {
        let start = *at;
        *at += span.length();
        Some((span, start))
    });
    starts.filter_map(move |(span, start)| {
        let from = cut.start.max(start);
        let to = cut.end.min(start + span.length());
        (from < to).then(|| (span, from - start..to - start, from - cut.start))
    })
}

/// A piece in host memory as an algorithm sees it: in place, with the boundaries of its tensors if
/// they matter.
fn operands<'m>(
    spans: &[BucketSpan<'_>],
    (cut, cutting): (&Range<usize>, Cutting),
    memory: &'m mut [u8],
) -> Operands<'m> {
    if let Cutting::Anywhere = cutting {
        return Operands::new([(None, memory)]);
    }
    let (mut pairs, mut rest) = (Vec::new(), memory);
    for (_, within, _) in parts(spans, cut) {
        let (part, remaining) = rest.split_at_mut(within.len());
        pairs.push((None, part));
        rest = remaining;
    }
    Operands::new(pairs)
}
