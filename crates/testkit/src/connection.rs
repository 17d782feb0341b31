//! The launcher's end of a connection to a rank: encrypted frames over a socket, with blocking
//! reads.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use ronde_control::wire::frame::{Opener, Sealer, frame_length};
use ronde_control::wire::handshake::{Callee, envelope_length, respond};
use ronde_control::wire::{DriverToRank, Greeting, JobKey, decode, encode};
use serde::de::DeserializeOwned;

pub(crate) struct RankConnection {
    stream: TcpStream,
    sealer: Sealer,
    /// Decrypts the rank's messages, until another thread takes over receiving.
    opener: Option<Opener>,
}

impl RankConnection {
    /// Accepts a connection from a rank and reads its greeting.
    pub(crate) fn accept(
        mut stream: TcpStream,
        key: &JobKey,
    ) -> io::Result<(RankConnection, Greeting)> {
        let mut header = [0; 2];
        stream.read_exact(&mut header)?;
        let mut hello = vec![0; envelope_length(header).map_err(io::Error::other)?];
        stream.read_exact(&mut hello)?;
        let (answer, (sealer, opener)) =
            respond(key, Callee::Launcher, &hello).map_err(io::Error::other)?;
        stream.write_all(&answer)?;
        let mut connection = RankConnection { stream, sealer, opener: Some(opener) };
        let greeting = connection.receive()?;
        Ok((connection, greeting))
    }

    pub(crate) fn receive<M: DeserializeOwned>(&mut self) -> io::Result<M> {
        let opener = self.opener.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        receive(&mut self.stream, opener)
    }

    /// The parts needed to receive the rank's messages in another thread.
    pub(crate) fn take_receiver(&mut self) -> io::Result<(TcpStream, Opener)> {
        let opener = self.opener.take().ok_or(io::ErrorKind::NotConnected)?;
        Ok((self.stream.try_clone()?, opener))
    }

    pub(crate) fn send(&mut self, message: &DriverToRank) -> io::Result<()> {
        self.stream.write_all(&self.sealer.seal(&encode(message)))
    }

    pub(crate) fn hang_up(&self) {
        // It may be closed already.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// Blocks until the next message.
pub(crate) fn receive<M: DeserializeOwned>(
    stream: &mut TcpStream,
    opener: &mut Opener,
) -> io::Result<M> {
    let mut header = [0; 4];
    stream.read_exact(&mut header)?;
    let mut sealed = vec![0; frame_length(header).map_err(io::Error::other)?];
    stream.read_exact(&mut sealed)?;
    let plain = opener.open(&sealed).map_err(io::Error::other)?;
    decode(&plain).map_err(io::Error::other)
}
