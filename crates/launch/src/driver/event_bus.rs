//! The stream of a job's events: each event gets its number and time here and goes to every reader:
//! the screen, the file of `--event-log`, and followers.
//!
//! No reader can delay the job. A separate thread writes the file; if it falls too far behind,
//! events are dropped from the file, and once there is space again an event says how many. A
//! follower that falls behind learns how many events it missed. The history kept for later
//! followers is bounded too.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use ronde_control::event::{JobEvent, JobEventKind, JobKind, OutputKind, Seconds};
use ronde_control::printable;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tokio::sync::{broadcast, mpsc};
use tokio::time::{Instant, timeout_at};

use crate::{LaunchError, machine};

/// Number of events that may queue for the disk.
const WAITING: usize = 1024;

/// Number of events that may queue for one follower.
const BEHIND: usize = 256;

/// Number of events kept for later followers, and their total size.
const KEPT: usize = 256;
const KEPT_BYTES: usize = 1 << 20;

/// How long the last event may take to reach the file and the followers.
const FINISH_LIMIT: Duration = Duration::from_secs(5);

/// What a follower gets: the events kept so far, and a channel for later ones.
pub(crate) struct Subscription {
    pub(super) kept: Vec<Arc<str>>,
    /// `None` follows the last event.
    pub(super) next: broadcast::Receiver<Option<Arc<str>>>,
}

/// The stream and its readers, except the screen.
pub(super) struct EventBus {
    kind: JobKind,
    next: u64,
    kept: VecDeque<Arc<str>>,
    log: Option<EventLogFile>,
    followers: broadcast::Sender<Option<Arc<str>>>,
}

/// The file of `--event-log`.
struct EventLogFile {
    lines: mpsc::Sender<Arc<str>>,
    dropped: u64,
    /// Whether the user knows that the file cannot be written.
    is_reported: bool,
    thread: JoinHandle<Option<String>>,
}

impl EventBus {
    /// Opens an empty stream and creates the file. `lost` is called, once and on another thread, if
    /// writing the file fails.
    pub(super) fn open(
        kind: JobKind,
        file: Option<&Path>,
        lost: impl Fn(String) + Send + 'static,
    ) -> Result<EventBus, LaunchError> {
        let log = file.map(|path| EventLogFile::create(path, lost)).transpose()?;
        let followers = broadcast::Sender::new(BEHIND);
        Ok(EventBus { kind, next: 0, kept: VecDeque::new(), log, followers })
    }

    /// Records an event and returns the line to show on the screen, if any.
    pub(super) fn record(&mut self, what: JobEventKind) -> Option<String> {
        let line = what.line().filter(|_| what.is_shown_in(self.kind));
        if let (JobEventKind::OutputLost { output: OutputKind::EventLog, .. }, Some(log)) =
            (&what, &mut self.log)
        {
            log.is_reported = true;
        }
        if let Some(count) = self.log.as_mut().and_then(EventLogFile::dropped) {
            self.append(JobEventKind::EventsDropped { count });
        }
        self.append(what);
        line.map(|line| printable(&line).into_owned())
    }

    /// The last events as JSON, oldest first, at most `count`.
    pub(super) fn last(&self, count: usize) -> Vec<String> {
        let skipped = self.kept.len().saturating_sub(count);
        self.kept.iter().skip(skipped).map(|event| String::from(&**event)).collect()
    }

    /// Subscribes a follower.
    pub(super) fn follow(&self) -> Subscription {
        let kept = self.kept.iter().cloned().collect();
        Subscription { kept, next: self.followers.subscribe() }
    }

    fn append(&mut self, what: JobEventKind) {
        let event = self.stamp(what);
        if let Some(log) = &mut self.log {
            log.write(&event);
        }
        // Sending fails if there are no followers.
        let _ = self.followers.send(Some(event.clone()));
        self.kept.push_back(event);
        let mut bytes: usize = self.kept.iter().map(|event| event.len()).sum();
        while self.kept.len() > KEPT || (bytes > KEPT_BYTES && self.kept.len() > 1) {
            bytes -= self.kept.pop_front().map_or(0, |event| event.len());
        }
    }

    fn stamp(&mut self, what: JobEventKind) -> Arc<str> {
        let number = self.next;
        self.next += 1;
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let event = JobEvent { number, time: Seconds(time), what };
        serde_json::to_string(&event).expect("an event has only names as keys").into()
    }

