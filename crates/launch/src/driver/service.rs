//! The rendezvous as a server: a socket, the handshake, and frames in both directions.
//!
//! A caller must prove that it holds the job's key before we act on anything it sends. The number
//! of unauthenticated connections is bounded; `ronde_control::admission` decides which of them is
//! evicted and when one has taken too long, so that idle connections without the key cannot keep
//! ranks out. The meaning of the ranks' messages is decided elsewhere.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ronde_control::admission::{Admission, AdmissionLimits, Caller, HandshakeProgress, Origin};
use ronde_control::job::JobInput;
use ronde_control::wire::frame::{MAX_FRAME, Opener, Sealer};
use ronde_control::wire::{self, Callee, DriverToRank, Greeting, JobKey, RankToDriver};
use ronde_control::{ConnectionId, Time};
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::DriverInput;
use crate::lifeline;
use crate::reach::dialed::DialedAgent;
use crate::wire::{SealedConnection, answer, read_sealed};

/// Connections that may wait to be accepted; the system may allow fewer.
const BACKLOG: i32 = 4096;

/// Number of handshake steps that may queue for the accept loop.
const STEPS: usize = 256;

/// Largest greeting, in bytes; larger messages are accepted only after it.
const LONGEST_GREETING: usize = 4096;

/// Number of messages that may queue for a rank that does not read; then its connection is closed.
const OUTBOX: usize = 256;

/// How long a rank may take to read its last message and hang up.
const HANG_UP_LIMIT: Duration = Duration::from_secs(5);

/// Queue of messages to a rank. Dropping it closes the connection once everything is sent.
pub(crate) type Outbox = mpsc::Sender<Arc<[u8]>>;

/// The outboxes of all connected ranks.
#[derive(Default)]
pub(crate) struct Outboxes(HashMap<ConnectionId, Outbox>);

impl Outboxes {
    /// Translates an input into the job machine's terms, if it concerns the rendezvous.
    pub(crate) fn take_in(&mut self, news: DriverInput) -> Option<JobInput> {
        match news {
            DriverInput::Greeted(connection, greeting, outbox) => {
                self.0.insert(connection, outbox);
                Some(JobInput::Greeted(connection, greeting))
            }
            DriverInput::Said(connection, message) => Some(JobInput::Said(connection, message)),
            DriverInput::Closed(connection) => {
                self.close(connection);
                Some(JobInput::Closed(connection))
            }
            _ => None,
        }
    }

    /// Queues the same message, encoded once, for all of these; a rank that does not read is cut
    /// off.
    pub(crate) fn tell(&mut self, connections: Vec<ConnectionId>, message: &DriverToRank) {
        let message: Arc<[u8]> = wire::encode(message).into();
        for connection in connections {
            let outbox = self.0.get(&connection);
            if outbox.is_some_and(|outbox| outbox.try_send(message.clone()).is_err()) {
                self.close(connection);
            }
        }
    }

    /// Closes a connection once everything is sent.
    pub(crate) fn close(&mut self, connection: ConnectionId) {
        self.0.remove(&connection);
    }

    /// Whether everything has been sent.
    pub(crate) fn are_empty(&self) -> bool {
        self.0.values().all(|outbox| outbox.capacity() == outbox.max_capacity())
    }
}

/// Serves until dropped.
pub(crate) async fn run(listener: TcpListener, key: JobKey, news: mpsc::Sender<DriverInput>) {
    // Ranks connect all at once, and one that finds the queue full retries a second later.
    let _ = rustix::net::listen(&listener, BACKLOG);
    let (steps, mut progress) = mpsc::channel(STEPS);
    let mut handshakes = Handshakes::new();
    loop {
        // Read all progress first, so that a connection that has authenticated is not evicted.
        while let Ok((caller, step)) = progress.try_recv() {
            handshakes.step(caller, step);
        }
        let (opens, wakeup) = handshakes.tick();
        tokio::select! {
            accepted = listener.accept(), if opens <= Instant::now() => match accepted {
                Ok((stream, _)) => {
                    let caller = handshakes.arrive();
                    let (key, news, steps) = (key.clone(), news.clone(), steps.clone());
                    let task = tokio::spawn(async move {
                        let met = meet(stream, &key, caller, &steps).await;
                        let _ = steps.send((caller, CallerStep::Done)).await;
                        match met {
                            Ok(Some(met)) => serve(ConnectionId(caller.0), met, news).await,
                            Ok(None) => tracing::debug!("a host of the job has checked that it can reach the launcher"),
                            Err(error) => tracing::debug!(%error, "dropped a connection that did not authenticate"),
                        }
                    });
                    handshakes.tasks.insert(caller, task.abort_handle());
                }
                // The machine has run out of a resource, most likely descriptors; that may be
                // temporary.
                Err(error) => {
                    tracing::debug!(%error, "a connection could not be accepted");
                    sleep(Duration::from_millis(100)).await;
                }
            },
            Some((caller, step)) = progress.recv() => handshakes.step(caller, step),
            () = sleep_until(wakeup.unwrap_or(opens)), if wakeup.is_some() => {}
        }
    }
}

/// Like `run`, for a caller that wants only the agents that dial in.
pub async fn offers(listener: TcpListener, key: JobKey, offers: mpsc::Sender<DialedAgent>) {
    let (sender, mut news) = mpsc::channel(STEPS);
    let passing_on = async {
        while let Some(item) = news.recv().await {
            if let DriverInput::Offered(offer) = item
                && offers.send(offer).await.is_err()
            {
                return;
            }
        }
    };
    tokio::select! {
        () = run(listener, key, sender) => {}
        () = passing_on => {}
    }
}

