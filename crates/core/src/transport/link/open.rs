//! Opening the connections of a link.
//!
//! The higher rank of a pair dials, says which connection it is and whether what travels on it is
//! sealed; the lower one takes it at its door, if it may be so, and says so with one byte.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ronde_control::settings::Encryption;
use ronde_control::wire::{Greeting, JobKey, LinkKeys, Peer};
use ronde_control::{Epoch, MOST_CONNECTIONS, Rank};
use rustix::event::PollFlags;

use super::super::door::{Arrival, Door};
use super::super::socket::Socket;
use super::super::vigil::Vigil;
use super::super::wire::Wire;
use super::channel::Channel;
use crate::error::Error;

/// How long a peer that takes part may need to open its side.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// How long one attempt to dial may take.
const ATTEMPT: Duration = Duration::from_secs(2);

/// What it takes to open connections.
pub(crate) struct Opening {
    pub(crate) me: Rank,
    pub(crate) epoch: Epoch,
    pub(crate) key: JobKey,
    pub(crate) peers: Vec<Peer>,
    pub(crate) encryption: Encryption,
    pub(crate) door: Door,
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
        let deadline = Instant::now() + PATIENCE;
        let Peer { host, addresses, .. } = &self.peers[peer];
        let (epoch, rank, connection) = (self.epoch, self.me, connection as u32);
        loop {
            vigil.check()?;
            // No two attempts have the same keys, since either may have been used.
            let keys = if self.must_seal(peer) { Some(fresh_keys()?) } else { None };
            let pair = keys.as_ref().map(|keys| (keys.dialler, keys.listener));
            let greeting = Greeting::Link { epoch, rank, connection, keys };
            let attempt = deadline.min(Instant::now() + ATTEMPT);
            let opened = dial(addresses, &self.key, &greeting, attempt);
            let error = match opened {
                Ok(wire) => match await_welcome(&wire, vigil, deadline)? {
                    true => {
                        return Channel::new(wire, pair).map_err(|error| unusable(peer, &error));
                    }
                    false => "it did not take the link in; do both ranks have the same \
                              `RONDE_ENCRYPTION`?"
                        .into(),
                },
                Err(error) => error.to_string(),
            };
            if Instant::now() >= deadline {
                let text =
                    format!("rank {peer} ({host}) could not be reached at {addresses:?}: {error}");
                return Err(Error::Setup(text));
            }
        }
    }

    /// Takes in whoever comes next; `awaited` is named if nobody does.
    pub(super) fn let_in(
        &mut self,
        awaited: usize,
        vigil: &Vigil,
        deadline: Instant,
    ) -> Result<Option<Newcomer>, Error> {
        let interests = [(self.door.bell().as_fd(), PollFlags::IN)];
        let arrival = match self.early.pop_front() {
            Some(arrival) => Some(arrival),
            None => vigil.until(&interests, Some(deadline), || Ok(self.door.arrival()))?,
        };
        let Some((wire, greeting)) = arrival else {
            return Err(Error::Setup(format!(
                "rank {awaited} ({}) did not open its link within {} s",
                self.peers[awaited].host,
                PATIENCE.as_secs()
            )));
        };
        let Greeting::Link { epoch, rank, connection, keys } = greeting else {
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
    Error::Nonsense { rank: Rank(peer as u32), what: error.to_string() }
}

fn await_welcome(wire: &Wire, vigil: &Vigil, deadline: Instant) -> Result<bool, Error> {
    let socket = wire.socket();
    let interests = [(socket.as_fd(), PollFlags::IN)];
    let welcomed = vigil.until(&interests, Some(deadline), || match socket.read(&mut [0]) {
        Ok(Some(_)) => Ok(Some(true)),
        Ok(None) => Ok(None),
        Err(_) => Ok(Some(false)),
    })?;
    Ok(welcomed.unwrap_or(false))
}

/// Dials the addresses one after the other until one lets us in.
pub(crate) fn dial(
    addresses: &[SocketAddr],
    key: &JobKey,
    greeting: &Greeting,
    deadline: Instant,
) -> io::Result<Wire> {
    let mut last = io::Error::other("it has no address");
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let attempt = TcpStream::connect_timeout(address, left)
            .and_then(Socket::tcp)
            .and_then(|socket| Wire::dial(socket, key, greeting, deadline));
        match attempt {
            Ok(wire) => return Ok(wire),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

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
