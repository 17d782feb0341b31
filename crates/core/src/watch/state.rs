//! What is recorded about tensors: the flight recorder and the counters, under one lock. The thread
//! that drives the engine writes them, readers take a copy.

use std::time::Duration;

use ronde_control::negotiate::{ReleasedTensor, Request};

use super::first_line;
use super::metrics::Counts;
use super::record::{RecordId, Recorder};
use crate::error::Error;

/// The flight recorder and the counters.
pub(crate) struct WatchState {
    pub(super) recorder: Recorder,
    pub(super) counts: Counts,
    buckets: u64,
    /// The bucket that all ranks work on.
    underway: Option<CurrentBucket>,
    /// Whether tensors have failed because the world has ended.
    pub(super) is_broken: bool,
}

/// How a bucket travels, and since when.
pub(crate) struct Transfer {
    pub(crate) ranks: usize,
    /// `SHM`, `TCP` or `SHM_TCP`, for shared memory, sockets, or both.
    pub(crate) transport: &'static str,
    pub(crate) released: Duration,
    pub(crate) started: Duration,
}

/// The start and contents of the bucket that all ranks work on.
#[derive(Clone, Copy)]
struct CurrentBucket {
    number: u64,
    since: Duration,
    first: Option<RecordId>,
    tensors: usize,
}

/// A bucket in progress.
pub(crate) struct BucketTrace {
    number: u64,
    /// The first of the records created for a joined rank.
    absent: Option<RecordId>,
    bytes: u64,
    started: Duration,
    pub(super) transport: &'static str,
    /// The name of the algorithm, once it has been chosen.
    pub(crate) algorithm: &'static str,
}

impl BucketTrace {
    pub(crate) fn started(&self) -> Duration {
        self.started
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Corrects the start: a GPU starts later than its host.
    pub(crate) fn starts_on_gpu(&mut self, at: Duration) {
        self.started = at;
    }
}

impl WatchState {
    pub(super) fn new(records: usize) -> WatchState {
        let recorder = Recorder::new(records);
        WatchState { recorder, counts: Counts::new(), buckets: 0, underway: None, is_broken: false }
    }

    /// Records that a tensor was submitted.
    pub(crate) fn queue(&mut self, request: &Request, at: Duration) -> RecordId {
        self.recorder.queue(request, at)
    }

    /// Counts a report that a rank is late.
    pub(crate) fn count_stall(&mut self) {
        self.counts.stalls += 1;
    }

    /// Records that a tensor has failed because the world has ended.
    pub(crate) fn fail(&mut self, record: RecordId, error: &Error, at: Duration) {
        self.is_broken = true;
        self.settle(record, Some(error), at);
    }

    pub(super) fn settle(&mut self, record: RecordId, error: Option<&Error>, at: Duration) {
        self.counts.failed += u64::from(error.is_some());
        if let Some(record) = self.recorder.find(record) {
            record.finished = at;
            record.error = error.map(|error| first_line(error).into());
        }
    }

    pub(super) fn start(
        &mut self,
        bucket: &[ReleasedTensor],
        records: &[Option<RecordId>],
        transfer: &Transfer,
    ) -> BucketTrace {
        self.buckets += 1;
        let (number, absent, algorithm) = (self.buckets, None, "");
        let &Transfer { started, transport, .. } = transfer;
        let mut bucket_trace =
            BucketTrace { number, absent, bytes: 0, started, transport, algorithm };
        let mut first = None;
        for (work, record) in bucket.iter().zip(records) {
            let id = record.unwrap_or_else(|| {
                let id = self.recorder.queue(&work.request, transfer.released);
                bucket_trace.absent.get_or_insert(id);
                id
            });
            first.get_or_insert(id);
            bucket_trace.bytes += work.request.bytes();
            let Some(record) = self.recorder.find(id) else { continue };
            record.ranks = transfer.ranks as u32;
            record.bucket = self.buckets;
            record.transport = transfer.transport;
            record.released = transfer.released;
            record.started = transfer.started;
            self.counts.queued(transfer.released.saturating_sub(record.queued));
        }
        let (since, tensors) = (transfer.started, bucket.len());
        self.underway = Some(CurrentBucket { number, since, first, tensors });
        bucket_trace
    }

    /// The bucket that all ranks work on: for how long, and its description.
    pub(super) fn underway(&self, now: Duration) -> Option<(Duration, String)> {
        let CurrentBucket { since, first, tensors, .. } = self.underway?;
        let record = first.and_then(|first| self.recorder.records().find(|r| r.is(first)));
        let what = match record {
            Some(record) => format!("{} of `{}`", record.kind.to_ascii_lowercase(), record.name()),
            None => "a collective".into(),
        };
        let more = match tensors {
            0 | 1 => String::new(),
            tensors => format!(" and {} more tensors", tensors - 1),
        };
        Some((now.saturating_sub(since), what + &more))
    }

    /// How long the oldest outstanding tensor has been waiting, if there is one.
    pub(super) fn longest_wait(&self, now: Duration) -> Option<Duration> {
        let open = self.recorder.records().find(|record| record.finished.is_zero());
        let since = open.map(|record| record.queued).or(self.underway.map(|one| one.since))?;
        Some(now.saturating_sub(since))
    }

    pub(super) fn finish(
        &mut self,
        (bucket, records): (&[ReleasedTensor], &[Option<RecordId>]),
        bucket_trace: &BucketTrace,
        error: Option<&Error>,
        at: Duration,
    ) {
        // On a GPU, the next bucket may be underway already.
        self.underway.take_if(|current| current.number == bucket_trace.number);
        let mut absent = bucket_trace.absent;
        for record in records.iter().copied() {
            let Some(id) = record.or(absent) else { continue };
            if record.is_none() {
                absent = Some(id.next());
            }
            match error {
                Some(error) => self.fail(id, error, at),
                None => self.settle(id, None, at),
            }
            if let Some(record) = self.recorder.find(id) {
                record.algorithm = bucket_trace.algorithm;
                record.started = bucket_trace.started;
            }
        }
        if error.is_some() {
            return;
        }
        let (kind, took) = (&bucket[0].request.kind, at.saturating_sub(bucket_trace.started));
        self.counts.ran(kind, bucket.len(), bucket_trace.bytes, took);
    }
}
