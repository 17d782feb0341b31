//! Opening the connections of a link.
//!
//! The higher rank of a pair dials and says which connection this is and whether it is encrypted;
//! the lower rank accepts it through its listener, if it is valid, and confirms with one byte.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ronde_control::cause::CauseKind;
use ronde_control::settings::Encryption;
use ronde_control::wire::{Callee, Greeting, JobKey, LinkKeys, Peer};
use ronde_control::{Epoch, MOST_CONNECTIONS, Rank};
use rustix::event::PollFlags;

use super::super::dial::{dial_with, was_silent};
use super::super::rank_listener::{Arrival, RankListener};
use super::super::socket::sleep;
use super::super::waiter::Waiter;
use super::super::wire::SealedWire;
use super::channel::LinkConnection;
use crate::error::Error;

/// How long a peer may be unreachable. Once it has been reached, it may take any time to accept: it
/// may be busy with others, and if it dies this rank will be notified.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(30);
/// How long one attempt to dial may take.
const ATTEMPT: Duration = Duration::from_secs(2);
/// How long to wait before the next attempt.
const PAUSE: Duration = Duration::from_millis(20);

/// Everything needed to open connections.
pub(crate) struct Opening {
    pub(crate) me: Rank,
    pub(crate) epoch: Epoch,
    pub(crate) key: JobKey,
    pub(crate) peers: Vec<Peer>,
    pub(crate) encryption: Encryption,
    pub(crate) rank_listener: RankListener,
    pub(crate) time_limit: Duration,
    /// Connections accepted while this rank was still joining.
    pub(crate) early: VecDeque<Arrival>,
}

/// A connection opened by a higher rank.
pub(super) struct IncomingLink {
    pub(super) rank: usize,
    pub(super) connection: usize,
    pub(super) channel: LinkConnection,
}

impl Opening {
    pub(super) fn me(&self) -> usize {
        self.me.index()
    }

    pub(super) fn ranks(&self) -> usize {
        self.peers.len()
    }

    /// Dials until the peer confirms that it has accepted the connection, or the world ends.
    pub(super) fn dial(
        &self,
        peer: usize,
        connection: usize,
        waiter: &Waiter,
    ) -> Result<LinkConnection, Error> {
        let mut deadline = Instant::now() + self.time_limit;
        waiter.waits_for(peer);
        let Peer { host, local_rank, addresses, .. } = &self.peers[peer];
        let (epoch, rank, connection) = (self.epoch, self.me, connection as u32);
        loop {
            waiter.check()?;
            // Every attempt has new keys, since an earlier attempt may have used the old ones.
            let keys = if self.must_seal(peer) { Some(fresh_keys()?) } else { None };
            let pair = keys.as_ref().map(|keys| (keys.dialler, keys.listener));
            let greeting = Greeting::Link { epoch, rank, connection, keys };
            let attempt = deadline.min(Instant::now() + ATTEMPT);
            let call = (&self.key, Callee::Rank(Rank(peer as u32)));
            let opened =
                dial_with(addresses, call, &greeting, attempt, &mut |socket, flags, until| {
                    let ready = || sleep(&[(socket.as_fd(), flags)], Duration::ZERO)[0];
                    let interests = [(socket.as_fd(), flags)];
                    match waiter.until(&interests, Some(until), || Ok(ready().then_some(()))) {
                        Ok(Some(())) => Ok(()),
                        Ok(None) => Err(io::ErrorKind::TimedOut.into()),
                        Err(error) => Err(io::Error::other(error)),
                    }
                });
            let error = match opened {
                Ok(wire) => match await_welcome(&wire, waiter)? {
                    true => {
                        return LinkConnection::new(wire, pair)
                            .map_err(|error| unusable(peer, &error));
                    }
                    false => "it did not accept the connection; do both ranks have the \
                              same `RONDE_ENCRYPTION`?"
                        .into(),
                },
                Err(error) => {
                    // The peer was reached and may be stopped; its loss would be reported.
                    if was_silent(&error) {
                        deadline = Instant::now() + self.time_limit;
                    }
                    error.to_string()
                }
            };
            if Instant::now() >= deadline {
                // The launcher may have reported its loss by now.
                waiter.failure_detector.look(&waiter.world_state);
                waiter.check()?;
                let cause = format!("it could not be reached: {error}");
                let (rank, host, slot) = (Rank(peer as u32), host.clone(), *local_rank);
                let kind = CauseKind::ConnectionLost;
                return Err(Error::Lost { rank, host, slot, kind, cause, tensor: None });
            }
            // A rank learns of the deaths of others while it sleeps.
            waiter.until::<()>(&[], Some(Instant::now() + PAUSE), || Ok(None))?;
        }
    }

