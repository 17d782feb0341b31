//! Serves `GET /metrics`, and nothing else, to anyone on this host.
//!
//! Handles one request at a time, each limited to a second and a few kilobytes, then closes the
//! connection. A request has no other effect: everyone gets the same numbers.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ronde_control::settings::RankInfo;
use ronde_control::watching::MetricsAt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};

use crate::error::Error;

/// How long a request may take.
const TIME_LIMIT: Duration = Duration::from_secs(1);
/// How long to wait for the first byte of a request while others wait.
const IDLE_LIMIT: Duration = Duration::from_millis(50);
/// Longest request, in bytes.
const MAX_REQUEST: usize = 8 << 10;

/// A listening socket that serves metrics.
pub(crate) enum MetricsServer {
    Loopback(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl MetricsServer {
    /// Listens for this rank: at the port plus the local rank, or at the path followed by the rank.
    pub(crate) fn open(at: &MetricsAt, place: &RankInfo) -> Result<MetricsServer, Error> {
        let opened = match at {
            MetricsAt::Loopback(address) => {
                let port = u32::from(address.port()) + place.local_rank;
                let port = u16::try_from(port).map_err(|_| {
                    Error::Setup(format!("RONDE_METRICS: port {port} is out of range"))
                })?;
                loopback(SocketAddr::new(address.ip(), port))
            }
            MetricsAt::Unix(path) => {
                let mut path = path.clone().into_os_string();
                path.push(format!(".{}", place.rank.0));
                unix(path.into())
            }
        };
        opened.map_err(|(name, error)| {
            Error::Setup(format!(
                "{} ({}) could not serve metrics at `{name}` (RONDE_METRICS): {error}",
                place.rank, place.host
            ))
        })
    }

    /// Answers one pending request, if there is one.
    pub(crate) fn serve(&self, text: impl FnOnce() -> String) -> io::Result<()> {
        match self {
            MetricsServer::Loopback(listener) => {
                let (stream, _) = listener.accept()?;
                await_request(&stream, listener)?;
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(TIME_LIMIT))?;
                stream.set_write_timeout(Some(TIME_LIMIT))?;
                let end = |stream: &TcpStream| stream.shutdown(std::net::Shutdown::Write);
                answer(&stream, text)?;
                end(&stream)
            }
            MetricsServer::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                await_request(&stream, listener)?;
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(TIME_LIMIT))?;
                stream.set_write_timeout(Some(TIME_LIMIT))?;
                answer(&stream, text)
            }
        }
    }
}

impl AsFd for MetricsServer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            MetricsServer::Loopback(listener) => listener.as_fd(),
            MetricsServer::Unix(listener, _) => listener.as_fd(),
        }
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        match self {
            // A forked child may still hold the socket; without this it would keep the port busy.
            MetricsServer::Loopback(listener) => drop(shutdown(listener, Shutdown::Both)),
            MetricsServer::Unix(_, path) => drop(std::fs::remove_file(path)),
        }
    }
}

