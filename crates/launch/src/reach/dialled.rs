//! An agent that nobody here has started: it has dialled the rendezvous, proved that it holds the job's
//! key, and offers its host. Its pipe is the connection on which it came.

use std::io;
use std::net::IpAddr;

use ronde_control::VERSION;
use ronde_control::wire;
use ronde_control::wire::agent::OfferAnswer;
use tokio::io::AsyncWriteExt;
use tokio::sync::oneshot;

use super::link::AgentOutput;
use super::{AgentLink, AgentTraits, HostProblem};
use crate::stream::{self, ByteStream};
use crate::wire::SealedConnection;

/// A host that is on offer.
pub struct DialledAgent {
    /// What it calls itself.
    pub name: String,
    /// How many ranks it can take.
    pub slots: u32,
    /// What all processes of its ranks are to carry in their environment.
    pub mark: String,
    /// The version of Ronde there.
    pub version: String,
    /// The connection on which it has come.
    pub(crate) sealed: SealedConnection,
}

impl DialledAgent {
    /// Where it has come from.
    pub fn address(&self) -> Option<IpAddr> {
        self.sealed.stream.peer_addr().ok().map(|address| address.ip().to_canonical())
    }

    /// Why it cannot be taken, if it is of another version.
    pub fn mismatch(&self) -> Option<String> {
        (self.version != VERSION)
            .then(|| format!("the launcher has Ronde {VERSION} and the agent has {}", self.version))
    }

    /// Makes it one of the job's agents.
    pub fn take(self) -> io::Result<AgentLink> {
        let network = self.address().is_some_and(|address| address.is_loopback());
        let taken = wire::encode(&OfferAnswer::Taken);
        let ByteStream { reader, writer, receiving, sending } =
            stream::open(self.sealed, Some(taken))?;
        let (cut, is_cut) = oneshot::channel();
        let ended = async move {
            let abort = receiving.abort_handle();
            let result = tokio::select! {
                result = receiving => result.unwrap_or_else(|error| Err(io::Error::other(error))),
                Ok(()) = is_cut => Err(io::ErrorKind::ConnectionAborted.into()),
            };
            abort.abort();
            sending.abort();
            explain(result)
        };
        Ok(AgentLink {
            reader: Box::new(reader),
            writer: Box::new(writer),
            traits: AgentTraits { child: false, network, environment: false },
            heard: AgentOutput::default(),
            cut,
            ended: Box::pin(ended),
        })
    }

    /// Sends it away with a word why.
    pub fn refuse(self, reason: &str) {
        tracing::info!(host = self.name, reason, "an agent that has dialled in is refused");
        let (mut sealed, refused) = (self.sealed, OfferAnswer::Refused { reason: reason.into() });
        // Whoever does not listen to that learns nothing.
        tokio::spawn(async move {
            let _ = sealed.say(&refused).await;
            let _ = sealed.stream.shutdown().await;
        });
    }
}

fn explain(result: io::Result<()>) -> HostProblem {
    match result {
        Ok(()) => HostProblem::new(
            "its agent, which had dialled in, has ended",
            "see what it said there, and whether a scheduler, a time limit or a lack of memory has \
             ended it",
        ),
        Err(error) => HostProblem::new(
            format!("the connection that its agent had dialled broke: {error}"),
            "see whether the host is up and its network cable is in",
        ),
    }
}