    /// Accepts the next connection. A peer that cannot connect reports that to the launcher.
    pub(super) fn accept_link(&mut self, waiter: &Waiter) -> Result<Option<IncomingLink>, Error> {
        let interests = [(self.rank_listener.bell().as_fd(), PollFlags::IN)];
        let arrival = match self.early.pop_front() {
            Some(arrival) => Some(arrival),
            None => waiter.until(&interests, None, || Ok(self.rank_listener.arrival()))?,
        };
        let Some((wire, Greeting::Link { epoch, rank, connection, keys })) = arrival else {
            return Ok(None);
        };
        let expected = epoch == self.epoch
            && rank > self.me
            && rank.index() < self.peers.len()
            && u64::from(connection) < MOST_CONNECTIONS
            && (keys.is_some() || !self.must_seal(rank.index()));
        if !expected || !matches!(wire.socket().write_vectored(&[IoSlice::new(&[1])]), Ok(Some(1)))
        {
            return Ok(None);
        }
        let incoming =
            |channel| IncomingLink { rank: rank.index(), connection: connection as usize, channel };
        let pair = keys.map(|keys| (keys.listener, keys.dialler));
        Ok(LinkConnection::new(wire, pair).ok().map(incoming))
    }

    fn must_seal(&self, peer: usize) -> bool {
        match self.encryption {
            Encryption::On => true,
            Encryption::Off => false,
            // Both ends consider both ends, so they reach the same decision.
            Encryption::Auto => {
                let ends = [&self.peers[peer], &self.peers[self.me()]];
                let mut addresses = ends.into_iter().flat_map(|end| &end.addresses);
                addresses.any(|address| !is_private(address.ip()))
            }
        }
    }
}

/// Whether an address belongs to this host or to a private network.
fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_private() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}

fn fresh_keys() -> Result<LinkKeys, Error> {
    let mut keys = LinkKeys { dialler: [0; 32], listener: [0; 32] };
    for key in [&mut keys.dialler, &mut keys.listener] {
        match rustix::rand::getrandom(&mut *key, rustix::rand::GetRandomFlags::empty()) {
            Ok(32) => {}
            _ => return Err(Error::Setup("no random numbers are available for a key".into())),
        }
    }
    Ok(keys)
}

fn unusable(peer: usize, error: &io::Error) -> Error {
    Error::malformed(Rank(peer as u32), error.to_string())
}

