//! The listening side of a rank: accepts connections, admits only peers that hold the job's key,
//! and passes them on with their greeting.
//!
//! A [`BoundListener`] has addresses but does not serve them yet: early connections wait in the
//! backlog until this rank knows its number. In an open [`RankListener`] one thread owns the
//! listening sockets and runs all pending handshakes at once, blocking on none of them. How many
//! there may be, and which one is evicted for another, is decided by `ronde_control::admission`.
//! Dropping the listener ends them all.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ronde_control::admission::{Admission, AdmissionLimits, Caller, Origin};
use ronde_control::wire::{Callee, JobKey};
use ronde_control::{PortRange, Rank, Time};
use rustix::event::PollFlags;
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use super::accept::{Accepting, HandshakeStep};
use super::bell::Doorbell;
use super::ports;
use super::socket::{Socket, sleep};
pub(crate) use super::wire::Arrival;

/// How many connections may wait to be accepted; the system may allow fewer.
const BACKLOG: i32 = 4096;
/// How many connections to accept from each socket before pending handshakes get a turn.
const ROUNDS: usize = 64;
/// How long to wait after accepting has failed: most likely the process is out of descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest sleep.
const NAP: Duration = Duration::from_secs(1);

/// Listening sockets that nobody serves yet.
pub(crate) struct BoundListener {
    addresses: Vec<SocketAddr>,
    name: Option<String>,
    tcp: Vec<TcpListener>,
    unix: Option<UnixListener>,
}

pub(crate) struct RankListener {
    arrivals: Mutex<Receiver<Arrival>>,
    arrived: Arc<Doorbell>,
    stop: Arc<Doorbell>,
    thread: Option<JoinHandle<()>>,
}

