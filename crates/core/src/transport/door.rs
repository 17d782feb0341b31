//! The listening side of a rank: takes connections, lets in only who holds the job's key, and hands
//! them on with their greeting.
//!
//! A [`Doorway`] has addresses already, while nobody answers yet: whoever comes early waits outside
//! until this rank knows who it is. In an open [`Door`] one thread owns the listeners; every newcomer
//! is heard out by a thread of its own, so that one who says nothing holds up nobody, and at most
//! [`CROWD`] are heard at a time. Dropping the door ends them all.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ronde_control::Rank;
use ronde_control::wire::{Callee, Greeting, JobKey};
use rustix::event::PollFlags;

use super::bell::Bell;
use super::socket::{Socket, sleep};
use super::wire::Wire;

/// How many newcomers are heard at the same time.
const CROWD: usize = 64;
/// How long a newcomer may take to prove itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// Somebody who holds the key, and what they came for.
pub(crate) type Arrival = (Wire, Greeting);

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
    pub(crate) fn open(self, rank: Rank, key: JobKey) -> io::Result<Door> {
        // Only holders of the key get in here, so the world's size bounds it.
        let (sender, arrivals) = channel();
        let (arrived, stop) = (Arc::new(Bell::new()?), Arc::new(Bell::new()?));
        let Doorway { tcp, unix, .. } = self;
        let hall = Hall { tcp, unix, rank, key, sender, arrived: arrived.clone() };
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
    Ok(listener)
}

/// What the door's thread works with.
struct Hall {
    tcp: Vec<TcpListener>,
    unix: Option<UnixListener>,
    rank: Rank,
    key: JobKey,
    sender: Sender<Arrival>,
    arrived: Arc<Bell>,
}

impl Hall {
    fn keep(&self, stop: &Bell) {
        let crowd = AtomicUsize::new(0);
        let stopping = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            loop {
                let mut fds = vec![(stop.as_fd(), PollFlags::IN)];
                if crowd.load(Ordering::Relaxed) < CROWD {
                    fds.extend(self.tcp.iter().map(|tcp| (tcp.as_fd(), PollFlags::IN)));
                    fds.extend(self.unix.iter().map(|unix| (unix.as_fd(), PollFlags::IN)));
                }
                // In a crowd nothing tells when somebody has gone, so look again soon.
                let pause = if fds.len() > 1 { 1000 } else { 5 };
                if sleep(&fds, Duration::from_millis(pause))[0] {
                    stopping.store(true, Ordering::Relaxed);
                    return;
                }
                while crowd.load(Ordering::Relaxed) < CROWD
                    && let Some(socket) = self.next()
                {
                    crowd.fetch_add(1, Ordering::Relaxed);
                    let (crowd, stopping) = (&crowd, &stopping);
                    let hear = move || {
                        self.hear(socket, stopping);
                        crowd.fetch_sub(1, Ordering::Relaxed);
                    };
                    // Without a thread for it the newcomer is sent away, and will try again.
                    if std::thread::Builder::new().spawn_scoped(scope, hear).is_err() {
                        crowd.fetch_sub(1, Ordering::Relaxed);
                    }
                }
            }
        });
    }

    fn next(&self) -> Option<Socket> {
        if let Some((stream, _)) = self.tcp.iter().find_map(|tcp| tcp.accept().ok()) {
            return Socket::tcp(stream).ok();
        }
        let (stream, _) = self.unix.as_ref()?.accept().ok()?;
        Socket::unix(stream).ok()
    }

    /// Hears a newcomer out in short turns, so that a closing door does not wait for it.
    fn hear(&self, socket: Socket, stopping: &std::sync::atomic::AtomicBool) {
        let deadline = Instant::now() + PATIENCE;
        while !sleep(&[(socket.as_fd(), PollFlags::IN)], Duration::from_millis(50))[0] {
            if stopping.load(Ordering::Relaxed) || Instant::now() > deadline {
                return;
            }
        }
        let deadline = deadline.min(Instant::now() + Duration::from_secs(2));
        match Wire::accept(socket, (&self.key, Callee::Rank(self.rank)), deadline) {
            Ok(arrival) => {
                if self.sender.send(arrival).is_ok() {
                    self.arrived.ring();
                }
            }
            Err(error) => tracing::debug!(%error, "a stranger was turned away"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpStream;

    use ronde_control::Epoch;

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
        let door = doorway.open(Rank(1), key.clone()).unwrap();
        let greeting = Greeting::Control { epoch: Epoch(1), rank: Rank(2) };
        let _wire = Wire::dial(socket, (&key, Callee::Rank(Rank(1))), &greeting, deadline).unwrap();
        let arrival = loop {
            match door.arrival() {
                Some(arrival) => break arrival,
                None => drop(sleep(&[(door.bell().as_fd(), PollFlags::IN)], PATIENCE)),
            }
            assert!(Instant::now() < deadline);
        };
        assert_eq!(arrival.1, greeting);
        drop((silent, loud));
    }

    #[test]
    fn a_door_closes_at_once_even_if_somebody_stands_in_it() {
        let key = JobKey::from_entropy([9; 32]);
        let name = format!("ronde-test-door-{}", std::process::id());
        let doorway = Doorway::at(&[HERE], Some(name)).unwrap();
        assert!(doorway.unix().is_some());
        let _silent = TcpStream::connect(doorway.addresses()[0]).unwrap();
        let door = doorway.open(Rank(0), key).unwrap();
        let start = Instant::now();
        drop(door);
        assert!(start.elapsed() < Duration::from_secs(2));
    }
}
