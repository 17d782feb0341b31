//! Those who watch the job: whoever holds its key may ask how it stands, as often as they like.

use std::io;

use ronde_control::VERSION;
use ronde_control::status::{DriverToWatcher, Status, WatcherToDriver};
use ronde_control::wire::{self, JobKey};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{mpsc, oneshot};

use super::chronicle::Following;
use super::{Job, News};
use crate::registry::{Entry, Registration};
use crate::wire::{Sealed, read_sealed};

/// The longest question.
const LONGEST: usize = 256;

/// The way back to somebody who has asked.
pub(super) type Answer = oneshot::Sender<Status>;

/// Those who wait for an answer.
pub(super) struct Watchers {
    askers: Vec<Answer>,
    /// The job can be found while this is there.
    _registration: Option<Registration>,
}

impl Watchers {
    pub(super) fn new(registration: Option<Registration>) -> Watchers {
        Watchers { askers: Vec::new(), _registration: registration }
    }

    /// Somebody has asked.
    pub(super) fn add(&mut self, answer: Answer) {
        self.askers.push(answer);
    }

    /// Answers everybody.
    pub(super) fn answer(&mut self, status: &Status) {
        for asker in self.askers.drain(..) {
            // Whoever does not wait any more loses nothing.
            let _ = asker.send(status.clone());
        }
    }
}

/// Lists the job where watchers look for it.
pub(super) fn register(
    job: &Job,
    ranks: usize,
    listener: &TcpListener,
    key: &JobKey,
) -> Option<Registration> {
    let command: Vec<_> = job.command.iter().map(|word| word.to_string_lossy()).collect();
    let entry = Entry {
        pid: std::process::id(),
        address: listener.local_addr().ok()?,
        key: key.clone(),
        ranks: ranks as u32,
        command: command.join(" "),
    };
    Registration::new(job.registry.as_ref()?, &entry)
        .inspect_err(|error| tracing::info!(%error, "`ronde status` will not find this job"))
        .ok()
}

/// Answers until the watcher hangs up.
pub(super) async fn serve(
    mut sealed: Sealed,
    version: &str,
    news: &mpsc::Sender<News>,
) -> io::Result<()> {
    if version != VERSION {
        let reason = format!(
            "the job runs Ronde {VERSION} and this is Ronde {version}: use the `ronde` that lies \
             beside the job's `horovodrun`"
        );
        return tell(&mut sealed, &DriverToWatcher::Refused { reason }).await;
    }
    while let Some(plain) = read_sealed(&mut sealed.stream, &mut sealed.opener, LONGEST).await? {
        match wire::decode(&plain).map_err(io::Error::other)? {
            WatcherToDriver::Ask => {}
            WatcherToDriver::Follow => return follow(sealed, news).await,
        }
        let (answer, status) = oneshot::channel();
        news.send(News::Asked(answer)).await.map_err(io::Error::other)?;
        let status = status.await.map_err(io::Error::other)?;
        tell(&mut sealed, &DriverToWatcher::Status(status)).await?;
    }
    Ok(())
}

/// Tells what happens until the job ends, no faster than the watcher reads.
async fn follow(mut sealed: Sealed, news: &mpsc::Sender<News>) -> io::Result<()> {
    let (follower, following) = oneshot::channel();
    news.send(News::Followed(follower)).await.map_err(io::Error::other)?;
    let Following { kept, mut next } = following.await.map_err(io::Error::other)?;
    for event in kept {
        tell_event(&mut sealed, &event, 0).await?;
    }
    let mut missed = 0;
    loop {
        let hang_up = read_sealed(&mut sealed.stream, &mut sealed.opener, LONGEST);
        tokio::select! {
            event = next.recv() => match event {
                Ok(Some(event)) => {
                    tell_event(&mut sealed, &event, std::mem::take(&mut missed)).await?;
                }
                Err(RecvError::Lagged(count)) => missed += count,
                Ok(None) | Err(RecvError::Closed) => return Ok(()),
            },
            // There is nothing more to say for a follower: it has gone.
            _ = hang_up => return Ok(()),
        }
    }
}

async fn tell_event(sealed: &mut Sealed, event: &str, missed: u64) -> io::Result<()> {
    tell(sealed, &DriverToWatcher::Event { event: event.to_owned(), missed }).await
}

async fn tell(sealed: &mut Sealed, message: &DriverToWatcher) -> io::Result<()> {
    sealed.stream.write_all(&sealed.sealer.seal(&wire::encode(message))).await
}
