//! The timeline: what happened to every tensor when, for Perfetto or `chrome://tracing`.
//!
//! Whoever drives the engine sends events into a bounded channel and never waits; a thread of its own
//! writes them. What finds no room is dropped, counted and said. While there is no timeline, an event
//! costs one look at a flag.

mod file;
mod trace;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ronde_control::watching::Cycles;

use self::file::ArrayFile;
use self::trace::Trace;
pub(crate) use self::trace::{Event, Shape};

/// Events that may wait for the writer.
const ROOM: usize = 1 << 16;
/// At least this long a copy of the file keeps still, for whoever reads it; longer if it is long.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A reader that takes more time than this for a byte may see a later state at the end.
const NANOS_PER_BYTE: u64 = 4;
/// More than this is not gathered before it is written.
const BATCH: usize = 64 << 20;
/// How long the end of a timeline waits for a disk.
const FAREWELL: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(crate) struct Timeline {
    is_on: AtomicBool,
    marks_cycles: AtomicBool,
    writer: Mutex<Option<Writer>>,
    dropped: Arc<AtomicU64>,
}

struct Writer {
    events: SyncSender<Event>,
    /// Disconnected once the last event is in the file.
    done: Receiver<()>,
}

impl Timeline {
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    pub(crate) fn marks_cycles(&self) -> bool {
        self.marks_cycles.load(Ordering::Relaxed)
    }

    /// Starts one that begins `now`; one that is running ends.
    pub(super) fn start(&self, path: &Path, cycles: Cycles, now: Duration) -> io::Result<()> {
        self.stop();
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let file = ArrayFile::create(path, &Trace::head(epoch.as_micros() as u64))?;
        let (events, received) = sync_channel(ROOM);
        let (finished, done) = sync_channel(0);
        let dropped = self.dropped.clone();
        dropped.store(0, Ordering::Relaxed);
        std::thread::Builder::new().name("ronde-timeline".into()).spawn(move || {
            let _finished: SyncSender<()> = finished;
            if let Err(error) = write(file, Trace::new(now), &received) {
                tracing::warn!("the timeline could not be written and has ended: {error}");
            }
        })?;
        *self.lock() = Some(Writer { events, done });
        self.marks_cycles.store(cycles == Cycles::Marked, Ordering::Relaxed);
        self.is_on.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the timeline, with everything so far in the file; gives whether there was one.
    pub(super) fn stop(&self) -> bool {
        self.is_on.store(false, Ordering::Relaxed);
        let Some(Writer { events, done }) = self.lock().take() else { return false };
        drop(events);
        if done.recv_timeout(FAREWELL) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the timeline's disk does not answer; its last events may be missing");
        }
        let dropped = self.dropped();
        if dropped > 0 {
            tracing::warn!("the timeline lacks {dropped} events: the disk was too slow for them");
        }
        true
    }

    /// Sends an event to the writer, or drops it.
    pub(crate) fn send(&self, event: Event) {
        let mut writer = self.lock();
        let Some(Writer { events, .. }) = &*writer else { return };
        match events.try_send(event) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
            Err(TrySendError::Disconnected(_)) => {
                self.is_on.store(false, Ordering::Relaxed);
                *writer = None;
            }
        }
    }

    /// Events that this timeline lacks.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Writer>> {
        self.writer.lock().expect("nothing panics while it holds this lock")
    }
}

/// Writes events in batches until nobody can send any more.
fn write(mut file: ArrayFile, mut trace: Trace, events: &Receiver<Event>) -> io::Result<()> {
    let mut rested = Instant::now();
    while let Ok(event) = events.recv() {
        let mut text = String::new();
        trace.on(&event, &mut text);
        while text.len() < BATCH {
            let left = rested.saturating_duration_since(Instant::now());
            match events.recv_timeout(left) {
                Ok(event) => trace.on(&event, &mut text),
                Err(_) => break,
            }
        }
        // A copy that was shown until the last swap may still be read.
        std::thread::sleep(rested.saturating_duration_since(Instant::now()));
        if !text.is_empty() {
            file.append(text)?;
        }
        let reading = Duration::from_nanos(file.length() * NANOS_PER_BYTE);
        rested = Instant::now() + reading.clamp(PAUSE, LONGEST_PAUSE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u64) -> Event {
        let at = Duration::from_micros(number);
        Event::Announced { name: "x".into(), kind: "ALLREDUCE", rank: 0, at }
    }

    #[test]
    fn what_was_sent_before_the_end_is_in_the_file() {
        let path = std::env::temp_dir().join(format!("ronde-stop-{}.json", std::process::id()));
        let timeline = Timeline::default();
        assert!(!timeline.is_on() && !timeline.stop());
        timeline.start(&path, Cycles::Unmarked, Duration::ZERO).unwrap();
        (0..1000).for_each(|number| timeline.send(event(number)));
        assert!(timeline.stop());
        timeline.send(event(0));
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text.matches(r#""ph":"X""#).count(), 1000);
        assert!(text.starts_with("[\n{") && text.ends_with("}\n]\n"));
    }

    #[test]
    fn a_writer_that_stands_still_costs_events_and_nothing_else() {
        let timeline = Timeline::default();
        let (events, _received) = sync_channel(10);
        let (_finished, done) = sync_channel(0);
        *timeline.lock() = Some(Writer { events, done });
        (0..25).for_each(|number| timeline.send(event(number)));
        assert_eq!(timeline.dropped(), 15);
        timeline.lock().take();
    }
}
