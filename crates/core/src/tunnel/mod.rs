//! The tunnel of a data service: servers that cannot authenticate anybody are reached through it, by
//! the service's own processes and nobody else.
//!
//! A process that has a server [reserves](Tunnel::reserve) a port for it and then
//! [serves](Tunnel::serve) it under a name: the server itself admits nobody but this tunnel. Whoever
//! wants to talk to it dials a unix socket. On the server's host that is the tunnel's own; elsewhere
//! it belongs to a tunnel that [reaches](Tunnel::reach) the first one over a sealed connection, which
//! begins with the handshake of every other connection of ours. The folder of the unix sockets is
//! the user's alone, and callers with another user id are turned away.
//!
//! The same listener answers [questions](ask) for the service's registry. Nothing is read from a
//! caller before it has shown the service's key; what a name or a question means is up to Python.

mod filter;
mod newcomers;
mod relay;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{JoinHandle, Scope};
use std::time::{Duration, Instant};

use ronde_control::admission::Caller;
use ronde_control::wire::{Callee, Greeting, JobKey};
use rustix::event::PollFlags;
use rustix::net::sockopt::{
    Timeout, set_socket_keepalive, set_socket_timeout, set_tcp_keepidle, socket_peercred,
};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, socket_with,
};

use self::filter::{Filter, Guard};
use self::newcomers::Newcomers;
use crate::transport::bell::Bell;
use crate::transport::dial::dial;
use crate::transport::socket::{Socket, sleep};
use crate::transport::wire::Wire;

/// How long a newcomer may take to prove itself, and a caller to put its question: in all, not for
/// each byte.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a question may take to be answered, and another host to be reached.
const LONG_PATIENCE: Duration = Duration::from_secs(20);
/// A connection on which nothing happens is tried after this time: the other host may be gone.
const SILENCE: Duration = Duration::from_secs(60);

/// What answers a question, in a thread of its own.
pub type Answer = Box<dyn Fn(Vec<u8>) -> Option<Vec<u8>> + Send + Sync>;

/// A process's end of the tunnel; closed when dropped.
pub struct Tunnel {
    inside: Arc<Inside>,
    port: u16,
    thread: Option<JoinHandle<()>>,
}

struct Inside {
    key: JobKey,
    answer: Option<Answer>,
    tcp: Option<TcpListener>,
    /// Rings when there is another door, or the end has come.
    bell: Bell,
    is_closing: AtomicBool,
    guards: Mutex<HashMap<u16, Guard>>,
    servers: Mutex<HashMap<String, Server>>,
    doors: Mutex<Vec<Arc<Door>>>,
    newcomers: Newcomers,
    connections: Mutex<HashMap<u64, Connection>>,
    /// Somebody has gone from there.
    gone: Condvar,
    next: AtomicU64,
}

struct Server {
    port: u16,
    filter: Filter,
}

/// A connection through the tunnel: handles to hang up with, and who is at this end of it.
struct Connection {
    handles: Vec<Socket>,
    caller: CallerProcess,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CallerProcess {
    /// This process, or one that has a tunnel of its own.
    Own,
    /// Another process of this host, which relies on this one.
    Other,
}

/// A unix socket under the name of a server.
struct Door {
    name: String,
    path: PathBuf,
    listener: UnixListener,
    /// The tunnel that has the server; none if it is this one.
    elsewhere: Option<Vec<SocketAddr>>,
}

impl Tunnel {
    /// A tunnel that listens at a port of this address, if one is given.
    pub fn new(key: JobKey, listen: Option<IpAddr>, answer: Option<Answer>) -> io::Result<Tunnel> {
        let tcp = listen.map(|ip| TcpListener::bind((ip, 0))).transpose()?;
        let mut port = 0;
        if let Some(listener) = &tcp {
            listener.set_nonblocking(true)?;
            port = listener.local_addr()?.port();
        }
        let inside = Arc::new(Inside {
            key,
            answer,
            tcp,
            bell: Bell::new()?,
            is_closing: AtomicBool::new(false),
            guards: Mutex::default(),
            servers: Mutex::default(),
            doors: Mutex::default(),
            newcomers: Newcomers::default(),
            connections: Mutex::default(),
            gone: Condvar::new(),
            next: AtomicU64::new(0),
        });
        let kept = inside.clone();
        let thread =
            std::thread::Builder::new().name("ronde-tunnel".into()).spawn(move || kept.keep())?;
        Ok(Tunnel { inside, port, thread: Some(thread) })
    }

