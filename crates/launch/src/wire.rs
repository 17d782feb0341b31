//! The handshake and sealed frames on asynchronous sockets, for both the calling and the answering
//! side.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use ronde_control::wire::frame::{Opener, Sealer, frame_length};
use ronde_control::wire::handshake::{self, Initiator, SealedChannel};
use ronde_control::wire::{self, Callee, JobKey};
use serde::{Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

/// An authenticated connection.
pub(crate) struct SealedConnection {
    pub(crate) stream: TcpStream,
    pub(crate) sealer: Sealer,
    pub(crate) opener: Opener,
}

impl SealedConnection {
    /// Sends a message.
    pub(crate) async fn say(&mut self, message: &impl Serialize) -> io::Result<()> {
        self.stream.write_all(&self.sealer.seal(&wire::encode(message))).await
    }

    /// Receives the next message, of at most `longest` sealed bytes; `None` at the end of the
    /// connection.
    pub(crate) async fn hear<M: DeserializeOwned>(
        &mut self,
        longest: usize,
    ) -> io::Result<Option<M>> {
        let plain = read_sealed(&mut self.stream, &mut self.opener, longest).await?;
        plain.map(|plain| wire::decode(&plain).map_err(io::Error::other)).transpose()
    }
}

/// Connects to the first address of a name, `host:port`, that answers; otherwise says why not. Each
/// address may take until `time_limit`.
pub(crate) async fn connect(name: &str, time_limit: Duration) -> Result<TcpStream, String> {
    let found = lookup_host(name).await.map_err(|error| error.to_string())?;
    let mut last = "the name has no address".to_owned();
    for address in found {
        match timeout(time_limit, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error.to_string(),
            Err(_) => last = "it does not answer".into(),
        }
    }
    Err(last)
}

/// Performs the handshake as the caller: proves that this process belongs to the job, and verifies
/// that the peer is `callee`.
pub(crate) async fn call(
    mut stream: TcpStream,
    key: &JobKey,
    callee: Callee,
) -> io::Result<SealedConnection> {
    stream.set_nodelay(true)?;
    let (initiator, hello) = Initiator::start(key, callee);
    stream.write_all(&hello).await?;
    let answer = envelope(&mut stream).await?;
    let (sealer, opener) = initiator.finish(&answer).map_err(io::Error::other)?;
    Ok(SealedConnection { stream, sealer, opener })
}

/// Performs the handshake as `callee`.
pub(crate) async fn answer(
    mut stream: TcpStream,
    key: &JobKey,
    callee: Callee,
) -> io::Result<SealedConnection> {
    stream.set_nodelay(true)?;
    let hello = envelope(&mut stream).await?;
    let (answer, (sealer, opener)) =
        handshake::respond(key, callee, &hello).map_err(io::Error::other)?;
    stream.write_all(&answer).await?;
    Ok(SealedConnection { stream, sealer, opener })
}

/// Reads the next sealed frame, of at most `longest` bytes; `None` at the end of the connection.
pub(crate) async fn read_sealed(
    input: &mut (impl AsyncRead + Unpin),
    opener: &mut Opener,
    longest: usize,
) -> io::Result<Option<Vec<u8>>> {
    let mut header = [0; 4];
    match input.read_exact(&mut header).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = frame_length(header).map_err(io::Error::other)?;
    if length > longest {
        return Err(io::Error::other(format!(
            "a frame of {length} bytes exceeds the limit of {longest}"
        )));
    }
    let mut sealed = vec![0; length];
    input.read_exact(&mut sealed).await?;
    opener.open(&sealed).map(Some).map_err(io::Error::other)
}

/// Like [`call`] to the launcher, blocking; `time_limit` applies to each step.
pub(crate) fn dial(
    address: SocketAddr,
    key: &JobKey,
    time_limit: Duration,
) -> io::Result<(std::net::TcpStream, SealedChannel)> {
    let mut stream = std::net::TcpStream::connect_timeout(&address, time_limit)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(time_limit))?;
    stream.set_write_timeout(Some(time_limit))?;
    let (initiator, hello) = Initiator::start(key, Callee::Launcher);
    stream.write_all(&hello)?;
    let mut header = [0; 2];
    stream.read_exact(&mut header)?;
    let mut answer = vec![0; handshake::envelope_length(header).map_err(io::Error::other)?];
    stream.read_exact(&mut answer)?;
    Ok((stream, initiator.finish(&answer).map_err(io::Error::other)?))
}

async fn envelope(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut header = [0; 2];
    stream.read_exact(&mut header).await?;
    let mut body = vec![0; handshake::envelope_length(header).map_err(io::Error::other)?];
    stream.read_exact(&mut body).await?;
    Ok(body)
}
