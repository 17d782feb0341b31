//! The driver's hold on one agent: its process, the pipe to it and the tasks that serve the pipe.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ronde_control::wire::agent::{self, AgentToDriver, DriverToAgent, PREAMBLE};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::News;
use crate::agent::read_frame;
use crate::reach::{Remains, Trouble, Way};
use crate::supervise::{self, Scope};

/// Commands that may wait for an agent that does not read.
const COMMANDS: usize = 16 << 10;

/// Bytes of what is not an agent's that are kept, to explain what went wrong.
const NOISE: usize = 16 << 10;

/// How long the last words of a process that has closed its pipe may take.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// One agent.
pub(crate) struct Hands {
    pub(crate) host: String,
    pub(crate) mark: String,
    pub(crate) way: Way,
    pub(crate) gone: bool,
    /// Why it was let go, if that is known better than its pipe can tell.
    silent: Option<Trouble>,
    commands: Option<mpsc::Sender<DriverToAgent>>,
    stop: Option<oneshot::Sender<()>>,
}

impl Hands {
    /// Takes hold of an agent that was just started; its news will carry `index`.
    pub(crate) fn new(
        index: usize,
        (host, mark, way): (String, String, Way),
        child: Child,
        news: mpsc::Sender<News>,
    ) -> Hands {
        let (commands, outgoing) = mpsc::channel(COMMANDS);
        let (stop, stopped) = oneshot::channel();
        let line = Line { index, host: host.clone(), way: way.clone(), news };
        tokio::spawn(line.serve(child, outgoing, stopped));
        let (commands, stop) = (Some(commands), Some(stop));
        Hands { host, mark, way, gone: false, silent: None, commands, stop }
    }

    /// Sends a command. An agent that does not read for so long that the queue is full is as good as
    /// gone; the driver's own time limits end that.
    pub(crate) fn tell(&self, command: DriverToAgent) {
        if let Some(commands) = &self.commands
            && commands.try_send(command).is_err()
        {
            tracing::debug!(host = self.host, "the agent does not take commands");
        }
    }

    /// Its process has ended; gives why. Nothing is left behind on this machine.
    pub(crate) fn bury(&mut self, trouble: Trouble) -> Trouble {
        self.gone = true;
        // The guardian has done this already, unless it was killed too.
        if self.way.is_local() && !supervise::sweep(&self.mark, Scope::Marked) {
            tracing::warn!(host = self.host, "some processes of the job cannot be killed");
        }
        self.silent.take().unwrap_or(trouble)
    }

    /// A host that does not answer any more is let go; what was known of it goes with it.
    pub(crate) fn fell_silent(&mut self, error: &io::Error) {
        tracing::info!(host = self.host, %error, "the lifeline of a host was cut");
        // An agent that ends closes it, too; then its pipe tells more.
        if error.kind() != io::ErrorKind::UnexpectedEof {
            self.silent = Some(Trouble {
                reason: format!("it does not answer any more ({error})"),
                hint: "see whether the host is up and its network cable is in".into(),
            });
            self.kill();
        }
    }

    /// A host that has said nothing for so long is let go.
    pub(crate) fn never_answered(&mut self, during: Duration) {
        self.silent = Some(Trouble {
            reason: format!("it has not answered for {} s", during.as_secs()),
            hint:
                "see whether the host, or the container that the ranks run in, is paused, frozen \
                   or out of memory"
                    .into(),
        });
        self.kill();
    }

    /// Does not wait for it any longer.
    pub(crate) fn give_up(&mut self) {
        self.kill();
        if self.way.is_local() {
            supervise::sweep(&self.mark, Scope::Marked);
        }
    }

    /// Kills the process at this end of the pipe, upon which the agent ends everything.
    pub(crate) fn kill(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }
}

/// The tasks that serve one pipe.
struct Line {
    index: usize,
    host: String,
    way: Way,
    news: mpsc::Sender<News>,
}

