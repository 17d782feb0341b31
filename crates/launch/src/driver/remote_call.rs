//! Hands the function of `horovod.run` to the ranks that come for it, and takes what they return.
//!
//! What is on its way back to the caller is bounded: a rank sends no more while the caller has so
//! much to read. The bytes are never looked into.

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

/// Pieces of results that the caller has not read yet.
const WINDOW: usize = 16;

/// The function of a job, and the way back for what it returns.
pub(super) struct RemoteCall {
    function: Arc<[u8]>,
    /// How many ranks may come, if that is known.
    ranks: Option<usize>,
    window: Arc<Semaphore>,
}

/// What came back from a rank.
pub(crate) enum CallResult {
    /// Bytes, and their part of the window, which is free again when this is dropped.
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
        Some(format!("there is no {rank} in a job of {ranks}"))
    }
}

/// Serves somebody who came to fetch or to deliver.
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
        Greeting::Fetch { .. } => hand_out(&mut sealed, &remote_call.function).await,
        _ => take_back(&mut sealed, *rank, remote_call, news).await,
    }
}

async fn hand_out(sealed: &mut SealedConnection, function: &[u8]) -> io::Result<()> {
    for piece in function.chunks(LARGEST_PIECE) {
        sealed.say(&CallMessage::Piece { bytes: piece.to_vec() }).await?;
    }
    sealed.say(&CallMessage::End).await?;
    // The rank hangs up when it has read everything.
    let _ = sealed.stream.read(&mut [0]).await;
    Ok(())
}

async fn take_back(
    sealed: &mut SealedConnection,
    rank: Rank,
    remote_call: &RemoteCall,
    news: &mpsc::Sender<DriverInput>,
) -> io::Result<()> {
    let over = |_| io::Error::other("the job is over");
    loop {
        let call_message = sealed.hear(MAX_FRAME).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let CallMessage::Piece { bytes } = call_message else { break };
        let place = remote_call.window.clone().acquire_owned().await.map_err(io::Error::other)?;
        news.send(DriverInput::Returned(rank, CallResult::Piece(bytes, place)))
            .await
            .map_err(over)?;
    }
    news.send(DriverInput::Returned(rank, CallResult::End)).await.map_err(over)?;
    sealed.say(&CallMessage::End).await
}
