//! The timeline: what happened to every tensor and when, for Perfetto or `chrome://tracing`.
//!
//! The thread that drives the engine sends events into a bounded channel and never blocks; a
//! separate thread writes them. Events that do not fit are dropped, counted and reported. Without a
//! timeline, an event costs one look at a flag.

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
pub(crate) use self::trace::{ResultShape, TraceEvent};

/// Maximum number of events waiting to be written.
const CAPACITY: usize = 1 << 16;
/// Minimum time during which a copy of the file does not change, for its readers; longer if the
/// file is long.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A reader that is slower than this may see a later state at the end of the file.
const NANOS_PER_BYTE: u64 = 4;
/// Maximum number of bytes collected for one write.
const BATCH: usize = 64 << 20;
/// How long to wait for the disk when a timeline ends.
const TIME_LIMIT: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(crate) struct Timeline {
    is_on: AtomicBool,
    marks_cycles: AtomicBool,
    writer: Mutex<Option<Writer>>,
    dropped: Arc<AtomicU64>,
}

struct Writer {
    events: SyncSender<TraceEvent>,
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

    /// Starts a timeline that begins `now`; ends the one that is running.
    pub(super) fn start(&self, path: &Path, cycles: Cycles, now: Duration) -> io::Result<()> {
        self.stop();
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let file = ArrayFile::create(path, &Trace::head(epoch.as_micros() as u64))?;
        let (events, received) = sync_channel(CAPACITY);
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

    /// Ends the timeline, with everything so far in the file; returns whether there was one.
    pub(super) fn stop(&self) -> bool {
        self.is_on.store(false, Ordering::Relaxed);
        let Some(Writer { events, done }) = self.lock().take() else { return false };
        drop(events);
        if done.recv_timeout(TIME_LIMIT) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("timed out writing the timeline; its last events may be missing");
        }
        let dropped = self.dropped();
        if dropped > 0 {
            tracing::warn!("the timeline is missing {dropped} events: the disk was too slow");
        }
        true
    }

    /// Sends an event to the writer, or drops it.
    pub(crate) fn send(&self, event: TraceEvent) {
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

    /// Number of events missing from this timeline.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Writer>> {
        self.writer.lock().expect("nothing panics while it holds this lock")
    }
}

/// Writes events in batches until the channel is closed.
fn write(mut file: ArrayFile, mut trace: Trace, events: &Receiver<TraceEvent>) -> io::Result<()> {
    let mut next_swap = Instant::now();
    while let Ok(event) = events.recv() {
        let mut text = String::new();
        trace.on(&event, &mut text);
        while text.len() < BATCH {
            let left = next_swap.saturating_duration_since(Instant::now());
            match events.recv_timeout(left) {
                Ok(event) => trace.on(&event, &mut text),
                Err(_) => break,
            }
        }
        // The copy that was visible until the last swap may still be read.
        std::thread::sleep(next_swap.saturating_duration_since(Instant::now()));
        if !text.is_empty() {
            file.append(text)?;
        }
        let reading = Duration::from_nanos(file.length() * NANOS_PER_BYTE);
        next_swap = Instant::now() + reading.clamp(PAUSE, LONGEST_PAUSE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u64) -> TraceEvent {
        let at = Duration::from_micros(number);
        TraceEvent::Announced { name: "x".into(), kind: "ALLREDUCE", rank: 0, at }
    }

    #[test]
    fn events_sent_before_the_end_are_in_the_file() {
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
    fn a_stuck_writer_only_costs_events() {
        let timeline = Timeline::default();
        let (events, _received) = sync_channel(10);
        let (_finished, done) = sync_channel(0);
        *timeline.lock() = Some(Writer { events, done });
        (0..25).for_each(|number| timeline.send(event(number)));
        assert_eq!(timeline.dropped(), 15);
        timeline.lock().take();
    }
}
