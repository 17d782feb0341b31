//! Restricts who may connect to a server that a library has opened in this process.
//!
//! TensorFlow's data servers listen on all addresses and have no option to change that. But any
//! process may attach a filter to its own listening sockets: the kernel drops the packets that the
//! filter refuses, from the first one on, and a connection inherits the filter of its listener.
//! Ours admits packets from given ports of the loopback address. This process has bound these ports
//! before, so that nobody else can send from them.
//!
//! Between `listen` and the filter there would be a moment in which anyone could connect. A
//! [`PortGuard`] closes that gap: it listens on the port before the library does, shares it
//! (`SO_REUSEPORT`) and has the kernel hand it every new connection, all of which it drops; it goes
//! away once the filter is in place.
#![expect(
    unsafe_code,
    reason = "filters are raw memory, and a library's descriptors are plain numbers"
)]

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseport, socket_acceptconn};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with};

/// Maximum number of ports in a filter; the kernel limits the size of a filter.
pub(super) const MOST_PORTS: usize = 256;

const LOOPBACK: u32 = u32::from_be_bytes([127, 0, 0, 1]);
/// Offset of a packet's network header in a filter; offset 0 is the TCP header.
const NETWORK: u32 = libc::SKF_NET_OFF as u32;
const EVERYTHING: u32 = u32::MAX;

/// Holds a port until the server that will use it is protected.
pub(super) struct PortGuard {
    port: u16,
    _sockets: Vec<OwnedFd>,
    numbers: Vec<i32>,
}

/// The filter of a server of this process; packets from ports other than `ports` are dropped.
pub(super) struct Filter {
    listeners: Vec<OwnedFd>,
    ports: Vec<u16>,
}

impl PortGuard {
    pub(super) fn new() -> io::Result<PortGuard> {
        // A server on `[::]` also gets IPv4, but one on 0.0.0.0 takes precedence for it: guard
        // both.
        let over_v4 = guard_socket(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
        let port = port_of(over_v4.as_fd()).ok_or_else(|| io::Error::other("it has no port"))?;
        let mut sockets = vec![over_v4];
        // A host without IPv6 needs no guard there.
        sockets.extend(guard_socket(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).ok());
        let numbers = sockets.iter().map(AsRawFd::as_raw_fd).collect();
        Ok(PortGuard { port, _sockets: sockets, numbers })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Makes the server that now listens on the port admit nobody, and ends the guard.
    pub(super) fn hand_over(self) -> io::Result<Filter> {
        let listeners = listeners(self.port, &self.numbers)?;
        if listeners.is_empty() {
            return Err(io::Error::other(format!(
                "nothing in this process listens on port {}",
                self.port
            )));
        }
        let filter = Filter { listeners, ports: Vec::new() };
        filter.attach()?;
        Ok(filter)
    }
}

impl Filter {
    /// Admits connections from this port, which must be bound.
    pub(super) fn admit(&mut self, port: u16) -> io::Result<()> {
        if self.ports.len() >= MOST_PORTS {
            return Err(io::Error::other(format!("{MOST_PORTS} connections are already open")));
        }
        self.ports.push(port);
        self.attach()
    }

    /// Stops admitting this port, which is about to be released; connections from it continue.
    pub(super) fn refuse(&mut self, port: u16) -> io::Result<()> {
        self.ports.retain(|other| *other != port);
        self.attach()
    }

    fn attach(&self) -> io::Result<()> {
        let program = program(&self.ports);
        self.listeners.iter().try_for_each(|listener| {
            set_program(listener.as_fd(), libc::SO_ATTACH_FILTER, &program)
        })
    }
}

/// Accepts IPv4 packets from these ports of 127.0.0.1, and drops all others.
fn program(ports: &[u16]) -> Vec<libc::sock_filter> {
    let refuse = [step(libc::BPF_RET | libc::BPF_K, 0, 0, 0)];
    let mut program = vec![
        step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, NETWORK),
        step(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, 0xf0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0, 0x40),
        refuse[0],
        // The sender's address, then its port.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, NETWORK + 12),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0, LOOPBACK),
        refuse[0],
        step(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 0, 0, 0),
    ];
    for port in ports {
        program.push(step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, u32::from(*port)));
        program.push(step(libc::BPF_RET | libc::BPF_K, 0, 0, EVERYTHING));
    }
    program.extend(refuse);
    program
}

fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// A socket that listens, drops every packet, and gets all packets for the sockets that share its
/// port.
fn guard_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_reuseport(&socket, true)?;
    if address.is_ipv6() {
        set_ipv6_v6only(&socket, false)?;
    }
    // The same program means "drop it" as a filter, and "the first socket" as a selector of
    // listeners.
    let nobody = [step(libc::BPF_RET | libc::BPF_K, 0, 0, 0)];
    set_program(socket.as_fd(), libc::SO_ATTACH_FILTER, &nobody)?;
    bind(&socket, &address)?;
    listen(&socket, 1)?;
    set_program(socket.as_fd(), libc::SO_ATTACH_REUSEPORT_CBPF, &nobody)?;
    Ok(socket)
}

