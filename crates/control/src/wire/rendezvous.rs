//! What ranks and the driver's rendezvous say to each other, and ranks to ranks when they meet.
//!
//! A rank dials the rendezvous, proves itself, greets, and then:
//!
//! 1. `Join`: here I am, and this is where I listen.
//! 2. `World`, once every rank has joined: who everybody is and where they listen.
//! 3. `Located`: which rank is the first on this host, found by trying to reach its unix socket.
//! 4. `Layout`: what every rank found, so that each host knows its members.
//!
//! The connection then stays open: the driver says `Lost` when it learns of a death, and the rank
//! says `Leaving` before it ends. Whoever sees the other end vanish knows that it died. A rank that has
//! lost its connection to another one which lives says `GivenUp`, and the driver passes that on: so all
//! ranks name the same two, instead of each the one that it saw give up. When somebody watches the job,
//! the driver says `Ask` and the rank answers `Report`; `Stalled` comes unasked. Every other second it says `Ping`, from the
//! greeting on, and a rank whose process runs answers `Pong`.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::LinkKeys;
use crate::cause::{CauseKind, Raised};
use crate::status::Report;
use crate::{Epoch, Rank, Worker};

/// The first sealed frame on every connection: who dialled, and what for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Greeting {
    /// A rank that comes to the driver's rendezvous; its version must be the driver's.
    Rendezvous {
        /// The version of Ronde on the rank's side.
        version: String,
        /// Who comes.
        rank: Rank,
    },
    /// A rank that comes to the first rank of its host for the shared memory.
    Segment {
        /// The world it belongs to.
        epoch: Epoch,
        /// Who comes.
        rank: Rank,
    },
    /// A rank that opens a connection for tensors.
    Link {
        /// The world it belongs to.
        epoch: Epoch,
        /// Who comes.
        rank: Rank,
        /// Which of the connections between the two.
        connection: u32,
        /// The keys that seal what travels on it, unless it travels as it is.
        keys: Option<LinkKeys>,
    },
    /// A rank that opens its connection to the coordinator.
    Control {
        /// The world it belongs to.
        epoch: Epoch,
        /// Who comes.
        rank: Rank,
    },
    /// The agent of a host, which will only say that it is there, again and again.
    Lifeline {
        /// The host's number.
        host: u32,
    },
    /// A rank that comes to the driver for the function that it is to call.
    Fetch {
        /// The version of Ronde on the rank's side.
        version: String,
        /// Who comes.
        rank: Rank,
    },
    /// A rank that brings the driver what that function returned.
    Deliver {
        /// The version of Ronde on the rank's side.
        version: String,
        /// Who comes.
        rank: Rank,
    },
    /// Somebody who wants to know how the job stands.
    Watch {
        /// The version of Ronde on their side.
        version: String,
    },
    /// A worker of an elastic job that comes to the driver's rendezvous.
    Worker {
        /// The version of Ronde on the worker's side.
        version: String,
        /// Who comes.
        worker: Worker,
    },
    /// Somebody with one question to the registry of a data service.
    Ask,
    /// Somebody who wants to talk to a server of a data service through its tunnel.
    Server {
        /// The server's name.
        name: String,
    },
    /// An agent that nobody of the job has started: it offers its host, hears an
    /// [`OfferAnswer`](super::agent::OfferAnswer), and if it is taken this connection is its pipe.
    Agent {
        /// The version of Ronde on the agent's side.
        version: String,
        /// What its host is called.
        name: String,
        /// How many ranks it can take.
        slots: u32,
        /// What all processes of its ranks are to carry in their environment.
        mark: String,
    },
}

/// What a rank tells the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankToDriver {
    /// The rank has called `init` and wants to be part of the next world.
    Join(Peer),
    /// The first rank on this host is this one.
    Located {
        /// The lowest rank whose unix socket could be reached, or the rank itself.
        leader: Rank,
    },
    /// The rank is about to end its part in the world.
    Leaving {
        /// The exception that ends the process, if one does.
        error: Option<Raised>,
        /// The rank whose loss caused that exception, if one did.
        blames: Option<Rank>,
    },
    /// A connection to another rank broke and nobody has said why: the world is over for this rank.
    GivenUp {
        /// The rank at the other end.
        rank: Rank,
        /// What was seen of it.
        cause: String,
    },
    /// What the rank has done so far, because it was asked.
    Report(Report),
    /// A worker of an elastic job has come that far in the current world.
    Reached(Milestone),
    /// A worker of an elastic job wants to be left out of the next world.
    Departing {
        /// Why, in words.
        reason: String,
    },
    /// The rank's process runs: the answer to `Ping`.
    Pong {
        /// For how long it has waited for other ranks, if it does.
        waits: Option<Duration>,
    },
    /// The world is over for this rank: until it joins again it answers no `Ping`.
    WorldEnded,
    /// Rank 0 has noticed that some ranks wait for others; told once for each tensor.
    Stalled {
        /// The tensor's name.
        tensor: String,
        /// For how long the first of those who wait has done so.
        during: Duration,
        /// Who waits.
        waiting: Vec<Rank>,
        /// Who is late.
        late: Vec<Rank>,
    },
}

/// How far a worker of an elastic job has come since its world was formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Milestone {
    /// It has the state of the training, its own or a survivor's: it may hand it on.
    State,
    /// It has finished its first step since then, and committed it.
    Commit,
}

/// What the driver tells a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DriverToRank {
    /// Everybody is here.
    World {
        /// The number of this forming of the world.
        epoch: Epoch,
        /// All ranks, in order.
        peers: Vec<Peer>,
    },
    /// What every rank found, in rank order: the first rank of its host.
    Layout {
        /// One entry per rank.
        leaders: Vec<Rank>,
    },
    /// A rank has ended without leaving.
    Lost {
        /// Who.
        rank: Rank,
        /// Where.
        host: String,
        /// By what kind of thing.
        kind: CauseKind,
        /// How, in words.
        cause: String,
    },
    /// The rank cannot be part of the world.
    Refused {
        /// Why, and what to do.
        reason: String,
    },
    /// Somebody wants to know what the rank has done so far.
    Ask,
    /// To a worker of an elastic job, before `World`: this is its rank there.
    Seat {
        /// Its rank.
        rank: Rank,
    },
    /// To a worker of an elastic job: the world fell apart before it was complete; join again.
    Again {
        /// Why, in words.
        reason: String,
    },
    /// To a worker of an elastic job: it is not part of the job any more.
    Removed {
        /// Why, in words.
        reason: String,
    },
    /// To the workers of an elastic job: the next world will be another one, so meet again soon.
    Update {
        /// In what it will differ.
        change: Change,
    },
    /// To be answered by `Pong` at once: a process that is stopped cannot.
    Ping,
}

/// In what the next world of an elastic job will differ from the current one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Workers will have gone.
    pub removed: bool,
    /// Workers will have come.
    pub added: bool,
    /// Workers will come, but are not ready: hosts have been found for them.
    pub coming: bool,
}

/// One rank as the others need to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// The name of its host, for people.
    pub host: String,
    /// Its place among the ranks of its host.
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
    fn the_bytes_on_the_wire_stay_what_they_were() {
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
    fn a_frame_means_one_thing_only() {
        let mut bytes = encode(&RankToDriver::Located { leader: Rank(0) });
        assert!(decode::<RankToDriver>(&bytes).is_ok());
        bytes.push(0);
        assert!(decode::<RankToDriver>(&bytes).is_err());
    }
}
