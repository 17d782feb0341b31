//! What others can observe of a rank: the timeline, the flight recorder and the metrics.
//!
//! The thread that drives the engine reports what happens. Reporting never blocks: the caller
//! passes the time, the recorder is memory, the timeline's events go into a bounded channel, and
//! threads of this module do everything slow. This module decides nothing, and nothing here changes
//! what the engine does.

mod dump;
mod metrics;
mod observer;
mod record;
mod report;
mod signal;
mod state;
mod timeline;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ronde_control::negotiate::{JournalEntry, ReleasedTensor, Request};
use ronde_control::settings::{RankInfo, RendezvousOwner};
use ronde_control::watching::{Cycles, DumpTo, MetricsAt, TimelineRequest, Watching};
use ronde_control::{DeviceKind, Rank};

pub(crate) use self::metrics::Reading;
pub(crate) use self::metrics::http::MetricsServer;
pub(crate) use self::observer::Readings;
use self::observer::{NoteTime, ObserverHandle};
pub(crate) use self::record::RecordId;
use self::state::WatchState;
pub(crate) use self::state::{BucketTrace, Transfer};
use self::timeline::{ResultShape, Timeline, TraceEvent};
use crate::error::Error;

/// Observes one rank in one world.
pub(crate) struct Watch {
    who: RankIdentity,
    origin: Instant,
    watch_state: Mutex<WatchState>,
    timeline: Timeline,
    requested: Option<TimelineRequest>,
    dump: DumpTo,
    /// Whether losing a rank causes no dump: it is normal in an elastic job, and not worth a file
    /// that the user has not asked for.
    forgives_losses: bool,
    metrics: Option<MetricsAt>,
    observer: Mutex<Option<ObserverHandle>>,
}

/// Identity of the observed rank.
struct RankIdentity {
    rank: Rank,
    size: u32,
    host: String,
    pid: u32,
}

impl Watch {
    pub(crate) fn new(watching: &Watching, place: &RankInfo) -> Watch {
        let Watching { timeline, records, dump, metrics } = watching.clone();
        let dump = match dump {
            // The program may change its directory before anything goes wrong.
            DumpTo::Directory(path) => {
                DumpTo::Directory(std::path::absolute(&path).unwrap_or(path))
            }
            other => other,
        };
        let (rank, size, host) = (place.rank, place.size, place.host.clone());
        let keeper = place.rendezvous_info.as_ref().map(|rendezvous_info| rendezvous_info.keeper);
        let forgives_losses =
            matches!(keeper, Some(RendezvousOwner::Elastic(_))) && dump == DumpTo::Temporary;
        Watch {
            who: RankIdentity { rank, size, host, pid: std::process::id() },
            origin: Instant::now(),
            watch_state: Mutex::new(WatchState::new(records)),
            timeline: Timeline::default(),
            requested: timeline,
            dump,
            forgives_losses,
            metrics,
            observer: Mutex::new(None),
        }
    }

    /// Whether the user has asked for more than the defaults.
    pub(crate) fn is_wanted(watching: &Watching) -> bool {
        let Watching { timeline, dump, metrics, .. } = watching;
        timeline.is_some() || metrics.is_some() || *dump != DumpTo::Temporary
    }

    /// Opens the metrics server, if the user asked for one.
    pub(crate) fn open(&self, place: &RankInfo) -> Result<Option<MetricsServer>, Error> {
        self.metrics.as_ref().map(|at| MetricsServer::open(at, place)).transpose()
    }

    /// Starts the observer if there is anything for it to do; `readings` are numbers counted by
    /// other modules.
    pub(crate) fn start(
        self: &Arc<Watch>,
        server: Option<MetricsServer>,
        readings: Readings,
    ) -> Result<(), Error> {
        let records = !self.watch_state().recorder.is_off() && self.dump != DumpTo::Nowhere;
        let signal = if records { signal::DumpSignal::of_process() } else { None };
        if records || server.is_some() {
            let observer = ObserverHandle::start(self.clone(), server, signal, readings)?;
            *self.observer.lock().expect(LOCK) = Some(observer);
        }
        Ok(())
    }

