//! Hands the function of `horovod.run` to the ranks that ask for it, and receives their results.
//!
//! Result data in flight to the caller is bounded: a rank stops sending while the caller has
//! [`WINDOW`] pieces left to read. The contents are never inspected.

use std::io;
use std::sync::Arc;

use ronde_control::job::messages::other_version;
use ronde_control::wire::Greeting;
use ronde_control::wire::frame::MAX_FRAME;
use ronde_control::wire::remote_call::{CallMessage, LARGEST_PIECE};
use ronde_control::{Rank, VERSION};
use tokio::io::AsyncReadExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::DriverInput;
use crate::wire::SealedConnection;

/// Number of result pieces that the caller may have left to read.
const WINDOW: usize = 16;

/// The function of a job, and the flow control of its results.
pub(super) struct RemoteCall {
    function: Arc<[u8]>,
    /// The number of ranks, if it is known.
    ranks: Option<usize>,
    window: Arc<Semaphore>,
}

/// A part of a rank's result.
pub(crate) enum CallResult {
    /// Some bytes, and their permit in the window, which is released when this is dropped.
    Piece(Vec<u8>, OwnedSemaphorePermit),
    /// End of the data.
    End,
}

impl RemoteCall {
    pub(super) fn new(function: Arc<[u8]>, ranks: Option<usize>) -> RemoteCall {
        RemoteCall { function, ranks, window: Arc::new(Semaphore::new(WINDOW)) }
    }

    fn refusal(&self, version: &str, rank: Rank) -> Option<String> {
        if version != VERSION {
            return Some(other_version(&rank.to_string(), version, VERSION));
        }
        let ranks = self.ranks.filter(|ranks| rank.index() >= *ranks)?;
        Some(format!("there is no {rank}: the job has {ranks} ranks"))
    }
}

/// Serves a rank that fetches the function or delivers its result.
pub(super) async fn serve(
    mut sealed: SealedConnection,
    greeting: Greeting,
    remote_call: Option<&RemoteCall>,
    news: &mpsc::Sender<DriverInput>,
) -> io::Result<()> {
    let (Greeting::Fetch { version, rank } | Greeting::Deliver { version, rank }) = &greeting
    else {
        return Ok(());
    };
    let Some(remote_call) = remote_call else {
        let reason = "this job was not started by `horovod.run`: it has no function to call";
        return sealed.say(&CallMessage::Refused { reason: reason.into() }).await;
    };
    if let Some(reason) = remote_call.refusal(version, *rank) {
        return sealed.say(&CallMessage::Refused { reason }).await;
    }
    match greeting {
        Greeting::Fetch { .. } => send_function(&mut sealed, &remote_call.function).await,
        _ => receive_result(&mut sealed, *rank, remote_call, news).await,
    }
}

async fn send_function(sealed: &mut SealedConnection, function: &[u8]) -> io::Result<()> {
    for piece in function.chunks(LARGEST_PIECE) {
        sealed.say(&CallMessage::Piece { bytes: piece.to_vec() }).await?;
    }
    sealed.say(&CallMessage::End).await?;
    // The rank hangs up after reading everything.
    let _ = sealed.stream.read(&mut [0]).await;
    Ok(())
}

async fn receive_result(
    sealed: &mut SealedConnection,
    rank: Rank,
    remote_call: &RemoteCall,
    news: &mpsc::Sender<DriverInput>,
) -> io::Result<()> {
    let over = |_| io::Error::other("the job is over");
    loop {
        let call_message = sealed.hear(MAX_FRAME).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let CallMessage::Piece { bytes } = call_message else { break };
        let permit = remote_call.window.clone().acquire_owned().await.map_err(io::Error::other)?;
        news.send(DriverInput::Returned(rank, CallResult::Piece(bytes, permit)))
            .await
            .map_err(over)?;
    }
    news.send(DriverInput::Returned(rank, CallResult::End)).await.map_err(over)?;
    sealed.say(&CallMessage::End).await
}
