//! One connection of a link: bytes as they are, or sealed.
//!
//! Sealed bytes travel in records: four bytes of length, then that many bytes of ciphertext and tag.
//! AES-256-GCM with a key for each direction of each connection, which the dialling side made and told
//! in its sealed greeting; records are numbered, so that nobody on the way can read, change, drop,
//! repeat or reorder them. A record never spans two flows: what has been taken from a flow is on its
//! way, or in the buffer of records that did not fit into the socket yet.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use super::super::socket::Socket;
use super::super::wire::Wire;

/// Bytes that one record carries: short enough that the receiver can open it while the next is on its
/// way.
const RECORD: usize = 64 << 10;
const HEADER: usize = 4;
const TAG: usize = 16;

pub(super) struct Channel {
    socket: Socket,
    seal: Option<(Mutex<Outgoing>, Mutex<Incoming>)>,
}

/// A key and the number of the next record.
struct Numbered {
    key: LessSafeKey,
    next: u64,
}

/// Records that did not fit into the socket yet.
struct Outgoing {
    key: Numbered,
    records: Vec<u8>,
    sent: usize,
}

/// Bytes that came; in front of what is not yet opened lies the rest of the record opened last.
struct Incoming {
    key: Numbered,
    records: Vec<u8>,
    /// Where what came ends.
    end: usize,
    /// Where what is not yet opened begins.
    taken: usize,
    plain: Range<usize>,
}

impl Channel {
    /// Makes a connection out of a wire that has greeted; `keys` seal what is sent and what comes.
    pub(super) fn new(wire: Wire, keys: Option<([u8; 32], [u8; 32])>) -> io::Result<Channel> {
        let socket = wire.into_socket()?;
        let Some((sending, receiving)) = keys else { return Ok(Channel { socket, seal: None }) };
        let outgoing = Outgoing { key: Numbered::new(&sending)?, records: Vec::new(), sent: 0 };
        let incoming = Incoming {
            key: Numbered::new(&receiving)?,
            records: vec![0; 4 * (HEADER + RECORD + TAG)],
            end: 0,
            taken: 0,
            plain: 0..0,
        };
        Ok(Channel { socket, seal: Some((Mutex::new(outgoing), Mutex::new(incoming))) })
    }