/// Waits for the first byte of a request, briefly if another connection waits too: idle connections
/// must not block requests.
fn await_request(stream: &impl AsFd, listener: &impl AsFd) -> io::Result<()> {
    let deadline = Instant::now() + TIME_LIMIT;
    loop {
        if is_readable(stream, IDLE_LIMIT) {
            return Ok(());
        }
        if is_readable(listener, Duration::ZERO) || Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

fn is_readable(fd: &impl AsFd, limit: Duration) -> bool {
    let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
    let mut polled = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
    poll(&mut polled, Some(&limit)).is_ok_and(|ready| ready > 0)
}

fn loopback(address: SocketAddr) -> Result<MetricsServer, (String, io::Error)> {
    let named = |error| (address.to_string(), error);
    let listener = TcpListener::bind(address).map_err(named)?;
    listener.set_nonblocking(true).map_err(named)?;
    Ok(MetricsServer::Loopback(listener))
}

fn unix(path: PathBuf) -> Result<MetricsServer, (String, io::Error)> {
    // The program may change its directory before the socket is removed.
    let path = std::path::absolute(&path).unwrap_or(path);
    let opened = UnixListener::bind(&path).or_else(|error| match error.kind() {
        io::ErrorKind::AddrInUse if is_left_behind(&path) => {
            std::fs::remove_file(&path)?;
            UnixListener::bind(&path)
        }
        _ => Err(error),
    });
    let listener = opened.and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    match listener {
        Ok(listener) => Ok(MetricsServer::Unix(listener, path)),
        Err(error) => Err((path.display().to_string(), error)),
    }
}

/// Whether a socket belongs to a process that was killed.
fn is_left_behind(path: &Path) -> bool {
    let connected = UnixStream::connect(path);
    connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn answer<S>(stream: &S, text: impl FnOnce() -> String) -> io::Result<()>
where
    for<'a> &'a S: Read + Write,
{
    let (status, body) = match request_line(stream)? {
        Some(line) => match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["GET", "/metrics", _] => ("200 OK", text()),
            ["GET", ..] => ("404 Not Found", "metrics are at /metrics\n".into()),
            _ => ("405 Method Not Allowed", "only GET is supported\n".into()),
        },
        None => ("431 Request Header Fields Too Large", String::new()),
    };
    let mut stream = stream;
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// The first line of a request, once it has arrived completely; `None` if it is too long.
fn request_line<S>(stream: &S) -> io::Result<Option<String>>
where
    for<'a> &'a S: Read,
{
    let mut stream = stream;
    let deadline = Instant::now() + TIME_LIMIT;
    let mut bytes = Vec::new();
    let mut buffer = [0; 1024];
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => bytes.extend_from_slice(&buffer[..count]),
        }
        if bytes.len() > MAX_REQUEST {
            return Ok(None);
        }
    }
    let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
    Ok(Some(String::from_utf8_lossy(line).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> RankInfo {
        RankInfo {
            rank: ronde_control::Rank(0),
            size: 1,
            local_rank: 0,
            local_size: 1,
            cross_rank: 0,
            cross_size: 1,
            host: "node-a".into(),
            rendezvous_info: None,
        }
    }

    #[test]
    fn idle_connections_do_not_block_requests() {
        let server =
            MetricsServer::open(&MetricsAt::Loopback("127.0.0.1:0".parse().unwrap()), &place());
        let server = server.unwrap();
        let MetricsServer::Loopback(listener) = &server else { panic!() };
        let at = listener.local_addr().unwrap();
        let start = Instant::now();
        let idle: Vec<_> = (0..50).map(|_| TcpStream::connect(at).unwrap()).collect();
        let mut client = TcpStream::connect(at).unwrap();
        client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        while server.serve(|| "numbers 1\n".into()).is_err() {}
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("numbers 1\n"), "{text}");
        assert!(start.elapsed() < idle.len() as u32 * TIME_LIMIT / 2);
    }

    #[test]
    fn a_forked_child_that_holds_the_socket_does_not_keep_the_port_busy() {
        let place = place();
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let first = MetricsServer::open(&MetricsAt::Loopback(free), &place).unwrap();
        // A fork leaves the child another descriptor of the same socket.
        let inherited = first.as_fd().try_clone_to_owned().unwrap();
        drop(first);
        let second = MetricsServer::open(&MetricsAt::Loopback(free), &place);
        assert!(second.is_ok(), "{}", second.err().unwrap());
        drop(inherited);
    }

    fn asked(request: &[u8]) -> io::Result<String> {
        let (client, server) = UnixStream::pair().unwrap();
        (&client).write_all(request).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        answer(&server, || "numbers 1\n".into())?;
        drop(server);
        let mut text = String::new();
        (&client).read_to_string(&mut text).unwrap();
        Ok(text)
    }

    #[test]
    fn only_a_request_for_metrics_gets_numbers() {
        let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(MAX_REQUEST));
        for (request, status) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "200 OK"),
            ("GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("GET /metrics/../etc HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
            ("\u{0}\u{1}\r\n\r\n", "405 Method Not Allowed"),
            (&long, "431 Request Header Fields Too Large"),
        ] {
            let text = asked(request.as_bytes()).unwrap();
            assert!(text.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{text}");
            assert_eq!(text.ends_with("\r\n\r\nnumbers 1\n"), status == "200 OK", "{text}");
        }
        assert!(asked(b"GET /metrics").is_err(), "an incomplete request gets no answer");
    }
}
