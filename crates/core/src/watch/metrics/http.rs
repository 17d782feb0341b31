//! Answers `GET /metrics`, and nothing else, to whoever asks on this host.
//!
//! One question at a time, each within a second and a few kilobytes, then the connection is closed.
//! What is asked is never acted upon: the answer is the same numbers for everybody.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ronde_control::settings::Place;
use ronde_control::watching::MetricsAt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};

use crate::error::Error;

/// How long one who asks may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long one who has asked nothing yet may take while others wait.
const HESITATION: Duration = Duration::from_millis(50);
/// Bytes that a question may have.
const LONGEST: usize = 8 << 10;

/// A place where metrics can be read.
pub(crate) enum Server {
    Loopback(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Server {
    /// Opens this rank's own place: the port plus the local rank, or the path with the rank behind.
    pub(crate) fn open(at: &MetricsAt, place: &Place) -> Result<Server, Error> {
        let opened = match at {
            MetricsAt::Loopback(address) => {
                let port = u32::from(address.port()) + place.local_rank;
                let port = u16::try_from(port)
                    .map_err(|_| Error::Setup(format!("RONDE_METRICS: there is no port {port}")))?;
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

    /// Answers one who has come, if somebody has.
    pub(crate) fn serve(&self, text: impl FnOnce() -> String) -> io::Result<()> {
        match self {
            Server::Loopback(listener) => {
                let (stream, _) = listener.accept()?;
                await_question(&stream, listener)?;
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                let end = |stream: &TcpStream| stream.shutdown(std::net::Shutdown::Write);
                answer(&stream, text)?;
                end(&stream)
            }
            Server::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                await_question(&stream, listener)?;
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                answer(&stream, text)
            }
        }
    }
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Server::Loopback(listener) => listener.as_fd(),
            Server::Unix(listener, _) => listener.as_fd(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        match self {
            // A forked child may hold the socket too; without this it would go on to hold the port.
            Server::Loopback(listener) => drop(shutdown(listener, Shutdown::Both)),
            Server::Unix(_, path) => drop(std::fs::remove_file(path)),
        }
    }
}

/// Waits for the first byte of a question, briefly if somebody else waits, too: connections that ask
/// nothing must not keep away those that do.
fn await_question(stream: &impl AsFd, listener: &impl AsFd) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if is_readable(stream, HESITATION) {
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

fn loopback(address: SocketAddr) -> Result<Server, (String, io::Error)> {
    let named = |error| (address.to_string(), error);
    let listener = TcpListener::bind(address).map_err(named)?;
    listener.set_nonblocking(true).map_err(named)?;
    Ok(Server::Loopback(listener))
}

fn unix(path: PathBuf) -> Result<Server, (String, io::Error)> {
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
        Ok(listener) => Ok(Server::Unix(listener, path)),
        Err(error) => Err((path.display().to_string(), error)),
    }
}

/// Whether a socket is that of a process that was killed.
fn is_left_behind(path: &Path) -> bool {
    let connected = UnixStream::connect(path);
    connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn answer<S>(stream: &S, text: impl FnOnce() -> String) -> io::Result<()>
where
    for<'a> &'a S: Read + Write,
{
    let (status, body) = match question(stream)? {
        Some(line) => match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["GET", "/metrics", _] => ("200 OK", text()),
            ["GET", ..] => ("404 Not Found", "metrics are at /metrics\n".into()),
            _ => ("405 Method Not Allowed", "only GET is answered\n".into()),
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

/// The first line of what is asked, once all of it has come; none if it is too long.
fn question<S>(stream: &S) -> io::Result<Option<String>>
where
    for<'a> &'a S: Read,
{
    let mut stream = stream;
    let deadline = Instant::now() + PATIENCE;
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
        if bytes.len() > LONGEST {
            return Ok(None);
        }
    }
    let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
    Ok(Some(String::from_utf8_lossy(line).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place {
            rank: ronde_control::Rank(0),
            size: 1,
            local_rank: 0,
            local_size: 1,
            cross_rank: 0,
            cross_size: 1,
            host: "node-a".into(),
            meeting: None,
        }
    }

    #[test]
    fn connections_that_ask_nothing_do_not_keep_away_those_that_do() {
        let server = Server::open(&MetricsAt::Loopback("127.0.0.1:0".parse().unwrap()), &place());
        let server = server.unwrap();
        let Server::Loopback(listener) = &server else { panic!() };
        let at = listener.local_addr().unwrap();
        let start = Instant::now();
        let idle: Vec<_> = (0..50).map(|_| TcpStream::connect(at).unwrap()).collect();
        let mut asker = TcpStream::connect(at).unwrap();
        asker.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        while server.serve(|| "numbers 1\n".into()).is_err() {}
        let mut text = String::new();
        asker.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("numbers 1\n"), "{text}");
        assert!(start.elapsed() < idle.len() as u32 * PATIENCE / 2);
    }

    #[test]
    fn a_forked_child_that_holds_the_socket_does_not_hold_the_port() {
        let place = place();
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let first = Server::open(&MetricsAt::Loopback(free), &place).unwrap();
        // What a fork leaves in the child: another descriptor of the same socket.
        let inherited = first.as_fd().try_clone_to_owned().unwrap();
        drop(first);
        let second = Server::open(&MetricsAt::Loopback(free), &place);
        assert!(second.is_ok(), "{}", second.err().unwrap());
        drop(inherited);
    }

    fn asked(question: &[u8]) -> io::Result<String> {
        let (client, server) = UnixStream::pair().unwrap();
        (&client).write_all(question).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        answer(&server, || "numbers 1\n".into())?;
        drop(server);
        let mut text = String::new();
        (&client).read_to_string(&mut text).unwrap();
        Ok(text)
    }

    #[test]
    fn only_a_question_for_metrics_gets_numbers() {
        let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(LONGEST));
        for (question, status) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "200 OK"),
            ("GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("GET /metrics/../etc HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
            ("\u{0}\u{1}\r\n\r\n", "405 Method Not Allowed"),
            (&long, "431 Request Header Fields Too Large"),
        ] {
            let text = asked(question.as_bytes()).unwrap();
            assert!(text.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{text}");
            assert_eq!(text.ends_with("\r\n\r\nnumbers 1\n"), status == "200 OK", "{text}");
        }
        assert!(asked(b"GET /metrics").is_err(), "half a question gets no answer");
    }
}
