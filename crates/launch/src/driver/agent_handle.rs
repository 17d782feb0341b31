//! The driver's handle on one agent: the link to it and the tasks that serve the link.

use std::io;
use std::time::Duration;

use ronde_control::wire::agent::{self, AgentToDriver, DriverToAgent, PREAMBLE};
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader,
};
use tokio::sync::{mpsc, oneshot};

use super::DriverInput;
use crate::agent::read_frame;
use crate::reach::link::AgentOutput;
use crate::reach::{AgentLink, AgentTraits, HostProblem};
use crate::supervise::{self, Scope};

/// Number of commands that may queue for an agent that does not read.
const COMMANDS: usize = 16 << 10;

/// Longest line that may precede the agent's preamble, in bytes.
const LONGEST_LINE: u64 = 16 << 10;

/// The driver's handle on one agent.
pub(crate) struct AgentHandle {
    pub(crate) host: String,
    pub(crate) mark: String,
    pub(crate) traits: AgentTraits,
    pub(crate) gone: bool,
    /// Why we gave the agent up, if we know better than its link does.
    silence_reason: Option<HostProblem>,
    commands: mpsc::Sender<DriverToAgent>,
    stop: Option<oneshot::Sender<()>>,
}

impl AgentHandle {
    /// Starts serving an agent whose processes carry `mark`; its messages carry `index`.
    pub(crate) fn new(
        index: usize,
        (host, mark): (String, String),
        link: AgentLink,
        news: mpsc::Sender<DriverInput>,
    ) -> AgentHandle {
        let (commands, outgoing) = mpsc::channel(COMMANDS);
        let (stop, stopped) = oneshot::channel();
        let traits = link.traits;
        let line = LinkTasks { index, host: host.clone(), news };
        tokio::spawn(line.serve(link, outgoing, stopped));
        AgentHandle {
            host,
            mark,
            traits,
            gone: false,
            silence_reason: None,
            commands,
            stop: Some(stop),
        }
    }

    /// Sends a command. If the agent has not read for so long that the queue is full, the command
    /// is dropped: the driver's own time limits will give the agent up.
    pub(crate) fn tell(&self, command: DriverToAgent) {
        if self.commands.try_send(command).is_err() {
            tracing::debug!(host = self.host, "dropped a command: the agent does not read");
        }
    }

    /// The link has ended; returns why. Kills what is left of the agent on this machine.
    pub(crate) fn shut_down(&mut self, host_problem: HostProblem) -> HostProblem {
        self.gone = true;
        // The guardian has done this already, unless it was killed too.
        if self.traits.child && !supervise::sweep(&self.mark, Scope::Marked) {
            tracing::warn!(host = self.host, "some processes of the job cannot be killed");
        }
        self.silence_reason.take().unwrap_or(host_problem)
    }

    /// Gives up a host whose lifeline broke.
    pub(crate) fn fell_silent(&mut self, error: &io::Error) {
        tracing::info!(host = self.host, %error, "the lifeline of a host was cut");
        // An agent that exits closes its lifeline too; then its link reports more.
        if error.kind() != io::ErrorKind::UnexpectedEof {
            let hint = "check that the host is up and connected to the network";
            self.abandon(format!("it stopped responding ({error})"), hint);
        }
    }

    /// Gives up a host that has not answered for a long time.
    pub(crate) fn never_answered(&mut self, during: Duration) {
        let hint = "check whether the host, or the container that the ranks run in, is paused, \
                    frozen or out of memory";
        self.abandon(format!("it has not answered for {} s", during.as_secs()), hint);
    }

    fn abandon(&mut self, reason: String, hint: &str) {
        self.silence_reason = Some(HostProblem { reason, hint: hint.into() });
        self.kill();
    }

    /// Stops waiting for the agent.
    pub(crate) fn give_up(&mut self) {
        self.kill();
        if self.traits.child {
            supervise::sweep(&self.mark, Scope::Marked);
        }
    }

