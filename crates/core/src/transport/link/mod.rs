//! Links to other ranks over TCP: opened when first used, both directions kept full.
//!
//! A link has one connection, or several for large tensors. Tensors travel plain or encrypted, with
//! nothing between them: both ends know from the algorithm how many bytes come next on which
//! connection.

mod channel;
mod cursor;
mod open;

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ronde_control::Rank;
use ronde_control::cause::CauseKind;
use rustix::event::PollFlags;

use self::channel::LinkConnection;
use self::cursor::{Cursor, Slices};
pub(crate) use self::cursor::{Landing, Scratch};
pub(crate) use self::open::{Opening, TIME_LIMIT};
use super::socket::sleep;
use super::traffic::TRAFFIC;
use super::waiter::{Interest, Waiter};
use crate::buffer::Row;
use crate::error::Error;

/// Bytes per system call: few enough that received bytes are still in the cache when they are
/// reduced, and that the other direction does not wait long.
pub(crate) const BURST: usize = 256 << 10;
/// Number of bytes that makes starting a second thread worthwhile.
const LARGE: usize = 2 << 20;
/// How often the sending thread checks for the end of the world while it cannot send.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Slices of a row per system call.
const VECTOR: usize = 16;

/// How many threads move the bytes of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkThreads {
    /// Every core has a rank to run.
    One,
    /// There are spare cores: a second thread sends large flows.
    Two,
}

pub(crate) struct Links {
    opening: Opening,
    threads: LinkThreads,
    waiter: Arc<Waiter>,
    /// The connections to each rank.
    open: Vec<Vec<Option<LinkConnection>>>,
}

/// Bytes to send to or receive from one rank.
pub(crate) struct Flow<R> {
    pub(crate) peer: usize,
    pub(crate) row: R,
}

impl<R> Flow<R> {
    pub(crate) fn map<T>(self, of: impl FnOnce(R) -> T) -> Flow<T> {
        Flow { peer: self.peer, row: of(self.row) }
    }
}

impl Links {
    pub(crate) fn new(opening: Opening, waiter: Arc<Waiter>, threads: LinkThreads) -> Links {
        let open = (0..opening.ranks()).map(|_| Vec::new()).collect();
        Links { opening, threads, waiter, open }
    }

    /// Sends all outgoing flows while receiving all incoming ones: the `i`-th flow of either kind
    /// uses the `i`-th connection to its peer. Whenever bytes arrive, calls `arrived` with the
    /// index of the incoming flow, its byte count so far, and the contents of its scratch buffer.
    pub(crate) fn exchange(
        &mut self,
        outgoing: Vec<Flow<Row<'_>>>,
        incoming: Vec<Flow<Landing<'_>>>,
        mut arrived: impl FnMut(usize, usize, &[u8]),
    ) -> Result<(), Error> {
        for (connection, flow) in outgoing.iter().enumerate() {
            self.open(flow.peer, connection)?;
        }
        for (connection, flow) in incoming.iter().enumerate() {
            self.open(flow.peer, connection)?;
        }
        let mut exchange = LinkExchange { to: self.ends(outgoing), from: self.ends(incoming) };
        if self.threads == LinkThreads::Two
            && is_large(&exchange.to)
            && is_large(&exchange.from)
            && let Some(moved) = self.with_two_threads(&mut exchange, &mut arrived)
        {
            return moved;
        }
        self.move_all(&mut exchange, &mut arrived)
    }

    fn move_all(
        &self,
        exchange: &mut LinkExchange<'_>,
        arrived: &mut impl FnMut(usize, usize, &[u8]),
    ) -> Result<(), Error> {
        loop {
            if exchange.step(arrived).map_err(|broken| self.lost(&broken))? {
                continue;
            }
            if exchange.is_over().map_err(|broken| self.lost(&broken))? {
                return Ok(());
            }
            let interests = exchange.interests();
            if let Some(peer) = exchange.awaited() {
                self.waiter.waits_for(peer);
            }
            self.waiter.until(&interests, None, || {
                let moved = exchange.step(arrived).map_err(|broken| self.lost(&broken))?;
                let over = exchange.is_over().map_err(|broken| self.lost(&broken))?;
                Ok((moved || over).then_some(()))
            })?;
        }
    }