    /// Records the last event and waits briefly until every reader has it. Returns a line for the
    /// user if only now the log turns out to be unwritable.
    pub(super) async fn finish(mut self, what: JobEventKind) -> Option<String> {
        let mut line = None;
        let until = Instant::now() + FINISH_LIMIT;
        if let Some(log) = self.log.as_ref().filter(|log| log.dropped > 0) {
            // Space for the number of dropped events and for the last event.
            let _ = timeout_at(until, log.lines.reserve_many(2)).await;
        }
        if let Some(count) = self.log.as_mut().and_then(EventLogFile::dropped) {
            self.append(JobEventKind::EventsDropped { count });
        }
        let event = self.stamp(what);
        if let Some(EventLogFile { lines, thread, is_reported, .. }) = self.log {
            let _ = timeout_at(until, lines.send(event.clone())).await;
            drop(lines);
            let written = tokio::task::spawn_blocking(|| thread.join());
            let lost = match timeout_at(until, written).await {
                Ok(joined) => joined.ok().and_then(Result::ok).flatten(),
                Err(_) => Some(format!("it took longer than {} s", FINISH_LIMIT.as_secs())),
            };
            let lost = lost.filter(|_| !is_reported);
            line = lost.map(|reason| format!("could not write the end of the event log: {reason}"));
        }
        for last in [Some(event), None] {
            let _ = self.followers.send(last);
        }
        // Followers hang up once they have passed on the last event.
        let _ = timeout_at(until, self.followers.closed()).await;
        line
    }
}

impl EventLogFile {
    fn create(
        path: &Path,
        lost: impl Fn(String) + Send + 'static,
    ) -> Result<EventLogFile, LaunchError> {
        let file = make(path)
            .map_err(|source| LaunchError::EventLog { path: path.display().to_string(), source })?;
        let (lines, incoming) = mpsc::channel(WAITING);
        let thread = thread::Builder::new()
            .name("ronde-events".into())
            .spawn(move || {
                let reason = write_all(file, incoming).err()?.to_string();
                lost(reason.clone());
                Some(reason)
            })
            .map_err(machine("start a thread"))?;
        Ok(EventLogFile { lines, dropped: 0, is_reported: false, thread })
    }

    /// The number of dropped events, once there is space to record it.
    fn dropped(&mut self) -> Option<u64> {
        let has_room = self.lines.capacity() > 1;
        (self.dropped > 0 && has_room).then(|| std::mem::take(&mut self.dropped))
    }

    fn write(&mut self, event: &Arc<str>) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.lines.try_send(event.clone()) {
            self.dropped += 1;
        }
    }
}

