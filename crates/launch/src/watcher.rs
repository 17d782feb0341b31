//! The other end of watching a job: asks its driver how it stands.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use ronde_control::VERSION;
use ronde_control::status::{DriverToWatcher, Status, WatcherToDriver};
use ronde_control::wire::frame::{Opener, Sealer, frame_length};
use ronde_control::wire::handshake::{Initiator, envelope_length};
use ronde_control::wire::{Callee, Greeting, decode, encode};

use crate::registry::Entry;

/// How long a driver that lives may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection to a driver.
pub struct Watcher {
    stream: TcpStream,
    sealer: Sealer,
    opener: Opener,
}

impl Watcher {
    /// Proves to the driver that we hold the job's key, and has it prove the same.
    pub fn connect(entry: &Entry) -> io::Result<Watcher> {
        let mut stream = TcpStream::connect_timeout(&entry.address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let (initiator, hello) = Initiator::start(&entry.key, Callee::Launcher);
        stream.write_all(&hello)?;
        let mut header = [0; 2];
        stream.read_exact(&mut header)?;
        let mut answer = vec![0; envelope_length(header).map_err(io::Error::other)?];
        stream.read_exact(&mut answer)?;
        let (mut sealer, opener) = initiator.finish(&answer).map_err(io::Error::other)?;
        let greeting = Greeting::Watch { version: VERSION.into() };
        stream.write_all(&sealer.seal(&encode(&greeting)))?;
        Ok(Watcher { stream, sealer, opener })
    }

    /// How the job stands now.
    pub fn ask(&mut self) -> io::Result<Status> {
        self.stream.write_all(&self.sealer.seal(&encode(&WatcherToDriver::Ask)))?;
        let mut header = [0; 4];
        self.stream.read_exact(&mut header)?;
        let mut sealed = vec![0; frame_length(header).map_err(io::Error::other)?];
        self.stream.read_exact(&mut sealed)?;
        let plain = self.opener.open(&sealed).map_err(io::Error::other)?;
        match decode(&plain).map_err(io::Error::other)? {
            DriverToWatcher::Status(status) => Ok(status),
            DriverToWatcher::Refused { reason } => Err(io::Error::other(reason)),
        }
    }
}
