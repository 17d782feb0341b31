//! One connection of a link, plain or encrypted.
//!
//! Encrypted bytes travel in records: four bytes of length, then that many bytes of ciphertext and
//! tag. Each direction of each connection has its own AES-256-GCM key, which the dialing side
//! generates and sends in its encrypted greeting. Records are numbered, so that nobody in between
//! can read, change, drop, repeat or reorder them. A record never spans two flows: bytes taken from
//! a flow are either in flight or in the buffer of records that did not fit into the socket yet.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use super::super::socket::Socket;
use super::super::wire::SealedWire;

/// Plain bytes per record: short enough that the receiver can open it while the next one arrives.
const RECORD: usize = 64 << 10;
const HEADER: usize = 4;
const TAG: usize = 16;

pub(super) struct LinkConnection {
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

/// Received bytes. The rest of the record opened last comes before the ones not opened yet.
struct Incoming {
    key: Numbered,
    records: Vec<u8>,
    /// End of the received bytes.
    end: usize,
    /// Start of the bytes not opened yet.
    taken: usize,
    plain: Range<usize>,
}

impl LinkConnection {
    /// Turns a wire into a connection after the greeting; `keys` encrypt the two directions,
    /// sending first.
    pub(super) fn new(
        wire: SealedWire,
        keys: Option<([u8; 32], [u8; 32])>,
    ) -> io::Result<LinkConnection> {
        let socket = wire.into_socket()?;
        let Some((sending, receiving)) = keys else {
            return Ok(LinkConnection { socket, seal: None });
        };
        let outgoing = Outgoing { key: Numbered::new(&sending)?, records: Vec::new(), sent: 0 };
        let incoming = Incoming {
            key: Numbered::new(&receiving)?,
            records: vec![0; 4 * (HEADER + RECORD + TAG)],
            end: 0,
            taken: 0,
            plain: 0..0,
        };
        Ok(LinkConnection { socket, seal: Some((Mutex::new(outgoing), Mutex::new(incoming))) })
    }

    /// Accepts as many bytes as fit: `None` if none do.
    pub(super) fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        match &self.seal {
            None => self.socket.write_vectored(slices),
            Some((outgoing, _)) => lock(outgoing).write(&self.socket, slices),
        }
    }

    /// Sends buffered records; returns whether the buffer is empty now.
    pub(super) fn flush(&self) -> io::Result<bool> {
        match &self.seal {
            None => Ok(true),
            Some((outgoing, _)) => lock(outgoing).flush(&self.socket),
        }
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.seal.as_ref().is_none_or(|(outgoing, _)| lock(outgoing).is_flushed())
    }

    /// Returns the bytes that have arrived: `None` if there are none.
    pub(super) fn read(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        match &self.seal {
            None => self.socket.read_vectored(slices),
            Some((_, incoming)) => lock(incoming).read(&self.socket, slices),
        }
    }
}

impl AsFd for LinkConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn lock<T>(half: &Mutex<T>) -> MutexGuard<'_, T> {
    half.lock().expect("nothing panics while it holds this lock")
}

fn unusable() -> io::Error {
    io::Error::other("this machine cannot encrypt the connection")
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

    /// Opens the next record, if it has arrived completely.
    fn open_next(&mut self) -> io::Result<bool> {
        let came = &mut self.records[self.taken..self.end];
        let Some((header, rest)) = came.split_first_chunk_mut::<HEADER>() else { return Ok(false) };
        let length = u32::from_le_bytes(*header) as usize;
        if !(TAG + 1..=TAG + RECORD).contains(&length) {
            return Err(io::Error::other("it sent a record of an impossible length"));
        }
        let Some(sealed) = rest.get_mut(..length) else { return Ok(false) };
        let (nonce, aad) = (self.key.nonce(), Aad::from(*header));
        let opened = self.key.key.open_in_place(nonce, aad, sealed);
        opened.map_err(|_| {
            io::Error::other("its bytes arrived damaged: they were changed in transit")
        })?;
        let start = self.taken + HEADER;
        self.plain = start..start + length - TAG;
        self.taken = start + length;
        Ok(true)
    }

    /// Reads available bytes after the incomplete record.
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

    fn ends() -> (LinkConnection, LinkConnection) {
        let (a, b) = UnixStream::pair().unwrap();
        let (a, b) = (Socket::unix(a).unwrap(), Socket::unix(b).unwrap());
        let key = JobKey::from_entropy([1; 32]);
        let greeting = Greeting::Control { epoch: Epoch(1), rank: Rank(3) };
        let soon = Instant::now() + Duration::from_secs(10);
        std::thread::scope(|scope| {
            let dialed = scope
                .spawn(|| SealedWire::dial(a, (&key, Callee::Launcher), &greeting, soon).unwrap());
            let (accepted, _) = SealedWire::accept(b, (&key, Callee::Launcher), soon).unwrap();
            let dialed =
                LinkConnection::new(dialed.join().unwrap(), Some(([5; 32], [6; 32]))).unwrap();
            (dialed, LinkConnection::new(accepted, Some(([6; 32], [5; 32]))).unwrap())
        })
    }

    /// Sends all of `bytes` while reading at the other end in pieces of at most `most` bytes.
    fn pass(
        from: &LinkConnection,
        to: &LinkConnection,
        bytes: &[u8],
        most: usize,
    ) -> io::Result<Vec<u8>> {
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
    fn bytes_arrive_in_order_in_both_directions_for_any_piece_size() {
        let (a, b) = ends();
        for (length, most) in [(1, 1), (RECORD, 7777), (RECORD + 1, RECORD), (3_000_001, 1 << 20)] {
            let bytes: Vec<u8> = (0..length).map(|index| (index * 31 % 251) as u8).collect();
            assert_eq!(pass(&a, &b, &bytes, most).unwrap(), bytes);
            assert_eq!(pass(&b, &a, &bytes, most).unwrap(), bytes);
        }
    }

    #[test]
    fn a_record_changed_or_repeated_in_transit_is_refused() {
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
