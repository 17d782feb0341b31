//! What others can see of a rank: the timeline, the flight recorder and the metrics.
//!
//! Whoever drives the engine tells here what happens. Telling never waits: times are the caller's,
//! the recorder is memory, the timeline's events go into a bounded channel, and everything slow is
//! done by threads of this room. It decides nothing, and nothing here changes what the engine does.

mod dump;
mod ledger;
mod metrics;
mod post;
mod record;
mod report;
mod signal;
mod timeline;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ronde_control::Rank;
use ronde_control::negotiate::{Notice, Request, Work};
use ronde_control::settings::{Keeper, Place};
use ronde_control::watching::{Cycles, DumpTo, MetricsAt, TimelineWish, Watching};

use self::ledger::Ledger;
pub(crate) use self::ledger::{Leg, Passage};
pub(crate) use self::metrics::Reading;
pub(crate) use self::metrics::http::Server;
use self::post::Post;
pub(crate) use self::post::Readings;
pub(crate) use self::record::RecordId;
use self::timeline::{Event, Shape, Timeline};
use crate::error::Error;

/// The watch over one rank in one world.
pub(crate) struct Watch {
    who: Who,
    origin: Instant,
    ledger: Mutex<Ledger>,
    timeline: Timeline,
    wish: Option<TimelineWish>,
    dump: DumpTo,
    /// Losing a rank is part of an elastic job, and not worth a file that nobody has asked for.
    forgives_losses: bool,
    metrics: Option<MetricsAt>,
    post: Mutex<Option<Post>>,
}

/// Who is watched.
struct Who {
    rank: Rank,
    size: u32,
    host: String,
    pid: u32,
}

impl Watch {
    pub(crate) fn new(watching: &Watching, place: &Place) -> Watch {
        let Watching { timeline, records, dump, metrics } = watching.clone();
        let dump = match dump {
            // The program may change its directory before anything goes wrong.
            DumpTo::Directory(path) => {
                DumpTo::Directory(std::path::absolute(&path).unwrap_or(path))
            }
            other => other,
        };
        let (rank, size, host) = (place.rank, place.size, place.host.clone());
        let keeper = place.meeting.as_ref().map(|meeting| meeting.keeper);
        let forgives_losses =
            matches!(keeper, Some(Keeper::Elastic(_))) && dump == DumpTo::Temporary;
        Watch {
            who: Who { rank, size, host, pid: std::process::id() },
            origin: Instant::now(),
            ledger: Mutex::new(Ledger::new(records)),
            timeline: Timeline::default(),
            wish: timeline,
            dump,
            forgives_losses,
            metrics,
            post: Mutex::new(None),
        }
    }

    /// Whether the user has asked for anything, and did not only leave the defaults.
    pub(crate) fn is_wanted(watching: &Watching) -> bool {
        let Watching { timeline, dump, metrics, .. } = watching;
        timeline.is_some() || metrics.is_some() || *dump != DumpTo::Temporary
    }

    /// Opens the place where metrics can be read, if the user asked for one.
    pub(crate) fn open(&self, place: &Place) -> Result<Option<Server>, Error> {
        self.metrics.as_ref().map(|at| Server::open(at, place)).transpose()
    }

    /// Starts the lookout if there is anything for it to do; `readings` are numbers that other rooms
    /// count.
    pub(crate) fn start(
        self: &Arc<Watch>,
        server: Option<Server>,
        readings: Readings,
    ) -> Result<(), Error> {
        let records = !self.ledger().recorder.is_off() && self.dump != DumpTo::Nowhere;
        let signal = if records { signal::Bell::of_process() } else { None };
        if records || server.is_some() {
            let post = Post::start(self.clone(), server, signal, readings)?;
            *self.post.lock().expect(LOCK) = Some(post);
        }
        Ok(())
    }

    /// Starts the timeline that was asked for by a setting, on the rank that writes it.
    pub(crate) fn start_wished_timeline(&self) -> Result<(), Error> {
        match &self.wish {
            Some(TimelineWish { path: Some(path), cycles }) => self.start_timeline(path, *cycles),
            _ => Ok(()),
        }
    }

    /// Starts a timeline; all ranks may ask for it, and rank 0 writes it.
    pub(crate) fn start_timeline(&self, path: &Path, cycles: Cycles) -> Result<(), Error> {
        self.check_wish()?;
        if self.who.rank != Rank(0) {
            return Ok(());
        }
        self.timeline.start(path, cycles, self.now()).map_err(|error| {
            let path = path.display();
            Error::Invalid(format!("the timeline `{path}` could not be started: {error}"))
        })
    }

    /// Ends the timeline; everything until now is in the file then.
    pub(crate) fn stop_timeline(&self) -> Result<(), Error> {
        self.check_wish()?;
        if !self.timeline.stop() && self.who.rank == Rank(0) {
            tracing::info!("there is no timeline to stop");
        }
        Ok(())
    }

    fn check_wish(&self) -> Result<(), Error> {
        match self.wish {
            Some(_) => Ok(()),
            None => Err(Error::Invalid(
                "Set HOROVOD_TIMELINE=DYNAMIC to enable dynamic timeline usage.".into(),
            )),
        }
    }

