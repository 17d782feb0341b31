//! The rendezvous in rank 0's process: a thread that runs the same service as the driver.
//!
//! It lives as long as the process, because the ranks may form a world again. When rank 0 exits,
//! its last messages still reach the other ranks: they distinguish a failure of rank 0 from a
//! sudden death.

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

/// Number of inputs that may queue before senders have to wait.
const INPUT_QUEUE: usize = 1024;

/// How long rank 0's last messages may take to reach the other ranks.
const DRAIN_LIMIT: Duration = Duration::from_millis(500);

/// The service; dropping it ends the service.
pub struct RendezvousServer {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RendezvousServer {
    /// Lets `size` ranks with the key form worlds, again and again; `limit` is the time limit for
    /// each. Removes the rendezvous file once all ranks have joined.
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
    let (sender, mut news) = mpsc::channel(INPUT_QUEUE);
    let service = tokio::spawn(service::run(listener, key, sender));
    loop {
        let wakeup = state.machine.next_wakeup().map(|time| state.start + time);
        tokio::select! {
            Some(item) = news.recv() => state.on_input(item),
            () = sleep_until(wakeup.unwrap_or(state.start)), if wakeup.is_some() => {
                state.decide(JobInput::Tick);
            }
            _ = &mut stopped => break,
        }
    }
    let end = Instant::now() + DRAIN_LIMIT;
    while (state.own.is_some() || !state.outboxes.are_empty()) && Instant::now() < end {
        tokio::select! {
            Some(item) = news.recv() => state.on_input(item),
            () = sleep(Duration::from_millis(1)) => {}
        }
    }
    service.abort();
}

/// The job machine, and the connections that its actions need.
struct RendezvousState {
    machine: JobMachine,
    outboxes: Outboxes,
    /// Rank 0's own connection, until it has sent its last message.
    own: Option<ConnectionId>,
    rendezvous_file: Option<RendezvousFile>,
    start: Instant,
}

impl RendezvousState {
    fn on_input(&mut self, news: DriverInput) {
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
        self.decide(event);
    }

    fn decide(&mut self, event: JobInput) {
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
                // Rank 0 did not start these ranks, so it can do nothing else about them.
                _ => {}
            }
        }
    }
}
