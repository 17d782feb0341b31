//! The listening side's part of a handshake, in steps that never wait.
//!
//! Nothing from the other end means anything before its first message has shown that it holds the
//! job's key. Exactly the greeting is read: what follows may be bytes of a tensor, or descriptors.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

use ronde_control::admission::Stage;
use ronde_control::wire::decode;
use ronde_control::wire::frame::frame_length;
use ronde_control::wire::handshake::{Channel, envelope_length, respond};

use super::socket::Socket;
use super::wire::{Arrival, Call, Wire};

/// The longest greeting, before which nobody is trusted with more.
const MAX_GREETING: usize = 4096;

/// A connection that has been accepted and has not greeted yet.
pub(crate) struct Accepting {
    socket: Socket,
    /// What has come of the current message.
    input: Vec<u8>,
    /// What did not fit into the socket yet.
    output: Vec<u8>,
    /// Both halves of the sealed connection, once the other end has shown that it has the key.
    channel: Option<Channel>,
}

/// How far a handshake is after a step.
pub(crate) enum Step {
    /// More has to come.
    Waits(Accepting, Stage),
    /// The other end has proved and named itself.
    Greeted(Box<Arrival>),
}

impl Accepting {
    pub(crate) fn new(socket: Socket) -> Accepting {
        Accepting { socket, input: Vec::new(), output: Vec::new(), channel: None }
    }

    /// Takes what has come. An error means that this is a stranger, or that it has hung up.
    pub(crate) fn step(mut self, (key, callee): Call<'_>) -> io::Result<Step> {
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
            return Err(io::Error::other("no greeting is that long"));
        }
        if !self.has(4 + length)? {
            return Ok(self.waits());
        }
        let Some((sealer, mut opener)) = self.channel.take() else { return Ok(self.waits()) };
        let plain = opener.open(&self.input[4..]).map_err(io::Error::other)?;
        let greeting = decode(&plain).map_err(io::Error::other)?;
        let wire = Wire::new(self.socket, (sealer, opener));
        Ok(Step::Greeted(Box::new((wire, greeting))))
    }

    fn waits(self) -> Step {
        let stage = match (&self.channel, self.input.is_empty()) {
            (Some(_), _) => Stage::Proven,
            (None, false) => Stage::Begun,
            (None, true) => Stage::Silent,
        };
        Step::Waits(self, stage)
    }

    /// Whether so many bytes of the current message are there; reads no more than that.
    fn has(&mut self, needed: usize) -> io::Result<bool> {
        let mut buffer = [0; 512];
        while self.input.len() < needed {
            let most = (needed - self.input.len()).min(buffer.len());
            match self.socket.read(&mut buffer[..most])? {
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
