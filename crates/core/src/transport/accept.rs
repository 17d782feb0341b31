//! The accepting side of a handshake, in steps that never block.
//!
//! No byte from the peer is interpreted before its first message has proved that it holds the job's
//! key. The handshake reads exactly up to the end of the greeting: the bytes after it may belong to
//! a tensor, or carry descriptors.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

use ronde_control::admission::HandshakeProgress;
use ronde_control::wire::decode;
use ronde_control::wire::frame::frame_length;
use ronde_control::wire::handshake::{SealedChannel, envelope_length, respond};

use super::socket::Socket;
use super::wire::{Arrival, Credentials, SealedWire};

/// Longest greeting we accept, in bytes.
const MAX_GREETING: usize = 4096;

/// An accepted connection that has not sent its greeting yet.
pub(crate) struct Accepting {
    socket: Socket,
    /// The part of the current message received so far.
    input: Vec<u8>,
    /// Bytes that did not fit into the socket yet.
    output: Vec<u8>,
    /// Both halves of the sealed connection, once the peer has proved that it has the key.
    channel: Option<SealedChannel>,
}

/// State of a handshake after a step.
pub(crate) enum HandshakeStep {
    /// The handshake needs more bytes.
    Waits(Accepting, HandshakeProgress),
    /// The peer has proved that it has the key and has sent its greeting.
    Greeted(Box<Arrival>),
}

impl Accepting {
    pub(crate) fn new(socket: Socket) -> Accepting {
        Accepting { socket, input: Vec::new(), output: Vec::new(), channel: None }
    }

    /// Processes the bytes received so far. An error means that the peer does not have the key or
    /// has closed the connection.
    pub(crate) fn step(mut self, (key, callee): Credentials<'_>) -> io::Result<HandshakeStep> {
        if self.channel.is_none() {
            if !self.has(2)? {
                return Ok(self.waits());
            }
            let length = envelope_length([self.input[0], self.input[1]]);
            let length = length.map_err(io::Error::other)?;
            if !self.has(2 + length)? {
                return Ok(self.waits());
            }
            let (answer, channel) =
                respond(key, callee, &self.input[2..]).map_err(io::Error::other)?;
            (self.output, self.channel) = (answer, Some(channel));
            self.input.clear();
        }
        while !self.output.is_empty() {
            match self.socket.write_vectored(&[IoSlice::new(&self.output)])? {
                Some(count) => drop(self.output.drain(..count)),
                None => return Ok(self.waits()),
            }
        }
        if !self.has(4)? {
            return Ok(self.waits());
        }
        let header = [self.input[0], self.input[1], self.input[2], self.input[3]];
        let length = frame_length(header).map_err(io::Error::other)?;
        if length > MAX_GREETING {
            return Err(io::Error::other("the greeting is too long"));
        }
        if !self.has(4 + length)? {
            return Ok(self.waits());
        }
        let Some((sealer, mut opener)) = self.channel.take() else { return Ok(self.waits()) };
        let plain = opener.open(&self.input[4..]).map_err(io::Error::other)?;
        let greeting = decode(&plain).map_err(io::Error::other)?;
        let wire = SealedWire::new(self.socket, (sealer, opener));
        Ok(HandshakeStep::Greeted(Box::new((wire, greeting))))
    }

    fn waits(self) -> HandshakeStep {
        let progress = match (&self.channel, self.input.is_empty()) {
            (Some(_), _) => HandshakeProgress::Proven,
            (None, false) => HandshakeProgress::Begun,
            (None, true) => HandshakeProgress::Silent,
        };
        HandshakeStep::Waits(self, progress)
    }

    /// Whether `needed` bytes of the current message are there; reads no more than that.
    fn has(&mut self, needed: usize) -> io::Result<bool> {
        let mut buffer = [0; 512];
        while self.input.len() < needed {
            let limit = (needed - self.input.len()).min(buffer.len());
            match self.socket.read(&mut buffer[..limit])? {
                Some(count) => self.input.extend_from_slice(&buffer[..count]),
                None => return Ok(false),
            }
        }
        Ok(true)
    }
}

impl AsFd for Accepting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