    /// The port at which it listens; 0 if it does not.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A port for a server that this process is about to open, on any of its addresses and sharing
    /// the port. Nobody can connect to it before it is served.
    pub fn reserve(&self) -> io::Result<u16> {
        let guard = Guard::new()?;
        let port = guard.port();
        locked(&self.inside.guards).insert(port, guard);
        Ok(port)
    }

    /// Lets callers of this name talk to the server at a reserved port, through the unix socket at
    /// this path and through other tunnels. Nobody else can reach it.
    pub fn serve(&self, name: &str, port: u16, path: &Path) -> io::Result<()> {
        let guard = locked(&self.inside.guards).remove(&port);
        let guard =
            guard.ok_or_else(|| io::Error::other(format!("port {port} is not reserved")))?;
        let server = Server { port, filter: guard.hand_over()? };
        locked(&self.inside.servers).insert(name.into(), server);
        self.open(name, path, None)
    }

    /// Lets callers at this path talk to the server of this name that another tunnel has.
    pub fn reach(&self, name: &str, path: &Path, tunnel: Vec<SocketAddr>) -> io::Result<()> {
        self.open(name, path, Some(tunnel))
    }

    /// Removes the unix sockets: another process may have them now. Connections stay.
    pub fn retire(&self) {
        for door in locked(&self.inside.doors).drain(..) {
            let _ = std::fs::remove_file(&door.path);
        }
        self.inside.bell.ring();
    }

    /// Returns when no other process of this host relies on this tunnel any more, or the time is
    /// over.
    pub fn linger(&self, limit: Duration) {
        let are_others = |connections: &mut HashMap<u64, Connection>| {
            connections.values().any(|connection| connection.caller == CallerProcess::Other)
        };
        let connections = locked(&self.inside.connections);
        drop(self.inside.gone.wait_timeout_while(connections, limit, are_others));
    }

    /// Ends all connections and everything that listens.
    pub fn close(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.retire();
        self.inside.is_closing.store(true, Ordering::SeqCst);
        self.inside.bell.ring();
        let _ = thread.join();
        locked(&self.inside.servers).clear();
        locked(&self.inside.guards).clear();
    }

    fn open(&self, name: &str, path: &Path, elsewhere: Option<Vec<SocketAddr>>) -> io::Result<()> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        let door = Door { name: name.into(), path: path.into(), listener, elsewhere };
        locked(&self.inside.doors).push(Arc::new(door));
        self.inside.bell.ring();
        Ok(())
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.close();
    }
}

/// Asks the registry at this address something; gives the answer, and this host's address as seen from
/// there.
pub fn ask(
    key: &JobKey,
    address: SocketAddr,
    question: &[u8],
    patience: Duration,
) -> io::Result<(Vec<u8>, IpAddr)> {
    let deadline = Instant::now() + patience;
    let mut wire = dial(&[address], (key, Callee::DataService), &Greeting::Ask, deadline)?;
    let answer = wire
        .send(&question)
        .and_then(|()| wire.flush_by(deadline))
        .and_then(|()| wire.receive_by(deadline))
        .map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")))?;
    let own = wire.socket().local_ip().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    Ok((answer, own))
}

