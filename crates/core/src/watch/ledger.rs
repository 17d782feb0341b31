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
    /// The bucket that all ranks work on.
    underway: Option<Underway>,
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

/// When the bucket that all ranks work on began, and what is in it.
#[derive(Clone, Copy)]
struct Underway {
    since: Duration,
    first: Option<RecordId>,
    tensors: usize,
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
        Ledger { recorder, counts: Counts::new(), buckets: 0, underway: None, is_broken: false }
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
        let mut first = None;
        for (work, record) in bucket.iter().zip(records) {
            let id = record.unwrap_or_else(|| {
                let id = self.recorder.queue(&work.request, leg.released);
                passage.absent.get_or_insert(id);
                id
            });
            first.get_or_insert(id);
            passage.bytes += work.request.bytes();
            let Some(record) = self.recorder.find(id) else { continue };
            record.ranks = leg.ranks as u32;
            record.bucket = self.buckets;
            record.way = leg.way;
            record.released = leg.released;
            record.started = leg.started;
            self.counts.queued(leg.released.saturating_sub(record.queued));
        }
        let (since, tensors) = (leg.started, bucket.len());
        self.underway = Some(Underway { since, first, tensors });
        passage
    }

    /// What all ranks work on: for how long, and in words.
    pub(super) fn underway(&self, now: Duration) -> Option<(Duration, String)> {
        let Underway { since, first, tensors } = self.underway?;
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

    /// How long the oldest of what waits has waited, if anything does.
    pub(super) fn longest_wait(&self, now: Duration) -> Option<Duration> {
        let open = self.recorder.records().find(|record| record.finished.is_zero());
        let since = open.map(|record| record.queued).or(self.underway.map(|one| one.since))?;
        Some(now.saturating_sub(since))
    }

    pub(super) fn finish(
        &mut self,
        (bucket, records): (&[Work], impl Iterator<Item = Option<RecordId>>),
        passage: &Passage,
        error: Option<&Error>,
        at: Duration,
    ) {
        self.underway = None;
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
