//! Links to other ranks over TCP: opened when first used, both directions kept full.
//!
//! A link has one connection, or several for large tensors. Tensors travel as they are, or sealed,
//! without anything between them: both ends know from the algorithm how many bytes come next on which
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

use self::channel::Channel;
use self::cursor::{Cursor, Slices};
pub(crate) use self::cursor::{Landing, Scratch};
pub(crate) use self::open::{Opening, PATIENCE};
use super::socket::sleep;
use super::traffic::TRAFFIC;
use super::vigil::{Interest, Vigil};
use crate::buffer::Row;
use crate::error::Error;

/// Bytes that one system call moves: few enough that what it brings is still in the cache when it is
/// reduced, and that the other direction does not wait long.
pub(crate) const BURST: usize = 256 << 10;
/// Bytes from which on starting a thread is worth it.
const LARGE: usize = 2 << 20;
/// How often the second hand looks around while it cannot send.
const GLANCE: Duration = Duration::from_millis(20);
/// Pieces of a row that one system call takes.
const VECTOR: usize = 16;

/// How many threads move the bytes of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hands {
    /// Every core has a rank to run.
    One,
    /// There are cores to spare: large flows are sent by a second thread.
    Two,
}

pub(crate) struct Links {
    opening: Opening,
    hands: Hands,
    vigil: Arc<Vigil>,
    /// The connections to each rank.
    open: Vec<Vec<Option<Channel>>>,
}

/// Bytes on their way to or from one rank.
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
    pub(crate) fn new(opening: Opening, vigil: Arc<Vigil>, hands: Hands) -> Links {
        let open = (0..opening.ranks()).map(|_| Vec::new()).collect();
        Links { opening, hands, vigil, open }
    }

    /// Sends all the outgoing flows while receiving all the incoming ones: the `i`-th flow of either
    /// kind takes the `i`-th connection to its peer. Each time bytes have come, `arrived` is told
    /// for which incoming flow, how many there are so far, and what its scratch holds.
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
        let mut exchange = Exchange { to: self.ends(outgoing), from: self.ends(incoming) };
        if self.hands == Hands::Two
            && is_large(&exchange.to)
            && is_large(&exchange.from)
            && let Some(moved) = self.with_both_hands(&mut exchange, &mut arrived)
        {
            return moved;
        }
        self.move_all(&mut exchange, &mut arrived)
    }

    fn move_all(
        &self,
        exchange: &mut Exchange<'_>,
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
                self.vigil.waits_for(peer);
            }
            self.vigil.until(&interests, None, || {
                let moved = exchange.step(arrived).map_err(|broken| self.lost(&broken))?;
                let over = exchange.is_over().map_err(|broken| self.lost(&broken))?;
                Ok((moved || over).then_some(()))
            })?;
        }
    }

    /// Has a second thread send while this one receives: with cores to spare, copying into and out of
    /// the kernel goes on at the same time. None if there is no thread to be had.
    fn with_both_hands(
        &self,
        exchange: &mut Exchange<'_>,
        arrived: &mut impl FnMut(usize, usize, &[u8]),
    ) -> Option<Result<(), Error>> {
        let stop = AtomicBool::new(false);
        let mut sending = Exchange { to: std::mem::take(&mut exchange.to), from: Vec::new() };
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

    /// What the second hand does. It must not wait as the first one does, which alone is rung; so it
    /// looks around often. The world's end ends it.
    fn send_all(&self, exchange: &mut Exchange<'_>, stop: &AtomicBool) -> Result<(), BrokenLink> {
        loop {
            if exchange.step(&mut |_, _, _| ())? {
                continue;
            }
            if exchange.is_over()? || stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            sleep(&exchange.interests(), GLANCE);
            if self.vigil.fate.verdict().is_some() {
                return Ok(());
            }
        }
    }

    fn ends<R: Slices>(&self, flows: Vec<Flow<R>>) -> Vec<End<'_, R>> {
        let end = |(connection, Flow { peer, row }): (usize, Flow<R>)| {
            let channel = self.open[peer][connection].as_ref()?;
            Some(End { channel, cursor: Cursor::new(peer, row) })
        };
        flows.into_iter().enumerate().filter_map(end).collect()
    }

    /// A broken link makes its peer a suspect; the wait is for somebody who knows more.
    fn lost(&self, broken: &BrokenLink) -> Error {
        let BrokenLink { peer, error } = broken;
        let rank = Rank(*peer as u32);
        let cause = (CauseKind::ConnectionLost, format!("its connection broke: {error}"));
        self.vigil.fate.suspect(rank, cause, Instant::now());
        match self.vigil.until::<()>(&[], None, || Ok(None)) {
            Err(error) => error,
            Ok(_) => Error::nonsense(rank, error.to_string()),
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
            let channel = self.opening.dial(peer, connection, &self.vigil)?;
            self.open[peer][connection] = Some(channel);
            return Ok(());
        }
        while self.open[peer].get(connection).is_none_or(Option::is_none) {
            let Some(newcomer) = self.opening.let_in(&self.vigil)? else { continue };
            let channels = &mut self.open[newcomer.rank];
            if channels.len() <= newcomer.connection {
                channels.resize_with(newcomer.connection + 1, || None);
            }
            channels[newcomer.connection].get_or_insert(newcomer.channel);
        }
        Ok(())
    }
}