impl Inside {
    fn keep(&self) {
        std::thread::scope(|scope| {
            while !self.is_closing.load(Ordering::SeqCst) {
                let doors = locked(&self.doors).clone();
                let closed = self.newcomers.closed_for();
                let tcp = self.tcp.as_ref().filter(|_| closed.is_zero());
                let mut fds = vec![(self.bell.as_fd(), PollFlags::IN)];
                fds.extend(tcp.map(|tcp| (tcp.as_fd(), PollFlags::IN)));
                fds.extend(doors.iter().map(|door| (door.listener.as_fd(), PollFlags::IN)));
                sleep(&fds, if closed.is_zero() { SILENCE } else { closed });
                self.bell.hush();
                // One of each at a time, so that a crowd at one holds up nobody at another.
                let mut failed = tcp.is_some_and(|tcp| self.welcome(scope, tcp));
                for door in doors {
                    failed |= self.let_in(scope, &door);
                }
                if failed {
                    // Descriptors or threads have run out: whoever waits, waits a little longer.
                    sleep(&[(self.bell.as_fd(), PollFlags::IN)], Duration::from_millis(50));
                }
            }
            self.newcomers.hang_up();
            for connection in locked(&self.connections).values() {
                connection.handles.iter().for_each(Socket::hang_up);
            }
        });
    }

