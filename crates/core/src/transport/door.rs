//! The listening side of a rank: takes connections, lets in only who holds the job's key, and hands
//! them on with their greeting.
//!
//! A [`Doorway`] has addresses already, while nobody answers yet: whoever comes early waits outside
//! until this rank knows who it is. In an open [`Door`] one thread owns the listeners and hears all
//! newcomers at once, none of whom it waits for. How many there may be, and who makes room for whom,
//! `ronde_control::admission` decides. Dropping the door ends them all.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ronde_control::Rank;
use ronde_control::Time;
use ronde_control::admission::{Admission, Caller, Limits, Origin};
use ronde_control::wire::{Callee, JobKey};
use rustix::event::PollFlags;
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use super::accept::{Accepting, Step};
use super::bell::Bell;
use super::socket::{Socket, sleep};
pub(crate) use super::wire::Arrival;

/// How many may wait to be accepted; the system may allow fewer.
const BACKLOG: i32 = 4096;
/// How many are accepted at each socket before those who are there are heard again.
const ROUNDS: usize = 64;
/// How long to wait after a connection could not be accepted: most likely descriptors are short.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest sleep.
const NAP: Duration = Duration::from_secs(1);

/// Listening sockets at which nobody answers yet.
pub(crate) struct Doorway {
    addresses: Vec<SocketAddr>,
    name: Option<String>,
    tcp: Vec<TcpListener>,
    unix: Option<UnixListener>,
}

