//! Links to other ranks over TCP: opened when first used, one per pair, both directions kept full.
//!
//! The higher rank of a pair dials, the lower one takes the connection at its door and says so with
//! one byte. After that, tensors travel as they are, without frames: both ends know from the
//! algorithm how many bytes come next.

use std::io::{IoSlice, IoSliceMut};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ronde_control::wire::{Greeting, JobKey, Peer};
use ronde_control::{Epoch, Rank};
use rustix::event::PollFlags;

use super::door::Door;
use super::socket::Socket;
use super::vigil::Vigil;
use super::wire::Wire;
use crate::buffer::Region;
use crate::error::Error;

/// How long a peer that takes part may need to open its side.
const OPENING: Duration = Duration::from_secs(30);
/// How long one attempt to dial may take.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Bytes that one system call moves: few enough that what it brings is still in the cache when it is
/// reduced, and that the other direction does not wait long.
pub(crate) const BURST: usize = 256 << 10;
/// Pieces of a row that one system call takes.
const VECTOR: usize = 16;

pub(crate) struct Links {
    me: Rank,
    epoch: Epoch,
    key: JobKey,
    peers: Vec<Peer>,
    door: Door,
    vigil: Arc<Vigil>,
    open: Vec<Option<Socket>>,
}

/// Bytes on their way to or from one rank.
pub(crate) struct Flow<'a> {
    pub(crate) peer: usize,
    pub(crate) regions: &'a [Region],
}

impl Links {
    pub(crate) fn new(
        (me, epoch): (Rank, Epoch),
        key: JobKey,
        peers: Vec<Peer>,
        door: Door,
        vigil: Arc<Vigil>,
    ) -> Links {
        let open = peers.iter().map(|_| None).collect();
        Links { me, epoch, key, peers, door, vigil, open }
    }

    fn me(&self) -> usize {
        self.me.index()
    }

    /// Sends to one rank while receiving from another (or the same), and tells `arrived` how many
    /// bytes have come so far each time some have.
    pub(crate) fn exchange(
        &mut self,
        outgoing: Option<Flow<'_>>,
        incoming: Option<Flow<'_>>,
        mut arrived: impl FnMut(usize),
    ) -> Result<(), Error> {
        let mut sending = Cursor::new(outgoing);
        let mut receiving = Cursor::new(incoming);
        for peer in [sending.peer(), receiving.peer()].into_iter().flatten() {
            self.open(peer)?;
        }
        let (to, from) = (self.socket(sending.peer()), self.socket(receiving.peer()));
        let mut interests = Vec::with_capacity(2);
        loop {
            let mut moved = self.push(to, &mut sending)?;
            if self.pull(from, &mut receiving)? {
                arrived(receiving.done);
                moved = true;
            }
            if sending.is_over() && receiving.is_over() {
                return Ok(());
            }
            if moved {
                continue;
            }
            interests.clear();
            interests
                .extend(to.filter(|_| !sending.is_over()).map(|s| (s.as_fd(), PollFlags::OUT)));
            let reading = from.filter(|_| !receiving.is_over());
            interests.extend(reading.map(|s| (s.as_fd(), PollFlags::IN)));
            self.vigil.until(&interests, None, || {
                let sent = self.push(to, &mut sending)?;
                let received = self.pull(from, &mut receiving)?;
                Ok((sent || received).then_some(()))
            })?;
            arrived(receiving.done);
        }
    }

    fn socket(&self, peer: Option<usize>) -> Option<&Socket> {
        peer.and_then(|peer| self.open[peer].as_ref())
    }

    fn push(&self, socket: Option<&Socket>, cursor: &mut Cursor<'_>) -> Result<bool, Error> {
        let (Some(socket), Some(peer)) = (socket, cursor.peer()) else { return Ok(false) };
        if cursor.is_over() {
            return Ok(false);
        }
        let mut slices = [IoSlice::new(&[]); VECTOR];
        let count = cursor.fill(&mut slices, |region| IoSlice::new(region.as_bytes()));
        match socket.write_vectored(&slices[..count]) {
            Ok(sent) => Ok(cursor.advance(sent)),
            Err(error) => Err(self.broken(peer, &error)),
        }
    }