    /// Ends the threads of this room.
    pub(crate) fn end(&self) {
        self.timeline.stop();
        let post = self.post.lock().expect(LOCK).take();
        if let Some(post) = post {
            post.end();
        }
    }

    /// The time since this rank's world began.
    pub(crate) fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Whether somebody looks at a timeline.
    pub(crate) fn shows(&self) -> bool {
        self.timeline.is_on()
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect(LOCK)
    }

    /// Tells the timeline what the coordinator saw; `is_mine` says which sets this rank belongs to.
    pub(crate) fn noticed(&self, notices: Vec<Notice>, is_mine: impl Fn(&Notice) -> bool) {
        for notice in notices {
            let elsewhere = !is_mine(&notice);
            match notice {
                Notice::Announced { name, kind, rank, at } => {
                    self.timeline.send(Event::Announced { name, kind, rank: rank.0, at });
                }
                Notice::Ready { name, at, .. } => {
                    self.timeline.send(Event::Ready { name: name.clone(), at });
                    if elsewhere {
                        let result = Shape::Elsewhere;
                        self.timeline.send(Event::Finished { name, at, result });
                    }
                }
            }
        }
    }

    /// A bucket sets out. A rank that has joined has no record of what it never submitted.
    pub(crate) fn bucket_starts(
        &self,
        bucket: &[Work],
        records: impl Iterator<Item = Option<RecordId>>,
        leg: &Leg,
    ) -> Passage {
        if self.shows() {
            if self.timeline.marks_cycles() {
                self.timeline.send(Event::Cycle { at: leg.started });
            }
            for Work { request, .. } in bucket {
                let (name, kind) = (request.name.clone(), request.kind.name());
                let activity = format!("{}_{kind}", leg.way);
                self.timeline.send(Event::Started { name, kind, activity, at: leg.started });
            }
        }
        self.ledger().start(bucket, records, leg)
    }

    /// A bucket has arrived, or has failed.
    pub(crate) fn bucket_ends(
        &self,
        (bucket, records): (&[Work], impl Iterator<Item = Option<RecordId>>),
        passage: &Passage,
        error: Option<&Error>,
        at: Duration,
    ) {
        self.ledger().finish((bucket, records), passage, error, at);
        if self.shows() {
            for Work { request, .. } in bucket {
                self.show_end(&request.name, shape_of(request, error), at);
            }
        }
    }

    /// A tensor that never travelled is done, or has failed.
    pub(crate) fn settled(&self, record: RecordId, name: &str, error: Option<&Error>) {
        let at = self.now();
        self.ledger().settle(record, error, at);
        if self.shows() {
            let result = match error {
                Some(error) => Shape::Failed(first_line(error)),
                None => Shape::Elsewhere,
            };
            self.show_end(name, result, at);
        }
    }

    fn show_end(&self, name: &str, result: Shape, at: Duration) {
        self.timeline.send(Event::Finished { name: name.into(), at, result });
    }

    /// The world has ended with this error: the flight recorder is written down if it has hurt this
    /// rank, or if this rank may be the one that the others waited for.
    pub(crate) fn world_ends(&self, error: &Error) {
        let is_told = match error {
            Error::Shutdown => false,
            Error::Stalled { .. } => true,
            Error::Lost { .. } | Error::Left { .. } if self.forgives_losses => false,
            _ => self.ledger().is_broken,
        };
        if is_told {
            self.order(first_line(error));
        }
    }

    /// Has the flight recorder written down, by somebody else.
    pub(crate) fn order(&self, reason: String) {
        if let Some(post) = &*self.post.lock().expect(LOCK) {
            post.order(reason);
        }
    }

    /// Writes the flight recorder down, and says where.
    fn write_down(&self, reason: &str) {
        let recorder = self.ledger().recorder.clone();
        if recorder.is_off() {
            return;
        }
        let text = dump::text(&recorder, &self.who, reason, self.now());
        match dump::write(&self.dump, &self.who, &text) {
            Ok(Some(path)) => tracing::warn!(
                "what {} did last is written to `{}` ({reason})",
                self.who.rank,
                path.display()
            ),
            Ok(None) => {}
            Err(error) => tracing::warn!("the flight recorder could not be written: {error}"),
        }
    }

    fn metrics_text(&self, others: &[Reading]) -> String {
        let counts = self.ledger().counts.clone();
        let dropped = Reading {
            name: "ronde_timeline_dropped_events_total",
            help: "Events that the timeline lacks.",
            value: self.timeline.dropped(),
        };
        let mut text = counts.text(&self.who, others);
        text += &dropped.text();
        text
    }
}

fn shape_of(request: &Request, error: Option<&Error>) -> Shape {
    if let Some(error) = error {
        return Shape::Failed(first_line(error));
    }
    let list = |shape: &Vec<u64>| {
        let dimensions: Vec<String> = shape.iter().map(u64::to_string).collect();
        format!("[{}]", dimensions.join(", "))
    };
    let shapes: Vec<String> = request.shapes.iter().map(list).collect();
    Shape::Of(request.dtype.into(), shapes.join(", "))
}

fn first_line(error: &Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

const LOCK: &str = "nothing panics while it holds this lock";
