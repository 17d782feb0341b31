//! One connection of a link: bytes as they are, or sealed.
//!
//! A sealed connection carries frames as the wires do, so that nobody on the way can read, change,
//! drop, repeat or reorder what travels. A frame never spans two flows: what has been taken from a
//! flow is on its way, or in the buffer of frames that did not fit into the socket yet.

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};

use ronde_control::wire::frame::{Opener, Sealer, frame_length};

use super::super::socket::Socket;
use super::super::wire::Wire;

/// Bytes that one frame carries: short enough that the receiver can open it while the next is on its
/// way.
const RECORD: usize = 60 << 10;

pub(super) struct Channel {
    socket: Socket,
    seal: Option<(RefCell<Outgoing>, RefCell<Incoming>)>,
}

/// Frames that did not fit into the socket yet.
struct Outgoing {
    sealer: Sealer,
    frames: Vec<u8>,
    sent: usize,
}

/// Bytes that came and are no whole frame yet, and an opened frame that is not used up.
struct Incoming {
    opener: Opener,
    frames: Vec<u8>,
    taken: usize,
    plain: Vec<u8>,
    used: usize,
}

impl Channel {
    pub(super) fn plain(wire: Wire) -> io::Result<Channel> {
        Ok(Channel { socket: wire.into_socket()?, seal: None })
    }

    pub(super) fn sealed(wire: Wire) -> io::Result<Channel> {
        let (socket, sealer, opener) = wire.into_parts()?;
        let outgoing = Outgoing { sealer, frames: Vec::new(), sent: 0 };
        let (frames, plain) = (Vec::new(), Vec::new());
        let incoming = Incoming { opener, frames, taken: 0, plain, used: 0 };
        Ok(Channel { socket, seal: Some((RefCell::new(outgoing), RefCell::new(incoming))) })
    }

    /// Takes as many bytes as fit: `None` when none do.
    pub(super) fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        match &self.seal {
            None => self.socket.write_vectored(slices),
            Some((outgoing, _)) => outgoing.borrow_mut().write(&self.socket, slices),
        }
    }

    /// Sends what had to wait; gives whether nothing waits any more.
    pub(super) fn flush(&self) -> io::Result<bool> {
        match &self.seal {
            None => Ok(true),
            Some((outgoing, _)) => outgoing.borrow_mut().flush(&self.socket),
        }
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.seal.as_ref().is_none_or(|(outgoing, _)| outgoing.borrow().is_flushed())
    }

    /// Gives the bytes that have come: `None` when none have.
    pub(super) fn read(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        match &self.seal {
            None => self.socket.read_vectored(slices),
            Some((_, incoming)) => incoming.borrow_mut().read(&self.socket, slices),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Outgoing {
    fn write(&mut self, socket: &Socket, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        if !self.flush(socket)? {
            return Ok(None);
        }
        self.frames.clear();
        self.sent = 0;
        let mut taken = 0;
        for record in slices.iter().flat_map(|slice| slice.chunks(RECORD)) {
            self.sealer.seal_onto(record, &mut self.frames);
            taken += record.len();
        }
        self.flush(socket)?;
        Ok(Some(taken))
    }

    fn is_flushed(&self) -> bool {
        self.sent == self.frames.len()
    }

    fn flush(&mut self, socket: &Socket) -> io::Result<bool> {
        while !self.is_flushed() {
            match socket.write_vectored(&[IoSlice::new(&self.frames[self.sent..])])? {
                Some(count) => self.sent += count,
                None => return Ok(false),
            }
        }
        Ok(true)
    }
}

impl Incoming {
    fn read(
        &mut self,
        socket: &Socket,
        slices: &mut [IoSliceMut<'_>],
    ) -> io::Result<Option<usize>> {
        if self.used == self.plain.len() && !self.open_next()? {
            self.fetch(socket)?;
            if !self.open_next()? {
                return Ok(None);
            }
        }
        let mut given = 0;
        for slice in slices {
            let count = slice.len().min(self.plain.len() - self.used);
            slice[..count].copy_from_slice(&self.plain[self.used..self.used + count]);
            self.used += count;
            given += count;
        }
        Ok(Some(given))
    }

    /// Opens the next frame, if a whole one has come.
    fn open_next(&mut self) -> io::Result<bool> {
        let rest = &self.frames[self.taken..];
        let Some(header) = rest.first_chunk::<4>() else { return Ok(false) };
        let length = frame_length(*header).map_err(io::Error::other)?;
        if length > RECORD + 64 {
            return Err(io::Error::other("a frame is longer than any of a link"));
        }
        let Some(sealed) = rest.get(4..4 + length) else { return Ok(false) };
        self.used = 0;
        self.opener.open_into(sealed, &mut self.plain).map_err(io::Error::other)?;
        self.taken += 4 + length;
        Ok(true)
    }

    /// Reads what is there, behind the beginning of the frame that is not whole yet.
    fn fetch(&mut self, socket: &Socket) -> io::Result<()> {
        self.frames.drain(..self.taken);
        self.taken = 0;
        let length = self.frames.len();
        self.frames.resize(length + 4 * RECORD, 0);
        let count = socket.read(&mut self.frames[length..]);
        self.frames.truncate(length + count.as_ref().map_or(0, |count| count.unwrap_or(0)));
        count.map(|_| ())
    }
}
