//! A doorbell: a descriptor that wakes the thread polling it, in this process or, when passed over
//! a unix socket, in another one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

#[derive(Debug)]
pub(crate) struct Doorbell(OwnedFd);

impl Doorbell {
    pub(crate) fn new() -> io::Result<Doorbell> {
        Ok(Doorbell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Another rank's doorbell.
    pub(crate) fn of_peer(fd: OwnedFd) -> Doorbell {
        Doorbell(fd)
    }

    /// Ignores errors: a full counter means that the doorbell is ringing already.
    pub(crate) fn ring(&self) {
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }

    pub(crate) fn hush(&self) {
        let _ = read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
