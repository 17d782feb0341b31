//! The rendezvous in rank 0's process: a thread with the same service that the driver has.
//!
//! It stays for the life of the process, since the ranks may meet again. When rank 0 ends, its last
//! words still reach the others: they are what tells a failure of rank 0 from its sudden death.

use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use ronde_control::event::JobKind;
use ronde_control::job::{JobAction, JobInput, JobMachine};
use ronde_control::wire::{Greeting, JobKey, RankToDriver};
use ronde_control::{ConnectionId, Rank, VERSION};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use super::rendezvous_file::RendezvousFile;
use crate::driver::DriverInput;
use crate::driver::service::{self, Outboxes};

/// News that may wait; whoever brings more waits.
const NEWS: usize = 1024;

/// How long rank 0's last words may take to reach the others.
const FAREWELL: Duration = Duration::from_millis(500);

/// The service; it ends when this is dropped.
pub struct RendezvousServer {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RendezvousServer {
    /// Lets `size` ranks with the key meet at a socket, again and again; `limit` bounds a gathering.
    /// The note that has led them there is removed once all have met.
    pub fn start(
        listener: std::net::TcpListener,
        key: JobKey,
        size: u32,
        limit: Duration,
        rendezvous_file: Option<RendezvousFile>,
    ) -> io::Result<RendezvousServer> {
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let machine = JobMachine::kept_by_a_rank(VERSION, size, limit);
        let (stop, stopped) = oneshot::channel();
        let state = RendezvousState {
            machine,
            outboxes: Outboxes::default(),
            own: None,
            rendezvous_file,
            start: Instant::now(),
        };
        let thread = std::thread::Builder::new()
            .name("ronde-meet".into())
            .spawn(move || runtime.block_on(serve(listener, key, state, stopped)))?;
        Ok(RendezvousServer { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for RendezvousServer {
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
    mut state: RendezvousState,
    mut stopped: oneshot::Receiver<()>,
) {
    let (sender, mut news) = mpsc::channel(NEWS);
    let service = tokio::spawn(service::run(listener, key, sender));
    loop {
        let wakeup = state.machine.next_wakeup().map(|time| state.start + time);
        tokio::select! {
            Some(item) = news.recv() => state.hear(item),
            () = sleep_until(wakeup.unwrap_or(state.start)), if wakeup.is_some() => {
                state.meet(JobInput::Tick);
            }
            _ = &mut stopped => break,
        }
    }
    let end = Instant::now() + FAREWELL;
    while (state.own.is_some() || !state.outboxes.are_empty()) && Instant::now() < end {
        tokio::select! {
            Some(item) = news.recv() => state.hear(item),
            () = sleep(Duration::from_millis(1)) => {}
        }
    }
    service.abort();
}

/// The decision, and the ways to those it concerns.
struct RendezvousState {
    machine: JobMachine,
    outboxes: Outboxes,
    /// Rank 0's own connection, until it has said its last.
    own: Option<ConnectionId>,
    rendezvous_file: Option<RendezvousFile>,
    start: Instant,
}

impl RendezvousState {
    fn hear(&mut self, news: DriverInput) {
        let Some(event) = self.outboxes.take_in(news) else { return };
        match &event {
            JobInput::Greeted(connection, Greeting::Rendezvous { rank: Rank(0), .. }) => {
                self.own = Some(*connection);
            }
            JobInput::Closed(connection)
            | JobInput::Said(connection, RankToDriver::Leaving { .. })
                if self.own == Some(*connection) =>
            {
                self.own = None;
            }
            _ => {}
        }
        self.meet(event);
    }

    fn meet(&mut self, event: JobInput) {
        for action in self.machine.on(event, self.start.elapsed()) {
            match action {
                JobAction::Tell(connections, message) => self.outboxes.tell(connections, &message),
                JobAction::Close(connection) => self.outboxes.close(connection),
                JobAction::Formed(epoch, _) => {
                    tracing::debug!(epoch = epoch.0, "a world is formed");
                    if let Some(rendezvous_file) = self.rendezvous_file.take() {
                        rendezvous_file.remove();
                    }
                }
                JobAction::Happened(what) if what.is_shown_in(JobKind::Fixed) => {
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
