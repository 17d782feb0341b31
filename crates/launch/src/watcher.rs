//! The watcher's end: asks a job's driver for status and events.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use ronde_control::VERSION;
use ronde_control::status::{DriverToWatcher, Status, WatcherToDriver};
use ronde_control::wire::frame::{Opener, Sealer, frame_length};
use ronde_control::wire::{Greeting, decode, encode};

use crate::registry::Entry;
use crate::wire::dial;

/// How long a live driver may take to answer.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// A connection to a driver.
pub struct Watcher {
    stream: TcpStream,
    sealer: Sealer,
    opener: Opener,
}

impl Watcher {
    /// Connects to the driver; both ends prove that they hold the job's key.
    pub fn connect(entry: &Entry) -> io::Result<Watcher> {
        let (mut stream, (mut sealer, opener)) = dial(entry.address, &entry.key, TIME_LIMIT)?;
        let greeting = Greeting::Watch { version: VERSION.into() };
        stream.write_all(&sealer.seal(&encode(&greeting)))?;
        Ok(Watcher { stream, sealer, opener })
    }

    /// The current status of the job.
    pub fn ask(&mut self) -> io::Result<Status> {
        self.send(WatcherToDriver::Ask)?;
        match self.receive()? {
            DriverToWatcher::Status(status) => Ok(status),
            answer => Err(refused(answer)),
        }
    }

    /// The latest events of the job and all that follow.
    pub fn follow(mut self) -> io::Result<EventStream> {
        self.send(WatcherToDriver::Follow)?;
        // Hours may pass without an event; if the driver's host dies, the kernel notices.
        self.stream.set_read_timeout(None)?;
        rustix::net::sockopt::set_socket_keepalive(&self.stream, true)?;
        Ok(EventStream(self))
    }

    fn send(&mut self, message: WatcherToDriver) -> io::Result<()> {
        self.stream.write_all(&self.sealer.seal(&encode(&message)))
    }

    fn receive(&mut self) -> io::Result<DriverToWatcher> {
        let mut header = [0; 4];
        self.stream.read_exact(&mut header)?;
        let mut sealed = vec![0; frame_length(header).map_err(io::Error::other)?];
        self.stream.read_exact(&mut sealed)?;
        let plain = self.opener.open(&sealed).map_err(io::Error::other)?;
        decode(&plain).map_err(io::Error::other)
    }
}

/// A job's events as they arrive.
pub struct EventStream(Watcher);

impl EventStream {
    /// Waits for the next event; returns it as JSON, and how many were missed before it. Fails when
    /// the job is gone; its last event announces that, unless its driver was killed.
    pub fn wait(&mut self) -> io::Result<(String, u64)> {
        match self.0.receive()? {
            DriverToWatcher::Event { event, missed } => Ok((event, missed)),
            answer => Err(refused(answer)),
        }
    }
}

/// The error for an answer that does not match the question.
fn refused(answer: DriverToWatcher) -> io::Error {
    match answer {
        DriverToWatcher::Refused { reason } => io::Error::other(reason),
        _ => io::Error::other("the driver sent an unexpected answer"),
    }
}
