//! The protocols between ranks and the driver's rendezvous, and between ranks that connect.
//!
//! A rank dials the rendezvous, authenticates, greets, and then:
//!
//! 1. `Join`: the rank is ready, and listens at these addresses.
//! 2. `World`, once every rank has joined: all ranks and their addresses.
//! 3. `Located`: the first rank on this host, found by trying to reach its unix socket.
//! 4. `Layout`: what every rank found, so that each host knows its members.
//!
//! The connection then stays open: the driver sends `Lost` when it learns of a death, and the rank
//! sends `Leaving` before it exits. If the connection closes without that, the other end has died.
//! A rank that loses its connection to another live rank sends `GivenUp`, and the driver passes
//! that on, so that all ranks name the same two instead of each naming the one that it saw give up.
//! When there is a watcher, the driver sends `Ask` and the rank answers with a `RankReport`;
//! `Stalled` is sent without a request. From the greeting on, the driver sends `Ping` every other
//! second, and a rank whose process runs answers `Pong`.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::LinkKeys;
use crate::cause::{CauseKind, Raised};
use crate::status::RankReport;
use crate::{Epoch, Rank, Worker};

/// The first sealed frame on every connection: who dialed, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Greeting {
    /// A rank joins the driver's rendezvous; its version must match the driver's.
    Rendezvous {
        /// The version of Ronde on the rank's side.
        version: String,
        /// The rank that connects.
        rank: Rank,
    },
    /// A rank asks the first rank of its host for the shared memory.
    Segment {
        /// The epoch of its world.
        epoch: Epoch,
        /// The rank that connects.
        rank: Rank,
    },
    /// A rank opens a connection for tensors.
    Link {
        /// The epoch of its world.
        epoch: Epoch,
        /// The rank that connects.
        rank: Rank,
        /// Which of the connections between the two ranks this is.
        connection: u32,
        /// The keys that seal it; `None` if it is not encrypted.
        keys: Option<LinkKeys>,
    },
    /// A rank opens its connection to the coordinator.
    Control {
        /// The epoch of its world.
        epoch: Epoch,
        /// The rank that connects.
        rank: Rank,
    },
    /// The agent of a host opens its lifeline, on which it only sends heartbeats.
    Lifeline {
        /// The host's number.
        host: u32,
    },
    /// A rank fetches the function to call.
    Fetch {
        /// The version of Ronde on the rank's side.
        version: String,
        /// The rank that connects.
        rank: Rank,
    },
    /// A rank delivers what that function returned.
    Deliver {
        /// The version of Ronde on the rank's side.
        version: String,
        /// The rank that connects.
        rank: Rank,
    },
    /// A watcher asks about the job.
    Watch {
        /// The version of Ronde on the watcher's side.
        version: String,
    },
    /// A worker of an elastic job joins the driver's rendezvous.
    Worker {
        /// The version of Ronde on the worker's side.
        version: String,
        /// The worker that connects.
        worker: Worker,
    },
    /// A single request to the registry of a data service.
    Ask,
    /// A client connects to a server of a data service through its tunnel.
    Server {
        /// The server's name.
        name: String,
    },
    /// An agent that the job did not start offers its host. The answer is an
    /// [`OfferAnswer`](super::agent::OfferAnswer); if it is taken, this connection is its pipe.
    Agent {
        /// The version of Ronde on the agent's side.
        version: String,
        /// Name of its host.
        name: String,
        /// How many ranks it can run.
        slots: u32,
        /// A mark for the environment of all processes of its ranks.
        mark: String,
        /// The machine that it shares with other agents of the job, if it does: their ranks are
        /// numbered together.
        shared_host: Option<String>,
    },
}

/// Messages from a rank to the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankToDriver {
    /// The rank has called `init` and wants to be part of the next world.
    Join(Peer),
    /// The first rank on the sender's host.
    Located {
        /// The lowest rank whose unix socket could be reached, or the rank itself.
        leader: Rank,
    },
    /// The rank is about to leave the world.
    Leaving {
        /// The exception that ends the process, if one does.
        error: Option<Raised>,
        /// The rank whose loss caused that exception, if one did.
        blames: Option<Rank>,
    },
    /// A connection to another rank broke for an unknown reason: the world is over for this rank.
    GivenUp {
        /// The rank at the other end.
        rank: Rank,
        /// What this rank observed.
        cause: String,
    },
    /// What the rank has done so far; the answer to `Ask`.
    Report(RankReport),
    /// A worker of an elastic job has reached this point in the current world.
    Reached(Milestone),
    /// A worker of an elastic job wants to be left out of the next world.
    Departing {
        /// Human-readable reason.
        reason: String,
    },
    /// The rank's process runs: the answer to `Ping`.
    Pong {
        /// How long it has been waiting for other ranks, if it is.
        waits: Option<Duration>,
    },
    /// The world is over for this rank: it answers no `Ping` until it joins again.
    WorldEnded,
    /// Rank 0 has noticed that some ranks wait for others; sent once for each tensor.
    Stalled {
        /// The tensor's name.
        tensor: String,
        /// How long the first of them has been waiting.
        during: Duration,
        /// Ranks that have submitted the tensor.
        waiting: Vec<Rank>,
        /// Ranks that have not submitted the tensor.
        late: Vec<Rank>,
    },
}