/// Creates the file. A pipe without a reader is an error: a job must not wait for a reader.
fn make(path: &Path) -> io::Result<File> {
    let nonblocking = OFlags::NONBLOCK.bits() as i32;
    let mut options = OpenOptions::new();
    let file =
        options.write(true).create(true).truncate(true).custom_flags(nonblocking).open(path)?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Writes each event immediately, as a complete line.
fn write_all(mut file: File, mut events: mpsc::Receiver<Arc<str>>) -> io::Result<()> {
    while let Some(event) = events.blocking_recv() {
        file.write_all(format!("{event}\n").as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc as std_mpsc;

    use tokio::sync::broadcast::error::RecvError;

    use super::*;

    fn host(number: usize) -> JobEventKind {
        JobEventKind::HostReady { host: format!("node-{number}") }
    }

    fn events(text: &str) -> Vec<JobEvent> {
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn end() -> JobEventKind {
        JobEventKind::HostUsable { host: "last".into() }
    }

    #[tokio::test]
    async fn the_file_has_every_event_in_order_and_the_last_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let mut event_bus = EventBus::open(JobKind::Elastic, Some(&path), |_| {}).unwrap();
        assert!(path.exists(), "the file exists before the first event");
        assert_eq!(event_bus.record(host(0)), None);
        let line = event_bus.record(JobEventKind::HostsKnown);
        assert_eq!(line.as_deref(), Some("host discovery works again"));
        event_bus.finish(end()).await;
        let events = events(&std::fs::read_to_string(path).unwrap());
        let numbers: Vec<u64> = events.iter().map(|event| event.number).collect();
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!(events[2].what, end());
        assert!(events[0].time.0.as_secs() > 1_600_000_000);
    }

    #[tokio::test]
    async fn a_blocked_file_drops_events_and_records_how_many() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let unread = EventBus::open(JobKind::Fixed, Some(&path), |_| {});
        assert!(unread.is_err(), "nobody reads the pipe");
        let nonblocking = OFlags::NONBLOCK.bits() as i32;
        let mut pipe = OpenOptions::new().read(true).custom_flags(nonblocking).open(&path).unwrap();
        let mut event_bus = EventBus::open(JobKind::Fixed, Some(&path), |_| {}).unwrap();
        fcntl_setfl(&pipe, OFlags::empty()).unwrap();
        // More than the pipe and the channel can hold.
        for number in 0..WAITING + 4096 {
            event_bus.record(host(number));
        }
        let dropped = event_bus.log.as_ref().unwrap().dropped;
        assert!(dropped > 1000, "{dropped}");
        let reading = std::thread::spawn(move || io::read_to_string(&mut pipe).unwrap());
        event_bus.finish(end()).await;
        let events = events(&reading.join().unwrap());
        let last: Vec<&JobEventKind> =
            events[events.len() - 2..].iter().map(|it| &it.what).collect();
        assert_eq!(last, [&JobEventKind::EventsDropped { count: dropped }, &end()]);
        // The file's writer may have made room for a while, and recorded what was missing until then.
        let missing = events.iter().map(|event| match event.what {
            JobEventKind::EventsDropped { count } => count,
            _ => 0,
        });
        let whole = events.len() as u64 + missing.sum::<u64>();
        assert_eq!(events.last().unwrap().number + 1, whole, "nothing else is missing");
    }

    #[tokio::test]
    async fn a_full_disk_is_reported_once_and_delays_nothing() {
        let (report, reported) = std_mpsc::channel();
        let path = Path::new("/dev/full");
        let lost = move |reason| report.send(reason).unwrap();
        let mut event_bus = EventBus::open(JobKind::Fixed, Some(path), lost).unwrap();
        (0..9).for_each(|number| drop(event_bus.record(host(number))));
        let line = event_bus.finish(end()).await.unwrap();
        assert!(line.starts_with("could not write the end of the event log: No space"), "{line}");
        let reasons: Vec<String> = reported.iter().collect();
        assert!(matches!(&reasons[..], [one] if one.contains("No space left")), "{reasons:?}");
    }

    #[test]
    fn a_file_that_cannot_be_created_is_an_error() {
        let made = EventBus::open(JobKind::Fixed, Some(Path::new("/nowhere/at/all")), |_| {});
        assert!(matches!(made, Err(LaunchError::EventLog { .. })));
    }

    #[tokio::test]
    async fn a_follower_gets_kept_and_new_events_and_the_number_missed() {
        let mut event_bus = EventBus::open(JobKind::Fixed, None, |_| {}).unwrap();
        (0..3).for_each(|number| drop(event_bus.record(host(number))));
        let Subscription { kept, mut next } = event_bus.follow();
        assert_eq!(kept.len(), 3);
        for number in 0..BEHIND + 10 {
            event_bus.record(host(number));
        }
        assert_eq!(next.recv().await, Err(RecvError::Lagged(10)));
        for number in 10..BEHIND + 10 {
            let event = events(&next.recv().await.unwrap().unwrap()).remove(0);
            assert_eq!(event.what, host(number));
        }
        let reader = tokio::spawn(async move { (next.recv().await, next.recv().await) });
        event_bus.finish(end()).await;
        let (Ok(Some(last)), Ok(None)) = reader.await.unwrap() else { panic!("nothing came") };
        assert_eq!(events(&last)[0].what, end());
    }

    #[test]
    fn the_kept_history_is_bounded() {
        let mut event_bus = EventBus::open(JobKind::Fixed, None, |_| {}).unwrap();
        (0..2 * KEPT).for_each(|number| drop(event_bus.record(host(number))));
        assert_eq!((event_bus.kept.len(), event_bus.last(5).len()), (KEPT, 5));
        let large = || JobEventKind::HostReady { host: "x".repeat(KEPT_BYTES / 4) };
        (0..9).for_each(|_| drop(event_bus.record(large())));
        assert_eq!(event_bus.kept.len(), 3);
    }
}
