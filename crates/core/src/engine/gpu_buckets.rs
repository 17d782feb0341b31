//! Runs released buckets whose tensors are on GPUs.
//!
//! With NCCL, a bucket is one call on our stream, behind the events of its tensors, which are packed
//! into one if there are several; its tickets complete when it is launched. Without, the tensors are copied to pinned host memory,
//! reduced by the algorithms for host memory, and copied back, piece by piece, so that copies in
//! both directions and the reduction overlap.

mod host;
mod launched;
mod pack;
mod path;
mod spans;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ronde_control::negotiate::{CollectiveKind, ReleasedTensor, Request};
use ronde_control::{DeviceKind, SetId};

use self::host::HostStaging;
use self::launched::LaunchedBuckets;
pub(super) use self::launched::{DoneBucket, LaunchedBucket};
use self::pack::PackedBucket;
use self::spans::{BucketSpan, spans};
use super::gpu_tensors::{AllocateOnGpu, GpuMemory, GpuTensors};
use super::progress::InFlight;
use super::run::{self, BucketOutcome};
use super::ticket::{Outcome, Tensors};
use crate::buffer::{DeviceMemory, Input, Output};
use crate::device::{Communicator, DeviceBuffer, DeviceError, Event, Gpu, NcclReduction, copy};
use crate::error::Error;
use crate::group::Groups;
use crate::reduce::Reduction;
use crate::transport::waiter::Waiter;
use crate::watch::{BucketTrace, RecordId};

/// How long a wait for the GPU may sleep before it looks again: nothing wakes it.
const LOOK_EVERY: Duration = Duration::from_micros(50);
/// How long it looks all the time before that: NCCL launches within this time.
const SPIN: Duration = Duration::from_micros(200);
/// How often to look which buckets are done: asking the driver takes about a microsecond.
const LOOK_AGAIN: Duration = Duration::from_micros(200);
/// How often NCCL is asked for errors while something is launched.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// How long an orderly end of NCCL, or our stream after an abort, may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// This rank's GPU and how each process set reduces on it.
#[derive(Default)]
pub(super) struct GpuBuckets {
    gpu: Option<Arc<Gpu>>,
    sets: HashMap<SetId, SetPath>,
    host: HostStaging,
    /// Memory for packed buckets. Our stream uses it for one after the other.
    memory: Option<DeviceBuffer>,
    launched: LaunchedBuckets,
    /// When the launched buckets were last looked at.
    looked: Option<Instant>,
    /// When NCCL was last asked for errors.
    asked: Option<Instant>,
    /// Whether a thread of this rank waits for results.
    is_awaited: bool,
    /// Whether it was said that NCCL cannot do everything.
    has_noted: bool,
}

/// How a process set reduces.
enum SetPath {
    Nccl(Communicator),
    Host,
}

/// The results of collectives whose sizes have just become known.
#[derive(Default)]
struct GpuResults {
    placed: Vec<(Output<DeviceMemory>, Vec<u64>)>,
    /// In place of memory that the caller could not allocate; dropped behind the collective.
    spare: Vec<DeviceBuffer>,
    refused: Option<String>,
}

impl GpuBuckets {
    /// Settles how the ranks of a bucket reduce; returns whether NCCL will run this one.
    pub(super) fn prepare(
        &mut self,
        groups: &mut Groups,
        waiter: &Waiter,
        (bucket, flights): (&[ReleasedTensor], &[Option<InFlight>]),
    ) -> Result<bool, Error> {
        if let Some(tensors) = flights.iter().flatten().find_map(on_gpu) {
            self.gpu.get_or_insert_with(|| tensors.gpu().clone());
        }
        let request = &bucket[0].request;
        self.settle_path(groups, waiter, request.set)?;
        let (me, size) = run::place(groups, request.set)?;
        let has_nccl = matches!(self.sets.get(&request.set), Some(SetPath::Nccl(_)));
        let can = nccl_can(request, size);
        if has_nccl && !can && me == 0 && !std::mem::replace(&mut self.has_noted, true) {
            tracing::warn!(
                "`{}` goes through host memory, because NCCL has no {} of {}; other GPU tensors do \
                 not",
                request.name,
                reduction_of(request).unwrap_or_default(),
                request.dtype
            );
        }
        Ok(has_nccl && can)
    }

    /// Runs a bucket that was prepared. A rank that has joined has nothing in flight, and takes
    /// part with zeros.
    pub(super) fn run(
        &mut self,
        groups: &mut Groups,
        waiter: &Waiter,
        bucket: &[ReleasedTensor],
        flights: &[Option<InFlight>],
    ) -> Result<BucketOutcome, Error> {
        let set = bucket[0].request.set;
        let Some(gpu) = self.gpu.clone() else {
            // A rank without a GPU: all members use host memory.
            return HostStaging::run_without_gpu(groups, bucket);
        };
        for tensors in flights.iter().flatten().filter_map(on_gpu) {
            gpu.wait_for(&tensors.ready)?;
        }
        self.launched.start(&gpu, waiter)?;
        let (me, size) = run::place(groups, set)?;
        match (self.sets.get_mut(&set), nccl_can(&bucket[0].request, size)) {
            (Some(SetPath::Nccl(communicator)), true) => {
                let root = run::root(groups, &bucket[0].request)?;
                let memory = &mut self.memory;
                let mut call = NcclCall { gpu: &gpu, communicator, memory, waiter, me, size };
                call.run(bucket, flights, root)
            }
            _ => self.host.run(&gpu, (groups, waiter), bucket, flights),
        }
    }