    /// Sends from a second thread while this one receives: with spare cores, copying into and out
    /// of the kernel happens in parallel. `None` if no thread can be started.
    fn with_two_threads(
        &self,
        exchange: &mut LinkExchange<'_>,
        arrived: &mut impl FnMut(usize, usize, &[u8]),
    ) -> Option<Result<(), Error>> {
        let stop = AtomicBool::new(false);
        let mut sending = LinkExchange { to: std::mem::take(&mut exchange.to), from: Vec::new() };
        let moved = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("ronde-sender".into());
            let sender = thread.spawn_scoped(scope, || self.send_all(&mut sending, &stop)).ok()?;
            let received = self.move_all(exchange, arrived);
            if received.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            let sent = sender.join().expect("the sending thread does not panic");
            Some(received.and_then(|()| sent.map_err(|broken| self.lost(&broken))))
        });
        exchange.to = sending.to;
        moved
    }

    /// Body of the sending thread. It must not wait in the `Waiter`, whose doorbell is for the
    /// first thread; so it polls, and stops when the world ends.
    fn send_all(
        &self,
        exchange: &mut LinkExchange<'_>,
        stop: &AtomicBool,
    ) -> Result<(), BrokenLink> {
        loop {
            if exchange.step(&mut |_, _, _| ())? {
                continue;
            }
            if exchange.is_over()? || stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            sleep(&exchange.interests(), CHECK_INTERVAL);
            if self.waiter.world_state.verdict().is_some() {
                return Ok(());
            }
        }
    }

    fn ends<R: Slices>(&self, flows: Vec<Flow<R>>) -> Vec<FlowEnd<'_, R>> {
        let end = |(connection, Flow { peer, row }): (usize, Flow<R>)| {
            let channel = self.open[peer][connection].as_ref()?;
            Some(FlowEnd { channel, cursor: Cursor::new(peer, row) })
        };
        flows.into_iter().enumerate().filter_map(end).collect()
    }

    /// Marks the peer of a broken link as a suspect, then waits for the cause of its loss.
    fn lost(&self, broken: &BrokenLink) -> Error {
        let BrokenLink { peer, error } = broken;
        let rank = Rank(*peer as u32);
        let cause = (CauseKind::ConnectionLost, format!("its connection broke: {error}"));
        self.waiter.world_state.suspect(rank, cause, Instant::now());
        match self.waiter.until::<()>(&[], None, || Ok(None)) {
            Err(error) => error,
            Ok(_) => Error::malformed(rank, error.to_string()),
        }
    }

    fn open(&mut self, peer: usize, connection: usize) -> Result<(), Error> {
        let channels = &mut self.open[peer];
        if channels.len() <= connection {
            channels.resize_with(connection + 1, || None);
        }
        if channels[connection].is_some() {
            return Ok(());
        }
        if peer < self.opening.me() {
            let channel = self.opening.dial(peer, connection, &self.waiter)?;
            self.open[peer][connection] = Some(channel);
            return Ok(());
        }
        while self.open[peer].get(connection).is_none_or(Option::is_none) {
            let Some(incoming) = self.opening.accept_link(&self.waiter)? else { continue };
            let channels = &mut self.open[incoming.rank];
            if channels.len() <= incoming.connection {
                channels.resize_with(incoming.connection + 1, || None);
            }
            channels[incoming.connection].get_or_insert(incoming.channel);
        }
        Ok(())
    }
}

/// One flow and the connection it uses.
struct FlowEnd<'a, R> {
    channel: &'a LinkConnection,
    cursor: Cursor<R>,
}

struct LinkExchange<'a> {
    to: Vec<FlowEnd<'a, Row<'a>>>,
    from: Vec<FlowEnd<'a, Landing<'a>>>,
}

/// A failed connection, and the peer it belonged to.
struct BrokenLink {
    peer: usize,
    error: io::Error,
}

impl<'a> LinkExchange<'a> {
    /// Moves all bytes that can move now; returns whether any did.
    fn step(&mut self, arrived: &mut impl FnMut(usize, usize, &[u8])) -> Result<bool, BrokenLink> {
        let mut moved = false;
        for FlowEnd { channel, cursor } in &mut self.to {
            moved |= push(channel, cursor).map_err(of(cursor.peer()))?;
        }
        for (index, FlowEnd { channel, cursor }) in self.from.iter_mut().enumerate() {
            if pull(channel, cursor).map_err(of(cursor.peer()))? {
                arrived(index, cursor.done(), cursor.scratch());
                moved = true;
            }
        }
        Ok(moved)
    }

    fn is_over(&self) -> Result<bool, BrokenLink> {
        // Every connection gets its turn: one that is stuck must not hold up bytes waiting in
        // another.
        let mut flushed = true;
        for FlowEnd { channel, cursor } in &self.to {
            flushed &= channel.flush().map_err(of(cursor.peer()))? && cursor.is_over();
        }
        Ok(flushed && self.from.iter().all(|end| end.cursor.is_over()))
    }