    /// Starts the timeline requested by a setting, on the rank that writes it.
    pub(crate) fn start_wished_timeline(&self) -> Result<(), Error> {
        match &self.requested {
            Some(TimelineRequest { path: Some(path), cycles }) => {
                self.start_timeline(path, *cycles)
            }
            _ => Ok(()),
        }
    }

    /// Starts a timeline; all ranks may request it, and rank 0 writes it.
    pub(crate) fn start_timeline(&self, path: &Path, cycles: Cycles) -> Result<(), Error> {
        self.check_timeline_enabled()?;
        if self.who.rank != Rank(0) {
            return Ok(());
        }
        self.timeline.start(path, cycles, self.now()).map_err(|error| {
            let path = path.display();
            Error::Invalid(format!("the timeline `{path}` could not be started: {error}"))
        })
    }

    /// Ends the timeline, once everything up to now is in the file.
    pub(crate) fn stop_timeline(&self) -> Result<(), Error> {
        self.check_timeline_enabled()?;
        if !self.timeline.stop() && self.who.rank == Rank(0) {
            tracing::info!("there is no timeline to stop");
        }
        Ok(())
    }

    fn check_timeline_enabled(&self) -> Result<(), Error> {
        match self.requested {
            Some(_) => Ok(()),
            None => Err(Error::Invalid(
                "Set HOROVOD_TIMELINE=DYNAMIC to enable dynamic timeline usage.".into(),
            )),
        }
    }

    /// Ends the threads of this module.
    pub(crate) fn end(&self) {
        self.timeline.stop();
        let observer = self.observer.lock().expect(LOCK).take();
        if let Some(observer) = observer {
            observer.end();
        }
    }

    /// The time since this rank's world began.
    pub(crate) fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Whether a timeline is being written.
    pub(crate) fn shows(&self) -> bool {
        self.timeline.is_on()
    }

