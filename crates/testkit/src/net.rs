//! A faulty network: it relays every connection between ranks, and at a byte that a test chooses it
//! closes, resets, slows down or corrupts one.
//!
//! The launcher gives each rank addresses of this network instead of those of its peers, so that
//! the ranks' own code does not know about it. A *stream* is one direction of one connection.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// Direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// From the rank that dialed.
    There,
    /// To the rank that dialed.
    Back,
}

/// One direction of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NetStream {
    /// Rank that opened the connection.
    pub from: usize,
    /// Rank that accepted it.
    pub to: usize,
    /// Number of earlier connections between the two.
    pub number: usize,
    /// Direction of the bytes.
    pub way: Direction,
}

/// A fault that hits a stream or a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetFault {
    /// The connection is reset.
    Reset,
    /// The connection is closed in order, in both directions.
    Close,
    /// One bit of every following byte is flipped.
    Garble,
    /// The following bytes arrive in small pieces for a while.
    Slow,
    /// Every connection of this rank is closed, as if its process had died, and new ones fail.
    Kill(usize),
}

/// A fault that occurs when a number of bytes of a stream have passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedFault {
    /// The stream to count bytes on.
    pub stream: NetStream,
    /// Number of bytes before the fault.
    pub after: u64,
    /// The fault.
    pub harm: NetFault,
}

/// The network of one world.
pub struct Net {
    inner: Arc<Inner>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Inner {
    fault: Option<TimedFault>,
    state: Mutex<NetState>,
    over: AtomicBool,
}

type NetNews = Box<dyn Fn(NetFault) + Send>;

#[derive(Default)]
struct NetState {
    addresses: Vec<SocketAddr>,
    traffic: BTreeMap<NetStream, u64>,
    connections: Vec<(usize, usize, [TcpStream; 2])>,
    pumps: Vec<JoinHandle<()>>,
    dead: Option<usize>,
    struck: bool,
    news: Option<NetNews>,
}

impl Net {
    /// A network with this fault, or none.
    pub fn new(fault: Option<TimedFault>) -> Arc<Net> {
        let inner = Arc::new(Inner { fault, ..Inner::default() });
        Arc::new(Net { inner, threads: Mutex::default() })
    }

    /// Number of bytes that have passed on each stream.
    pub fn traffic(&self) -> Vec<(NetStream, u64)> {
        self.inner.lock().traffic.iter().map(|(stream, bytes)| (*stream, *bytes)).collect()
    }

    /// Whether the fault has occurred.
    pub fn has_struck(&self) -> bool {
        self.inner.lock().struck
    }

    /// Calls `news` when the fault occurs.
    pub fn on_harm(&self, news: impl Fn(NetFault) + Send + 'static) {
        self.inner.lock().news = Some(Box::new(news));
    }

