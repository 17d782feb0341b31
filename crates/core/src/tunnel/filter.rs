//! Who may connect to a server that a library has opened in this process.
//!
//! TensorFlow's data servers listen on all addresses and cannot be told otherwise. But any process
//! may attach a filter to its own listening sockets: the kernel drops what the filter refuses, from
//! the first packet on, and a connection inherits the filter of its listener. Ours admits packets
//! from given ports of the loopback address, which this process has bound before, so that nobody
//! else can send from them.
//!
//! Between `listen` and the filter there would be a moment in which anybody could connect. A
//! [`Guard`] closes it: it listens at the port before the library does, shares it (`SO_REUSEPORT`)
//! and has the kernel hand it every newcomer, all of whom it drops; it goes once the filter is there.
#![expect(unsafe_code, reason = "filters are raw memory, and descriptors of a library are numbers")]

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseport, socket_acceptconn};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with};

/// As many ports as a filter lists; the kernel bounds the size of a filter.
pub(super) const MOST_PORTS: usize = 256;

const LOOPBACK: u32 = u32::from_be_bytes([127, 0, 0, 1]);
/// Where a filter finds the network header of a packet; at 0 it finds that of TCP.
const NETWORK: u32 = libc::SKF_NET_OFF as u32;
const EVERYTHING: u32 = u32::MAX;

/// Keeps a port until the server that shall have it is safe.
pub(super) struct Guard {
    port: u16,
    _sockets: Vec<OwnedFd>,
    numbers: Vec<i32>,
}

/// The filter of a server of this process; all that `ports` do not name is dropped.
pub(super) struct Filter {
    listeners: Vec<OwnedFd>,
    ports: Vec<u16>,
}

impl Guard {
    pub(super) fn new() -> io::Result<Guard> {
        // A server at `[::]` also hears IPv4, but one at 0.0.0.0 comes first for it: both are kept.
        let over_v4 = keep(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
        let port = port_of(over_v4.as_fd()).ok_or_else(|| io::Error::other("it has no port"))?;
        let mut sockets = vec![over_v4];
        // A host without IPv6 has nobody to keep out there.
        sockets.extend(keep(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).ok());
        let numbers = sockets.iter().map(AsRawFd::as_raw_fd).collect();
        Ok(Guard { port, _sockets: sockets, numbers })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Has the server that listens at the port by now admit nobody, and goes.
    pub(super) fn hand_over(self) -> io::Result<Filter> {
        let listeners = listeners(self.port, &self.numbers)?;
        if listeners.is_empty() {
            return Err(io::Error::other(format!("nothing here listens at port {}", self.port)));
        }
        let filter = Filter { listeners, ports: Vec::new() };
        filter.attach()?;
        Ok(filter)
    }
}

impl Filter {
    /// From now on a connection may come from this port, which must be bound.
    pub(super) fn admit(&mut self, port: u16) -> io::Result<()> {
        if self.ports.len() >= MOST_PORTS {
            return Err(io::Error::other(format!("{MOST_PORTS} connections are open already")));
        }
        self.ports.push(port);
        self.attach()
    }

    /// The port is about to be somebody else's; connections that came from it stay.
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

/// Accepts packets of IPv4 from these ports of 127.0.0.1, and drops all others.
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

/// A socket that listens, drops whatever comes, and gets all that comes to those who share its port.
fn keep(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_reuseport(&socket, true)?;
    if address.is_ipv6() {
        set_ipv6_v6only(&socket, false)?;
    }
    // The same words mean "drop it" to a filter, and "the first one" to who chooses a listener.
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
    // structures are the ones that these options take.
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

/// Handles on all sockets of this process that listen at this port, but for some.
fn listeners(port: u16, but: &[i32]) -> io::Result<Vec<OwnedFd>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let Some(number) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if but.contains(&number) {
            continue;
        }
        // SAFETY: a descriptor that was closed since it was listed is an error of the next calls; one
        // that has become another file by then is looked at as that one, and only looked at.
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

    use super::*;

    const MOMENT: Duration = Duration::from_millis(200);

    /// A server as a library opens one: on all addresses, sharing its port.
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

    fn from(source: SocketAddr, to: u16) -> Option<OwnedFd> {
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .unwrap();
        bind(&socket, &source).unwrap();
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, to));
        rustix::net::sockopt::set_socket_timeout(
            &socket,
            rustix::net::sockopt::Timeout::Send,
            Some(MOMENT),
        )
        .unwrap();
        rustix::net::connect(&socket, &to).ok().map(|()| socket)
    }

    #[test]
    fn only_the_admitted_port_of_the_loopback_address_gets_through() {
        let guard = Guard::new().unwrap();
        let port = guard.port();
        let server = server(port);
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        for _ in 0..5 {
            assert!(TcpStream::connect_timeout(&here, MOMENT).is_err(), "the guard lets them pass");
        }
        let mut filter = guard.hand_over().unwrap();
        assert!(TcpStream::connect_timeout(&here, MOMENT).is_err());
        let ours = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        filter.admit(ours.port()).unwrap();
        let elsewhere = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), ours.port()));
        assert!(from(elsewhere, port).is_none());
        let open = from(ours, port).expect("it is admitted");
        let (accepted, peer) = server.accept().unwrap();
        assert_eq!(peer, ours);
        // Whoever is in stays in.
        filter.refuse(ours.port()).unwrap();
        let mut open = TcpStream::from(open);
        let mut accepted = accepted;
        std::io::Write::write_all(&mut open, b"hello").unwrap();
        let mut heard = [0; 5];
        std::io::Read::read_exact(&mut accepted, &mut heard).unwrap();
        assert_eq!(&heard, b"hello");
        assert!(TcpStream::connect_timeout(&here, MOMENT).is_err());
    }

    #[test]
    fn a_port_at_which_nobody_listens_is_told() {
        let error = Guard::new().unwrap().hand_over().err().unwrap();
        assert!(error.to_string().contains("nothing here listens"), "{error}");
    }
}