    /// Takes as many bytes as fit: `None` when none do.
    pub(super) fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        match &self.seal {
            None => self.socket.write_vectored(slices),
            Some((outgoing, _)) => lock(outgoing).write(&self.socket, slices),
        }
    }

    /// Sends what had to wait; gives whether nothing waits any more.
    pub(super) fn flush(&self) -> io::Result<bool> {
        match &self.seal {
            None => Ok(true),
            Some((outgoing, _)) => lock(outgoing).flush(&self.socket),
        }
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.seal.as_ref().is_none_or(|(outgoing, _)| lock(outgoing).is_flushed())
    }

    /// Gives the bytes that have come: `None` when none have.
    pub(super) fn read(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        match &self.seal {
            None => self.socket.read_vectored(slices),
            Some((_, incoming)) => lock(incoming).read(&self.socket, slices),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn lock<T>(half: &Mutex<T>) -> MutexGuard<'_, T> {
    half.lock().expect("nothing panics while it holds this lock")
}

fn unusable() -> io::Error {
    io::Error::other("this machine cannot seal what is sent")
}

impl Numbered {
    fn new(key: &[u8; 32]) -> io::Result<Numbered> {
        let key = UnboundKey::new(&AES_256_GCM, key).map_err(|_| unusable())?;
        Ok(Numbered { key: LessSafeKey::new(key), next: 0 })
    }

    fn nonce(&mut self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&self.next.to_le_bytes());
        self.next += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

impl Outgoing {
    fn write(&mut self, socket: &Socket, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        if !self.flush(socket)? {
            return Ok(None);
        }
        self.records.clear();
        self.sent = 0;
        let mut taken = 0;
        for plain in slices.iter().flat_map(|slice| slice.chunks(RECORD)) {
            self.seal(plain)?;
            taken += plain.len();
        }
        self.flush(socket)?;
        Ok(Some(taken))
    }

    fn seal(&mut self, plain: &[u8]) -> io::Result<()> {
        let header = ((plain.len() + TAG) as u32).to_le_bytes();
        self.records.extend_from_slice(&header);
        let start = self.records.len();
        self.records.extend_from_slice(plain);
        let nonce = self.key.nonce();
        let (body, aad) = (&mut self.records[start..], Aad::from(header));
        let tag = self.key.key.seal_in_place_separate_tag(nonce, aad, body);
        self.records.extend_from_slice(tag.map_err(|_| unusable())?.as_ref());
        Ok(())
    }

    fn is_flushed(&self) -> bool {
        self.sent == self.records.len()
    }

    fn flush(&mut self, socket: &Socket) -> io::Result<bool> {
        while !self.is_flushed() {
            match socket.write_vectored(&[IoSlice::new(&self.records[self.sent..])])? {
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
        if self.plain.is_empty() && !self.open_next()? {
            self.fetch(socket)?;
            if !self.open_next()? {
                return Ok(None);
            }
        }
        let mut given = 0;
        for slice in slices {
            let count = slice.len().min(self.plain.len());
            let end = self.plain.start + count;
            slice[..count].copy_from_slice(&self.records[self.plain.start..end]);
            self.plain.start = end;
            given += count;
        }
        Ok(Some(given))
    }

    /// Opens the next record, if a whole one has come.
    fn open_next(&mut self) -> io::Result<bool> {
        let came = &mut self.records[self.taken..self.end];
        let Some((header, rest)) = came.split_first_chunk_mut::<HEADER>() else { return Ok(false) };
        let length = u32::from_le_bytes(*header) as usize;
        if !(TAG + 1..=TAG + RECORD).contains(&length) {
            return Err(io::Error::other("it sent a record of a length that none has"));
        }
        let Some(sealed) = rest.get_mut(..length) else { return Ok(false) };
        let (nonce, aad) = (self.key.nonce(), Aad::from(*header));
        let opened = self.key.key.open_in_place(nonce, aad, sealed);
        opened.map_err(|_| {
            io::Error::other("its bytes arrived damaged: they were changed on their way")
        })?;
        let start = self.taken + HEADER;
        self.plain = start..start + length - TAG;
        self.taken = start + length;
        Ok(true)
    }

    /// Reads what is there, behind the beginning of the record that is not whole yet.
    fn fetch(&mut self, socket: &Socket) -> io::Result<()> {
        self.records.copy_within(self.taken..self.end, 0);
        self.end -= self.taken;
        self.taken = 0;
        let room = &mut self.records[self.end..];
        self.end += socket.read(room)?.unwrap_or(0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    use ronde_control::wire::{Callee, Greeting, JobKey};
    use ronde_control::{Epoch, Rank};

    use super::*;

    fn ends() -> (Channel, Channel) {
        let (a, b) = UnixStream::pair().unwrap();
        let (a, b) = (Socket::unix(a).unwrap(), Socket::unix(b).unwrap());
        let key = JobKey::from_entropy([1; 32]);
        let greeting = Greeting::Control { epoch: Epoch(1), rank: Rank(3) };
        let soon = Instant::now() + Duration::from_secs(10);
        std::thread::scope(|scope| {
            let dialled =
                scope.spawn(|| Wire::dial(a, (&key, Callee::Launcher), &greeting, soon).unwrap());
            let (accepted, _) = Wire::accept(b, (&key, Callee::Launcher), soon).unwrap();
            let dialled = Channel::new(dialled.join().unwrap(), Some(([5; 32], [6; 32]))).unwrap();
            (dialled, Channel::new(accepted, Some(([6; 32], [5; 32]))).unwrap())
        })
    }

    /// Sends all of `bytes` while reading at the other end in pieces of at most `most`.
    fn pass(from: &Channel, to: &Channel, bytes: &[u8], most: usize) -> io::Result<Vec<u8>> {
        let (mut sent, mut got) = (0, Vec::new());
        while got.len() < bytes.len() {
            if sent < bytes.len() {
                sent += from.write(&[IoSlice::new(&bytes[sent..])])?.unwrap_or(0);
            } else {
                from.flush()?;
            }
            let mut piece = vec![0; most.min(bytes.len() - got.len())];
            if let Some(count) = to.read(&mut [IoSliceMut::new(&mut piece)])? {
                got.extend_from_slice(&piece[..count]);
            }
        }
        Ok(got)
    }

    #[test]
    fn what_goes_in_comes_out_in_both_directions_whatever_the_pieces() {
        let (a, b) = ends();
        for (length, most) in [(1, 1), (RECORD, 7777), (RECORD + 1, RECORD), (3_000_001, 1 << 20)] {
            let bytes: Vec<u8> = (0..length).map(|index| (index * 31 % 251) as u8).collect();
            assert_eq!(pass(&a, &b, &bytes, most).unwrap(), bytes);
            assert_eq!(pass(&b, &a, &bytes, most).unwrap(), bytes);
        }
    }

    #[test]
    fn nothing_that_was_changed_or_repeated_on_the_way_is_taken() {
        for meddle in [
            |record: &mut Vec<u8>| record[HEADER] ^= 1,
            |record: &mut Vec<u8>| record[0] ^= 1,
            |record: &mut Vec<u8>| record[1] = 0xff,
            |record: &mut Vec<u8>| *record = record.repeat(2),
        ] {
            let (a, b) = ends();
            let (outgoing, _) = a.seal.as_ref().unwrap();
            lock(outgoing).seal(b"gradients").unwrap();
            let mut record = std::mem::take(&mut lock(outgoing).records);
            meddle(&mut record);
            a.socket.write_vectored(&[IoSlice::new(&record)]).unwrap();
            a.socket.finish();
            let mut seen = [0; 18];
            let read = |seen: &mut [u8]| b.read(&mut [IoSliceMut::new(seen)]);
            let result = read(&mut seen[..9]).and_then(|_| read(&mut seen[9..]));
            assert!(result.is_err());
        }
    }
}
