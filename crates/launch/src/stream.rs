//! A sealed connection as two plain streams of bytes, for whoever reads and writes frames of their own.
//!
//! Whoever does not read holds the other end up, and nothing else: a connection whose other end only
//! stands still is never given up, because bytes that nobody reads are acknowledged by a kernel. While
//! nothing is on its way the kernels ask each other whether they are there, so that a host that is gone
//! is noticed in any case; while much is, a lifeline notices sooner.

use std::io;
use std::time::Duration;

use ronde_control::wire::frame::{Opener, Sealer};
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinHandle;

use crate::wire::{SealedConnection, read_sealed};

/// Bytes in one sealed frame, and on their way between a connection and its user.
const PIECE: usize = 64 << 10;

/// The longest sealed frame: a piece and what sealing adds.
const LONGEST: usize = 2 * PIECE;

/// A quiet connection is looked at after the first, then every second, and given up after so many.
const QUIET: Duration = Duration::from_secs(4);
const LOOK: Duration = Duration::from_secs(2);
const LOOKS: u32 = 4;

/// A connection whose content is bytes.
pub(crate) struct ByteStream {
    /// What the other end says. It ends when the connection does.
    pub(crate) reader: ReadHalf<DuplexStream>,
    /// What the other end is told. Once both halves are dropped, and everything was sent, the
    /// connection is closed.
    pub(crate) writer: WriteHalf<DuplexStream>,
    /// Ends when the other end says no more, with why if the connection broke.
    pub(crate) receiving: JoinHandle<io::Result<()>>,
    /// Ends when everything was sent.
    pub(crate) sending: JoinHandle<io::Result<()>>,
}

/// Makes streams of a connection, on which `first` goes ahead of them, in a frame of its own.
pub(crate) fn open(sealed: SealedConnection, first: Option<Vec<u8>>) -> io::Result<ByteStream> {
    let SealedConnection { stream, mut sealer, opener } = sealed;
    let first = first.map(|plain| sealer.seal(&plain)).unwrap_or_default();
    notice_silence(&stream)?;
    let (input, output) = stream.into_split();
    let (user, own) = duplex(PIECE);
    let (from_user, to_user) = split(own);
    let (reader, writer) = split(user);
    Ok(ByteStream {
        reader,
        writer,
        receiving: tokio::spawn(receive(input, opener, to_user)),
        sending: tokio::spawn(send(from_user, sealer, output, first)),
    })
}

/// Has the kernel ask a quiet peer whether it is there.
pub(crate) fn notice_silence(stream: &TcpStream) -> io::Result<()> {
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, QUIET)?;
    set_tcp_keepintvl(stream, LOOK)?;
    set_tcp_keepcnt(stream, LOOKS)?;
    Ok(())
}

async fn receive(
    mut input: OwnedReadHalf,
    mut opener: Opener,
    mut to_user: WriteHalf<DuplexStream>,
) -> io::Result<()> {
    let result = loop {
        match read_sealed(&mut input, &mut opener, LONGEST).await {
            Ok(Some(plain)) if to_user.write_all(&plain).await.is_ok() => {}
            Ok(_) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    let _ = to_user.shutdown().await;
    result
}

async fn send(
    mut from_user: ReadHalf<DuplexStream>,
    mut sealer: Sealer,
    mut output: OwnedWriteHalf,
    first: Vec<u8>,
) -> io::Result<()> {
    output.write_all(&first).await?;
    let mut piece = vec![0; PIECE];
    loop {
        match from_user.read(&mut piece).await? {
            0 => return output.shutdown().await,
            count => output.write_all(&sealer.seal(&piece[..count])).await?,
        }
    }
}
