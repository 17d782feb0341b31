//! A sealed connection: a handshake first, then encrypted frames in both directions.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use ronde_control::wire::frame::{MAX_FRAME, Opener, Sealer, frame_length};
use ronde_control::wire::handshake::{Initiator, SealedChannel, envelope_length};
use ronde_control::wire::{Callee, Greeting, JobKey, decode, encode};
use rustix::event::PollFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::accept::{Accepting, HandshakeStep};
use super::socket::{Socket, Waiting, await_socket};

/// The job's key, and who is dialed with it.
pub(crate) type Credentials<'a> = (&'a JobKey, Callee);

/// An authenticated peer, and its greeting.
pub(crate) type Arrival = (SealedWire, Greeting);

pub(crate) struct SealedWire {
    socket: Socket,
    sealer: Sealer,
    opener: Opener,
    /// Received bytes that are not a complete frame yet.
    input: Vec<u8>,
    /// Bytes that did not fit into the socket yet.
    output: Vec<u8>,
}

impl SealedWire {
    /// Proves to the listening side that we hold the key, has it prove the same, and sends the
    /// greeting.
    pub(crate) fn dial_with(
        socket: Socket,
        (key, callee): Credentials<'_>,
        greeting: &Greeting,
        wait: &mut Waiting<'_>,
    ) -> io::Result<SealedWire> {
        let (initiator, hello) = Initiator::start(key, callee);
        write_all(&socket, &hello, wait)?;
        let answer = read_envelope(&socket, wait)?;
        let (sealer, opener) = initiator.finish(&answer).map_err(io::Error::other)?;
        let mut wire = SealedWire::new(socket, (sealer, opener));
        wire.send(greeting)?;
        while !wire.flush()? {
            wait(&wire.socket, PollFlags::OUT)?;
        }
        Ok(wire)
    }

    /// Like [`SealedWire::dial_with`], with only a deadline.
    #[cfg(test)]
    pub(crate) fn dial(
        socket: Socket,
        call: Credentials<'_>,
        greeting: &Greeting,
        deadline: Instant,
    ) -> io::Result<SealedWire> {
        SealedWire::dial_with(socket, call, greeting, &mut by(deadline))
    }

    /// A connection whose handshake is complete.
    pub(super) fn new(socket: Socket, (sealer, opener): SealedChannel) -> SealedWire {
        SealedWire { socket, sealer, opener, input: Vec::new(), output: Vec::new() }
    }

    /// Accepts nothing from the dialing side before it has proved that it holds the key.
    pub(crate) fn accept(
        socket: Socket,
        call: Credentials<'_>,
        deadline: Instant,
    ) -> io::Result<Arrival> {
        let mut accepting = Accepting::new(socket);
        loop {
            match accepting.step(call)? {
                HandshakeStep::Greeted(arrival) => return Ok(*arrival),
                HandshakeStep::Waits(more, _) => accepting = more,
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "timed out waiting for an answer",
                ));
            }
            super::socket::sleep(&[(accepting.as_fd(), PollFlags::IN)], left);
        }
    }

    /// Sends a message, or as much of it as fits now; [`SealedWire::flush`] sends the rest.
    pub(crate) fn send<M: Serialize>(&mut self, message: &M) -> io::Result<()> {
        let plain = encode(message);
        if plain.len() > MAX_FRAME {
            return Err(io::Error::other(format!(
                "a message of {} bytes is too long",
                plain.len()
            )));
        }
        let frame = self.sealer.seal(&plain);
        self.output.extend_from_slice(&frame);
        self.flush().map(|_| ())
    }

    /// Sends buffered bytes; returns whether everything is sent.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        while !self.output.is_empty() {
            match self.socket.write_vectored(&[IoSlice::new(&self.output)])? {
                Some(count) => drop(self.output.drain(..count)),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    pub(crate) fn flush_by(&mut self, deadline: Instant) -> io::Result<()> {
        while !self.flush()? {
            await_socket(&self.socket, PollFlags::OUT, deadline)?;
        }
        Ok(())
    }

    /// The next message, if it has arrived completely.
    pub(crate) fn receive<M: DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
        loop {
            if let Some(message) = self.take_frame()? {
                return Ok(Some(message));
            }
            let mut buffer = [0; 16 << 10];
            match self.socket.read(&mut buffer)? {
                Some(count) => self.input.extend_from_slice(&buffer[..count]),
                None => return Ok(None),
            }
        }
    }

    pub(crate) fn receive_by<M: DeserializeOwned>(&mut self, deadline: Instant) -> io::Result<M> {
        loop {
            if let Some(message) = self.receive()? {
                return Ok(message);
            }
            await_socket(&self.socket, PollFlags::IN, deadline)?;
        }
    }

    /// Whether a complete message has been read from the socket and not taken yet.
    pub(crate) fn has_frame(&self) -> bool {
        let header = self.input.first_chunk::<4>();
        let length = header.and_then(|header| frame_length(*header).ok());
        length.is_some_and(|length| self.input.len() >= 4 + length)
    }

    pub(crate) fn wants_to_write(&self) -> bool {
        !self.output.is_empty()
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Ends the encrypted frames; bytes after this travel plain.
    pub(crate) fn into_socket(self) -> io::Result<Socket> {
        match self.input.is_empty() && self.output.is_empty() {
            true => Ok(self.socket),
            false => Err(io::Error::other("unexpected bytes after the greeting")),
        }
    }

    /// The connection and its two halves, for sending and receiving at the same time, with the
    /// bytes that have already arrived. Nothing may be left to send.
    pub(crate) fn split(self) -> io::Result<(Socket, Sealer, Opener, Vec<u8>)> {
        match self.output.is_empty() {
            true => Ok((self.socket, self.sealer, self.opener, self.input)),
            false => Err(io::Error::other("unsent bytes before the stream")),
        }
    }

    fn take_frame<M: DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
        let Some(header) = self.input.first_chunk::<4>() else { return Ok(None) };
        let end = 4 + frame_length(*header).map_err(io::Error::other)?;
        if self.input.len() < end {
            return Ok(None);
        }
        let plain = self.opener.open(&self.input[4..end]).map_err(io::Error::other)?;
        self.input.drain(..end);
        decode(&plain).map(Some).map_err(io::Error::other)
    }
}