pub(crate) struct Door {
    arrivals: Mutex<Receiver<Arrival>>,
    arrived: Arc<Bell>,
    stop: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl Doorway {
    /// A doorway at these addresses, and at an abstract unix socket of that name if there is one.
    pub(crate) fn at(ips: &[IpAddr], name: Option<String>) -> io::Result<Doorway> {
        let tcp = ips.iter().map(|ip| listen(*ip)).collect::<io::Result<Vec<_>>>()?;
        let addresses = tcp.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?;
        let unix = match &name {
            Some(name) => {
                let listener = UnixListener::bind_addr(&UnixAddr::from_abstract_name(name)?)?;
                listener.set_nonblocking(true)?;
                rustix::net::listen(&listener, BACKLOG)?;
                Some(listener)
            }
            None => None,
        };
        Ok(Doorway { addresses, name, tcp, unix })
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub(crate) fn unix(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Lets in whoever calls this rank and holds the key.
    pub(crate) fn open(self, rank: Rank, host: &str, key: JobKey) -> io::Result<Door> {
        // Only holders of the key get in here, so the world's size bounds it.
        let (sender, arrivals) = channel();
        let (arrived, stop) = (Arc::new(Bell::new()?), Arc::new(Bell::new()?));
        let Doorway { tcp, unix, .. } = self;
        let (host, arrived_there) = (host.to_owned(), arrived.clone());
        let hall = Hall { tcp, unix, rank, host, key, sender, arrived: arrived_there };
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("ronde-door".into())
            .spawn(move || hall.keep(&stopped))?;
        Ok(Door { arrivals: Mutex::new(arrivals), arrived, stop, thread: Some(thread) })
    }
}

impl Door {
    /// Somebody who has come in, if anybody has.
    pub(crate) fn arrival(&self) -> Option<Arrival> {
        self.arrived.hush();
        self.arrivals.lock().expect("nothing panics while it holds this lock").try_recv().ok()
    }

    /// What wakes up when somebody has come in.
    pub(crate) fn bell(&self) -> &Bell {
        &self.arrived
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.stop.ring();
        // Whoever is still being heard must find nobody to wait for.
        while self.arrival().is_some() {}
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen(ip: IpAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind((ip, 0))
        .map_err(|error| io::Error::new(error.kind(), format!("{ip}: {error}")))?;
    listener.set_nonblocking(true)?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// What the door's thread works with.
struct Hall {
    tcp: Vec<TcpListener>,
    unix: Option<UnixListener>,
    rank: Rank,
    host: String,
    key: JobKey,
    sender: Sender<Arrival>,
    arrived: Arc<Bell>,
}

/// The newcomers, and who of them stays.
struct Newcomers {
    start: Instant,
    admission: Admission,
    heard: BTreeMap<Caller, Accepting>,
    /// Until when nobody is accepted, because that has just failed.
    shut_until: Time,
}

impl Hall {
    fn keep(&self, stop: &Bell) {
        let mut newcomers = Newcomers {
            start: Instant::now(),
            admission: Admission::new(Limits::default()),
            heard: BTreeMap::new(),
            shut_until: Time::ZERO,
        };
        loop {
            let now = newcomers.now();
            let opens_at = newcomers.admission.opens_at().max(newcomers.shut_until);
            let listeners =
                if now < opens_at { 0 } else { self.tcp.len() + self.unix.iter().len() };
            let mut fds = vec![(stop.as_fd(), PollFlags::IN)];
            fds.extend(self.listeners().take(listeners).map(|fd| (fd, PollFlags::IN)));
            fds.extend(newcomers.heard.values().map(|one| (one.as_fd(), PollFlags::IN)));
            let wakeup = newcomers.admission.next_wakeup().unwrap_or(now + NAP);
            let wakeup = if listeners == 0 { wakeup.min(opens_at) } else { wakeup };
            let awake = sleep(&fds, wakeup.saturating_sub(now).min(NAP));
            if awake[0] {
                return;
            }
            let spoke = newcomers.heard.keys().zip(&awake[1 + listeners..]);
            let spoke = spoke.filter(|(_, spoke)| **spoke).map(|(caller, _)| *caller).collect();
            for caller in newcomers.admission.in_turn(spoke) {
                self.hear(caller, &mut newcomers);
            }
            if awake[1..1 + listeners].contains(&true) {
                self.accept(&mut newcomers);
            }
            self.clear_up(&mut newcomers);
        }
    }

    fn listeners(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.tcp.iter().map(AsFd::as_fd).chain(self.unix.iter().map(AsFd::as_fd))
    }

    /// Accepts one from each socket in turn while there are any and there is room.
    fn accept(&self, newcomers: &mut Newcomers) {
        for _ in 0..ROUNDS {
            let mut came = false;
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
                        came = true;
                        let now = newcomers.now();
                        let (caller, evicted) = newcomers.admission.arrive(origin, now);
                        evicted.map(|evicted| newcomers.heard.remove(&evicted));
                        newcomers.heard.insert(caller, Accepting::new(socket));
                        // Whoever comes from a rank has spoken already.
                        self.hear(caller, newcomers);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => {
                        tracing::debug!(%error, "a connection could not be accepted");
                        newcomers.shut_until = newcomers.now() + PAUSE;
                    }
                }
            }
            if !came || newcomers.now() < newcomers.admission.opens_at().max(newcomers.shut_until) {
                return;
            }
        }
    }

    /// Takes what a newcomer has said.
    fn hear(&self, caller: Caller, newcomers: &mut Newcomers) {
        let Some(accepting) = newcomers.heard.remove(&caller) else { return };
        match accepting.step((&self.key, Callee::Rank(self.rank))) {
            Ok(Step::Waits(more, stage)) => {
                newcomers.admission.advance(caller, stage);
                newcomers.heard.insert(caller, more);
            }
            Ok(Step::Greeted(arrival)) => {
                newcomers.admission.leave(caller);
                if self.sender.send(*arrival).is_ok() {
                    self.arrived.ring();
                }
            }
            Err(error) => {
                newcomers.admission.leave(caller);
                tracing::debug!(%error, "a stranger was turned away");
            }
        }
    }

    /// Lets go of those whose time is over, and says if there are too many of them.
    fn clear_up(&self, newcomers: &mut Newcomers) {
        let now = newcomers.now();
        for caller in newcomers.admission.expire(now) {
            newcomers.heard.remove(&caller);
        }
        if let Some(notice) = newcomers.admission.notice(now) {
            tracing::warn!("the door of {} on {} {notice}", self.rank, self.host);
        }
    }
}

impl Newcomers {
    fn now(&self) -> Time {
        self.start.elapsed()
    }
}

/// Whose process is at the other end of a unix socket.
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

    use super::super::wire::Wire;
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2));

    #[test]
    fn strangers_wait_outside_while_a_rank_comes_in() {
        let key = JobKey::from_entropy([9; 32]);
        let doorway = Doorway::at(&[HERE, THERE], None).unwrap();
        let silent = TcpStream::connect(doorway.addresses()[0]).unwrap();
        let mut loud = TcpStream::connect(doorway.addresses()[0]).unwrap();
        loud.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let socket = Socket::tcp(TcpStream::connect(doorway.addresses()[1]).unwrap()).unwrap();
        // All of them have come before the door was open.
        let door = doorway.open(Rank(1), "here", key.clone()).unwrap();
        let greeting = Greeting::Control { epoch: Epoch(1), rank: Rank(2) };
        let _wire = Wire::dial(socket, (&key, Callee::Rank(Rank(1))), &greeting, deadline).unwrap();
        let arrival = loop {
            match door.arrival() {
                Some(arrival) => break arrival,
                None => drop(sleep(&[(door.bell().as_fd(), PollFlags::IN)], NAP)),
            }
            assert!(Instant::now() < deadline);
        };
        assert_eq!(arrival.1, greeting);
        drop((silent, loud));
    }

    /// Idle connections before, and more while ranks come by either way.
    #[test]
    fn idle_connections_do_not_hold_a_door_shut() {
        let key = JobKey::from_entropy([9; 32]);
        let name = format!("ronde-test-crowd-{}", std::process::id());
        let doorway = Doorway::at(&[HERE], Some(name.clone())).unwrap();
        let at = doorway.addresses()[0];
        let unix = UnixAddr::from_abstract_name(&name).unwrap();
        let idle_unix = || UnixStream::connect_addr(&unix).unwrap();
        let mut crowd: Vec<_> = (0..400).map(|_| TcpStream::connect(at).unwrap()).collect();
        let mut unix_crowd: Vec<_> = (0..200).map(|_| idle_unix()).collect();
        let door = doorway.open(Rank(1), "here", key.clone()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let greeting = Greeting::Control { epoch: Epoch(1), rank: Rank(2) };
        let call = (&key, Callee::Rank(Rank(1)));
        let mut wires = Vec::new();
        for turn in 0..10 {
            crowd.extend((0..10).map(|_| TcpStream::connect(at).unwrap()));
            unix_crowd.extend((0..10).map(|_| idle_unix()));
            // Whoever is evicted in the crowd comes again, as ranks do.
            wires.push(loop {
                let socket = match turn % 2 {
                    0 => Socket::tcp(TcpStream::connect(at).unwrap()).unwrap(),
                    _ => Socket::unix(idle_unix()).unwrap(),
                };
                match Wire::dial(socket, call, &greeting, deadline) {
                    Ok(wire) => break wire,
                    Err(error) => assert!(Instant::now() < deadline, "{error}"),
                }
            });
        }
        let mut arrived = 0;
        while arrived < wires.len() {
            match door.arrival() {
                Some(_) => arrived += 1,
                None => drop(sleep(&[(door.bell().as_fd(), PollFlags::IN)], NAP)),
            }
            assert!(Instant::now() < deadline, "{arrived} came in");
        }
    }

    #[test]
    fn a_door_closes_at_once_even_if_somebody_stands_in_it() {
        let key = JobKey::from_entropy([9; 32]);
        let name = format!("ronde-test-door-{}", std::process::id());
        let doorway = Doorway::at(&[HERE], Some(name)).unwrap();
        assert!(doorway.unix().is_some());
        let _silent = TcpStream::connect(doorway.addresses()[0]).unwrap();
        let door = doorway.open(Rank(0), "here", key).unwrap();
        let start = Instant::now();
        drop(door);
        assert!(start.elapsed() < Duration::from_secs(2));
    }
}
