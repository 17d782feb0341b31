//! The tunnel of a data service. It protects servers that cannot authenticate anyone: only the
//! service's own processes can reach them, through the tunnel.
//!
//! A process that has a server [reserves](Tunnel::reserve) a port for it and then
//! [serves](Tunnel::serve) it under a name: the server itself admits only this tunnel. Clients
//! connect to a unix socket. On the server's host it belongs to the server's tunnel; on another
//! host it belongs to a tunnel that [reaches](Tunnel::reach) the first one over an encrypted
//! connection, with the same handshake as all our connections. The folder of the unix sockets is
//! private to the user, and callers with another user ID are rejected.
//!
//! The same listener answers [questions](ask) for the service's registry. Nothing is read from a
//! caller before it has proved that it has the service's key; the meaning of names and questions is
//! up to Python.

mod filter;
mod pending_callers;
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

use ronde_control::PortRange;
use ronde_control::admission::Caller;
use ronde_control::wire::{Callee, Greeting, JobKey};
use rustix::event::PollFlags;
use rustix::net::sockopt::{
    Timeout, set_socket_keepalive, set_socket_timeout, set_tcp_keepidle, socket_peercred,
};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, socket_with,
};

use self::filter::{Filter, PortGuard};
use self::pending_callers::PendingCallers;
use crate::transport::bell::Doorbell;
use crate::transport::dial::dial;
use crate::transport::ports;
use crate::transport::socket::{Socket, sleep};
use crate::transport::wire::SealedWire;

/// How long a connection may take to authenticate, and a caller to send its question: in total, not
/// per byte.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// How long an answer may take, and connecting to another host.
const LONG_TIME_LIMIT: Duration = Duration::from_secs(20);
/// An idle connection is probed after this time: the other host may be gone.
const SILENCE: Duration = Duration::from_secs(60);

/// Answers a question; called in a separate thread.
pub type AnswerFn = Box<dyn Fn(Vec<u8>) -> Option<Vec<u8>> + Send + Sync>;

/// A process's end of the tunnel; closed when dropped.
pub struct Tunnel {
    inside: Arc<Inside>,
    port: u16,
    thread: Option<JoinHandle<()>>,
}

struct Inside {
    key: JobKey,
    answer: Option<AnswerFn>,
    tcp: Option<TcpListener>,
    /// Rings when there is a new socket, or the tunnel is closing.
    bell: Doorbell,
    is_closing: AtomicBool,
    guards: Mutex<HashMap<u16, PortGuard>>,
    servers: Mutex<HashMap<String, TunnelServer>>,
    server_sockets: Mutex<Vec<Arc<ServerSocket>>>,
    pending_callers: PendingCallers,
    connections: Mutex<HashMap<u64, TunnelConnection>>,
    /// Signals that a connection has ended.
    gone: Condvar,
    next: AtomicU64,
}

struct TunnelServer {
    port: u16,
    filter: Filter,
}

/// A connection through the tunnel: handles for closing it, and the process at this end.
struct TunnelConnection {
    handles: Vec<Socket>,
    caller: CallerProcess,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CallerProcess {
    /// This process, or one with its own tunnel.
    Own,
    /// Another process on this host, which relies on this one.
    Other,
}

/// A unix socket with the name of its server.
struct ServerSocket {
    name: String,
    path: PathBuf,
    listener: UnixListener,
    /// Addresses of the tunnel that has the server; `None` if it is this one.
    elsewhere: Option<Vec<SocketAddr>>,
}

impl Tunnel {
    /// A tunnel that listens at this address, on one of these ports, if one is given.
    pub fn new(
        key: JobKey,
        listen: Option<(IpAddr, PortRange)>,
        answer: Option<AnswerFn>,
    ) -> io::Result<Tunnel> {
        let bind = |(ip, range)| ports::find(&range, |port| TcpListener::bind((ip, port)));
        let tcp = listen.map(bind).transpose()?;
        let mut port = 0;
        if let Some(listener) = &tcp {
            listener.set_nonblocking(true)?;
            port = listener.local_addr()?.port();
        }
        let inside = Arc::new(Inside {
            key,
            answer,
            tcp,
            bell: Doorbell::new()?,
            is_closing: AtomicBool::new(false),
            guards: Mutex::default(),
            servers: Mutex::default(),
            server_sockets: Mutex::default(),
            pending_callers: PendingCallers::default(),
            connections: Mutex::default(),
            gone: Condvar::new(),
            next: AtomicU64::new(0),
        });
        let kept = inside.clone();
        let thread =
            std::thread::Builder::new().name("ronde-tunnel".into()).spawn(move || kept.run())?;
        Ok(Tunnel { inside, port, thread: Some(thread) })
    }