impl Line {
    /// Reads an agent's news until its pipe closes, then says how it ended.
    async fn serve(
        self,
        mut child: Child,
        commands: mpsc::Receiver<DriverToAgent>,
        stopped: oneshot::Receiver<()>,
    ) {
        let writer = child.stdin.take().map(|pipe| tokio::spawn(write(pipe, commands)));
        let noise = Arc::new(Mutex::new(Vec::new()));
        let complaints = child
            .stderr
            .take()
            .map(|pipe| tokio::spawn(listen(pipe, noise.clone(), self.host.clone())));
        let mut greeted = false;
        let mut output = child.stdout.take().map(|pipe| BufReader::with_capacity(256 << 10, pipe));
        let reading = async {
            let Some(output) = &mut output else { return };
            if let Err(error) = self.read(output, &noise, &mut greeted).await {
                tracing::warn!(host = self.host, %error, "an agent's pipe is broken");
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
        let status = child.wait().await;
        if let Some(complaints) = complaints {
            let _ = timeout(LAST_WORDS, complaints).await;
        }
        let noise = noise.lock().map(|noise| noise.clone()).unwrap_or_default();
        let said = String::from_utf8_lossy(&noise);
        let trouble = self.way.explain(&Remains { status, greeted, said: &said });
        let _ = self.news.send(News::AgentGone(self.index, trouble)).await;
    }

    async fn read(
        &self,
        pipe: &mut (impl AsyncBufRead + Unpin),
        noise: &Mutex<Vec<u8>>,
        greeted: &mut bool,
    ) -> io::Result<()> {
        let Some(version) = preamble(pipe, noise).await? else { return Ok(()) };
        *greeted = true;
        if self.tell(News::Hello(self.index, version.clone())).await.is_err() {
            return Ok(());
        }
        // Of another version nothing but its line is understood; it waits to be ended.
        if version != ronde_control::VERSION {
            return tokio::io::copy(pipe, &mut tokio::io::sink()).await.map(|_| ());
        }
        loop {
            let message: Option<AgentToDriver> = read_frame(pipe).await?;
            let Some(message) = message else { return Ok(()) };
            if self.tell(News::Agent(self.index, message)).await.is_err() {
                return Ok(());
            }
        }
    }

    async fn tell(&self, news: News) -> Result<(), mpsc::error::SendError<News>> {
        self.news.send(news).await
    }
}

/// Reads lines up to the agent's own first one; gives its version. What was read before is noise.
async fn preamble(
    pipe: &mut (impl AsyncBufRead + Unpin),
    noise: &Mutex<Vec<u8>>,
) -> io::Result<Option<String>> {
    loop {
        let mut line = Vec::new();
        (&mut *pipe).take(NOISE as u64).read_until(b'\n', &mut line).await?;
        if line.is_empty() {
            return Ok(None);
        }
        let text = String::from_utf8_lossy(&line);
        match text.trim_end().strip_prefix(PREAMBLE).and_then(|rest| rest.strip_prefix(' ')) {
            Some(version) => return Ok(Some(version.to_owned())),
            None => keep(noise, &line),
        }
    }
}

/// Takes what a process complains about.
async fn listen(pipe: impl AsyncRead + Unpin, noise: Arc<Mutex<Vec<u8>>>, host: String) {
    let mut pipe = BufReader::new(pipe);
    loop {
        let mut line = Vec::new();
        match (&mut pipe).take(NOISE as u64).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                tracing::info!(host, "{}", String::from_utf8_lossy(&line).trim_end());
                keep(&noise, &line);
            }
        }
    }
}

fn keep(noise: &Mutex<Vec<u8>>, line: &[u8]) {
    if let Ok(mut noise) = noise.lock() {
        noise.extend_from_slice(line);
        let surplus = noise.len().saturating_sub(NOISE);
        noise.drain(..surplus);
    }
}

async fn write(mut pipe: ChildStdin, mut commands: mpsc::Receiver<DriverToAgent>) {
    while let Some(command) = commands.recv().await {
        if pipe.write_all(&agent::frame(&command)).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_login_shell_prints_is_told_from_the_agent() {
        let noise = Mutex::new(Vec::new());
        let mut pipe = BufReader::new(&b"Welcome!\nronde-agents\nronde-agent 1.2\nrest"[..]);
        assert_eq!(preamble(&mut pipe, &noise).await.unwrap().as_deref(), Some("1.2"));
        assert_eq!(noise.lock().unwrap().as_slice(), b"Welcome!\nronde-agents\n");
        let mut pipe = BufReader::new(&b"sh: no\n"[..]);
        assert_eq!(preamble(&mut pipe, &noise).await.unwrap(), None);
    }
}