    /// The peer whose bytes are missing, or that does not accept any.
    fn awaited(&self) -> Option<usize> {
        let from = self.from.iter().find(|end| !end.cursor.is_over());
        let to = self.to.iter().find(|end| !end.cursor.is_over());
        from.map(|end| end.cursor.peer()).or_else(|| to.map(|end| end.cursor.peer()))
    }

    fn interests(&self) -> Vec<Interest<'a>> {
        let wait = |end: &&FlowEnd<'a, _>| !end.cursor.is_over() || !end.channel.is_flushed();
        let to = self.to.iter().filter(wait).map(|end| (end.channel.as_fd(), PollFlags::OUT));
        let from = self.from.iter().filter(|end| !end.cursor.is_over());
        to.chain(from.map(|end| (end.channel.as_fd(), PollFlags::IN))).collect()
    }
}

fn of(peer: usize) -> impl FnOnce(io::Error) -> BrokenLink {
    move |error| BrokenLink { peer, error }
}

fn is_large<R: Slices>(ends: &[FlowEnd<'_, R>]) -> bool {
    ends.iter().map(|end| end.cursor.length()).sum::<usize>() >= LARGE
}

fn push(channel: &LinkConnection, cursor: &mut Cursor<Row<'_>>) -> io::Result<bool> {
    if cursor.is_over() {
        return Ok(false);
    }
    let mut slices = [IoSlice::new(&[]); VECTOR];
    let count = cursor.fill(&mut slices);
    let sent = channel.write(&slices[..count])?;
    TRAFFIC.count_sent(sent);
    Ok(cursor.advance(sent))
}

fn pull(channel: &LinkConnection, cursor: &mut Cursor<Landing<'_>>) -> io::Result<bool> {
    if cursor.is_over() {
        return Ok(false);
    }
    let mut slices: [IoSliceMut<'_>; VECTOR] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
    let count = cursor.fill(&mut slices);
    let received = channel.read(&mut slices[..count])?;
    TRAFFIC.count_received(received);
    Ok(cursor.advance(received))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use ronde_control::Epoch;
    use ronde_control::wire::{Callee, Greeting, JobKey};

    use super::super::socket::Socket;
    use super::super::wire::SealedWire;
    use super::*;
    use crate::buffer::Buffer;

    /// An encrypted connection, and its other end as a bare socket.
    fn connection() -> (LinkConnection, Socket) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (ours, theirs) = (Socket::unix(ours).unwrap(), Socket::unix(theirs).unwrap());
        let key = JobKey::from_entropy([1; 32]);
        let greeting = Greeting::Control { epoch: Epoch(1), rank: Rank(3) };
        let soon = Instant::now() + Duration::from_secs(10);
        std::thread::scope(|scope| {
            let ours = scope.spawn(|| {
                SealedWire::dial(ours, (&key, Callee::Launcher), &greeting, soon).unwrap()
            });
            let (theirs, _) = SealedWire::accept(theirs, (&key, Callee::Launcher), soon).unwrap();
            let keys = Some(([5; 32], [6; 32]));
            let ours = LinkConnection::new(ours.join().unwrap(), keys).unwrap();
            (ours, theirs.into_socket().unwrap())
        })
    }

    #[test]
    fn a_stuck_connection_does_not_hold_up_another() {
        let ((stuck, _silent), (other, reader)) = (connection(), connection());
        let (long, short) = (Buffer::zeros(64 << 20), Buffer::zeros(BURST));
        // Fill the socket, so that the last bytes do not fit.
        let mut sent = 0;
        while other.is_flushed() {
            sent += other.write(&[IoSlice::new(short.bytes())]).unwrap().unwrap();
        }
        let end = |channel, row| FlowEnd { channel, cursor: Cursor::new(1, row) };
        let to = vec![end(&stuck, Row::new(vec![long.bytes()])), end(&other, Row::default())];
        let mut exchange = LinkExchange { to, from: Vec::new() };
        let mut received = 0;
        while received < sent {
            exchange.step(&mut |_, _, _| ()).ok().unwrap();
            assert!(!exchange.is_over().ok().unwrap());
            match reader.read(&mut [0; 1 << 16]).unwrap() {
                Some(count) => received += count,
                None => panic!("the other end waits for bytes that are never sent"),
            }
        }
        assert!(other.is_flushed());
    }
}
