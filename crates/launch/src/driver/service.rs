//! The rendezvous as a server: frames in both directions on connections that have authenticated.
//! The meaning of the ranks' messages is decided elsewhere.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ronde_control::ConnectionId;
use ronde_control::admission::Caller;
use ronde_control::job::JobInput;
use ronde_control::wire::frame::{MAX_FRAME, Opener, Sealer};
use ronde_control::wire::{self, Callee, DriverToRank, Greeting, JobKey, RankToDriver};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::DriverInput;
use crate::authenticated;
use crate::lifeline;
use crate::reach::dialed::DialedAgent;
use crate::wire::{SealedConnection, read_sealed};

/// Number of inputs that may queue for a caller that only wants offers.
const OFFERS: usize = 256;

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
    let greeted = move |caller: Caller, sealed, greeting| {
        serve(ConnectionId(caller.0), (sealed, greeting), news.clone())
    };
    authenticated::serve(listener, (key, Callee::Launcher), greeted).await;
}

/// Like `run`, for a caller that wants only the agents that dial in.
pub async fn offers(listener: TcpListener, key: JobKey, offers: mpsc::Sender<DialedAgent>) {
    let (sender, mut news) = mpsc::channel(OFFERS);
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

/// A connection that has authenticated, and its greeting.
type Authenticated = (SealedConnection, Greeting);

async fn serve(
    connection: ConnectionId,
    (sealed, greeting): Authenticated,
    news: mpsc::Sender<DriverInput>,
) {
    let other = match greeting {
        Greeting::Lifeline { host } => {
            DriverInput::Silent(host as usize, lifeline::hold(sealed).await)
        }
        Greeting::Agent { version, name, slots, mark, shared_host } => {
            DriverInput::Offered(DialedAgent { name, slots, mark, shared_host, version, sealed })
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
