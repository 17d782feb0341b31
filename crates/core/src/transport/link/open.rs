//! Opening the connections of a link.
//!
//! The higher rank of a pair dials, says which connection it is and whether what travels on it is
//! sealed; the lower one takes it at its door, if it may be so, and says so with one byte.

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
use super::super::door::{Arrival, Door};
use super::super::socket::sleep;
use super::super::vigil::Vigil;
use super::super::wire::Wire;
use super::channel::Channel;
use crate::error::Error;

/// How long a peer may be out of reach. Once it is reached it may take any time to let this rank in:
/// it may be busy with others, and if it dies somebody will say so.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// How long one attempt to dial may take.
const ATTEMPT: Duration = Duration::from_secs(2);
/// How long to wait before the next attempt.
const PAUSE: Duration = Duration::from_millis(20);

/// What it takes to open connections.
pub(crate) struct Opening {
    pub(crate) me: Rank,
    pub(crate) epoch: Epoch,
    pub(crate) key: JobKey,
    pub(crate) peers: Vec<Peer>,
    pub(crate) encryption: Encryption,
    pub(crate) door: Door,
    pub(crate) patience: Duration,
    /// Who came while this rank was still joining.
    pub(crate) early: VecDeque<Arrival>,
}

/// A connection that a higher rank has opened.
pub(super) struct Newcomer {
    pub(super) rank: usize,
    pub(super) connection: usize,
    pub(super) channel: Channel,
}

impl Opening {
    pub(super) fn me(&self) -> usize {
        self.me.index()
    }

    pub(super) fn ranks(&self) -> usize {
        self.peers.len()
    }

    /// Dials until the other side says that it has taken the connection in, with an eye to the fate.
    pub(super) fn dial(
        &self,
        peer: usize,
        connection: usize,
        vigil: &Vigil,
    ) -> Result<Channel, Error> {
        let mut deadline = Instant::now() + self.patience;
        vigil.waits_for(peer);
        let Peer { host, local_rank, addresses, .. } = &self.peers[peer];
        let (epoch, rank, connection) = (self.epoch, self.me, connection as u32);
        loop {
            vigil.check()?;
            // No two attempts have the same keys, since either may have been used.
            let keys = if self.must_seal(peer) { Some(fresh_keys()?) } else { None };
            let pair = keys.as_ref().map(|keys| (keys.dialler, keys.listener));
            let greeting = Greeting::Link { epoch, rank, connection, keys };
            let attempt = deadline.min(Instant::now() + ATTEMPT);
            let call = (&self.key, Callee::Rank(Rank(peer as u32)));
            let opened =
                dial_with(addresses, call, &greeting, attempt, &mut |socket, flags, until| {
                    let ready = || sleep(&[(socket.as_fd(), flags)], Duration::ZERO)[0];
                    let interests = [(socket.as_fd(), flags)];
                    match vigil.until(&interests, Some(until), || Ok(ready().then_some(()))) {
                        Ok(Some(())) => Ok(()),
                        Ok(None) => Err(io::ErrorKind::TimedOut.into()),
                        Err(error) => Err(io::Error::other(error)),
                    }
                });
            let error = match opened {
                Ok(wire) => match await_welcome(&wire, vigil)? {
                    true => {
                        return Channel::new(wire, pair).map_err(|error| unusable(peer, &error));
                    }
                    false => "it did not take the link in; do both ranks have the same \
                              `RONDE_ENCRYPTION`?"
                        .into(),
                },
                Err(error) => {
                    // It is reached, and may be stopped: whoever knows more will say so.
                    if was_silent(&error) {
                        deadline = Instant::now() + self.patience;
                    }
                    error.to_string()
                }
            };
            if Instant::now() >= deadline {
                // The launcher may have said by now what has become of it.
                vigil.sentinel.look(&vigil.fate);
                vigil.check()?;
                let cause = format!("it could not be reached: {error}");
                let (rank, host, slot) = (Rank(peer as u32), host.clone(), *local_rank);
                let kind = CauseKind::ConnectionLost;
                return Err(Error::Lost { rank, host, slot, kind, cause, tensor: None });
            }
            // Sleeping is how a rank hears of the deaths of others.
            vigil.until::<()>(&[], Some(Instant::now() + PAUSE), || Ok(None))?;
        }
    }