fn await_welcome(wire: &SealedWire, waiter: &Waiter) -> Result<bool, Error> {
    let socket = wire.socket();
    let interests = [(socket.as_fd(), PollFlags::IN)];
    let welcomed = waiter.until(&interests, None, || match socket.read(&mut [0]) {
        Ok(Some(_)) => Ok(Some(true)),
        Ok(None) => Ok(None),
        Err(_) => Ok(Some(false)),
    })?;
    Ok(welcomed.unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::os::unix::net::UnixStream;

    use ronde_control::settings::RendezvousOwner;
    use ronde_control::wire::DriverToRank;

    use super::super::super::bell::Doorbell;
    use super::super::super::failure_detector::FailureDetector;
    use super::super::super::rank_listener::BoundListener;
    use super::super::super::socket::Socket;
    use super::super::super::spin_limit::SpinLimit;
    use super::super::super::updates::Updates;
    use super::super::super::waiter::Doorbells;
    use super::super::super::world_state::WorldState;
    use super::*;
    use crate::error::Loss;

    fn key() -> JobKey {
        JobKey::from_entropy([1; 32])
    }

    fn peers(addresses: [SocketAddr; 2]) -> Vec<Peer> {
        let peer = |address| Peer {
            host: "node-a".into(),
            machine: String::new(),
            local_rank: 0,
            pid: 0,
            addresses: vec![address],
            unix: None,
        };
        addresses.into_iter().map(peer).collect()
    }

    /// A rank's waiter, and the launcher's end of its connection.
    fn waiter(peers: &[Peer]) -> (Waiter, SealedWire) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (ours, theirs) = (Socket::unix(ours).unwrap(), Socket::unix(theirs).unwrap());
        let greeting = Greeting::Control { epoch: Epoch(1), rank: Rank(1) };
        let soon = Instant::now() + Duration::from_secs(10);
        let (ours, theirs) = std::thread::scope(|scope| {
            let ours = scope.spawn(|| {
                SealedWire::dial(ours, (&key(), Callee::Launcher), &greeting, soon).unwrap()
            });
            let (theirs, _) = SealedWire::accept(theirs, (&key(), Callee::Launcher), soon).unwrap();
            (ours.join().unwrap(), theirs)
        });
        let failure_detector =
            FailureDetector::new((RendezvousOwner::Launcher, ours), Vec::new(), Updates::default())
                .unwrap();
        let bells = Doorbells {
            foreground: Doorbell::new().unwrap(),
            background: Doorbell::new().unwrap(),
        };
        let world_state = WorldState::new(peers.to_vec());
        (Waiter::new(world_state, failure_detector, bells, None, SpinLimit::of(2, 1)), theirs)
    }

    fn opening(me: u32, peers: &[Peer], rank_listener: RankListener) -> Opening {
        let (encryption, early) = (Encryption::Off, VecDeque::new());
        let (key, peers) = (key(), peers.to_vec());
        let time_limit = Duration::from_millis(200);
        Opening {
            me: Rank(me),
            epoch: Epoch(1),
            key,
            peers,
            encryption,
            rank_listener,
            time_limit,
            early,
        }
    }

    fn rank_listener(rank: u32) -> (RankListener, SocketAddr) {
        let here = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
        let bound_listener =
            BoundListener::at(&[here], &ronde_control::PortRange::default(), None).unwrap();
        let address = bound_listener.addresses()[0];
        (bound_listener.open(Rank(rank), "here", key()).unwrap(), address)
    }

    #[test]
    fn dialing_a_dead_rank_reports_the_launchers_cause() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (rank_listener, address) = rank_listener(1);
        let peers = peers([closed, address]);
        let (waiter, mut launcher) = waiter(&peers);
        let (rank, host, kind) = (Rank(0), "node-a".into(), CauseKind::Signal);
        let cause = "was killed".into();
        launcher.send(&DriverToRank::Lost { rank, host, kind, cause }).unwrap();
        let start = Instant::now();
        let error = opening(1, &peers, rank_listener).dial(0, 0, &waiter).err().unwrap();
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        let text = error.to_string();
        assert_eq!(text.lines().next(), Some("lost rank 0 (node-a, slot 0): was killed"));
    }

    #[test]
    fn an_unreachable_rank_is_lost_and_named() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (rank_listener, address) = rank_listener(1);
        let peers = peers([closed, address]);
        let (waiter, _launcher) = waiter(&peers);
        let error = opening(1, &peers, rank_listener).dial(0, 0, &waiter).err().unwrap();
        let Loss { ranks, kind, .. } = error.loss().unwrap();
        assert_eq!((ranks, kind), (vec![Rank(0)], CauseKind::ConnectionLost));
        assert!(error.to_string().contains("could not be reached: 127.0.0.1:"), "{error}");
    }

    #[test]
    fn a_stopped_peer_is_awaited_until_it_is_reported_lost() {
        // The kernel accepts connections for a process that does nothing.
        let stopped = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (rank_listener, address) = rank_listener(1);
        let peers = peers([stopped.local_addr().unwrap(), address]);
        let (waiter, mut launcher) = waiter(&peers);
        let opening = opening(1, &peers, rank_listener);
        std::thread::scope(|scope| {
            let dialed = scope.spawn(|| opening.dial(0, 0, &waiter));
            std::thread::sleep(5 * opening.time_limit);
            assert!(!dialed.is_finished());
            let (rank, host, kind) = (Rank(0), "node-a".into(), CauseKind::Halted);
            let cause = "was stopped".into();
            launcher.send(&DriverToRank::Lost { rank, host, kind, cause }).unwrap();
            let error = dialed.join().unwrap().err().unwrap().to_string();
            assert!(error.starts_with("lost rank 0 (node-a, slot 0): was stopped"), "{error}");
        });
    }

    #[test]
    fn a_busy_peer_may_take_longer_than_an_unreachable_one() {
        let ((low, at), (high, there)) = (rank_listener(0), rank_listener(1));
        let peers = peers([at, there]);
        let ((waiter, _launcher), (other, _other)) = (waiter(&peers), waiter(&peers));
        let (mut low, high) = (opening(0, &peers, low), opening(1, &peers, high));
        std::thread::scope(|scope| {
            let dialed = scope.spawn(|| high.dial(0, 3, &waiter));
            // It stays busy until long after the time limit for an unreachable peer.
            std::thread::sleep(3 * low.time_limit);
            let incoming = loop {
                if let Some(incoming) = low.accept_link(&other).unwrap() {
                    break incoming;
                }
            };
            assert_eq!((incoming.rank, incoming.connection), (1, 3));
            assert!(dialed.join().unwrap().is_ok());
        });
    }

    #[test]
    fn private_networks_are_recognized_in_both_address_families() {
        let private = ["127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.9.9", "169.254.1.1"];
        let private = private.into_iter().chain(["::1", "fd00::1", "fe80::1", "::ffff:10.0.0.1"]);
        for address in private {
            assert!(is_private(address.parse().unwrap()), "{address}");
        }
        for address in ["8.8.8.8", "172.32.0.1", "100.64.0.1", "2001:db8::1", "::ffff:1.2.3.4"] {
            assert!(!is_private(address.parse().unwrap()), "{address}");
        }
    }
}
