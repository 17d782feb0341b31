//! The rendezvous in rank 0's process: a thread with the same service that the driver has.
//!
//! It stays for the life of the process, since the ranks may meet again. When rank 0 ends, its last
//! words still reach the others: they are what tells a failure of rank 0 from its sudden death.

use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use ronde_control::event::JobKind;
use ronde_control::job::{Action, Event, Machine};
use ronde_control::wire::{Greeting, JobKey, RankToDriver};
use ronde_control::{Connection, Rank, VERSION};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use super::note::Note;
use crate::driver::News;
use crate::driver::service::{self, Outboxes};

/// News that may wait; whoever brings more waits.
const NEWS: usize = 1024;

/// How long rank 0's last words may take to reach the others.
const FAREWELL: Duration = Duration::from_millis(500);

/// The service; it ends when this is dropped.
pub struct Keep {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keep {
    /// Lets `size` ranks with the key meet at a socket, again and again; `limit` bounds a gathering.
    /// The note that has led them there is removed once all have met.
    pub fn start(
        listener: std::net::TcpListener,
        key: JobKey,
        size: u32,
        limit: Duration,
        note: Option<Note>,
    ) -> io::Result<Keep> {
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let machine = Machine::kept_by_a_rank(VERSION, size, limit);
        let (stop, stopped) = oneshot::channel();
        let desk =
            Desk { machine, outboxes: Outboxes::default(), own: None, note, start: Instant::now() };
        let thread = std::thread::Builder::new()
            .name("ronde-meet".into())
            .spawn(move || runtime.block_on(serve(listener, key, desk, stopped)))?;
        Ok(Keep { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Keep {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(
    listener: TcpListener,
    key: JobKey,
    mut desk: Desk,
    mut stopped: oneshot::Receiver<()>,
) {
    let (sender, mut news) = mpsc::channel(NEWS);
    let service = tokio::spawn(service::run(listener, key, sender));
    loop {
        let wakeup = desk.machine.next_wakeup().map(|time| desk.start + time);
        tokio::select! {
            Some(item) = news.recv() => desk.hear(item),
            () = sleep_until(wakeup.unwrap_or(desk.start)), if wakeup.is_some() => {
                desk.meet(Event::Tick);
            }
            _ = &mut stopped => break,
        }
    }
    let end = Instant::now() + FAREWELL;
    while (desk.own.is_some() || !desk.outboxes.are_empty()) && Instant::now() < end {
        tokio::select! {
            Some(item) = news.recv() => desk.hear(item),
            () = sleep(Duration::from_millis(1)) => {}
        }
    }
    service.abort();
}

/// The decision, and the ways to those it concerns.
struct Desk {
    machine: Machine,
    outboxes: Outboxes,
    /// Rank 0's own connection, until it has said its last.
    own: Option<Connection>,
    note: Option<Note>,
    start: Instant,
}

impl Desk {
    fn hear(&mut self, news: News) {
        let Some(event) = self.outboxes.take_in(news) else { return };
        match &event {
            Event::Greeted(connection, Greeting::Rendezvous { rank: Rank(0), .. }) => {
                self.own = Some(*connection);
            }
            Event::Closed(connection) | Event::Said(connection, RankToDriver::Leaving { .. })
                if self.own == Some(*connection) =>
            {
                self.own = None;
            }
            _ => {}
        }
        self.meet(event);
    }

    fn meet(&mut self, event: Event) {
        for action in self.machine.on(event, self.start.elapsed()) {
            match action {
                Action::Tell(connections, message) => self.outboxes.tell(connections, &message),
                Action::Close(connection) => self.outboxes.close(connection),
                Action::Formed(epoch, _) => {
                    tracing::debug!(epoch = epoch.0, "a world is formed");
                    if let Some(note) = self.note.take() {
                        note.remove();
                    }
                }
                Action::Happened(what) if what.is_shown_in(JobKind::Fixed) => {
                    if let Some(line) = what.line() {
                        tracing::warn!("{line}");
                    }
                }
                // Nobody has started these ranks, so nothing else can be done for them.
                _ => {}
            }
        }
    }
}