    /// Cuts the link; the agent then ends all its processes.
    pub(crate) fn kill(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }
}

/// The tasks that serve one link.
struct LinkTasks {
    index: usize,
    host: String,
    news: mpsc::Sender<DriverInput>,
}

impl LinkTasks {
    /// Reads an agent's messages until its link closes, then reports how it ended.
    async fn serve(
        self,
        link: AgentLink,
        commands: mpsc::Receiver<DriverToAgent>,
        stopped: oneshot::Receiver<()>,
    ) {
        let AgentLink { reader, writer, heard, late, cut, ended, .. } = link;
        if let Some(late) = late {
            let news = self.news.clone();
            tokio::spawn(async move {
                if let Ok(text) = late.await {
                    let _ = news.send(DriverInput::Late(text)).await;
                }
            });
        }
        let writing = tokio::spawn(write(writer, commands));
        let reading = async {
            let mut reader = BufReader::with_capacity(256 << 10, reader);
            if let Err(error) = self.read(&mut reader, &heard).await {
                tracing::warn!(host = self.host, %error, "the link to an agent is broken");
            }
        };
        tokio::select! {
            () = reading => {}
            // An error means that the driver ended and dropped the sender, which has the same
            // effect.
            _ = stopped => {
                let _ = cut.send(());
            }
        }
        writing.abort();
        let host_problem = ended.await;
        let _ = self.news.send(DriverInput::AgentGone(self.index, host_problem)).await;
    }

    async fn read(
        &self,
        pipe: &mut (impl AsyncBufRead + Unpin),
        heard: &AgentOutput,
    ) -> io::Result<()> {
        let Some(version) = preamble(pipe, heard).await? else { return Ok(()) };
        heard.greeted();
        if self.news.send(DriverInput::Hello(self.index, version.clone())).await.is_err() {
            return Ok(());
        }
        // From another version we understand only the preamble; that agent waits to be ended.
        if version != ronde_control::VERSION {
            return tokio::io::copy(pipe, &mut tokio::io::sink()).await.map(|_| ());
        }
        loop {
            let message: Option<AgentToDriver> = read_frame(pipe).await?;
            let Some(message) = message else { return Ok(()) };
            if self.news.send(DriverInput::Agent(self.index, message)).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// Reads lines up to the agent's preamble and returns its version. Earlier lines are not the
/// agent's.
async fn preamble(
    pipe: &mut (impl AsyncBufRead + Unpin),
    heard: &AgentOutput,
) -> io::Result<Option<String>> {
    loop {
        let mut line = Vec::new();
        (&mut *pipe).take(LONGEST_LINE).read_until(b'\n', &mut line).await?;
        if line.is_empty() {
            return Ok(None);
        }
        let text = String::from_utf8_lossy(&line);
        match text.trim_end().strip_prefix(PREAMBLE).and_then(|rest| rest.strip_prefix(' ')) {
            Some(version) => return Ok(Some(version.to_owned())),
            None => heard.keep(&line),
        }
    }
}

async fn write(mut pipe: impl AsyncWrite + Unpin, mut commands: mpsc::Receiver<DriverToAgent>) {
    while let Some(command) = commands.recv().await {
        let frame = agent::frame(&command);
        if pipe.write_all(&frame).await.is_err() || pipe.flush().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn output_of_a_login_shell_is_kept_apart_from_the_agents() {
        let heard = AgentOutput::default();
        let mut pipe = BufReader::new(&b"Welcome!\nronde-agents\nronde-agent 1.2\nrest"[..]);
        assert_eq!(preamble(&mut pipe, &heard).await.unwrap().as_deref(), Some("1.2"));
        assert_eq!(heard.summary().1, "Welcome!\nronde-agents\n");
        let mut pipe = BufReader::new(&b"sh: no\n"[..]);
        assert_eq!(preamble(&mut pipe, &heard).await.unwrap(), None);
    }
}
