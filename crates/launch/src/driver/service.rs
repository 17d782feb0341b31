//! The rendezvous as a server: a socket, the handshake, and frames in both directions.
//!
//! Everybody must prove that they hold the job's key before a byte of theirs means anything. Who does
//! not, or takes longer than [`HANDSHAKE`], is dropped with a line in the log. Only so many may be
//! unproven at a time; when that many are, the one that has hesitated longest makes room, so that
//! silent strangers cannot keep ranks out. What the ranks' words mean is decided elsewhere.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ronde_control::rendezvous::{Connection, Event};
use ronde_control::wire::frame::{MAX_FRAME, Opener, Sealer};
use ronde_control::wire::{self, Callee, DriverToRank, Greeting, JobKey, RankToDriver};
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::lifeline;
use crate::wire::{Sealed, answer, read_sealed};

/// How long somebody has to prove and name themselves.
pub const HANDSHAKE: Duration = Duration::from_secs(5);

/// How many may wait to be taken in; the system may allow fewer.
const BACKLOG: i32 = 4096;

/// How many may be at it at a time, and how long each has surely when all places are taken.
const UNPROVEN: usize = 128;
const HESITATION: Duration = Duration::from_millis(500);

/// The longest greeting, before which nobody is trusted with more.
const LONGEST_GREETING: usize = 4096;

/// Messages that may wait for a rank that does not read; then its connection is closed.
const OUTBOX: usize = 256;

/// How long a rank may take to read its last message and hang up.
const FAREWELL: Duration = Duration::from_secs(5);

/// The way to a rank. Dropping it closes the connection once everything was sent.
pub(crate) type Outbox = mpsc::Sender<Arc<[u8]>>;

/// What the service hears.
pub(crate) enum Heard {
    /// Somebody with the key has come.
    Greeted(Connection, Greeting, Outbox),
    /// Something else happened.
    Event(Event),
    /// Somebody with the key has come for something else than the rendezvous.
    Guest(Sealed, Greeting),
    /// The lifeline of this host's agent broke.
    Silent(u32, io::Error),
}

/// The ways to all ranks that are there.
#[derive(Default)]
pub(crate) struct Outboxes(HashMap<Connection, Outbox>);

impl Outboxes {
    /// What a piece of news means to the rendezvous.
    pub(crate) fn take_in(&mut self, heard: Heard) -> Event {
        match heard {
            Heard::Greeted(connection, greeting, outbox) => {
                self.0.insert(connection, outbox);
                Event::Greeted(connection, greeting)
            }
            Heard::Event(event) => {
                if let Event::Closed(connection) = &event {
                    self.close(*connection);
                }
                event
            }
            Heard::Silent(..) | Heard::Guest(..) => Event::Tick,
        }
    }

    /// Queues the same message, encoded once, for all of these; who does not read is cut off.
    pub(crate) fn tell(&mut self, connections: Vec<Connection>, message: &DriverToRank) {
        let message: Arc<[u8]> = wire::encode(message).into();
        for connection in connections {
            let outbox = self.0.get(&connection);
            if outbox.is_some_and(|outbox| outbox.try_send(message.clone()).is_err()) {
                self.close(connection);
            }
        }
    }

    /// Ends a connection once everything was sent.
    pub(crate) fn close(&mut self, connection: Connection) {
        self.0.remove(&connection);
    }

    /// Whether nothing waits to be sent.
    pub(crate) fn are_empty(&self) -> bool {
        self.0.values().all(|outbox| outbox.capacity() == outbox.max_capacity())
    }
}