    pub(crate) fn watch_state(&self) -> MutexGuard<'_, WatchState> {
        self.watch_state.lock().expect(LOCK)
    }

    /// Passes the coordinator's observations to the timeline; `is_mine` tells which process sets
    /// this rank belongs to.
    pub(crate) fn noticed(
        &self,
        notices: Vec<JournalEntry>,
        is_mine: impl Fn(&JournalEntry) -> bool,
    ) {
        for notice in notices {
            let foreign = !is_mine(&notice);
            match notice {
                JournalEntry::Announced { name, kind, rank, at } => {
                    self.timeline.send(TraceEvent::Announced { name, kind, rank: rank.0, at });
                }
                JournalEntry::Ready { name, at, .. } => {
                    self.timeline.send(TraceEvent::Ready { name: name.clone(), at });
                    if foreign {
                        let result = ResultShape::Elsewhere;
                        self.timeline.send(TraceEvent::Finished { name, at, result });
                    }
                }
            }
        }
    }

    /// A bucket starts. A joined rank has no record of tensors it never submitted.
    pub(crate) fn bucket_starts(
        &self,
        bucket: &[ReleasedTensor],
        records: &[Option<RecordId>],
        transfer: &Transfer,
    ) -> BucketTrace {
        if self.shows() {
            if self.timeline.marks_cycles() {
                self.timeline.send(TraceEvent::Cycle { at: transfer.started });
            }
            for ReleasedTensor { request, .. } in bucket {
                let (name, kind) = (request.name.clone(), request.kind.name());
                let activity = match request.device {
                    DeviceKind::Cpu => format!("{}_{kind}", transfer.transport),
                    DeviceKind::Gpu => "LAUNCH".into(),
                };
                let at = transfer.started;
                self.timeline.send(TraceEvent::Started { name, kind, activity, at });
            }
        }
        self.watch_state().start(bucket, records, transfer)
    }

    /// A bucket has completed, or has failed.
    pub(crate) fn bucket_ends(
        &self,
        (bucket, records): (&[ReleasedTensor], &[Option<RecordId>]),
        bucket_trace: &BucketTrace,
        error: Option<&Error>,
        at: Duration,
    ) {
        self.watch_state().finish((bucket, records), bucket_trace, error, at);
        self.show_ends(bucket, error, at);
    }

    /// A bucket is on its way on the GPU; `launched_ends` follows.
    pub(crate) fn bucket_launched(&self, bucket: &[ReleasedTensor], at: Duration) {
        self.show_ends(bucket, None, at);
    }

    /// The GPU is done with a bucket, or will never be.
    pub(crate) fn launched_ends(
        &self,
        (bucket, records): (&[ReleasedTensor], &[Option<RecordId>]),
        bucket_trace: &BucketTrace,
        error: Option<&Error>,
        ended: Duration,
    ) {
        self.watch_state().finish((bucket, records), bucket_trace, error, ended);
        if self.shows() && error.is_none() {
            let request = &bucket[0].request;
            let activity = format!("{}_{}", bucket_trace.transport, request.kind.name());
            let what = (request.name.clone(), bucket.len(), bucket_trace.bytes());
            let started = bucket_trace.started();
            self.timeline.send(TraceEvent::OnGpu { activity, what, started, ended });
        }
    }

    fn show_ends(&self, bucket: &[ReleasedTensor], error: Option<&Error>, at: Duration) {
        if self.shows() {
            for ReleasedTensor { request, .. } in bucket {
                self.show_end(&request.name, shape_of(request, error), at);
            }
        }
    }

    /// A tensor that was never in a bucket is done, or has failed.
    pub(crate) fn settled(&self, record: RecordId, name: &str, error: Option<&Error>) {
        let at = self.now();
        self.watch_state().settle(record, error, at);
        if self.shows() {
            let result = match error {
                Some(error) => ResultShape::Failed(first_line(error)),
                None => ResultShape::Elsewhere,
            };
            self.show_end(name, result, at);
        }
    }

    fn show_end(&self, name: &str, result: ResultShape, at: Duration) {
        self.timeline.send(TraceEvent::Finished { name: name.into(), at, result });
    }

    /// Called when the world has ended with this error: dumps the flight recorder if this rank was
    /// affected, or may be the one that the others waited for.
    pub(crate) fn world_ends(&self, error: &Error) {
        let dumps = match error {
            Error::Shutdown => false,
            Error::Stalled { .. } => true,
            Error::Lost { .. } | Error::Left { .. } if self.forgives_losses => false,
            _ => self.watch_state().is_broken,
        };
        if dumps {
            self.ask_for_dump(first_line(error), NoteTime::Later);
        }
    }

    /// Asks the observer to dump the flight recorder.
    pub(crate) fn order(&self, reason: String) {
        self.ask_for_dump(reason, NoteTime::Now);
    }

    fn ask_for_dump(&self, reason: String, note_time: NoteTime) {
        if let Some(observer) = &*self.observer.lock().expect(LOCK) {
            observer.order(reason, note_time);
        }
    }

    /// Dumps the flight recorder; returns the line that says where, or why it could not.
    fn write_down(&self, reason: &str) -> Option<String> {
        let recorder = self.watch_state().recorder.clone();
        if recorder.is_off() {
            return None;
        }
        let text = dump::text(&recorder, &self.who, reason, self.now());
        match dump::write(&self.dump, &self.who, &text) {
            Ok(Some(path)) => Some(format!(
                "wrote the flight recorder of {} to `{}` ({reason})",
                self.who.rank,
                path.display()
            )),
            Ok(None) => None,
            Err(error) => Some(format!("the flight recorder could not be written: {error}")),
        }
    }

    fn metrics_text(&self, others: &[Reading]) -> String {
        let counts = self.watch_state().counts.clone();
        let dropped = Reading {
            name: "ronde_timeline_dropped_events_total",
            help: "Events missing from the timeline.",
            value: self.timeline.dropped(),
        };
        let mut text = counts.text(&self.who, others);
        text += &dropped.text();
        text
    }
}

fn shape_of(request: &Request, error: Option<&Error>) -> ResultShape {
    if let Some(error) = error {
        return ResultShape::Failed(first_line(error));
    }
    let list = |shape: &Vec<u64>| {
        let dimensions: Vec<String> = shape.iter().map(u64::to_string).collect();
        format!("[{}]", dimensions.join(", "))
    };
    let shapes: Vec<String> = request.shapes.iter().map(list).collect();
    ResultShape::Of(request.dtype.into(), shapes.join(", "))
}

fn first_line(error: &Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

const LOCK: &str = "nothing panics while it holds this lock";