    /// The address through which one rank reaches another, which listens on `address`.
    pub(crate) fn route(&self, from: usize, to: usize, address: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback can be listened on");
        let route = listener.local_addr().expect("a bound socket has an address");
        self.inner.lock().addresses.push(route);
        let inner = self.inner.clone();
        let accept = move || inner.accept_all(&listener, (from, to), address);
        self.threads
            .lock()
            .expect("nothing panics while it holds this lock")
            .push(std::thread::spawn(accept));
        route
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.inner.over.store(true, Ordering::SeqCst);
        let addresses = self.inner.lock().addresses.clone();
        for address in addresses {
            // Wakes the accepting thread.
            let _ = TcpStream::connect(address);
        }
        for thread in
            self.threads.lock().expect("nothing panics while it holds this lock").drain(..)
        {
            let _ = thread.join();
        }
        self.inner.lock().cut(|_, _| true);
        let pumps = std::mem::take(&mut self.inner.lock().pumps);
        pumps.into_iter().for_each(|pump| drop(pump.join()));
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, NetState> {
        self.state.lock().expect("nothing panics while it holds this lock")
    }

    fn accept_all(
        self: Arc<Inner>,
        listener: &TcpListener,
        (from, to): (usize, usize),
        address: SocketAddr,
    ) {
        for number in 0.. {
            let Ok((near, _)) = listener.accept() else { return };
            if self.over.load(Ordering::SeqCst) {
                return;
            }
            let is_dead = self.lock().dead.is_some_and(|dead| dead == from || dead == to);
            if is_dead {
                continue;
            }
            // If the target is gone, the connection is closed at once.
            let _ =
                self.relay(near, NetStream { from, to, number, way: Direction::There }, address);
        }
    }

    fn relay(
        self: &Arc<Inner>,
        near: TcpStream,
        there: NetStream,
        address: SocketAddr,
    ) -> io::Result<()> {
        let far = TcpStream::connect(address)?;
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        let pair = [near.try_clone()?, far.try_clone()?];
        let (reader, writer) = (far.try_clone()?, near.try_clone()?);
        let back = NetStream { way: Direction::Back, ..there };
        let mut state = self.lock();
        state.connections.push((there.from, there.to, pair));
        for (stream, source, target) in [(there, near, far), (back, reader, writer)] {
            state.traffic.insert(stream, 0);
            let inner = self.clone();
            state.pumps.push(std::thread::spawn(move || inner.pump(stream, source, target)));
        }
        Ok(())
    }

    /// Relays bytes in one direction until the connection ends.
    fn pump(&self, stream: NetStream, mut source: TcpStream, mut target: TcpStream) {
        let fault = self.fault.filter(|fault| fault.stream == stream);
        let (mut buffer, mut passed, mut pieces) = (vec![0; 64 << 10], 0u64, usize::MAX);
        let mut crumbs = 0;
        if let Some(fault) = fault.filter(|fault| fault.after == 0) {
            pieces = self.strike(fault.harm, [&source, &target], pieces);
        }
        while let Ok(count @ 1..) = source.read(&mut buffer) {
            let mut rest = &mut buffer[..count];
            while !rest.is_empty() {
                let due = fault.map(|fault| fault.after.saturating_sub(passed));
                let due = due.filter(|due| *due > 0).unwrap_or(u64::MAX);
                let length = rest.len().min(pieces).min(usize::try_from(due).unwrap_or(usize::MAX));
                let (now, later) = std::mem::take(&mut rest).split_at_mut(length);
                if let Some(TimedFault { after, harm: NetFault::Garble, .. }) = fault
                    && passed >= after
                {
                    now.iter_mut().for_each(|byte| *byte ^= 4);
                }
                if target.write_all(now).is_err() {
                    return self.close([&source, &target]);
                }
                passed += length as u64;
                self.lock().traffic.insert(stream, passed);
                if let Some(fault) = fault.filter(|fault| fault.after == passed) {
                    pieces = self.strike(fault.harm, [&source, &target], pieces);
                }
                if pieces < usize::MAX {
                    crumbs += 1;
                    std::thread::sleep(Duration::from_millis(1));
                    pieces = if crumbs < 150 { 1 + crumbs % 7 } else { usize::MAX };
                }
                rest = later;
            }
        }
        let _ = target.shutdown(Shutdown::Write);
    }

    /// Causes the fault; returns the size of the pieces in which bytes pass from now on.
    fn strike(&self, harm: NetFault, pair: [&TcpStream; 2], pieces: usize) -> usize {
        let mut state = self.lock();
        state.struck = true;
        if let Some(news) = &state.news {
            news(harm);
        }
        match harm {
            NetFault::Garble => return pieces,
            NetFault::Slow => return 1,
            NetFault::Close => self.close(pair),
            NetFault::Reset => {
                for stream in pair {
                    let _ = rustix::net::connect_unspec(stream);
                }
                self.close(pair);
            }
            NetFault::Kill(rank) => {
                state.dead = Some(rank);
                state.cut(|from, to| from == rank || to == rank);
            }
        }
        pieces
    }

    fn close(&self, pair: [&TcpStream; 2]) {
        for stream in pair {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl NetState {
    /// Closes the connections between matching ranks.
    fn cut(&mut self, which: impl Fn(usize, usize) -> bool) {
        for (from, to, pair) in &self.connections {
            if which(*from, *to) {
                for stream in pair {
                    let _ = stream.shutdown(Shutdown::Both);
                }
            }
        }
    }
}