    /// Takes in whoever comes next. Whoever cannot come says so to the launcher.
    pub(super) fn let_in(&mut self, vigil: &Vigil) -> Result<Option<Newcomer>, Error> {
        let interests = [(self.door.bell().as_fd(), PollFlags::IN)];
        let arrival = match self.early.pop_front() {
            Some(arrival) => Some(arrival),
            None => vigil.until(&interests, None, || Ok(self.door.arrival()))?,
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
        let newcomer =
            |channel| Newcomer { rank: rank.index(), connection: connection as usize, channel };
        let pair = keys.map(|keys| (keys.listener, keys.dialler));
        Ok(Channel::new(wire, pair).ok().map(newcomer))
    }

    fn must_seal(&self, peer: usize) -> bool {
        match self.encryption {
            Encryption::On => true,
            Encryption::Off => false,
            // Both ends look at both ends, and so find the same.
            Encryption::Auto => {
                let ends = [&self.peers[peer], &self.peers[self.me()]];
                let mut addresses = ends.into_iter().flat_map(|end| &end.addresses);
                addresses.any(|address| !is_private(address.ip()))
            }
        }
    }
}

/// Whether an address belongs to this host or to a network that strangers are not on.
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
            _ => return Err(Error::Setup("no random numbers could be had for a key".into())),
        }
    }
    Ok(keys)
}

fn unusable(peer: usize, error: &io::Error) -> Error {
    Error::nonsense(Rank(peer as u32), error.to_string())
}

