//! A connected socket, TCP or unix, always non-blocking, and how to wait for it.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub(crate) fn tcp(stream: TcpStream) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Socket::Tcp(stream))
    }

    pub(crate) fn unix(stream: UnixStream) -> io::Result<Socket> {
        stream.set_nonblocking(true)?;
        Ok(Socket::Unix(stream))
    }

    /// Reads available bytes: `None` if there are none, an error if the peer has closed the
    /// connection.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let result = match self {
            Socket::Tcp(stream) => (&*stream).read(buffer),
            Socket::Unix(stream) => (&*stream).read(buffer),
        };
        received(result)
    }

    pub(crate) fn read_vectored(
        &self,
        buffers: &mut [IoSliceMut<'_>],
    ) -> io::Result<Option<usize>> {
        let result = match self {
            Socket::Tcp(stream) => (&*stream).read_vectored(buffers),
            Socket::Unix(stream) => (&*stream).read_vectored(buffers),
        };
        received(result)
    }

    /// Writes as much as fits: `None` if nothing does.
    pub(crate) fn write_vectored(&self, buffers: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        let result = match self {
            Socket::Tcp(stream) => (&*stream).write_vectored(buffers),
            Socket::Unix(stream) => (&*stream).write_vectored(buffers),
        };
        match result {
            Ok(count) => Ok(Some(count)),
            Err(error) if not_now(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A second handle on the same connection.
    pub(crate) fn duplicate(&self) -> io::Result<Socket> {
        match self {
            Socket::Tcp(stream) => stream.try_clone().map(Socket::Tcp),
            Socket::Unix(stream) => stream.try_clone().map(Socket::Unix),
        }
    }

    /// The local IP address, if it has one.
    pub(crate) fn local_ip(&self) -> Option<IpAddr> {
        match self {
            Socket::Tcp(stream) => stream.local_addr().ok().map(|address| address.ip()),
            Socket::Unix(_) => None,
        }
    }

    /// Ends the connection in both directions, for all handles on it.
    pub(crate) fn hang_up(&self) {
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(std::net::Shutdown::Both),
            Socket::Unix(stream) => stream.shutdown(std::net::Shutdown::Both),
        };
    }

    /// Announces that this end will send nothing more.
    pub(crate) fn finish(&self) {
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(std::net::Shutdown::Write),
            Socket::Unix(stream) => stream.shutdown(std::net::Shutdown::Write),
        };
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
        }
    }
}

fn received(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed")),
        Ok(count) => Ok(Some(count)),
        Err(error) if not_now(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn not_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Sleeps until one of the descriptors is ready or the time is over; a signal may end the sleep
/// early. Returns for each descriptor whether it is ready.
pub(crate) fn sleep(fds: &[(BorrowedFd<'_>, PollFlags)], limit: Duration) -> Vec<bool> {
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
    let limit =
        Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    match poll(&mut polled, Some(&limit)) {
        Ok(_) => polled.iter().map(|fd| !fd.revents().is_empty()).collect(),
        Err(_) => vec![false; fds.len()],
    }
}

/// A way to wait for a socket: until it can be read or written, according to the flags, or there is
/// a reason to stop waiting. It may return early, so the caller must check again.
pub(crate) type Waiting<'a> = dyn FnMut(&Socket, PollFlags) -> io::Result<()> + 'a;

/// Sleeps until the socket is ready according to the flags, or the deadline has passed.
pub(crate) fn await_socket(socket: &Socket, flags: PollFlags, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "timed out waiting for an answer"));
    }
    sleep(&[(socket.as_fd(), flags)], left);
    Ok(())
}
