//! The driver's hold on one agent: its process, the pipe to it and the tasks that serve the pipe.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use ronde_control::wire::agent::{self, DriverToAgent, signal_name};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin};
use tokio::sync::mpsc;

use super::News;
use crate::agent::read_frame;

/// Commands that may wait for an agent that does not read.
const COMMANDS: usize = 16 << 10;

/// One agent.
pub(super) struct Hands {
    pub(super) host: String,
    pub(super) mark: String,
    /// Whether it has said that it is there.
    pub(super) greeted: bool,
    pub(super) gone: bool,
    commands: Option<mpsc::Sender<DriverToAgent>>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
}

impl Hands {
    /// Takes hold of an agent that was just started; its news will carry `index`.
    pub(super) fn new(
        index: usize,
        host: String,
        mark: String,
        child: Child,
        news: mpsc::Sender<News>,
    ) -> Hands {
        let (commands, outgoing) = mpsc::channel(COMMANDS);
        let (stop, stopped) = tokio::sync::oneshot::channel();
        tokio::spawn(serve(index, child, outgoing, stopped, news));
        Hands {
            host,
            mark,
            greeted: false,
            gone: false,
            commands: Some(commands),
            stop: Some(stop),
        }
    }

    /// Sends a command. An agent that does not read for so long that the queue is full is as good as
    /// gone; the driver's own time limits end that.
    pub(super) fn tell(&self, command: DriverToAgent) {
        if let Some(commands) = &self.commands
            && commands.try_send(command).is_err()
        {
            tracing::debug!(host = self.host, "the agent does not take commands");
        }
    }

    /// Kills the guardian, upon which the agent ends everything.
    pub(super) fn kill(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }
}

/// Reads an agent's news until its pipe closes, then says how it ended.
async fn serve(
    index: usize,
    mut child: Child,
    commands: mpsc::Receiver<DriverToAgent>,
    stopped: tokio::sync::oneshot::Receiver<()>,
    news: mpsc::Sender<News>,
) {
    let writer = child.stdin.take().map(|pipe| tokio::spawn(write(pipe, commands)));
    let reading = async {
        let Some(pipe) = child.stdout.take() else { return };
        let mut pipe = BufReader::with_capacity(256 << 10, pipe);
        loop {
            match read_frame(&mut pipe).await {
                Ok(Some(message)) => {
                    if news.send(News::Agent(index, message)).await.is_err() {
                        return;
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "an agent's pipe is broken");
                    return;
                }
            }
        }
    };
    tokio::select! {
        () = reading => {}
        // An error means that the driver has ended and dropped the other side: the same thing.
        _ = stopped => {
            let _ = child.start_kill();
        }
    }
    if let Some(writer) = writer {
        writer.abort();
    }
    let end = match child.wait().await {
        Ok(status) => describe(status),
        Err(error) => format!("cannot be waited for: {error}"),
    };
    let _ = news.send(News::AgentGone(index, end)).await;
}

async fn write(mut pipe: ChildStdin, mut commands: mpsc::Receiver<DriverToAgent>) {
    while let Some(command) = commands.recv().await {
        if pipe.write_all(&agent::frame(&command)).await.is_err() {
            return;
        }
    }
}

/// How an agent ended; its guardian reports a signal as a shell would.
fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code @ 129..=192), _) => format!("was killed by {}", signal_name(code - 128)),
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("lost its guardian, killed by {}", signal_name(signal)),
        (None, None) => "ended".into(),
    }
}