    /// The port it listens on; 0 if it does not listen.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Reserves a port for a server that this process is about to open, on any of its addresses and
    /// sharing the port. Nobody can connect to it before it is served.
    pub fn reserve(&self) -> io::Result<u16> {
        let guard = PortGuard::new()?;
        let port = guard.port();
        locked(&self.inside.guards).insert(port, guard);
        Ok(port)
    }

    /// Gives callers of this name access to the server at a reserved port, through the unix socket
    /// at this path and through other tunnels. Nobody else can reach it.
    pub fn serve(&self, name: &str, port: u16, path: &Path) -> io::Result<()> {
        let guard = locked(&self.inside.guards).remove(&port);
        let guard =
            guard.ok_or_else(|| io::Error::other(format!("port {port} is not reserved")))?;
        let server = TunnelServer { port, filter: guard.hand_over()? };
        locked(&self.inside.servers).insert(name.into(), server);
        self.open(name, path, None)
    }

    /// Gives callers at this path access to the server of this name, which another tunnel has.
    pub fn reach(&self, name: &str, path: &Path, tunnel: Vec<SocketAddr>) -> io::Result<()> {
        self.open(name, path, Some(tunnel))
    }

    /// Removes the unix sockets, for another process to take over. Open connections continue.
    pub fn retire(&self) {
        for server_socket in locked(&self.inside.server_sockets).drain(..) {
            let _ = std::fs::remove_file(&server_socket.path);
        }
        self.inside.bell.ring();
    }

    /// Returns when no other process on this host relies on this tunnel any more, or the time is
    /// over.
    pub fn linger(&self, limit: Duration) {
        let are_others = |connections: &mut HashMap<u64, TunnelConnection>| {
            connections.values().any(|connection| connection.caller == CallerProcess::Other)
        };
        let connections = locked(&self.inside.connections);
        drop(self.inside.gone.wait_timeout_while(connections, limit, are_others));
    }

    /// Closes all connections and listening sockets.
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
        let server_socket =
            ServerSocket { name: name.into(), path: path.into(), listener, elsewhere };
        locked(&self.inside.server_sockets).push(Arc::new(server_socket));
        self.inside.bell.ring();
        Ok(())
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.close();
    }
}