    /// Follows a bucket until the GPU is done with it.
    pub(super) fn follow(
        &mut self,
        bucket: Vec<ReleasedTensor>,
        records: Vec<Option<RecordId>>,
        what: (BucketTrace, Arc<Event>),
    ) {
        self.launched.push(bucket, records, what);
    }

    /// Takes the buckets that the GPU is done with; an error if one has failed there.
    pub(super) fn take_done(
        &mut self,
        now: impl Fn() -> Duration + Copy,
    ) -> Result<Vec<DoneBucket>, Error> {
        let is_early = self.looked.is_some_and(|at| at.elapsed() < LOOK_AGAIN);
        if self.launched.is_empty() || is_early {
            return Ok(Vec::new());
        }
        self.looked = Some(Instant::now());
        let done = self.launched.take_done(now)?;
        if self.asked.is_none_or(|at| at.elapsed() > ASK_EVERY) {
            self.asked = Some(Instant::now());
            for path in self.sets.values() {
                if let SetPath::Nccl(communicator) = path {
                    communicator.is_settled()?;
                }
            }
        }
        Ok(done)
    }

    /// Takes the buckets that the GPU will not finish.
    pub(super) fn abandon(&mut self) -> impl Iterator<Item = LaunchedBucket> {
        self.launched.abandon()
    }

    /// Whether a tensor should be released now: not while the GPU has enough to do, unless a thread
    /// waits and nothing is about to become ready that could travel with it.
    pub(super) fn takes(&self, request: &Request, is_gathering: bool) -> bool {
        let is_urgent = self.is_awaited && !is_gathering;
        request.device == DeviceKind::Cpu || is_urgent || !self.launched.are_enough()
    }

    /// Whether a thread of this rank waits for results from now on.
    pub(super) fn await_results(&mut self, yes: bool) {
        self.is_awaited = yes;
    }

    /// Forgets a process set that was removed.
    pub(super) fn remove(&mut self, set: SetId) {
        self.sets.remove(&set);
    }

    /// Ends everything on the GPU: in order, or because the world is broken. Afterwards nothing of
    /// ours touches the memory of tensors.
    pub(super) fn end(&mut self, is_orderly: bool) {
        let until = Instant::now() + PATIENCE;
        if is_orderly {
            let finished: Vec<_> = self.sets.drain().filter_map(|(_, path)| finish(path)).collect();
            while !finished.iter().all(JoinHandle::is_finished) && Instant::now() < until {
                std::thread::sleep(LOOK_EVERY);
            }
        }
        // Dropping a communicator aborts it, and that ends what it has running.
        self.sets.clear();
        if let Some(gpu) = &self.gpu {
            while gpu.is_idle() == Ok(false) && Instant::now() < until {
                std::thread::sleep(LOOK_EVERY);
            }
        }
    }
}

/// Has another thread end a communicator in order.
fn finish(path: SetPath) -> Option<JoinHandle<()>> {
    match path {
        SetPath::Nccl(communicator) => {
            let named = std::thread::Builder::new().name("ronde-nccl".into());
            named.spawn(move || communicator.finish()).ok()
        }
        SetPath::Host => None,
    }
}

fn on_gpu(flight: &InFlight) -> Option<&GpuTensors> {
    match &flight.pending.tensors {
        Tensors::OnGpu(tensors) => Some(tensors),
        _ => None,
    }
}

/// What a request reduces with, in words; none if it does not reduce.
fn reduction_of(request: &Request) -> Option<String> {
    match request.kind {
        CollectiveKind::Allreduce { op, prescale, postscale }
        | CollectiveKind::Reducescatter { op, prescale, postscale } => {
            let scaled = if prescale * postscale == 1.0 { "" } else { "scaled " };
            Some(format!("{scaled}{}", op.to_string().to_lowercase()))
        }
        _ => None,
    }
}

/// Whether NCCL can do what a request wants.
fn nccl_can(request: &Request, size: usize) -> bool {
    match request.kind {
        CollectiveKind::Allreduce { op, prescale, postscale }
        | CollectiveKind::Reducescatter { op, prescale, postscale } => {
            let reduction = Reduction { dtype: request.dtype, op, prescale, postscale };
            NcclReduction::of(&reduction, size).is_some()
        }
        _ => true,
    }
}

/// Waits until something on the GPU is true; ends when the world does.
fn wait_until(
    waiter: &Waiter,
    mut is_true: impl FnMut() -> Result<bool, DeviceError>,
) -> Result<(), Error> {
    let start = Instant::now();
    while start.elapsed() < SPIN {
        if is_true()? {
            return Ok(());
        }
        waiter.check()?;
        std::hint::spin_loop();
    }
    loop {
        let soon = Instant::now() + LOOK_EVERY;
        let look = || Ok(is_true()?.then_some(()));
        if waiter.until(&[], Some(soon), look)?.is_some() {
            return Ok(());
        }
        waiter.check()?;
    }
}

/// A bucket that NCCL runs.
struct NcclCall<'a> {
    gpu: &'a Arc<Gpu>,
    communicator: &'a mut Communicator,
    memory: &'a mut Option<DeviceBuffer>,
    waiter: &'a Waiter,
    me: usize,
    size: usize,
}

impl NcclCall<'_> {
    fn run(
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

impl GpuResults {
    /// Memory for the next result. If the caller cannot allocate it, the collective still runs, so
    /// that the other ranks do not wait.
    fn place(
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
        let output = buffer.output();
        self.spare.push(buffer);
        Ok(output)
    }

    fn outcome(self, done: Event) -> Result<Outcome, Error> {
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

impl From<DeviceError> for Error {
    fn from(DeviceError(text): DeviceError) -> Error {
        Error::Device(text)
    }
}