    fn pull(&self, socket: Option<&Socket>, cursor: &mut Cursor<'_>) -> Result<bool, Error> {
        let (Some(socket), Some(peer)) = (socket, cursor.peer()) else { return Ok(false) };
        if cursor.is_over() {
            return Ok(false);
        }
        let mut slices: [IoSliceMut<'_>; VECTOR] =
            std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let count = cursor.fill(&mut slices, |region| IoSliceMut::new(region.as_bytes_mut()));
        match socket.read_vectored(&mut slices[..count]) {
            Ok(received) => Ok(cursor.advance(received)),
            Err(error) => Err(self.broken(peer, &error)),
        }
    }

    /// A broken link makes its peer a suspect; the wait is for somebody who knows more.
    fn broken(&self, peer: usize, error: &std::io::Error) -> Error {
        let rank = Rank(peer as u32);
        self.vigil.fate.suspect(rank, format!("its connection broke: {error}"), Instant::now());
        match self.vigil.until::<()>(&[], None, || Ok(None)) {
            Err(error) => error,
            Ok(_) => Error::Nonsense { rank, what: error.to_string() },
        }
    }

    fn open(&mut self, peer: usize) -> Result<(), Error> {
        if self.open[peer].is_some() {
            return Ok(());
        }
        let deadline = Instant::now() + OPENING;
        if peer < self.me() {
            let socket = self.dial(peer, deadline)?;
            self.open[peer] = Some(socket);
            return Ok(());
        }
        while self.open[peer].is_none() {
            self.let_in(peer, deadline)?;
        }
        Ok(())
    }

    /// Dials until the other side says that it has taken the link in, with an eye to the fate.
    fn dial(&self, peer: usize, deadline: Instant) -> Result<Socket, Error> {
        let greeting = Greeting::Link { epoch: self.epoch, rank: self.me };
        let Peer { host, addresses, .. } = &self.peers[peer];
        loop {
            self.vigil.check()?;
            let attempt = deadline.min(Instant::now() + ATTEMPT);
            let opened = dial(addresses, &self.key, &greeting, attempt).and_then(Wire::into_socket);
            let error = match opened {
                Ok(socket) => match self.await_welcome(&socket, deadline)? {
                    true => return Ok(socket),
                    false => "it did not take the link in".into(),
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

    fn await_welcome(&self, socket: &Socket, deadline: Instant) -> Result<bool, Error> {
        let interests = [(socket.as_fd(), PollFlags::IN)];
        let welcomed =
            self.vigil.until(&interests, Some(deadline), || match socket.read(&mut [0]) {
                Ok(Some(_)) => Ok(Some(true)),
                Ok(None) => Ok(None),
                Err(_) => Ok(Some(false)),
            })?;
        Ok(welcomed.unwrap_or(false))
    }

    fn let_in(&mut self, peer: usize, deadline: Instant) -> Result<(), Error> {
        let interests = [(self.door.bell().as_fd(), PollFlags::IN)];
        let arrival = self.vigil.until(&interests, Some(deadline), || Ok(self.door.arrival()))?;
        let Some((wire, greeting)) = arrival else {
            return Err(Error::Setup(format!(
                "rank {peer} ({}) did not open its link within {} s",
                self.peers[peer].host,
                OPENING.as_secs()
            )));
        };
        if let Greeting::Link { epoch, rank } = greeting
            && epoch == self.epoch
            && rank > self.me
            && let Some(slot @ None) = self.open.get_mut(rank.index())
            && let Ok(socket) = wire.into_socket()
            && let Ok(Some(1)) = socket.write_vectored(&[IoSlice::new(&[1])])
        {
            *slot = Some(socket);
        }
        Ok(())
    }
}

/// Dials the addresses one after the other until one lets us in.
pub(crate) fn dial(
    addresses: &[SocketAddr],
    key: &JobKey,
    greeting: &Greeting,
    deadline: Instant,
) -> std::io::Result<Wire> {
    let mut last = std::io::Error::other("it has no address");
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

/// How far a flow has come.
struct Cursor<'a> {
    flow: Option<Flow<'a>>,
    region: usize,
    offset: usize,
    done: usize,
}

impl<'a> Cursor<'a> {
    fn new(flow: Option<Flow<'a>>) -> Cursor<'a> {
        let mut cursor = Cursor { flow, region: 0, offset: 0, done: 0 };
        cursor.skip_empty();
        cursor
    }

    fn peer(&self) -> Option<usize> {
        self.flow.as_ref().map(|flow| flow.peer)
    }

    fn regions(&self) -> &'a [Region] {
        self.flow.as_ref().map_or(&[], |flow| flow.regions)
    }

    fn is_over(&self) -> bool {
        self.region >= self.regions().len()
    }

    fn fill<T>(&self, slices: &mut [T], make: impl Fn(Region) -> T) -> usize {
        let rest = &self.regions()[self.region..];
        let count = rest.len().min(slices.len());
        let mut room = BURST;
        for (index, region) in rest[..count].iter().enumerate() {
            let start = if index == 0 { self.offset } else { 0 };
            let length = (region.length() - start).min(room);
            slices[index] = make(region.part(start..start + length));
            room -= length;
            if room == 0 {
                return index + 1;
            }
        }
        count
    }

    /// Whether anything moved.
    fn advance(&mut self, moved: Option<usize>) -> bool {
        let Some(mut count) = moved.filter(|count| *count > 0) else { return false };
        self.done += count;
        while count > 0 {
            let left = self.regions()[self.region].length() - self.offset;
            if count < left {
                self.offset += count;
                return true;
            }
            count -= left;
            self.region += 1;
            self.offset = 0;
        }
        self.skip_empty();
        true
    }

    fn skip_empty(&mut self) {
        while self.regions().get(self.region).is_some_and(|region| region.length() == 0) {
            self.region += 1;
        }
    }
}