/// How far a worker of an elastic job is since its world was formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Milestone {
    /// It has the training state, its own or a survivor's, and may pass it on.
    State,
    /// It has finished its first step since then, and committed it.
    Commit,
}

/// Messages from the driver to a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DriverToRank {
    /// All ranks have joined.
    World {
        /// The epoch of the new world.
        epoch: Epoch,
        /// All ranks, in order.
        peers: Vec<Peer>,
    },
    /// The first rank of each rank's host, in rank order.
    Layout {
        /// One entry per rank.
        leaders: Vec<Rank>,
    },
    /// A rank was lost: it ended without leaving.
    Lost {
        /// The rank that was lost.
        rank: Rank,
        /// Name of that rank's host.
        host: String,
        /// Kind of cause.
        kind: CauseKind,
        /// Human-readable cause, for example `was killed by signal 9`.
        cause: String,
    },
    /// The rank cannot be part of the world.
    Refused {
        /// Why, and how to fix it.
        reason: String,
    },
    /// A watcher wants to know what the rank has done so far.
    Ask,
    /// To a worker of an elastic job, before `World`: its rank there.
    Assign {
        /// Rank in the new world.
        rank: Rank,
    },
    /// To a worker of an elastic job: the world broke up before it was complete; join again.
    Again {
        /// Human-readable reason.
        reason: String,
    },
    /// To a worker of an elastic job: it is no longer part of the job.
    Removed {
        /// Human-readable reason.
        reason: String,
    },
    /// To the workers of an elastic job: the next world will be different, so join it soon.
    Update {
        /// How it will differ.
        change: Change,
    },
    /// To be answered with `Pong` at once, which a stopped process cannot do.
    Ping,
}

/// How the next world of an elastic job will differ from the current one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Workers will be removed.
    pub removed: bool,
    /// Workers will be added.
    pub added: bool,
    /// Workers will be added later: hosts have been found for them, but they are not ready.
    pub coming: bool,
}

/// A rank, as the other ranks know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Name of its host, for people.
    pub host: String,
    /// Distinguishes machines and containers whose names are equal; empty if unknown.
    pub machine: String,
    /// Its number among the ranks of its host.
    pub local_rank: u32,
    /// Its process id on its host.
    pub pid: u32,
    /// Where it listens for links.
    pub addresses: Vec<SocketAddr>,
    /// The name of its abstract unix socket, unless shared memory is off.
    pub unix: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::super::{decode, encode};
    use super::*;

    #[test]
    fn the_encoding_of_messages_does_not_change() {
        let (rank, host, kind) = (Rank(5), "b".into(), CauseKind::Signal);
        let lost = DriverToRank::Lost { rank, host, kind, cause: "x".into() };
        assert_eq!(encode(&lost), [2, 5, 1, b'b', 3, 1, b'x']);
        let leaving = RankToDriver::Leaving { error: None, blames: Some(Rank(300)) };
        assert_eq!(encode(&leaving), [2, 0, 1, 172, 2]);
        let raised = Raised { text: "x".into(), kind: CauseKind::Stalled };
        let leaving = RankToDriver::Leaving { error: Some(raised), blames: None };
        assert_eq!(encode(&leaving), [2, 1, 1, b'x', 7, 0]);
        let greeting = Greeting::Control { epoch: Epoch(1), rank: Rank(2) };
        assert_eq!(encode(&greeting), [3, 1, 2]);
    }

    #[test]
    fn a_frame_holds_exactly_one_message() {
        let mut bytes = encode(&RankToDriver::Located { leader: Rank(0) });
        assert!(decode::<RankToDriver>(&bytes).is_ok());
        bytes.push(0);
        assert!(decode::<RankToDriver>(&bytes).is_err());
    }
}
