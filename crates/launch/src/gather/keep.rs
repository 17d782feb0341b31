//! The rendezvous in rank 0's process: a thread with the same service that the driver has.
//!
//! It stays for the life of the process, since the ranks may meet again. When rank 0 ends, its last
//! words still reach the others: they are what tells a failure of rank 0 from its sudden death.

use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use ronde_control::liveness::{self, Liveness};
use ronde_control::rendezvous::{Action, Connection, Event, Rendezvous, Time};
use ronde_control::wire::{DriverToRank, Greeting, JobKey, RankToDriver};
use ronde_control::{Rank, VERSION};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use crate::driver::service::{self, Heard, Outboxes};

/// News that may wait; whoever brings more waits.
const NEWS: usize = 1024;

/// How long rank 0's last words may take to reach the others.
const FAREWELL: Duration = Duration::from_millis(500);

/// What happens once when all ranks have met.
type Formed = Box<dyn FnOnce() + Send>;

/// The service; it ends when this is dropped.
pub struct Keep {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keep {
    /// Lets `size` ranks with the key meet at a socket, again and again; `limit` bounds a gathering.
    pub fn start(
        listener: std::net::TcpListener,
        key: JobKey,
        size: u32,
        limit: Duration,
        formed: Formed,
    ) -> io::Result<Keep> {
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let rendezvous = Rendezvous::kept_by_a_rank(VERSION, size, limit);
        // Nobody but the ranks themselves can say how their processes are.
        let mut liveness = Liveness::new(liveness::Limits::default());
        (0..size).for_each(|rank| liveness.started(Rank(rank), 0, 0));
        let (stop, stopped) = oneshot::channel();
        let desk = Desk {
            rendezvous,
            liveness,
            outboxes: Outboxes::default(),
            own: None,
            formed: Some(formed),
            start: Instant::now(),
        };
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
    let service = tokio::spawn(service::run::<Heard>(listener, key, sender));
    loop {
        let wakeups = desk.rendezvous.next_wakeup().into_iter().chain(desk.liveness.next_wakeup());
        let wakeup = wakeups.min().map(|time| desk.start + time);
        tokio::select! {
            Some(heard) = news.recv() => desk.hear(heard),
            () = sleep_until(wakeup.unwrap_or(desk.start)), if wakeup.is_some() => {
                desk.meet(Event::Tick);
                desk.look_around();
            }
            _ = &mut stopped => break,
        }
    }
    let end = Instant::now() + FAREWELL;
    while (desk.own.is_some() || !desk.outboxes.are_empty()) && Instant::now() < end {
        tokio::select! {
            Some(heard) = news.recv() => desk.hear(heard),
            () = sleep(Duration::from_millis(1)) => {}
        }
    }
    service.abort();
}

/// The decision, and the ways to those it concerns.
struct Desk {
    rendezvous: Rendezvous,
    liveness: Liveness,
    outboxes: Outboxes,
    /// Rank 0's own connection, until it has said its last.
    own: Option<Connection>,
    formed: Option<Formed>,
    start: Instant,
}

impl Desk {
    fn hear(&mut self, heard: Heard) {
        let event = self.outboxes.take_in(heard);
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

    /// Asks who is still there, and tells the user who is not.
    fn look_around(&mut self) {
        for action in self.liveness.tick(&self.rendezvous.roll(), self.start.elapsed()) {
            match action {
                liveness::Action::Ping(ranks) => {
                    let ways = ranks.iter().filter_map(|rank| self.rendezvous.connection(*rank));
                    self.outboxes.tell(ways.collect(), &DriverToRank::Ping);
                }
                // Of hosts nothing is known.
                news => {
                    let member = |rank| self.rendezvous.member(rank);
                    let happening = news.happening(None, member, |_| None);
                    if let Some(line) = happening.and_then(|it| it.line()) {
                        tracing::warn!("{line}");
                    }
                }
            }
        }
    }

    fn meet(&mut self, event: Event) {
        let now: Time = self.start.elapsed();
        for action in self.rendezvous.on(event, now) {
            match action {
                Action::Tell(connections, message) => self.outboxes.tell(connections, &message),
                Action::Close(connection) => self.outboxes.close(connection),
                Action::Formed(epoch) => {
                    tracing::debug!(epoch = epoch.0, "a world is formed");
                    if let Some(formed) = self.formed.take() {
                        formed();
                    }
                }
                Action::Answered(rank, waits) => self.liveness.heard(rank, waits, now),
                Action::Left { .. } | Action::Reported(..) | Action::Happened(_) => {}
                Action::Lost { rank, cause } => {
                    tracing::debug!(rank = rank.0, cause, "lost a rank");
                }
            }
        }
    }
}
