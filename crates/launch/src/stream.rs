//! A sealed connection as two plain byte streams, for code that reads and writes its own frames.
//!
//! A user that does not read only blocks its peer: a connection whose peer merely hangs is never
//! given up, because a kernel acknowledges bytes that no process reads. While nothing is in flight,
//! the kernels probe each other, so that a dead host is always noticed; while data is in flight, a
//! lifeline notices sooner.

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

/// Bytes in one sealed frame, and in the buffer between a connection and its user.
const PIECE: usize = 64 << 10;

/// Largest sealed frame: a piece and what sealing adds.
const LONGEST: usize = 2 * PIECE;

/// A quiet connection is probed after `QUIET`, then every `PROBE_INTERVAL`, and given up after
/// `PROBES` unanswered probes.
const QUIET: Duration = Duration::from_secs(4);
const PROBE_INTERVAL: Duration = Duration::from_secs(2);
const PROBES: u32 = 4;

/// A connection that carries plain bytes.
pub(crate) struct ByteStream {
    /// Bytes from the peer. Ends when the connection does.
    pub(crate) reader: ReadHalf<DuplexStream>,
    /// Bytes to the peer. Once both halves are dropped and everything is sent, the connection is
    /// closed.
    pub(crate) writer: WriteHalf<DuplexStream>,
    /// Completes when the peer closes its direction, with an error if the connection broke.
    pub(crate) receiving: StreamTask,
    /// Completes when everything is sent.
    pub(crate) sending: StreamTask,
}

/// Makes streams from a connection; `first` is sent ahead of them, in its own frame.
pub(crate) fn open(sealed: SealedConnection, first: Option<Vec<u8>>) -> io::Result<ByteStream> {
    let (user, own) = pipe();
    let (receiving, sending) = join(sealed, first, own)?;
    let (reader, writer) = split(user);
    Ok(ByteStream { reader, writer, receiving, sending })
}

/// The two ends of a pipe between a connection and its user.
pub(crate) fn pipe() -> (DuplexStream, DuplexStream) {
    duplex(PIECE)
}

/// One direction of a connection; completes at its end.
pub(crate) type StreamTask = JoinHandle<io::Result<()>>;

/// Like [`open`], for a user that already has the other end of the pipe. Returns the receiving and
/// the sending direction.
pub(crate) fn join(
    sealed: SealedConnection,
    first: Option<Vec<u8>>,
    own: DuplexStream,
) -> io::Result<(StreamTask, StreamTask)> {
    let SealedConnection { stream, mut sealer, opener } = sealed;
    let first = first.map(|plain| sealer.seal(&plain)).unwrap_or_default();
    notice_silence(&stream)?;
    let (input, output) = stream.into_split();
    let (from_user, to_user) = split(own);
    let receiving = tokio::spawn(receive(input, opener, to_user));
    Ok((receiving, tokio::spawn(send(from_user, sealer, output, first))))
}

/// Makes the kernel probe a quiet peer.
pub(crate) fn notice_silence(stream: &TcpStream) -> io::Result<()> {
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, QUIET)?;
    set_tcp_keepintvl(stream, PROBE_INTERVAL)?;
    set_tcp_keepcnt(stream, PROBES)?;
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