fn await_welcome(wire: &Wire, vigil: &Vigil) -> Result<bool, Error> {
    let socket = wire.socket();
    let interests = [(socket.as_fd(), PollFlags::IN)];
    let welcomed = vigil.until(&interests, None, || match socket.read(&mut [0]) {
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

    use ronde_control::settings::Keeper;
    use ronde_control::wire::DriverToRank;

    use super::super::super::bell::Bell;
    use super::super::super::door::Doorway;
    use super::super::super::fate::Fate;
    use super::super::super::patience::Patience;
    use super::super::super::sentinel::Sentinel;
    use super::super::super::socket::Socket;
    use super::super::super::updates::Updates;
    use super::super::super::vigil::Bells;
    use super::*;
    use crate::error::Loss;

    fn key() -> JobKey {
        JobKey::from_entropy([1; 32])
    }

    fn peers(addresses: [SocketAddr; 2]) -> Vec<Peer> {
        let peer = |address| Peer {
            host: "node-a".into(),
            local_rank: 0,
            pid: 0,
            addresses: vec![address],
            unix: None,
        };
        addresses.into_iter().map(peer).collect()
    }

    /// A rank's waiting, and the launcher's end of its connection.
    fn vigil(peers: &[Peer]) -> (Vigil, Wire) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (ours, theirs) = (Socket::unix(ours).unwrap(), Socket::unix(theirs).unwrap());
        let greeting = Greeting::Control { epoch: Epoch(1), rank: Rank(1) };
        let soon = Instant::now() + Duration::from_secs(10);
        let (ours, theirs) = std::thread::scope(|scope| {
            let ours = scope
                .spawn(|| Wire::dial(ours, (&key(), Callee::Launcher), &greeting, soon).unwrap());
            let (theirs, _) = Wire::accept(theirs, (&key(), Callee::Launcher), soon).unwrap();
            (ours.join().unwrap(), theirs)
        });
        let sentinel =
            Sentinel::new((Keeper::Launcher, ours), Vec::new(), Updates::default()).unwrap();
        let bells = Bells { driver: Bell::new().unwrap(), background: Bell::new().unwrap() };
        let fate = Fate::new(peers.to_vec());
        (Vigil::new(fate, sentinel, bells, None, Patience::of(2, 1)), theirs)
    }

    fn opening(me: u32, peers: &[Peer], door: Door) -> Opening {
        let (encryption, early) = (Encryption::Off, VecDeque::new());
        let (key, peers) = (key(), peers.to_vec());
        let patience = Duration::from_millis(200);
        Opening { me: Rank(me), epoch: Epoch(1), key, peers, encryption, door, patience, early }
    }

    fn door(rank: u32) -> (Door, SocketAddr) {
        let here = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
        let doorway = Doorway::at(&[here], None).unwrap();
        let address = doorway.addresses()[0];
        (doorway.open(Rank(rank), "here", key()).unwrap(), address)
    }

    #[test]
    fn whoever_dials_the_dead_hears_what_the_launcher_knows() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (door, address) = door(1);
        let peers = peers([closed, address]);
        let (vigil, mut launcher) = vigil(&peers);
        let (rank, host, kind) = (Rank(0), "node-a".into(), CauseKind::Signal);
        let cause = "was killed".into();
        launcher.send(&DriverToRank::Lost { rank, host, kind, cause }).unwrap();
        let start = Instant::now();
        let error = opening(1, &peers, door).dial(0, 0, &vigil).err().unwrap();
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        let text = error.to_string();
        assert_eq!(text.lines().next(), Some("lost rank 0 (node-a, slot 0): was killed"));
    }

    #[test]
    fn whoever_cannot_be_reached_is_lost_and_named() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (door, address) = door(1);
        let peers = peers([closed, address]);
        let (vigil, _launcher) = vigil(&peers);
        let error = opening(1, &peers, door).dial(0, 0, &vigil).err().unwrap();
        let Loss { ranks, kind, .. } = error.loss().unwrap();
        assert_eq!((ranks, kind), (vec![Rank(0)], CauseKind::ConnectionLost));
        assert!(error.to_string().contains("could not be reached: 127.0.0.1:"), "{error}");
    }

    #[test]
    fn a_stopped_peer_is_waited_for_until_somebody_says_that_it_is_lost() {
        // The system takes connections for a process that does nothing.
        let stopped = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (door, address) = door(1);
        let peers = peers([stopped.local_addr().unwrap(), address]);
        let (vigil, mut launcher) = vigil(&peers);
        let opening = opening(1, &peers, door);
        std::thread::scope(|scope| {
            let dialled = scope.spawn(|| opening.dial(0, 0, &vigil));
            std::thread::sleep(5 * opening.patience);
            assert!(!dialled.is_finished());
            let (rank, host, kind) = (Rank(0), "node-a".into(), CauseKind::Halted);
            let cause = "was stopped".into();
            launcher.send(&DriverToRank::Lost { rank, host, kind, cause }).unwrap();
            let error = dialled.join().unwrap().err().unwrap().to_string();
            assert!(error.starts_with("lost rank 0 (node-a, slot 0): was stopped"), "{error}");
        });
    }

    #[test]
    fn a_busy_peer_may_take_longer_than_an_unreachable_one() {
        let ((low, at), (high, there)) = (door(0), door(1));
        let peers = peers([at, there]);
        let ((vigil, _launcher), (other, _other)) = (vigil(&peers), vigil(&peers));
        let (mut low, high) = (opening(0, &peers, low), opening(1, &peers, high));
        std::thread::scope(|scope| {
            let dialled = scope.spawn(|| high.dial(0, 3, &vigil));
            // It is busy until long after the other's patience would have ended.
            std::thread::sleep(3 * low.patience);
            let newcomer = loop {
                if let Some(newcomer) = low.let_in(&other).unwrap() {
                    break newcomer;
                }
            };
            assert_eq!((newcomer.rank, newcomer.connection), (1, 3));
            assert!(dialled.join().unwrap().is_ok());
        });
    }

    #[test]
    fn private_networks_are_known_in_both_families() {
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
