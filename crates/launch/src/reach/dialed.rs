//! An agent that the driver did not start: it dialed the rendezvous, proved that it holds the
//! job's key, and offers its host. Its connection to the rendezvous becomes its pipe.

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

/// A host that is offered to the job.
pub struct DialedAgent {
    /// The name that the agent gave.
    pub name: String,
    /// Number of ranks that it can run.
    pub slots: u32,
    /// The mark that all processes of its ranks carry in their environment.
    pub mark: String,
    /// The machine that it shares with other agents of the job, if it does.
    pub shared_host: Option<String>,
    /// The agent's version of Ronde.
    pub version: String,
    /// The connection that the agent opened.
    pub(crate) sealed: SealedConnection,
}

impl DialedAgent {
    /// The address that the agent connected from.
    pub fn address(&self) -> Option<IpAddr> {
        self.sealed.stream.peer_addr().ok().map(|address| address.ip().to_canonical())
    }

    /// Why it cannot be accepted, if its version differs.
    pub fn mismatch(&self) -> Option<String> {
        (self.version != VERSION)
            .then(|| format!("the launcher has Ronde {VERSION} and the agent has {}", self.version))
    }

    /// Accepts it as one of the job's agents.
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
            late: None,
            cut,
            ended: Box::pin(ended),
        })
    }

    /// Refuses the offer with a reason.
    pub fn refuse(self, reason: &str) {
        tracing::info!(host = self.name, reason, "refused an agent that dialed in");
        let (mut sealed, refused) = (self.sealed, OfferAnswer::Refused { reason: reason.into() });
        // If the agent does not read the answer, there is nothing more to do.
        tokio::spawn(async move {
            let _ = sealed.say(&refused).await;
            let _ = sealed.stream.shutdown().await;
        });
    }
}

fn explain(result: io::Result<()>) -> HostProblem {
    match result {
        Ok(()) => HostProblem::new(
            "its `ronde agent` exited",
            "check its output there, and whether a scheduler, a time limit or a lack of memory \
             ended it",
        ),
        Err(error) => HostProblem::new(
            format!("the connection from its agent broke: {error}"),
            "check that the host is up and connected to the network",
        ),
    }
}