/// Asks the registry at this address a question; returns the answer, and the address that this host
/// uses to reach it.
pub fn ask(
    key: &JobKey,
    address: SocketAddr,
    question: &[u8],
    time_limit: Duration,
) -> io::Result<(Vec<u8>, IpAddr)> {
    let deadline = Instant::now() + time_limit;
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
    fn run(&self) {
        std::thread::scope(|scope| {
            while !self.is_closing.load(Ordering::SeqCst) {
                let server_sockets = locked(&self.server_sockets).clone();
                let closed = self.pending_callers.closed_for();
                let tcp = self.tcp.as_ref().filter(|_| closed.is_zero());
                let mut fds = vec![(self.bell.as_fd(), PollFlags::IN)];
                fds.extend(tcp.map(|tcp| (tcp.as_fd(), PollFlags::IN)));
                fds.extend(
                    server_sockets
                        .iter()
                        .map(|server_socket| (server_socket.listener.as_fd(), PollFlags::IN)),
                );
                sleep(&fds, if closed.is_zero() { SILENCE } else { closed });
                self.bell.hush();
                // One from each at a time, so that a crowd at one socket does not hold up the
                // others.
                let mut failed = tcp.is_some_and(|tcp| self.accept_tcp(scope, tcp));
                for server_socket in server_sockets {
                    failed |= self.accept_unix(scope, &server_socket);
                }
                if failed {
                    // Out of descriptors or threads: pending connections wait a little longer.
                    sleep(&[(self.bell.as_fd(), PollFlags::IN)], Duration::from_millis(50));
                }
            }
            self.pending_callers.hang_up();
            for connection in locked(&self.connections).values() {
                connection.handles.iter().for_each(Socket::hang_up);
            }
        });
    }

    /// Accepts one TCP connection, if there is one; returns true if resources have run out.
    fn accept_tcp<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        tcp: &TcpListener,
    ) -> bool {
        let socket = match tcp.accept() {
            Ok((stream, _)) => Socket::tcp(stream),
            Err(error) => return is_out_of_resources(&error),
        };
        let Ok(socket) = socket else { return false };
        let Ok(handle) = socket.duplicate() else { return true };
        let caller = self.pending_callers.enter(handle);
        let failed = spawn(scope, move || self.authenticate(socket, caller));
        if failed {
            self.pending_callers.leave(caller);
        }
        failed
    }

    fn accept_unix<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        server_socket: &ServerSocket,
    ) -> bool {
        let stream = match server_socket.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => return is_out_of_resources(&error),
        };
        let name = server_socket.name.clone();
        let caller = match socket_peercred(&stream) {
            Ok(caller) if caller.uid == rustix::process::geteuid() => caller,
            _ => {
                tracing::warn!(name, "rejected a caller with another user ID");
                return false;
            }
        };
        let caller = match caller.pid == rustix::process::getpid() {
            true => CallerProcess::Own,
            false => CallerProcess::Other,
        };
        let Ok(socket) = Socket::unix(stream) else { return false };
        // The thread must not hold the server socket: once it is closed, callers still waiting in
        // its backlog get an error.
        let elsewhere = server_socket.elsewhere.clone();
        spawn(scope, move || match elsewhere {
            None => self.relay_locally(&name, &socket),
            Some(tunnel) => self.relay_to_tunnel(&name, (&socket, caller), &tunnel),
        })
    }

    /// Authenticates a caller, then handles its request.
    fn authenticate(&self, socket: Socket, caller: Caller) {
        let call = (&self.key, Callee::DataService);
        let arrival = SealedWire::accept(socket, call, Instant::now() + TIME_LIMIT);
        self.pending_callers.leave(caller);
        let outcome = match arrival {
            Ok((wire, Greeting::Ask)) => self.reply(wire),
            Ok((wire, Greeting::Server { name })) => self.admit(wire, &name),
            Ok(_) => Err(io::Error::other("unexpected greeting")),
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, "a caller was rejected");
        }
    }

    fn reply(&self, mut wire: SealedWire) -> io::Result<()> {
        let Some(answer) = &self.answer else {
            return Err(io::Error::other("there is no registry here"));
        };
        let question = wire.receive_by::<Vec<u8>>(Instant::now() + TIME_LIMIT)?;
        let Some(answer) = answer(question) else { return Err(io::Error::other("no answer")) };
        wire.send(&answer)?;
        wire.flush_by(Instant::now() + TIME_LIMIT)
    }

    /// Connects a caller from another host to a server of this process.
    fn admit(&self, mut wire: SealedWire, name: &str) -> io::Result<()> {
        let (server, source) = match self.connect(name) {
            Ok(connected) => connected,
            Err(error) => {
                wire.send(&Err::<(), _>(error.to_string()))?;
                return wire.flush_by(Instant::now() + TIME_LIMIT);
            }
        };
        enable_keepalive(wire.socket());
        let greeted = wire
            .send(&Ok::<(), String>(()))
            .and_then(|()| wire.flush_by(Instant::now() + TIME_LIMIT))
            .and_then(|()| self.register(&[wire.socket(), &server], CallerProcess::Own));
        if let Ok(number) = greeted {
            relay::sealed(&server, wire);
            self.unregister(number);
        }
        self.disconnect(name, source);
        greeted.map(|_| ())
    }

    /// Connects a caller on this host to a server of this process.
    fn relay_locally(&self, name: &str, caller: &Socket) {
        let Ok((server, source)) = self.connect(name) else { return };
        if let Ok(number) = self.register(&[caller, &server], CallerProcess::Own) {
            relay::plain(caller, &server);
            self.unregister(number);
        }
        self.disconnect(name, source);
    }

    /// Connects a caller on this host to a server that another tunnel has.
    fn relay_to_tunnel(
        &self,
        name: &str,
        (caller, whose): (&Socket, CallerProcess),
        tunnel: &[SocketAddr],
    ) {
        let wire = tunnel.iter().find_map(|address| {
            let wire = self.call(name, *address);
            wire.inspect_err(
                |error| tracing::debug!(%error, name, %address, "the tunnel could not be reached"),
            )
            .ok()
        });
        let Some(wire) = wire else { return };
        enable_keepalive(wire.socket());
        if let Ok(number) = self.register(&[caller, wire.socket()], whose) {
            relay::sealed(caller, wire);
            self.unregister(number);
        }
    }

    fn call(&self, name: &str, address: SocketAddr) -> io::Result<SealedWire> {
        let deadline = Instant::now() + LONG_TIME_LIMIT;
        let greeting = Greeting::Server { name: name.into() };
        let mut wire = dial(&[address], (&self.key, Callee::DataService), &greeting, deadline)?;
        let answer: Result<(), String> = wire.receive_by(deadline)?;
        answer.map(|()| wire).map_err(io::Error::other)
    }

    /// A connection to a server of this process, and the port it comes from.
    fn connect(&self, name: &str) -> io::Result<(Socket, u16)> {
        let mut servers = locked(&self.servers);
        let server = servers.get_mut(name);
        let server =
            server.ok_or_else(|| io::Error::other(format!("there is no server `{name}` here")))?;
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let source = SocketAddr::try_from(getsockname(&socket)?)?.port();
        server.filter.admit(source)?;
        // On the loopback address this is immediate, unless the server no longer accepts
        // connections.
        set_socket_timeout(&socket, Timeout::Send, Some(TIME_LIMIT))?;
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

    /// Makes the server refuse the port before others can bind it.
    fn disconnect(&self, name: &str, source: u16) {
        if let Some(server) = locked(&self.servers).get_mut(name)
            && let Err(error) = server.filter.refuse(source)
        {
            tracing::warn!(%error, name, "the filter of a server could not be changed");
        }
    }

    /// Registers connections to be closed together with the tunnel.
    fn register(&self, sockets: &[&Socket], caller: CallerProcess) -> io::Result<u64> {
        let handles = sockets.iter().map(|socket| socket.duplicate()).collect::<Result<_, _>>()?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut connections = locked(&self.connections);
        if self.is_closing.load(Ordering::SeqCst) {
            return Err(io::Error::other("the tunnel is closed"));
        }
        connections.insert(number, TunnelConnection { handles, caller });
        Ok(number)
    }

    fn unregister(&self, number: u64) {
        locked(&self.connections).remove(&number);
        self.gone.notify_all();
    }
}

/// Returns true if no thread could be started.
fn spawn<'scope>(scope: &'scope Scope<'scope, '_>, work: impl FnOnce() + Send + 'scope) -> bool {
    let builder = std::thread::Builder::new().name("ronde-tunnel".into());
    builder.spawn_scoped(scope, work).is_err()
}

/// Makes the system notice when the other host is gone.
fn enable_keepalive(socket: &Socket) {
    let _ = set_socket_keepalive(socket, true).and_then(|()| set_tcp_keepidle(socket, SILENCE));
}

fn is_out_of_resources(error: &io::Error) -> bool {
    !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds this lock")
}

#[cfg(test)]
mod tests;
