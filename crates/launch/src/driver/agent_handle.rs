//! The driver's hold on one agent: the link to it and the tasks that serve the link.

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

/// Commands that may wait for an agent that does not read.
const COMMANDS: usize = 16 << 10;

/// The longest line in front of an agent's own first one.
const LONGEST_LINE: u64 = 16 << 10;

/// The driver's handle on one agent.
pub(crate) struct AgentHandle {
    pub(crate) host: String,
    pub(crate) mark: String,
    pub(crate) traits: AgentTraits,
    pub(crate) gone: bool,
    /// Why it was let go, if that is known better than its link can tell.
    silent: Option<HostProblem>,
    commands: mpsc::Sender<DriverToAgent>,
    stop: Option<oneshot::Sender<()>>,
}

impl AgentHandle {
    /// Takes hold of an agent, whose processes carry `mark`; its news will carry `index`.
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
        AgentHandle { host, mark, traits, gone: false, silent: None, commands, stop: Some(stop) }
    }

    /// Sends a command. An agent that does not read for so long that the queue is full is as good as
    /// gone; the driver's own time limits end that.
    pub(crate) fn tell(&self, command: DriverToAgent) {
        if self.commands.try_send(command).is_err() {
            tracing::debug!(host = self.host, "the agent does not take commands");
        }
    }

    /// Its link has ended; gives why. Nothing is left behind on this machine.
    pub(crate) fn shut_down(&mut self, host_problem: HostProblem) -> HostProblem {
        self.gone = true;
        // The guardian has done this already, unless it was killed too.
        if self.traits.child && !supervise::sweep(&self.mark, Scope::Marked) {
            tracing::warn!(host = self.host, "some processes of the job cannot be killed");
        }
        self.silent.take().unwrap_or(host_problem)
    }

    /// A host that does not answer any more is let go; what was known of it goes with it.
    pub(crate) fn fell_silent(&mut self, error: &io::Error) {
        tracing::info!(host = self.host, %error, "the lifeline of a host was cut");
        // An agent that ends closes it, too; then its link tells more.
        if error.kind() != io::ErrorKind::UnexpectedEof {
            let hint = "check that the host is up and connected to the network";
            self.let_go(format!("it stopped responding ({error})"), hint);
        }
    }

    /// A host that has said nothing for so long is let go.
    pub(crate) fn never_answered(&mut self, during: Duration) {
        let hint = "see whether the host, or the container that the ranks run in, is paused, frozen \
                    or out of memory";
        self.let_go(format!("it has not answered for {} s", during.as_secs()), hint);
    }

    fn let_go(&mut self, reason: String, hint: &str) {
        self.silent = Some(HostProblem { reason, hint: hint.into() });
        self.kill();
    }

    /// Does not wait for it any longer.
    pub(crate) fn give_up(&mut self) {
        self.kill();
        if self.traits.child {
            supervise::sweep(&self.mark, Scope::Marked);
        }
    }

    /// Cuts the link, upon which the agent ends everything.
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
    /// Reads an agent's news until its link closes, then says how it ended.
    async fn serve(
        self,
        link: AgentLink,
        commands: mpsc::Receiver<DriverToAgent>,
        stopped: oneshot::Receiver<()>,
    ) {
        let AgentLink { reader, writer, heard, cut, ended, .. } = link;
        let writing = tokio::spawn(write(writer, commands));
        let reading = async {
            let mut reader = BufReader::with_capacity(256 << 10, reader);
            if let Err(error) = self.read(&mut reader, &heard).await {
                tracing::warn!(host = self.host, %error, "the link to an agent is broken");
            }
        };
        tokio::select! {
            () = reading => {}
            // An error means that the driver has ended and dropped the other side: the same thing.
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
        // Of another version nothing but its line is understood; it waits to be ended.
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

/// Reads lines up to the agent's own first one; gives its version. What was read before is not its.
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
    async fn what_a_login_shell_prints_is_told_from_the_agent() {
        let heard = AgentOutput::default();
        let mut pipe = BufReader::new(&b"Welcome!\nronde-agents\nronde-agent 1.2\nrest"[..]);
        assert_eq!(preamble(&mut pipe, &heard).await.unwrap().as_deref(), Some("1.2"));
        assert_eq!(heard.summary().1, "Welcome!\nronde-agents\n");
        let mut pipe = BufReader::new(&b"sh: no\n"[..]);
        assert_eq!(preamble(&mut pipe, &heard).await.unwrap(), None);
    }
}
