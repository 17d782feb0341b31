//! Buckets that are launched and not known to be done: how many there are decides when the next one
//! is released, and their times on the GPU go to the observers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ronde_control::negotiate::ReleasedTensor;

use super::wait_until;
use crate::device::{DeviceError, Event, Gpu, GpuClock};
use crate::error::Error;
use crate::transport::waiter::Waiter;
use crate::watch::{BucketTrace, RecordId};

/// Launched buckets at a time: while the GPU works on one, the next one waits behind it, and what
/// becomes ready meanwhile forms the one after that.
const DEPTH: usize = 2;
/// Launched buckets, at most. Behind many more, launching another one would block.
const MOST: usize = 128;

/// A bucket on its way on the GPU.
pub(in crate::engine) struct LaunchedBucket {
    pub(in crate::engine) bucket: Vec<ReleasedTensor>,
    pub(in crate::engine) records: Vec<Option<RecordId>>,
    pub(in crate::engine) trace: BucketTrace,
    pub(in crate::engine) done: Arc<Event>,
    /// Behind what it waited for.
    started: Option<Event>,
}

/// A bucket that the GPU is done with.
pub(in crate::engine) struct DoneBucket {
    pub(in crate::engine) launched: LaunchedBucket,
    /// When it started and ended, by the host's clock.
    pub(in crate::engine) times: (Duration, Duration),
}

/// Launched buckets, oldest first.
#[derive(Default)]
pub(super) struct LaunchedBuckets {
    queue: VecDeque<LaunchedBucket>,
    clock: Option<GpuClock>,
    /// The start of the bucket that is being launched.
    started: Option<Event>,
}

impl LaunchedBuckets {
    /// Notes that what is enqueued from now on belongs to the next bucket.
    pub(super) fn start(&mut self, gpu: &Arc<Gpu>, waiter: &Waiter) -> Result<(), Error> {
        if self.queue.len() >= MOST
            && let Some(oldest) = self.queue.get(self.queue.len() - MOST)
        {
            let oldest = oldest.done.clone();
            wait_until(waiter, || oldest.is_done())?;
        }
        self.started = Some(gpu.mark()?);
        Ok(())
    }

    pub(super) fn push(
        &mut self,
        bucket: Vec<ReleasedTensor>,
        records: Vec<Option<RecordId>>,
        (trace, done): (BucketTrace, Arc<Event>),
    ) {
        let started = self.started.take();
        self.queue.push_back(LaunchedBucket { bucket, records, trace, done, started });
    }

    /// Whether the GPU has enough to do.
    pub(super) fn are_enough(&self) -> bool {
        self.queue.len() >= DEPTH
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes the buckets that are done.
    pub(super) fn take_done(
        &mut self,
        now: impl Fn() -> Duration + Copy,
    ) -> Result<Vec<DoneBucket>, DeviceError> {
        let mut done = Vec::new();
        while let Some(launched) = self.queue.front() {
            if !launched.done.is_done()? {
                break;
            }
            let launched = self.queue.pop_front().expect("it was there");
            let times = self.times(&launched, now)?;
            done.push(DoneBucket { launched, times });
        }
        Ok(done)
    }

    /// Forgets all of them: their world has ended.
    pub(super) fn abandon(&mut self) -> impl Iterator<Item = LaunchedBucket> {
        self.queue.drain(..)
    }

    /// When a bucket started and ended: not before it was launched, and not in the future.
    fn times(
        &mut self,
        launched: &LaunchedBucket,
        now: impl Fn() -> Duration + Copy,
    ) -> Result<(Duration, Duration), DeviceError> {
        let (first, last) = (launched.trace.started(), now());
        if self.clock.as_ref().is_none_or(|clock| clock.is_stale(last))
            && let Some(clock) = GpuClock::set(launched.done.gpu(), now)?
        {
            self.clock = Some(clock);
        }
        let (Some(clock), Some(started)) = (&self.clock, &launched.started) else {
            return Ok((first, last));
        };
        let ended = clock.time_of(&launched.done)?.clamp(first, last.max(first));
        Ok((clock.time_of(started)?.clamp(first, ended), ended))
    }
}
