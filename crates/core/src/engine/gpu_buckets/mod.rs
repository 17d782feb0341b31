//! Runs released buckets whose tensors are on GPUs.
//!
//! With NCCL (`nccl_call`), a bucket is one call on our stream, behind the events of its tensors,
//! which are packed into one if there are several; its tickets complete when it is launched.
//! Without (`host`), the tensors are copied to pinned host memory, reduced by the algorithms for host
//! memory, and copied back, piece by piece, so that copies in both directions and the reduction
//! overlap. How a process set reduces is decided when it is first used (`path`), and how much is
//! underway on the GPU decides when the next bucket is released (`launched`).

mod host;
mod launched;
mod nccl_call;
mod pack;
mod path;
mod results;
mod spans;

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ronde_control::negotiate::{CollectiveKind, ReleasedTensor, Request};
use ronde_control::{DeviceKind, SetId};

use self::host::HostStaging;
use self::launched::LaunchedBuckets;
pub(super) use self::launched::{DoneBucket, LaunchedBucket};
use self::nccl_call::NcclCall;
use super::gpu_tensors::GpuTensors;
use super::progress::InFlight;
use super::run::{self, BucketOutcome};
use super::ticket::Tensors;
use crate::device::{Communicator, DeviceBuffer, DeviceError, Event, Gpu, NcclReduction};
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
    /// Communicators that come to their end in order.
    ending: Vec<JoinHandle<()>>,
}

/// How a process set reduces.
enum SetPath {
    Nccl(Communicator),
    Host,
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

    /// Forgets a process set that was removed; what it has launched comes to its end.
    pub(super) fn remove(&mut self, set: SetId) {
        self.ending.retain(|thread| !thread.is_finished());
        self.ending.extend(self.sets.remove(&set).and_then(finish));
    }

    /// Ends everything on the GPU: in order, or because the world is broken. Afterwards nothing of
    /// ours touches the memory of tensors.
    pub(super) fn end(&mut self, is_orderly: bool) {
        let until = Instant::now() + PATIENCE;
        if is_orderly {
            self.ending.extend(self.sets.drain().filter_map(|(_, path)| finish(path)));
            while !self.ending.iter().all(JoinHandle::is_finished) && Instant::now() < until {
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

impl From<DeviceError> for Error {
    fn from(DeviceError(text): DeviceError) -> Error {
        Error::Device(text)
    }
}
