//! Watchers: any process that holds the job's key may ask for its status, as often as it likes.

use std::io;

use ronde_control::VERSION;
use ronde_control::status::{DriverToWatcher, Status, WatcherToDriver};
use ronde_control::wire::JobKey;
use tokio::net::TcpListener;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{mpsc, oneshot};

use super::event_bus::Subscription;
use super::{DriverInput, Job};
use crate::private::PrivateFile;
use crate::registry::{self, Entry};
use crate::wire::{SealedConnection, read_sealed};

/// Largest question, in bytes.
const LONGEST: usize = 256;

/// Where to send the answer to a status question.
pub(super) type Reply = oneshot::Sender<Status>;

/// Registers the job where `ronde status` looks for it.
pub(super) fn register(job: &Job, listener: &TcpListener, key: &JobKey) -> Option<PrivateFile> {
    let command: Vec<_> = job.command.iter().map(|word| word.to_string_lossy()).collect();
    let entry = Entry {
        pid: std::process::id(),
        address: listener.local_addr().ok()?,
        key: key.clone(),
        ranks: job.job_spec.start,
        command: command.join(" "),
    };
    registry::register(job.registry.as_ref()?, &entry)
        .inspect_err(|error| tracing::info!(%error, "`ronde status` will not find this job"))
        .ok()
}

/// Answers questions until the watcher hangs up.
pub(super) async fn serve(
    mut sealed: SealedConnection,
    version: &str,
    news: &mpsc::Sender<DriverInput>,
) -> io::Result<()> {
    if version != VERSION {
        let reason = format!(
            "the job runs Ronde {VERSION} and this is Ronde {version}: use the `ronde` installed \
             next to the job's `horovodrun`"
        );
        return sealed.say(&DriverToWatcher::Refused { reason }).await;
    }
    while let Some(question) = sealed.hear(LONGEST).await? {
        match question {
            WatcherToDriver::Ask => {}
            WatcherToDriver::Follow => return follow(sealed, news).await,
        }
        let (answer, status) = oneshot::channel();
        news.send(DriverInput::Asked(answer)).await.map_err(io::Error::other)?;
        let status = status.await.map_err(io::Error::other)?;
        sealed.say(&DriverToWatcher::Status(status)).await?;
    }
    Ok(())
}

/// Sends events until the job ends, no faster than the watcher reads.
async fn follow(mut sealed: SealedConnection, news: &mpsc::Sender<DriverInput>) -> io::Result<()> {
    let (follower, following) = oneshot::channel();
    news.send(DriverInput::Followed(follower)).await.map_err(io::Error::other)?;
    let Subscription { kept, mut next } = following.await.map_err(io::Error::other)?;
    for event in kept {
        sealed.say(&DriverToWatcher::Event { event: String::from(&*event), missed: 0 }).await?;
    }
    let mut missed = 0;
    loop {
        let hang_up = read_sealed(&mut sealed.stream, &mut sealed.opener, LONGEST);
        tokio::select! {
            event = next.recv() => match event {
                Ok(Some(event)) => {
                    let (event, missed) = (String::from(&*event), std::mem::take(&mut missed));
                    sealed.say(&DriverToWatcher::Event { event, missed }).await?;
                }
                Err(RecvError::Lagged(count)) => missed += count,
                Ok(None) | Err(RecvError::Closed) => return Ok(()),
            },
            // A follower sends nothing more, so this means that it has disconnected.
            _ = hang_up => return Ok(()),
        }
    }
}