impl BoundListener {
    /// Listens on these addresses, and on an abstract unix socket if `name` is given and the system
    /// allows that. Otherwise no other rank shares memory with this one.
    pub(crate) fn at(
        ips: &[IpAddr],
        ports: &PortRange,
        name: Option<String>,
    ) -> io::Result<BoundListener> {
        let (tcp, addresses) = listen(ips, ports)?;
        let unix = name.and_then(|name| match bound_unix(&name) {
            Ok(listener) => Some((name, listener)),
            Err(error) => {
                tracing::warn!(
                    "this rank uses TCP instead of shared memory, because it cannot open a unix \
                     socket: {error}; allow abstract unix sockets in the container's security profile"
                );
                None
            }
        });
        let (name, unix) = unix.unzip();
        Ok(BoundListener { addresses, name, tcp, unix })
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub(crate) fn unix(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Starts to admit peers that dial this rank and hold the key.
    pub(crate) fn open(self, rank: Rank, host: &str, key: JobKey) -> io::Result<RankListener> {
        // Unbounded: only holders of the key get this far, so the world's size limits it.
        let (sender, arrivals) = channel();
        let (arrived, stop) = (Arc::new(Doorbell::new()?), Arc::new(Doorbell::new()?));
        let BoundListener { tcp, unix, .. } = self;
        let (host, arrived_there) = (host.to_owned(), arrived.clone());
        let listener_thread =
            ListenerThread { tcp, unix, rank, host, key, sender, arrived: arrived_there };
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("ronde-listener".into())
            .spawn(move || listener_thread.run(&stopped))?;
        Ok(RankListener { arrivals: Mutex::new(arrivals), arrived, stop, thread: Some(thread) })
    }
}

impl RankListener {
    /// An admitted connection, if there is one.
    pub(crate) fn arrival(&self) -> Option<Arrival> {
        self.arrived.hush();
        self.arrivals.lock().expect("nothing panics while it holds this lock").try_recv().ok()
    }

    /// Rings when a connection has been admitted.
    pub(crate) fn bell(&self) -> &Doorbell {
        &self.arrived
    }
}

impl Drop for RankListener {
    fn drop(&mut self) {
        self.stop.ring();
        // Close admitted connections, so that their peers do not wait for an answer.
        while self.arrival().is_some() {}
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn bound_unix(name: &str) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&UnixAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// Listens on one port of all these addresses, or on any ports. If the host only advertises one of
/// them, so that no interface here has it, it listens everywhere instead.
fn listen(ips: &[IpAddr], range: &PortRange) -> io::Result<(Vec<TcpListener>, Vec<SocketAddr>)> {
    let each = |port| ips.iter().map(|ip| bound(*ip, port)).collect::<io::Result<Vec<_>>>();
    match ports::find(range, each) {
        Ok(all) => {
            let addresses = all.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?;
            Ok((all, addresses))
        }
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            let everywhere = |port| bound(Ipv6Addr::UNSPECIFIED.into(), port);
            let only_v4 = |port| bound(Ipv4Addr::UNSPECIFIED.into(), port);
            let listener = ports::find(range, |port| match everywhere(port) {
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => only_v4(port),
                bound => bound,
            })?;
            let port = listener.local_addr()?.port();
            Ok((vec![listener], ips.iter().map(|ip| SocketAddr::new(*ip, port)).collect()))
        }
        Err(error) => Err(error),
    }
}

fn bound(ip: IpAddr, port: u16) -> io::Result<TcpListener> {
    let listener = TcpListener::bind((ip, port))
        .map_err(|error| io::Error::new(error.kind(), format!("{ip}: {error}")))?;
    listener.set_nonblocking(true)?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// State of the listener's thread.
struct ListenerThread {
    tcp: Vec<TcpListener>,
    unix: Option<UnixListener>,
    rank: Rank,
    host: String,
    key: JobKey,
    sender: Sender<Arrival>,
    arrived: Arc<Doorbell>,
}

/// Connections in the handshake, and the policy for evicting them.
struct PendingConnections {
    start: Instant,
    admission: Admission,
    handshakes: BTreeMap<Caller, Accepting>,
    /// Nothing is accepted until then, because accepting has just failed.
    paused_until: Time,
}

impl ListenerThread {
    fn run(&self, stop: &Doorbell) {
        let mut pending = PendingConnections {
            start: Instant::now(),
            admission: Admission::new(AdmissionLimits::default()),
            handshakes: BTreeMap::new(),
            paused_until: Time::ZERO,
        };
        loop {
            let now = pending.now();
            let opens_at = pending.admission.opens_at().max(pending.paused_until);
            let listeners =
                if now < opens_at { 0 } else { self.tcp.len() + self.unix.iter().len() };
            let mut fds = vec![(stop.as_fd(), PollFlags::IN)];
            fds.extend(self.listeners().take(listeners).map(|fd| (fd, PollFlags::IN)));
            fds.extend(pending.handshakes.values().map(|one| (one.as_fd(), PollFlags::IN)));
            let wakeup = pending.admission.next_wakeup().unwrap_or(now + NAP);
            let wakeup = if listeners == 0 { wakeup.min(opens_at) } else { wakeup };
            let awake = sleep(&fds, wakeup.saturating_sub(now).min(NAP));
            if awake[0] {
                return;
            }
            let readable = pending.handshakes.keys().zip(&awake[1 + listeners..]);
            let readable =
                readable.filter(|(_, readable)| **readable).map(|(caller, _)| *caller).collect();
            for caller in pending.admission.in_turn(readable) {
                self.step_handshake(caller, &mut pending);
            }
            if awake[1..1 + listeners].contains(&true) {
                self.accept(&mut pending);
            }
            self.clean_up(&mut pending);
        }
    }

    fn listeners(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.tcp.iter().map(AsFd::as_fd).chain(self.unix.iter().map(AsFd::as_fd))
    }

    /// Accepts one connection from each socket in turn, while there are any and admission allows
    /// it.
    fn accept(&self, pending: &mut PendingConnections) {
        for _ in 0..ROUNDS {
            let mut accepted_any = false;
            let unix = self.unix.iter().map(|unix| {
                unix.accept().and_then(|(stream, _)| {
                    let origin = origin(&stream);
                    Ok((Socket::unix(stream)?, origin))
                })
            });
            let tcp = self.tcp.iter().map(|tcp| {
                tcp.accept().and_then(|(stream, _)| Ok((Socket::tcp(stream)?, Origin::Unknown)))
            });
            for accepted in unix.chain(tcp) {
                match accepted {
                    Ok((socket, origin)) => {
                        accepted_any = true;
                        let now = pending.now();
                        let (caller, evicted) = pending.admission.arrive(origin, now);
                        evicted.map(|evicted| pending.handshakes.remove(&evicted));
                        pending.handshakes.insert(caller, Accepting::new(socket));
                        // A rank has sent its first message already.
                        self.step_handshake(caller, pending);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => {
                        tracing::debug!(%error, "a connection could not be accepted");
                        pending.paused_until = pending.now() + PAUSE;
                    }
                }
            }
            if !accepted_any
                || pending.now() < pending.admission.opens_at().max(pending.paused_until)
            {
                return;
            }
        }
    }

    /// Continues a handshake with the bytes received.
    fn step_handshake(&self, caller: Caller, pending: &mut PendingConnections) {
        let Some(accepting) = pending.handshakes.remove(&caller) else { return };
        match accepting.step((&self.key, Callee::Rank(self.rank))) {
            Ok(HandshakeStep::Waits(more, progress)) => {
                pending.admission.advance(caller, progress);
                pending.handshakes.insert(caller, more);
            }
            Ok(HandshakeStep::Greeted(arrival)) => {
                pending.admission.leave(caller);
                if self.sender.send(*arrival).is_ok() {
                    self.arrived.ring();
                }
            }
            Err(error) => {
                pending.admission.leave(caller);
                tracing::debug!(%error, "an unauthenticated connection was rejected");
            }
        }
    }

    /// Drops handshakes that took too long, and warns if there are too many of them.
    fn clean_up(&self, pending: &mut PendingConnections) {
        let now = pending.now();
        for caller in pending.admission.expire(now) {
            pending.handshakes.remove(&caller);
        }
        if let Some(notice) = pending.admission.notice(now) {
            tracing::warn!("the listener of {} on {} {notice}", self.rank, self.host);
        }
    }
}

impl PendingConnections {
    fn now(&self) -> Time {
        self.start.elapsed()
    }
}

/// The user that owns the process at the other end of a unix socket.
fn origin(stream: &UnixStream) -> Origin {
    match socket_peercred(stream) {
        Ok(credentials) if credentials.uid == geteuid() => Origin::OwnUser,
        Ok(_) => Origin::OtherUser,
        Err(_) => Origin::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpStream;

    use ronde_control::Epoch;
    use ronde_control::wire::Greeting;

    use super::super::wire::SealedWire;
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2));

    #[test]
    fn a_rank_is_admitted_while_unauthenticated_connections_wait() {
        let key = JobKey::from_entropy([9; 32]);
        let bound_listener =
            BoundListener::at(&[HERE, THERE], &PortRange::default(), None).unwrap();
        let silent = TcpStream::connect(bound_listener.addresses()[0]).unwrap();
        let mut loud = TcpStream::connect(bound_listener.addresses()[0]).unwrap();
        loud.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let socket =
            Socket::tcp(TcpStream::connect(bound_listener.addresses()[1]).unwrap()).unwrap();
        // All of them connect before the listener is open.
        let rank_listener = bound_listener.open(Rank(1), "here", key.clone()).unwrap();
        let greeting = Greeting::Control { epoch: Epoch(1), rank: Rank(2) };
        let _wire =
            SealedWire::dial(socket, (&key, Callee::Rank(Rank(1))), &greeting, deadline).unwrap();
        let arrival = loop {
            match rank_listener.arrival() {
                Some(arrival) => break arrival,
                None => drop(sleep(&[(rank_listener.bell().as_fd(), PollFlags::IN)], NAP)),
            }
            assert!(Instant::now() < deadline);
        };
        assert_eq!(arrival.1, greeting);
        drop((silent, loud));
    }

    /// Opens idle connections before and while ranks connect over either kind of socket.
    #[test]
    fn idle_connections_do_not_block_a_listener() {
        let key = JobKey::from_entropy([9; 32]);
        let name = format!("ronde-test-idle-{}", std::process::id());
        let bound_listener =
            BoundListener::at(&[HERE], &PortRange::default(), Some(name.clone())).unwrap();
        let at = bound_listener.addresses()[0];
        let unix = UnixAddr::from_abstract_name(&name).unwrap();
        let idle_unix = || UnixStream::connect_addr(&unix).unwrap();
        let mut idle_tcp: Vec<_> = (0..400).map(|_| TcpStream::connect(at).unwrap()).collect();
        let mut idle_unix_connections: Vec<_> = (0..200).map(|_| idle_unix()).collect();
        let rank_listener = bound_listener.open(Rank(1), "here", key.clone()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let greeting = Greeting::Control { epoch: Epoch(1), rank: Rank(2) };
        let call = (&key, Callee::Rank(Rank(1)));
        let mut wires = Vec::new();
        for turn in 0..10 {
            idle_tcp.extend((0..10).map(|_| TcpStream::connect(at).unwrap()));
            idle_unix_connections.extend((0..10).map(|_| idle_unix()));
            // A rank whose connection is evicted dials again.
            wires.push(loop {
                let socket = match turn % 2 {
                    0 => Socket::tcp(TcpStream::connect(at).unwrap()).unwrap(),
                    _ => Socket::unix(idle_unix()).unwrap(),
                };
                match SealedWire::dial(socket, call, &greeting, deadline) {
                    Ok(wire) => break wire,
                    Err(error) => assert!(Instant::now() < deadline, "{error}"),
                }
            });
        }
        let mut arrived = 0;
        while arrived < wires.len() {
            match rank_listener.arrival() {
                Some(_) => arrived += 1,
                None => drop(sleep(&[(rank_listener.bell().as_fd(), PollFlags::IN)], NAP)),
            }
            assert!(Instant::now() < deadline, "{arrived} were admitted");
        }
    }

    #[test]
    fn a_listener_closes_at_once_even_with_a_pending_connection() {
        let key = JobKey::from_entropy([9; 32]);
        let name = format!("ronde-test-listener-{}", std::process::id());
        let bound_listener = BoundListener::at(&[HERE], &PortRange::default(), Some(name)).unwrap();
        assert!(bound_listener.unix().is_some());
        let _silent = TcpStream::connect(bound_listener.addresses()[0]).unwrap();
        let rank_listener = bound_listener.open(Rank(0), "here", key).unwrap();
        let start = Instant::now();
        drop(rank_listener);
        assert!(start.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn all_addresses_share_a_port_of_the_range_and_an_advertised_one_is_announced() {
        let first = BoundListener::at(&[HERE], &PortRange::default(), None).unwrap();
        let port = first.addresses()[0].port();
        let range: PortRange = format!("{port}").parse().unwrap();
        let error = BoundListener::at(&[HERE], &range, None).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(first);
        let all = BoundListener::at(&[HERE, THERE], &range, None).unwrap();
        assert_eq!(all.addresses(), [SocketAddr::new(HERE, port), SocketAddr::new(THERE, port)]);
        drop(all);
        // A documentation address, which no machine has.
        let elsewhere: IpAddr = "192.0.2.7".parse().unwrap();
        let open = BoundListener::at(&[elsewhere, HERE], &range, None).unwrap();
        let announced = [SocketAddr::new(elsewhere, port), SocketAddr::new(HERE, port)];
        assert_eq!(open.addresses(), announced);
        TcpStream::connect(announced[1]).unwrap();
    }

    #[test]
    fn without_unix_sockets_a_rank_listens_for_tcp_only() {
        // Longer than the system allows: it refuses this name as a security profile refuses all.
        let name = "x".repeat(200);
        let bound = BoundListener::at(&[HERE], &PortRange::default(), Some(name)).unwrap();
        assert_eq!(bound.unix(), None);
        TcpStream::connect(bound.addresses()[0]).unwrap();
    }
}