/// One flow and the connection that it takes.
struct End<'a, R> {
    channel: &'a Channel,
    cursor: Cursor<R>,
}

/// Flows in both directions.
struct Exchange<'a> {
    to: Vec<End<'a, Row<'a>>>,
    from: Vec<End<'a, Landing<'a>>>,
}

/// A connection that failed, and whose it was.
struct BrokenLink {
    peer: usize,
    error: io::Error,
}

impl<'a> Exchange<'a> {
    /// Moves what can be moved now; gives whether anything did.
    fn step(&mut self, arrived: &mut impl FnMut(usize, usize, &[u8])) -> Result<bool, BrokenLink> {
        let mut moved = false;
        for End { channel, cursor } in &mut self.to {
            moved |= push(channel, cursor).map_err(of(cursor.peer()))?;
        }
        for (index, End { channel, cursor }) in self.from.iter_mut().enumerate() {
            if pull(channel, cursor).map_err(of(cursor.peer()))? {
                arrived(index, cursor.done(), cursor.scratch());
                moved = true;
            }
        }
        Ok(moved)
    }

    fn is_over(&self) -> Result<bool, BrokenLink> {
        // Every connection gets its turn: one that is stuck must not hold up what waits in another.
        let mut flushed = true;
        for End { channel, cursor } in &self.to {
            flushed &= channel.flush().map_err(of(cursor.peer()))? && cursor.is_over();
        }
        Ok(flushed && self.from.iter().all(|end| end.cursor.is_over()))
    }

    /// Whose bytes are missing, or who does not take any.
    fn awaited(&self) -> Option<usize> {
        let from = self.from.iter().find(|end| !end.cursor.is_over());
        let to = self.to.iter().find(|end| !end.cursor.is_over());
        from.map(|end| end.cursor.peer()).or_else(|| to.map(|end| end.cursor.peer()))
    }

    fn interests(&self) -> Vec<Interest<'a>> {
        let wait = |end: &&End<'a, _>| !end.cursor.is_over() || !end.channel.is_flushed();
        let to = self.to.iter().filter(wait).map(|end| (end.channel.as_fd(), PollFlags::OUT));
        let from = self.from.iter().filter(|end| !end.cursor.is_over());
        to.chain(from.map(|end| (end.channel.as_fd(), PollFlags::IN))).collect()
    }
}

fn of(peer: usize) -> impl FnOnce(io::Error) -> BrokenLink {
    move |error| BrokenLink { peer, error }
}

fn is_large<R: Slices>(ends: &[End<'_, R>]) -> bool {
    ends.iter().map(|end| end.cursor.length()).sum::<usize>() >= LARGE
}

fn push(channel: &Channel, cursor: &mut Cursor<Row<'_>>) -> io::Result<bool> {
    if cursor.is_over() {
        return Ok(false);
    }
    let mut slices = [IoSlice::new(&[]); VECTOR];
    let count = cursor.fill(&mut slices);
    let sent = channel.write(&slices[..count])?;
    TRAFFIC.count_sent(sent);
    Ok(cursor.advance(sent))
}

fn pull(channel: &Channel, cursor: &mut Cursor<Landing<'_>>) -> io::Result<bool> {
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
    use super::super::wire::Wire;
    use super::*;
    use crate::buffer::Buffer;

    /// A sealed connection, and the other end as a bare socket.
    fn connection() -> (Channel, Socket) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (ours, theirs) = (Socket::unix(ours).unwrap(), Socket::unix(theirs).unwrap());
        let key = JobKey::from_entropy([1; 32]);
        let greeting = Greeting::Control { epoch: Epoch(1), rank: Rank(3) };
        let soon = Instant::now() + Duration::from_secs(10);
        std::thread::scope(|scope| {
            let ours = scope
                .spawn(|| Wire::dial(ours, (&key, Callee::Launcher), &greeting, soon).unwrap());
            let (theirs, _) = Wire::accept(theirs, (&key, Callee::Launcher), soon).unwrap();
            let keys = Some(([5; 32], [6; 32]));
            let ours = Channel::new(ours.join().unwrap(), keys).unwrap();
            (ours, theirs.into_socket().unwrap())
        })
    }

    #[test]
    fn a_connection_that_is_stuck_does_not_hold_up_what_waits_in_another() {
        let ((stuck, _silent), (other, reader)) = (connection(), connection());
        let (long, short) = (Buffer::zeros(64 << 20), Buffer::zeros(BURST));
        // So much of it that its last bytes find no room.
        let mut sent = 0;
        while other.is_flushed() {
            sent += other.write(&[IoSlice::new(short.bytes())]).unwrap().unwrap();
        }
        let end = |channel, row| End { channel, cursor: Cursor::new(1, row) };
        let to = vec![end(&stuck, Row::new(vec![long.bytes()])), end(&other, Row::default())];
        let mut exchange = Exchange { to, from: Vec::new() };
        let mut received = 0;
        while received < sent {
            exchange.step(&mut |_, _, _| ()).ok().unwrap();
            assert!(!exchange.is_over().ok().unwrap());
            match reader.read(&mut [0; 1 << 16]).unwrap() {
                Some(count) => received += count,
                None => panic!("the other end waits for what nobody sends"),
            }
        }
        assert!(other.is_flushed());
    }
}
