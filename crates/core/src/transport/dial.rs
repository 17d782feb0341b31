//! Dialing a peer at one of several addresses, with a caller-supplied wait.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ronde_control::wire::Greeting;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, getpeername, socket_with,
};

use super::socket::{Socket, Waiting, await_socket};
use super::wire::{Credentials, SealedWire};

/// Like [`Waiting`], with a deadline.
pub(crate) type WaitingUntil<'a> = dyn FnMut(&Socket, PollFlags, Instant) -> io::Result<()> + 'a;

/// Dials the addresses one after the other until one accepts us. Each gets its share of the time,
/// so that a dead address leaves some for the ones after it. The error names every address and why
/// it failed.
pub(crate) fn dial(
    addresses: &[SocketAddr],
    call: Credentials<'_>,
    greeting: &Greeting,
    deadline: Instant,
) -> io::Result<SealedWire> {
    dial_with(addresses, call, greeting, deadline, &mut await_socket)
}

/// Like [`dial`], with a wait that may end for other reasons than the deadline.
pub(crate) fn dial_with(
    addresses: &[SocketAddr],
    call: Credentials<'_>,
    greeting: &Greeting,
    deadline: Instant,
    wait: &mut WaitingUntil<'_>,
) -> io::Result<SealedWire> {
    let (mut kind, mut failures, mut is_silent) = (io::ErrorKind::Other, Vec::new(), false);
    for (index, address) in addresses.iter().enumerate() {
        let now = Instant::now();
        let share = deadline.saturating_duration_since(now) / (addresses.len() - index) as u32;
        let until = now + share.max(Duration::from_millis(1));
        let mut wait = |socket: &Socket, flags| wait(socket, flags, until);
        let attempt = reach(address, &mut wait).and_then(|socket| {
            let dialed = SealedWire::dial_with(socket, call, greeting, &mut wait);
            is_silent |= dialed.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::TimedOut);
            dialed
        });
        match attempt {
            Ok(wire) => return Ok(wire),
            Err(error) => {
                kind = error.kind();
                failures.push(format!("{address}: {error}"));
            }
        }
    }
    let what = if failures.is_empty() { "it has no address".into() } else { failures.join(", ") };
    Err(if is_silent { io::Error::new(kind, Silent(what)) } else { io::Error::new(kind, what) })
}

/// The peer accepts connections and never responds.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Silent(String);

/// Whether the peer accepted the connection and never responded: its process is stopped, or busy.
pub(crate) fn was_silent(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Silent>())
}

/// Connects to an abstract unix socket; waits while its queue is full.
pub(crate) fn reach_unix(name: &str, wait: &mut Waiting<'_>) -> io::Result<Socket> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    loop {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match connect(&socket, &address) {
            Ok(()) => return Socket::unix(UnixStream::from(socket)),
            Err(Errno::AGAIN) => {
                // No event announces a free place in the queue, and polling an unconnected socket
                // returns at once.
                std::thread::sleep(FULL);
                wait(&Socket::unix(UnixStream::from(socket))?, PollFlags::OUT)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// How long to wait before trying a full queue again.
const FULL: Duration = Duration::from_millis(10);

fn reach(address: &SocketAddr, wait: &mut Waiting<'_>) -> io::Result<Socket> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        Socket::tcp(TcpStream::from(socket_with(family, SocketType::STREAM, flags, None)?))?;
    match connect(socket.as_fd(), address) {
        Ok(()) => return Ok(socket),
        Err(Errno::INPROGRESS | Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    loop {
        wait(&socket, PollFlags::OUT)?;
        socket_error(socket.as_fd())??;
        // The wait may have returned for another reason.
        if getpeername(socket.as_fd()).is_ok() {
            return Ok(socket);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use ronde_control::wire::{Callee, JobKey};
    use ronde_control::{Epoch, Rank};

    use super::*;

    const GREETING: Greeting = Greeting::Control { epoch: Epoch(1), rank: Rank(1) };

    #[test]
    fn dialing_skips_an_address_that_does_not_answer() {
        let key = JobKey::from_entropy([7; 32]);
        let deadline = Instant::now() + Duration::from_secs(10);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let open = listener.local_addr().unwrap();
        let call = (&key, Callee::Rank(Rank(0)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let socket = Socket::tcp(listener.accept().unwrap().0).unwrap();
                SealedWire::accept(socket, call, deadline).unwrap();
            });
            dial(&[closed, open], call, &GREETING, deadline).unwrap();
        });
        let error = dial(&[closed], call, &GREETING, deadline).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert!(error.to_string().starts_with(&format!("{closed}: ")), "{error}");
    }

    #[test]
    fn waiting_for_an_answer_can_be_interrupted() {
        let key = JobKey::from_entropy([7; 32]);
        let deadline = Instant::now() + Duration::from_secs(60);
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let call = (&key, Callee::Rank(Rank(0)));
        let addresses = [silent.local_addr().unwrap()];
        let mut calls = 0;
        let interrupted = dial_with(&addresses, call, &GREETING, deadline, &mut |_, _, _| {
            calls += 1;
            if calls < 3 { Ok(()) } else { Err(io::Error::other("interrupted")) }
        });
        assert!(interrupted.err().unwrap().to_string().contains("interrupted"));
        assert!(Instant::now() < deadline - Duration::from_secs(30));
    }
}