/// Serves until dropped.
pub(crate) async fn run<N>(listener: TcpListener, key: JobKey, news: mpsc::Sender<N>)
where
    N: From<Heard> + Send + 'static,
{
    // Ranks come all at once, and whoever finds the queue full tries again a second later.
    let _ = rustix::net::listen(&listener, BACKLOG);
    let (proven, mut finished) = mpsc::channel(UNPROVEN);
    let mut unproven: BTreeMap<u64, (Instant, AbortHandle)> = BTreeMap::new();
    let mut next = 0;
    loop {
        let oldest = unproven.values().next().map(|(since, _)| *since + HESITATION);
        let full = unproven.len() >= UNPROVEN;
        tokio::select! {
            accepted = listener.accept(), if !full => match accepted {
                Ok((stream, _)) => {
                    let number = next;
                    next += 1;
                    let connection = Connection(number);
                    let (key, news, proven) = (key.clone(), news.clone(), proven.clone());
                    let task = tokio::spawn(async move {
                        let met = timeout(HANDSHAKE, meet(stream, &key)).await;
                        let _ = proven.send(number).await;
                        match met {
                            Ok(Ok(met)) => serve(connection, met, news).await,
                            Ok(Err(error)) => tracing::debug!(%error, "a stranger was dropped"),
                            Err(_) => tracing::debug!("a stranger who said nothing was dropped"),
                        }
                    });
                    unproven.insert(number, (Instant::now(), task.abort_handle()));
                }
                // The machine is short of something, most likely descriptors; that may pass.
                Err(error) => {
                    tracing::debug!(%error, "a connection could not be accepted");
                    sleep(Duration::from_millis(100)).await;
                }
            },
            Some(number) = finished.recv() => {
                unproven.remove(&number);
            }
            () = sleep_until(oldest.unwrap_or_else(Instant::now)), if full => {
                if let Some((_, (_, task))) = unproven.pop_first() {
                    tracing::debug!("a stranger who hesitated was dropped to make room");
                    task.abort();
                }
            }
        }
    }
}

/// Somebody who has proved and named themselves.
type Met = (Sealed, Greeting);

async fn meet(stream: TcpStream, key: &JobKey) -> io::Result<Met> {
    let mut sealed = answer(stream, key, Callee::Launcher).await?;
    let plain = read_sealed(&mut sealed.stream, &mut sealed.opener, LONGEST_GREETING).await?;
    let plain = plain.ok_or(io::ErrorKind::UnexpectedEof)?;
    let greeting = wire::decode(&plain).map_err(io::Error::other)?;
    Ok((sealed, greeting))
}

async fn serve<N: From<Heard>>(
    connection: Connection,
    (sealed, greeting): Met,
    news: mpsc::Sender<N>,
) {
    if let Greeting::Lifeline { host } = greeting {
        let error = lifeline::hold(sealed).await;
        let _ = news.send(Heard::Silent(host, error).into()).await;
        return;
    }
    if matches!(
        greeting,
        Greeting::Fetch { .. } | Greeting::Deliver { .. } | Greeting::Watch { .. }
    ) {
        let _ = news.send(Heard::Guest(sealed, greeting).into()).await;
        return;
    }
    let Sealed { stream, sealer, opener } = sealed;
    let (outbox, outgoing) = mpsc::channel(OUTBOX);
    if news.send(Heard::Greeted(connection, greeting, outbox).into()).await.is_err() {
        return;
    }
    let (input, output) = stream.into_split();
    let writing = async {
        send(output, sealer, outgoing).await;
        sleep(FAREWELL).await;
    };
    tokio::select! {
        result = receive(connection, input, opener, &news) => {
            if let Err(error) = result {
                tracing::debug!(%error, connection = connection.0, "a connection broke");
            }
        }
        () = writing => {}
    }
    let _ = news.send(Heard::Event(Event::Closed(connection)).into()).await;
}

async fn receive<N: From<Heard>>(
    connection: Connection,
    mut input: OwnedReadHalf,
    mut opener: Opener,
    news: &mpsc::Sender<N>,
) -> io::Result<()> {
    loop {
        let Some(plain) = read_sealed(&mut input, &mut opener, MAX_FRAME).await? else {
            return Ok(());
        };
        let message: RankToDriver = wire::decode(&plain).map_err(io::Error::other)?;
        if news.send(Heard::Event(Event::Said(connection, message)).into()).await.is_err() {
            return Ok(());
        }
    }
}

async fn send(
    mut output: OwnedWriteHalf,
    mut sealer: Sealer,
    mut outgoing: mpsc::Receiver<Arc<[u8]>>,
) {
    while let Some(plain) = outgoing.recv().await {
        if output.write_all(&sealer.seal(&plain)).await.is_err() {
            return;
        }
    }
    let _ = output.shutdown().await;
}
