//! The agent's pipes: frames from and to the driver, bytes from and to the workers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ronde_control::wire::agent::{
    self, AgentToDriver, DriverToAgent, MAX_PIECE, OutputStream, PREAMBLE, output_cost,
};
use ronde_control::wire::decode;
use ronde_control::{VERSION, Worker};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::sleep;

/// Reads one unencrypted frame; returns `None` at the end of the pipe.
pub(crate) async fn read_frame<M: serde::de::DeserializeOwned>(
    input: &mut (impl AsyncRead + Unpin),
) -> io::Result<Option<M>> {
    let mut header = [0; 4];
    match input.read_exact(&mut header).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let mut body = vec![0; agent::length(header).map_err(io::Error::other)?];
    input.read_exact(&mut body).await?;
    decode(&body).map(Some).map_err(io::Error::other)
}

/// Reads the driver's commands until the pipe closes.
pub(super) async fn read(mut input: impl AsyncRead + Unpin, commands: mpsc::Sender<DriverToAgent>) {
    loop {
        match read_frame(&mut input).await {
            Ok(Some(command)) => {
                if commands.send(command).await.is_err() {
                    return;
                }
            }
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, "the driver's pipe is broken");
                return;
            }
        }
    }
}

/// Writes to the driver until all senders are dropped or the pipe is closed.
pub(super) async fn write(
    mut output: impl AsyncWrite + Unpin,
    mut news: mpsc::Receiver<AgentToDriver>,
) {
    let first = format!("{PREAMBLE} {VERSION}\n");
    if output.write_all(first.as_bytes()).await.is_err() || output.flush().await.is_err() {
        return;
    }
    while let Some(message) = news.recv().await {
        let mut frames = agent::frame(&message);
        while frames.len() < 4 * MAX_PIECE
            && let Ok(message) = news.try_recv()
        {
            frames.extend(agent::frame(&message));
        }
        if output.write_all(&frames).await.is_err() || output.flush().await.is_err() {
            return;
        }
    }
}

/// After a read shorter than this we pause so that more output accumulates: otherwise a worker that
/// writes line by line costs a message per line. The first line after a silence is sent at once.
const FEW: usize = 4 << 10;
const PAUSE: Duration = Duration::from_millis(1);

/// Forwards a worker's output, no faster than the driver prints it.
pub(super) async fn forward(
    worker: Worker,
    stream: OutputStream,
    mut end: pipe::Receiver,
    news: mpsc::Sender<AgentToDriver>,
    window: Arc<Semaphore>,
) {
    let mut buffer = vec![0; MAX_PIECE];
    loop {
        let count = match end.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        match window.acquire_many(output_cost(count)).await {
            Ok(permit) => permit.forget(),
            Err(_) => return,
        }
        let bytes = buffer[..count].to_vec();
        if news.send(AgentToDriver::Output { worker, stream, bytes }).await.is_err() {
            return;
        }
        if count < FEW {
            sleep(PAUSE).await;
        }
    }
    let _ = news.send(AgentToDriver::OutputEnd { worker, stream }).await;
}

/// Forwards standard input to a worker. If the worker has closed its end, the piece is still
/// acknowledged.
pub(super) async fn feed(
    mut end: pipe::Sender,
    mut pieces: mpsc::Receiver<Vec<u8>>,
    news: mpsc::WeakSender<AgentToDriver>,
) {
    while let Some(bytes) = pieces.recv().await {
        let broken = end.write_all(&bytes).await.is_err();
        let Some(news) = news.upgrade() else { return };
        let _ = news.send(AgentToDriver::StdinTaken).await;
        if broken {
            return;
        }
    }
}
