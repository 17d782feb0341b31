//! What is written down about the way of tensors: the flight recorder and the counts, under one lock.
//! The driver writes, whoever looks takes a copy.

use std::time::Duration;

use ronde_control::negotiate::{Request, Work};

use super::first_line;
use super::metrics::Counts;
use super::record::{RecordId, Recorder};
use crate::error::Error;

/// What is written down about the way of tensors.
pub(crate) struct Ledger {
    pub(super) recorder: Recorder,
    pub(super) counts: Counts,
    buckets: u64,
    /// Whether tensors have failed because the world has ended.
    pub(super) is_broken: bool,
}

/// How a bucket travels, and since when.
pub(crate) struct Leg {
    pub(crate) ranks: usize,
    /// `SHM`, `TCP` or `SHM_TCP`, for shared memory, sockets, or both.
    pub(crate) way: &'static str,
    pub(crate) released: Duration,
    pub(crate) started: Duration,
}

/// A bucket that is on its way.
pub(crate) struct Passage {
    /// The first of the records that were made for a rank that has joined.
    absent: Option<RecordId>,
    bytes: u64,
    started: Duration,
    /// The name of the algorithm, once it has been chosen.
    pub(crate) algorithm: &'static str,
}

impl Ledger {
    pub(super) fn new(records: usize) -> Ledger {
        let recorder = Recorder::new(records);
        Ledger { recorder, counts: Counts::new(), buckets: 0, is_broken: false }
    }

    /// A tensor was submitted.
    pub(crate) fn queue(&mut self, request: &Request, at: Duration) -> RecordId {
        self.recorder.queue(request, at)
    }

    /// Somebody is late.
    pub(crate) fn count_stall(&mut self) {
        self.counts.stalls += 1;
    }

    /// A tensor has failed because the world has ended.
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
        bucket: &[Work],
        records: impl Iterator<Item = Option<RecordId>>,
        leg: &Leg,
    ) -> Passage {
        self.buckets += 1;
        let mut passage = Passage { absent: None, bytes: 0, started: leg.started, algorithm: "" };
        for (work, record) in bucket.iter().zip(records) {
            let id = record.unwrap_or_else(|| {
                let id = self.recorder.queue(&work.request, leg.released);
                passage.absent.get_or_insert(id);
                id
            });
            passage.bytes += work.request.bytes();
            let Some(record) = self.recorder.find(id) else { continue };
            record.ranks = leg.ranks as u32;
            record.bucket = self.buckets;
            record.way = leg.way;
            record.released = leg.released;
            record.started = leg.started;
            self.counts.queued(leg.released.saturating_sub(record.queued));
        }
        passage
    }

    pub(super) fn finish(
        &mut self,
        (bucket, records): (&[Work], impl Iterator<Item = Option<RecordId>>),
        passage: &Passage,
        error: Option<&Error>,
        at: Duration,
    ) {
        let mut absent = passage.absent;
        for record in records {
            let Some(id) = record.or(absent) else { continue };
            if record.is_none() {
                absent = Some(id.next());
            }
            match error {
                Some(error) => self.fail(id, error, at),
                None => self.settle(id, None, at),
            }
            if let Some(record) = self.recorder.find(id) {
                record.algorithm = passage.algorithm;
            }
        }
        if error.is_some() {
            return;
        }
        let (kind, took) = (&bucket[0].request.kind, at.saturating_sub(passage.started));
        self.counts.ran(kind, bucket.len(), passage.bytes, took);
    }
}
