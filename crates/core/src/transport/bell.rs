//! A doorbell: a descriptor that wakes whoever polls it, in this process or, handed over a unix
//! socket, in another.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Bell> {
        Ok(Bell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// A bell that belongs to another rank.
    pub(crate) fn of_peer(fd: OwnedFd) -> Bell {
        Bell(fd)
    }

    /// A full counter means that it rings already, so nothing here can fail in a way that matters.
    pub(crate) fn ring(&self) {
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }

    pub(crate) fn hush(&self) {
        let _ = read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
