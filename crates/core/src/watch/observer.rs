//! The observer: a thread that sleeps until there is a request. It dumps the flight recorder when
//! the engine or SIGUSR1 asks for it, and serves metrics, so that the thread driving the engine
//! never waits for the disk or for a reader.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{read, write};

use super::Watch;
use super::metrics::Reading;
use super::metrics::http::MetricsServer;
use super::signal::DumpSignal;
use crate::error::Error;

/// How long to wait for a disk or a reader when the observer ends.
const TIME_LIMIT: Duration = Duration::from_secs(3);
/// Maximum number of pending requests for a dump; further dumps would contain the same.
const MOST_REASONS: usize = 8;

/// How long to hold back a note about an error, so that the program can print its own report first.
const NOTE_DELAY: Duration = Duration::from_secs(30);

/// When to log where the flight recorder was dumped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NoteTime {
    Now,
    /// When the engine ends, or after [`NOTE_DELAY`]. An error has ended the world, and Python may
    /// be printing its traceback line by line: a note logged now could land in the middle.
    Later,
}

/// Numbers counted by other modules.
pub(crate) type Readings = Box<dyn Fn() -> Vec<Reading> + Send>;

pub(super) struct ObserverHandle {
    bell: Arc<OwnedFd>,
    requests: Arc<Mutex<ObserverRequests>>,
    /// Disconnected once the thread has ended.
    done: Receiver<()>,
}

#[derive(Default)]
struct ObserverRequests {
    reasons: Vec<(String, NoteTime)>,
    is_over: bool,
}

impl ObserverHandle {
    pub(super) fn start(
        watch: Arc<Watch>,
        server: Option<MetricsServer>,
        signal: Option<&'static DumpSignal>,
        readings: Readings,
    ) -> Result<ObserverHandle, Error> {
        let failed =
            |error: io::Error| Error::Setup(format!("the observer could not be started: {error}"));
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = Arc::new(bell.map_err(|error| failed(error.into()))?);
        let requests = Arc::new(Mutex::new(ObserverRequests::default()));
        let (finished, done) = sync_channel(0);
        let (their_bell, their_requests) = (bell.clone(), requests.clone());
        std::thread::Builder::new()
            .name("ronde-watch".into())
            .spawn(move || {
                let _finished: SyncSender<()> = finished;
                let observer =
                    Observer { bell: their_bell, requests: their_requests, server, signal };
                observer.run(&watch, &readings);
            })
            .map_err(failed)?;
        Ok(ObserverHandle { bell, requests, done })
    }

    /// Asks the thread to dump the flight recorder.
    pub(super) fn order(&self, reason: String, note_time: NoteTime) {
        let mut requests = self.requests.lock().expect(LOCK);
        if requests.reasons.len() < MOST_REASONS {
            requests.reasons.push((reason, note_time));
        }
        drop(requests);
        let _ = write(&*self.bell, &1u64.to_ne_bytes());
    }

    /// Ends the thread after it has handled all requests.
    pub(super) fn end(self) {
        self.requests.lock().expect(LOCK).is_over = true;
        let _ = write(&*self.bell, &1u64.to_ne_bytes());
        if self.done.recv_timeout(TIME_LIMIT) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("timed out writing the flight recorder");
        }
    }
}

struct Observer {
    bell: Arc<OwnedFd>,
    requests: Arc<Mutex<ObserverRequests>>,
    server: Option<MetricsServer>,
    signal: Option<&'static DumpSignal>,
}

impl Observer {
    fn run(&self, watch: &Watch, readings: &Readings) {
        let mut notes: VecDeque<(Instant, String)> = VecDeque::new();
        loop {
            let (is_signaled, has_reader) = self.sleep(notes.front().map(|(due, _)| *due));
            let mut requests = std::mem::take(&mut *self.requests.lock().expect(LOCK));
            if is_signaled {
                requests.reasons.push(("SIGUSR1".into(), NoteTime::Now));
            }
            for (reason, note_time) in requests.reasons {
                match (watch.write_down(&reason), note_time) {
                    (Some(note), NoteTime::Now) => tracing::warn!("{note}"),
                    (Some(note), NoteTime::Later) => {
                        notes.push_back((Instant::now() + NOTE_DELAY, note));
                    }
                    (None, _) => {}
                }
            }
            let now = Instant::now();
            let ready = notes.iter().take_while(|(due, _)| requests.is_over || *due <= now).count();
            for (_, note) in notes.drain(..ready) {
                tracing::warn!("{note}");
            }
            if has_reader && let Some(server) = &self.server {
                // A failed metrics request is the client's problem.
                let _ = server.serve(|| watch.metrics_text(&readings()));
            }
            if requests.is_over {
                return;
            }
        }
    }

    /// Sleeps until there is something to do, at most until `due`; returns whether a signal arrived,
    /// and whether a reader did.
    fn sleep(&self, due: Option<Instant>) -> (bool, bool) {
        let fds = [
            Some(self.bell.as_fd()),
            self.signal.map(AsFd::as_fd),
            self.server.as_ref().map(AsFd::as_fd),
        ];
        let polled = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut present: Vec<PollFd<'_>> = fds.into_iter().flatten().map(polled).collect();
        let limit = due.map(|due| due.saturating_duration_since(Instant::now()));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let awake = match poll(&mut present, limit.as_ref()) {
            Ok(_) => present.iter().map(|fd| !fd.revents().is_empty()).collect(),
            Err(_) => vec![false; present.len()],
        };
        let _ = read(&*self.bell, &mut [0; 8]);
        let is_signaled = self.signal.is_some() && awake[1];
        if let Some(signal) = self.signal.filter(|_| is_signaled) {
            signal.hush();
        }
        (is_signaled, self.server.is_some() && awake.last() == Some(&true))
    }
}

const LOCK: &str = "nothing panics while it holds this lock";