    /// Hears one who comes from anywhere, if somebody does; true if that failed for want of means.
    fn welcome<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, tcp: &TcpListener) -> bool {
        let socket = match tcp.accept() {
            Ok((stream, _)) => Socket::tcp(stream),
            Err(error) => return is_want_of_means(&error),
        };
        let Ok(socket) = socket else { return false };
        let Ok(handle) = socket.duplicate() else { return true };
        let caller = self.newcomers.enter(handle);
        let failed = spawn(scope, move || self.hear(socket, caller));
        if failed {
            self.newcomers.leave(caller);
        }
        failed
    }

    fn let_in<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, door: &Door) -> bool {
        let stream = match door.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => return is_want_of_means(&error),
        };
        let name = door.name.clone();
        let caller = match socket_peercred(&stream) {
            Ok(caller) if caller.uid == rustix::process::geteuid() => caller,
            _ => {
                tracing::warn!(name, "a caller with another user id was turned away");
                return false;
            }
        };
        let caller = match caller.pid == rustix::process::getpid() {
            true => CallerProcess::Own,
            false => CallerProcess::Other,
        };
        let Ok(socket) = Socket::unix(stream) else { return false };
        // Without the door: once it is closed, whoever still waits at it shall hear so.
        let elsewhere = door.elsewhere.clone();
        spawn(scope, move || match elsewhere {
            None => self.pass_on(&name, &socket),
            Some(tunnel) => self.carry(&name, (&socket, caller), &tunnel),
        })
    }

    /// Takes nothing from a newcomer before it has shown the key, then does what it came for.
    fn hear(&self, socket: Socket, caller: Caller) {
        let call = (&self.key, Callee::DataService);
        let arrival = Wire::accept(socket, call, Instant::now() + PATIENCE);
        self.newcomers.leave(caller);
        let outcome = match arrival {
            Ok((wire, Greeting::Ask)) => self.reply(wire),
            Ok((wire, Greeting::Server { name })) => self.admit(wire, &name),
            Ok(_) => Err(io::Error::other("nobody comes for that here")),
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, "a caller was turned away");
        }
    }

    fn reply(&self, mut wire: Wire) -> io::Result<()> {
        let Some(answer) = &self.answer else { return Err(io::Error::other("no registry here")) };
        let question = wire.receive_by::<Vec<u8>>(Instant::now() + PATIENCE)?;
        let Some(answer) = answer(question) else { return Err(io::Error::other("no answer")) };
        wire.send(&answer)?;
        wire.flush_by(Instant::now() + PATIENCE)
    }

    /// Somebody from another host talks to a server of this process.
    fn admit(&self, mut wire: Wire, name: &str) -> io::Result<()> {
        let (server, source) = match self.connect(name) {
            Ok(connected) => connected,
            Err(error) => {
                wire.send(&Err::<(), _>(error.to_string()))?;
                return wire.flush_by(Instant::now() + PATIENCE);
            }
        };
        watch_over(wire.socket());
        let greeted = wire
            .send(&Ok::<(), String>(()))
            .and_then(|()| wire.flush_by(Instant::now() + PATIENCE))
            .and_then(|()| self.enlist(&[wire.socket(), &server], CallerProcess::Own));
        if let Ok(number) = greeted {
            relay::sealed(&server, wire);
            self.dismiss(number);
        }
        self.disconnect(name, source);
        greeted.map(|_| ())
    }

    /// Somebody on this host talks to a server of this process.
    fn pass_on(&self, name: &str, caller: &Socket) {
        let Ok((server, source)) = self.connect(name) else { return };
        if let Ok(number) = self.enlist(&[caller, &server], CallerProcess::Own) {
            relay::plain(caller, &server);
            self.dismiss(number);
        }
        self.disconnect(name, source);
    }

    /// Somebody on this host talks to a server that another tunnel has.
    fn carry(&self, name: &str, (caller, whose): (&Socket, CallerProcess), tunnel: &[SocketAddr]) {
        let wire = tunnel.iter().find_map(|address| {
            let wire = self.call(name, *address);
            wire.inspect_err(|error| tracing::debug!(%error, name, %address, "not there")).ok()
        });
        let Some(wire) = wire else { return };
        watch_over(wire.socket());
        if let Ok(number) = self.enlist(&[caller, wire.socket()], whose) {
            relay::sealed(caller, wire);
            self.dismiss(number);
        }
    }

    fn call(&self, name: &str, address: SocketAddr) -> io::Result<Wire> {
        let deadline = Instant::now() + LONG_PATIENCE;
        let greeting = Greeting::Server { name: name.into() };
        let mut wire = dial(&[address], (&self.key, Callee::DataService), &greeting, deadline)?;
        let answer: Result<(), String> = wire.receive_by(deadline)?;
        answer.map(|()| wire).map_err(io::Error::other)
    }

    /// A connection to a server of this process, and the port it comes from.
    fn connect(&self, name: &str) -> io::Result<(Socket, u16)> {
        let mut servers = locked(&self.servers);
        let server = servers.get_mut(name);
        let server = server.ok_or_else(|| io::Error::other(format!("no server `{name}` here")))?;
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let source = SocketAddr::try_from(getsockname(&socket)?)?.port();
        server.filter.admit(source)?;
        // On the loopback address this takes no time, unless the server accepts nobody any more.
        set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
        let server_address = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port));
        let connected = connect(&socket, &server_address).map_err(io::Error::from);
        match connected.and_then(|()| Socket::tcp(TcpStream::from(socket))) {
            Ok(socket) => Ok((socket, source)),
            Err(error) => {
                let _ = server.filter.refuse(source);
                Err(error)
            }
        }
    }

    /// Before the port is free for others, the server refuses it.
    fn disconnect(&self, name: &str, source: u16) {
        if let Some(server) = locked(&self.servers).get_mut(name)
            && let Err(error) = server.filter.refuse(source)
        {
            tracing::warn!(%error, name, "the filter of a server could not be changed");
        }
    }

    /// Keeps handles on connections that the end of the tunnel shall end.
    fn enlist(&self, sockets: &[&Socket], caller: CallerProcess) -> io::Result<u64> {
        let handles = sockets.iter().map(|socket| socket.duplicate()).collect::<Result<_, _>>()?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut connections = locked(&self.connections);
        if self.is_closing.load(Ordering::SeqCst) {
            return Err(io::Error::other("the tunnel is closed"));
        }
        connections.insert(number, Connection { handles, caller });
        Ok(number)
    }

    fn dismiss(&self, number: u64) {
        locked(&self.connections).remove(&number);
        self.gone.notify_all();
    }
}

/// True if there was no thread for it.
fn spawn<'scope>(scope: &'scope Scope<'scope, '_>, work: impl FnOnce() + Send + 'scope) -> bool {
    let builder = std::thread::Builder::new().name("ronde-tunnel".into());
    builder.spawn_scoped(scope, work).is_err()
}

/// Has the system notice when the other host is gone.
fn watch_over(socket: &Socket) {
    let _ = set_socket_keepalive(socket, true).and_then(|()| set_tcp_keepidle(socket, SILENCE));
}

fn is_want_of_means(error: &io::Error) -> bool {
    !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds this lock")
}

#[cfg(test)]
mod tests;