impl AsFd for SealedWire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Waits until a deadline, and for nothing else.
#[cfg(test)]
fn by(deadline: Instant) -> impl FnMut(&Socket, PollFlags) -> io::Result<()> {
    move |socket, flags| await_socket(socket, flags, deadline)
}

fn read_envelope(socket: &Socket, wait: &mut Waiting<'_>) -> io::Result<Vec<u8>> {
    let mut header = [0; 2];
    read_exact(socket, &mut header, wait)?;
    let mut body = vec![0; envelope_length(header).map_err(io::Error::other)?];
    read_exact(socket, &mut body, wait)?;
    Ok(body)
}

pub(crate) fn read_exact(
    socket: &Socket,
    mut buffer: &mut [u8],
    wait: &mut Waiting<'_>,
) -> io::Result<()> {
    while !buffer.is_empty() {
        match socket.read(buffer)? {
            Some(count) => buffer = &mut buffer[count..],
            None => wait(socket, PollFlags::IN)?,
        }
    }
    Ok(())
}

pub(crate) fn write_all(
    socket: &Socket,
    mut bytes: &[u8],
    wait: &mut Waiting<'_>,
) -> io::Result<()> {
    while !bytes.is_empty() {
        match socket.write_vectored(&[IoSlice::new(bytes)])? {
            Some(count) => bytes = &bytes[count..],
            None => wait(socket, PollFlags::OUT)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use ronde_control::{Epoch, Rank};

    use super::*;

    const ME: Callee = Callee::Launcher;

    fn ends() -> (Socket, Socket) {
        let (a, b) = UnixStream::pair().unwrap();
        (Socket::unix(a).unwrap(), Socket::unix(b).unwrap())
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn two_ranks_greet_and_exchange_messages() {
        let (a, b) = ends();
        let key = JobKey::from_entropy([1; 32]);
        let greeting = Greeting::Control { epoch: Epoch(1), rank: Rank(3) };
        std::thread::scope(|scope| {
            let dialed =
                scope.spawn(|| SealedWire::dial(a, (&key, ME), &greeting, soon()).unwrap());
            let (mut accepted, seen) = SealedWire::accept(b, (&key, ME), soon()).unwrap();
            assert_eq!(seen, greeting);
            let mut dialed = dialed.join().unwrap();
            let long = "x".repeat(300_000);
            scope.spawn(move || {
                accepted.send(&long).unwrap();
                accepted.flush_by(soon()).unwrap();
            });
            assert_eq!(dialed.receive_by::<String>(soon()).unwrap().len(), 300_000);
        });
    }

    #[test]
    fn garbage_silence_and_a_wrong_key_are_refused_in_time() {
        let key = JobKey::from_entropy([1; 32]);
        for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"", &[48, 0, 1, 2, 3], &[0; 200]] {
            let (a, b) = ends();
            write_all(&a, garbage, &mut by(soon())).unwrap();
            let limit = Instant::now() + Duration::from_millis(50);
            assert!(SealedWire::accept(b, (&key, ME), limit).is_err(), "{garbage:?}");
        }
        let (a, b) = ends();
        let greeting = Greeting::Control { epoch: Epoch(1), rank: Rank(3) };
        let other = JobKey::from_entropy([2; 32]);
        std::thread::scope(|scope| {
            let outsider =
                scope.spawn(|| SealedWire::dial(a, (&other, ME), &greeting, soon()).is_err());
            assert!(SealedWire::accept(b, (&key, ME), soon()).is_err());
            assert!(outsider.join().unwrap());
        });
    }
}
