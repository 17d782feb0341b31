//! Messages between a rank and its communicator's server: a header of eight words and a payload.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;

use rustix::net::{SendFlags, send};

/// The largest payload we accept, in bytes.
const LONGEST: u64 = 8 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum NcclKind {
    /// The first message of a rank.
    Hello,
    /// The answer once all ranks have joined: `dtype` is a result code, the payload its text.
    Welcome,
    AllReduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    Send,
    Receive,
    /// A rank leaves in an orderly way.
    Goodbye,
    /// Rank `peer` is gone.
    Lost,
    /// Ranks disagree; the payload says how.
    Mismatch,
}

const KINDS: [NcclKind; 11] = [
    NcclKind::Hello,
    NcclKind::Welcome,
    NcclKind::AllReduce,
    NcclKind::Broadcast,
    NcclKind::AllGather,
    NcclKind::ReduceScatter,
    NcclKind::Send,
    NcclKind::Receive,
    NcclKind::Goodbye,
    NcclKind::Lost,
    NcclKind::Mismatch,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NcclHeader {
    pub(super) kind: NcclKind,
    /// Counts the collectives of a communicator, or the messages from one rank to another.
    pub(super) sequence: u64,
    pub(super) dtype: u64,
    pub(super) operator: u64,
    /// The root of a broadcast, or the other rank of a message.
    pub(super) peer: u64,
    pub(super) count: u64,
}

impl NcclHeader {
    pub(super) fn of(kind: NcclKind) -> Self {
        Self { kind, sequence: 0, dtype: 0, operator: 0, peer: 0, count: 0 }
    }

    /// What an answer has in common with its request.
    pub(super) fn key(&self) -> (NcclKind, u64, u64) {
        (self.kind, self.peer, self.sequence)
    }
}

/// Sends a message. A closed connection is an error, never `SIGPIPE`.
pub(super) fn write(stream: &UnixStream, header: &NcclHeader, payload: &[u8]) -> io::Result<()> {
    let words = [
        header.kind as u64,
        header.sequence,
        header.dtype,
        header.operator,
        header.peer,
        header.count,
        payload.len() as u64,
        0,
    ];
    let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    for mut rest in [words.as_slice(), payload] {
        while !rest.is_empty() {
            match send(stream, rest, SendFlags::NOSIGNAL) {
                Ok(sent) => rest = &rest[sent..],
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

pub(super) fn read(stream: &UnixStream) -> io::Result<(NcclHeader, Vec<u8>)> {
    read_up_to(stream, LONGEST)
}

/// Reads a message with a payload of at most `most` bytes.
pub(super) fn read_up_to(mut stream: &UnixStream, most: u64) -> io::Result<(NcclHeader, Vec<u8>)> {
    let mut bytes = [0; 64];
    stream.read_exact(&mut bytes)?;
    let word =
        |index: usize| u64::from_le_bytes(std::array::from_fn(|offset| bytes[index * 8 + offset]));
    let kind = KINDS.iter().find(|kind| **kind as u64 == word(0)).copied();
    let (Some(kind), true) = (kind, word(6) <= most) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let header = NcclHeader {
        kind,
        sequence: word(1),
        dtype: word(2),
        operator: word(3),
        peer: word(4),
        count: word(5),
    };
    let mut payload = vec![0; word(6) as usize];
    stream.read_exact(&mut payload)?;
    Ok((header, payload))
}
