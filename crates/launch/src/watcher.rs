//! The other end of watching a job: asks its driver how it stands.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use ronde_control::VERSION;
use ronde_control::status::{DriverToWatcher, Status, WatcherToDriver};
use ronde_control::wire::frame::{Opener, Sealer, frame_length};
use ronde_control::wire::{Greeting, decode, encode};

use crate::registry::Entry;
use crate::wire::dial;

/// How long a driver that lives may take to answer.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// A connection to a driver.
pub struct Watcher {
    stream: TcpStream,
    sealer: Sealer,
    opener: Opener,
}

impl Watcher {
    /// Proves to the driver that we hold the job's key, and has it prove the same.
    pub fn connect(entry: &Entry) -> io::Result<Watcher> {
        let (mut stream, (mut sealer, opener)) = dial(entry.address, &entry.key, TIME_LIMIT)?;
        let greeting = Greeting::Watch { version: VERSION.into() };
        stream.write_all(&sealer.seal(&encode(&greeting)))?;
        Ok(Watcher { stream, sealer, opener })
    }

    /// How the job stands now.
    pub fn ask(&mut self) -> io::Result<Status> {
        self.say(WatcherToDriver::Ask)?;
        match self.hear()? {
            DriverToWatcher::Status(status) => Ok(status),
            answer => Err(refused(answer)),
        }
    }

    /// What has happened last and what happens from now on.
    pub fn follow(mut self) -> io::Result<EventStream> {
        self.say(WatcherToDriver::Follow)?;
        // Hours may pass in which nothing happens; if the driver's host dies, the kernel notices.
        self.stream.set_read_timeout(None)?;
        rustix::net::sockopt::set_socket_keepalive(&self.stream, true)?;
        Ok(EventStream(self))
    }

    fn say(&mut self, message: WatcherToDriver) -> io::Result<()> {
        self.stream.write_all(&self.sealer.seal(&encode(&message)))
    }

    fn hear(&mut self) -> io::Result<DriverToWatcher> {
        let mut header = [0; 4];
        self.stream.read_exact(&mut header)?;
        let mut sealed = vec![0; frame_length(header).map_err(io::Error::other)?];
        self.stream.read_exact(&mut sealed)?;
        let plain = self.opener.open(&sealed).map_err(io::Error::other)?;
        decode(&plain).map_err(io::Error::other)
    }
}

/// A job's events as they come.
pub struct EventStream(Watcher);

impl EventStream {
    /// Waits for the next event; gives it as JSON, and how many were missed before it. Fails when the job is
    /// gone, which was told before by its last event unless its driver was killed.
    pub fn wait(&mut self) -> io::Result<(String, u64)> {
        match self.0.hear()? {
            DriverToWatcher::Event { event, missed } => Ok((event, missed)),
            answer => Err(refused(answer)),
        }
    }
}

/// The driver does not answer what it was asked.
fn refused(answer: DriverToWatcher) -> io::Error {
    match answer {
        DriverToWatcher::Refused { reason } => io::Error::other(reason),
        _ => io::Error::other("it answered something else than it was asked"),
    }
}
