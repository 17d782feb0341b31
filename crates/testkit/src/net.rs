//! A network that does harm: it stands between the ranks, carries every connection from one to
//! another, and at a byte that a test names cuts it, resets it, slows it down or changes it.
//!
//! The launcher gives each rank addresses of this network instead of those of its peers, so that the
//! ranks' own code knows nothing of it. A *stream* is one direction of one connection.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// From the rank that dialled.
    There,
    /// To the rank that dialled.
    Back,
}

/// One direction of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stream {
    /// Who dialled.
    pub from: usize,
    /// Who listened.
    pub to: usize,
    /// How many connections there were between the two before it.
    pub number: usize,
    /// Which way.
    pub way: Way,
}

/// What happens to a stream or its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// The connection is reset.
    Reset,
    /// The connection is closed in order, both ways.
    Close,
    /// One bit of every byte that follows is turned.
    Garble,
    /// What follows comes in crumbs for a while.
    Slow,
    /// Every connection of that rank is closed, as when its process dies, and none is made again.
    Kill(usize),
}

/// Harm at a moment: when that many bytes of a stream have passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub stream: Stream,
    /// After how many bytes.
    pub after: u64,
    /// What.
    pub harm: Harm,
}

/// The network of one world.
pub struct Net {
    inner: Arc<Inner>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Inner {
    fault: Option<Fault>,
    state: Mutex<State>,
    over: AtomicBool,
}

type News = Box<dyn Fn(Harm) + Send>;

#[derive(Default)]
struct State {
    doors: Vec<SocketAddr>,
    traffic: BTreeMap<Stream, u64>,
    connections: Vec<(usize, usize, [TcpStream; 2])>,
    pumps: Vec<JoinHandle<()>>,
    dead: Option<usize>,
    struck: bool,
    news: Option<News>,
}

impl Net {
    /// A network that does that harm once, or none.
    pub fn new(fault: Option<Fault>) -> Arc<Net> {
        let inner = Arc::new(Inner { fault, ..Inner::default() });
        Arc::new(Net { inner, threads: Mutex::default() })
    }

    /// How many bytes have passed each stream.
    pub fn traffic(&self) -> Vec<(Stream, u64)> {
        self.inner.lock().traffic.iter().map(|(stream, bytes)| (*stream, *bytes)).collect()
    }

    /// Whether the harm has been done.
    pub fn has_struck(&self) -> bool {
        self.inner.lock().struck
    }

    /// Calls this when the harm is done.
    pub fn on_harm(&self, news: impl Fn(Harm) + Send + 'static) {
        self.inner.lock().news = Some(Box::new(news));
    }

    /// The address at which one rank reaches another, which listens at `address`.
    pub(crate) fn route(&self, from: usize, to: usize, address: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback can be listened on");
        let door = listener.local_addr().expect("a bound socket has an address");
        self.inner.lock().doors.push(door);
        let inner = self.inner.clone();
        let keep = move || inner.keep(&listener, (from, to), address);
        self.threads.lock().expect("nobody panics with this lock").push(std::thread::spawn(keep));
        door
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.inner.over.store(true, Ordering::SeqCst);
        let doors = self.inner.lock().doors.clone();
        for door in doors {
            // Whoever waits for the next connection gets one.
            let _ = TcpStream::connect(door);
        }
        for thread in self.threads.lock().expect("nobody panics with this lock").drain(..) {
            let _ = thread.join();
        }
        self.inner.lock().cut(|_, _| true);
        let pumps = std::mem::take(&mut self.inner.lock().pumps);
        pumps.into_iter().for_each(|pump| drop(pump.join()));
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with this lock")
    }

    fn keep(
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
            // A rank that is gone is a connection that is closed at once.
            let _ = self.carry(near, Stream { from, to, number, way: Way::There }, address);
        }
    }

    fn carry(
        self: &Arc<Inner>,
        near: TcpStream,
        there: Stream,
        address: SocketAddr,
    ) -> io::Result<()> {
        let far = TcpStream::connect(address)?;
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        let pair = [near.try_clone()?, far.try_clone()?];
        let (reader, writer) = (far.try_clone()?, near.try_clone()?);
        let back = Stream { way: Way::Back, ..there };
        let mut state = self.lock();
        state.connections.push((there.from, there.to, pair));
        for (stream, source, target) in [(there, near, far), (back, reader, writer)] {
            state.traffic.insert(stream, 0);
            let inner = self.clone();
            state.pumps.push(std::thread::spawn(move || inner.pump(stream, source, target)));
        }
        Ok(())
    }

    /// Carries bytes one way until the connection ends.
    fn pump(&self, stream: Stream, mut source: TcpStream, mut target: TcpStream) {
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
                if let Some(Fault { after, harm: Harm::Garble, .. }) = fault
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

    /// Does the harm; gives the length of the pieces in which bytes pass from now on.
    fn strike(&self, harm: Harm, pair: [&TcpStream; 2], pieces: usize) -> usize {
        let mut state = self.lock();
        state.struck = true;
        if let Some(news) = &state.news {
            news(harm);
        }
        match harm {
            Harm::Garble => return pieces,
            Harm::Slow => return 1,
            Harm::Close => self.close(pair),
            Harm::Reset => {
                for stream in pair {
                    let _ = rustix::net::connect_unspec(stream);
                }
                self.close(pair);
            }
            Harm::Kill(rank) => {
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

impl State {
    /// Closes the connections between such ranks.
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