fn set_program(fd: BorrowedFd<'_>, option: i32, program: &[libc::sock_filter]) -> io::Result<()> {
    let length = u16::try_from(program.len()).map_err(io::Error::other)?;
    let described = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program, which it only reads, before the call returns; both
    // structures have the type that these options take.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            std::ptr::from_ref(&described).cast(),
            size_of::<libc::sock_fprog>() as u32,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Handles on all sockets of this process that listen on this port, except for `but`.
fn listeners(port: u16, but: &[i32]) -> io::Result<Vec<OwnedFd>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let Some(number) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if but.contains(&number) {
            continue;
        }
        // SAFETY: if the descriptor was closed since it was listed, the next calls fail; if its
        // number was reused, they only inspect the new file.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let Ok(handle) = fd.try_clone_to_owned() else { continue };
        if port_of(handle.as_fd()) == Some(port) && socket_acceptconn(&handle).unwrap_or(false) {
            found.push(handle);
        }
    }
    Ok(found)
}

fn port_of(fd: BorrowedFd<'_>) -> Option<u16> {
    let address = SocketAddr::try_from(getsockname(fd).ok()?).ok()?;
    Some(address.port())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use rustix::net::sockopt::{Timeout, set_socket_timeout};

    use super::*;

    /// For a connection that must not succeed.
    const MOMENT: Duration = Duration::from_millis(200);
    /// For a connection that must succeed, also on a busy machine.
    const A_LONG_TIME: Duration = Duration::from_secs(60);

    /// A server like the ones a library opens: on all addresses, sharing its port.
    fn server(port: u16) -> TcpListener {
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .unwrap();
        set_socket_reuseport(&socket, true).unwrap();
        bind(&socket, &address).unwrap();
        listen(&socket, 16).unwrap();
        TcpListener::from(socket)
    }

    /// Two sockets with the same port, on 127.0.0.1 and on 127.0.0.2. They keep it, so that nobody
    /// else can take it meanwhile.
    fn sources() -> (BoundSocket, BoundSocket) {
        loop {
            let ours = bound(Ipv4Addr::LOCALHOST, 0).unwrap();
            let port = port_of(ours.0.as_fd()).unwrap();
            if let Ok(elsewhere) = bound(Ipv4Addr::new(127, 0, 0, 2), port) {
                return (ours, elsewhere);
            }
        }
    }

    struct BoundSocket(OwnedFd);

    fn bound(address: Ipv4Addr, port: u16) -> io::Result<BoundSocket> {
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddr::from((address, port)))?;
        Ok(BoundSocket(socket))
    }

    impl BoundSocket {
        fn connect(self, port: u16, limit: Duration) -> io::Result<TcpStream> {
            set_socket_timeout(&self.0, Timeout::Send, Some(limit))?;
            rustix::net::connect(&self.0, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
            Ok(TcpStream::from(self.0))
        }
    }

    #[test]
    fn only_the_admitted_port_of_the_loopback_address_gets_through() {
        let guard = PortGuard::new().unwrap();
        let port = guard.port();
        let server = server(port);
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        for _ in 0..5 {
            assert!(
                TcpStream::connect_timeout(&here, MOMENT).is_err(),
                "the guard let a connection through"
            );
        }
        let mut filter = guard.hand_over().unwrap();
        assert!(TcpStream::connect_timeout(&here, MOMENT).is_err());
        let (ours, elsewhere) = sources();
        let admitted = port_of(ours.0.as_fd()).unwrap();
        filter.admit(admitted).unwrap();
        assert!(elsewhere.connect(port, MOMENT).is_err());
        let mut open = ours.connect(port, A_LONG_TIME).expect("it is admitted");
        let (mut accepted, peer) = server.accept().unwrap();
        assert_eq!(peer, SocketAddr::from((Ipv4Addr::LOCALHOST, admitted)));
        // An open connection continues.
        filter.refuse(admitted).unwrap();
        std::io::Write::write_all(&mut open, b"hello").unwrap();
        let mut received = [0; 5];
        std::io::Read::read_exact(&mut accepted, &mut received).unwrap();
        assert_eq!(&received, b"hello");
        assert!(TcpStream::connect_timeout(&here, MOMENT).is_err());
    }

    #[test]
    fn a_port_without_a_listener_is_reported() {
        let error = PortGuard::new().unwrap().hand_over().err().unwrap();
        assert!(error.to_string().contains("nothing in this process listens"), "{error}");
    }
}