/// Callers that have not yet authenticated and sent a greeting.
struct Handshakes {
    start: Instant,
    admission: Admission,
    tasks: HashMap<Caller, AbortHandle>,
}

/// Progress of a caller.
#[derive(Clone, Copy)]
enum CallerStep {
    /// The handshake has reached this point.
    Reached(HandshakeProgress),
    /// The caller has sent its greeting, or the connection is closed.
    Done,
}

impl Handshakes {
    fn new() -> Handshakes {
        let admission = Admission::new(AdmissionLimits::default());
        Handshakes { start: Instant::now(), admission, tasks: HashMap::new() }
    }

    fn now(&self) -> Time {
        self.start.elapsed()
    }

    /// Admits a new connection, which may evict another.
    fn arrive(&mut self) -> Caller {
        let (caller, evicted) = self.admission.arrive(Origin::Unknown, self.now());
        if let Some(evicted) = evicted {
            self.drop_one(evicted);
        }
        caller
    }

    fn step(&mut self, caller: Caller, step: CallerStep) {
        match step {
            CallerStep::Reached(context) => self.admission.advance(caller, context),
            CallerStep::Done => {
                self.admission.leave(caller);
                self.tasks.remove(&caller);
            }
        }
    }

    /// Handles timers that are due; returns when the next connection may be accepted, and when to
    /// wake up.
    fn tick(&mut self) -> (Instant, Option<Instant>) {
        let now = self.now();
        for late in self.admission.expire(now) {
            self.drop_one(late);
        }
        if let Some(notice) = self.admission.notice(now) {
            tracing::warn!("the launcher's port {notice}");
        }
        let opens = self.admission.opens_at();
        let room = (opens > now).then_some(opens);
        let wakeup = self.admission.next_wakeup().into_iter().chain(room).min();
        (self.start + opens, wakeup.map(|at| self.start + at))
    }

    fn drop_one(&mut self, caller: Caller) {
        tracing::debug!(
            caller = caller.0,
            "dropped a connection that did not authenticate in time"
        );
        if let Some(task) = self.tasks.remove(&caller) {
            task.abort();
        }
    }
}

/// A connection that has authenticated, and its greeting.
type Authenticated = (SealedConnection, Greeting);

/// None if it has the key and wants nothing, as an agent that tries which addresses reach the launcher.
async fn meet(
    stream: TcpStream,
    key: &JobKey,
    caller: Caller,
    steps: &mpsc::Sender<(Caller, CallerStep)>,
) -> io::Result<Option<Authenticated>> {
    let reached = async |context| {
        let _ = steps.send((caller, CallerStep::Reached(context))).await;
    };
    stream.readable().await?;
    reached(HandshakeProgress::Begun).await;
    let mut sealed = answer(stream, key, Callee::Launcher).await?;
    reached(HandshakeProgress::Proven).await;
    let greeting = sealed.hear(LONGEST_GREETING).await?;
    Ok(greeting.map(|greeting| (sealed, greeting)))
}

async fn serve(
    connection: ConnectionId,
    (sealed, greeting): Authenticated,
    news: mpsc::Sender<DriverInput>,
) {
    let other = match greeting {
        Greeting::Lifeline { host } => {
            DriverInput::Silent(host as usize, lifeline::hold(sealed).await)
        }
        Greeting::Agent { version, name, slots, mark } => {
            DriverInput::Offered(DialedAgent { name, slots, mark, version, sealed })
        }
        Greeting::Fetch { .. } | Greeting::Deliver { .. } | Greeting::Watch { .. } => {
            DriverInput::SideConnection(sealed, greeting)
        }
        // All other callers go to the job machine, which refuses those that are not ranks.
        _ => return attend(connection, (sealed, greeting), news).await,
    };
    let _ = news.send(other).await;
}

/// Serves a rank until it disconnects or its outbox is closed.
async fn attend(
    connection: ConnectionId,
    (sealed, greeting): Authenticated,
    news: mpsc::Sender<DriverInput>,
) {
    let SealedConnection { stream, sealer, opener } = sealed;
    let (outbox, outgoing) = mpsc::channel(OUTBOX);
    if news.send(DriverInput::Greeted(connection, greeting, outbox)).await.is_err() {
        return;
    }
    let (input, output) = stream.into_split();
    let writing = async {
        send(output, sealer, outgoing).await;
        sleep(HANG_UP_LIMIT).await;
    };
    tokio::select! {
        result = receive(connection, input, opener, &news) => {
            if let Err(error) = result {
                tracing::debug!(%error, connection = connection.0, "a connection broke");
            }
        }
        () = writing => {}
    }
    let _ = news.send(DriverInput::Closed(connection)).await;
}

async fn receive(
    connection: ConnectionId,
    mut input: OwnedReadHalf,
    mut opener: Opener,
    news: &mpsc::Sender<DriverInput>,
) -> io::Result<()> {
    loop {
        let Some(plain) = read_sealed(&mut input, &mut opener, MAX_FRAME).await? else {
            return Ok(());
        };
        let message: RankToDriver = wire::decode(&plain).map_err(io::Error::other)?;
        if news.send(DriverInput::Said(connection, message)).await.is_err() {
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
