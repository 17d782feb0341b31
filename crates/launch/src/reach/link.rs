//! The driver's link to an agent: two directions, a way to cut them, and how it ended.
//!
//! Code that makes a link (one file in `reach/` each) knows whether a child process or a connection
//! is behind it; code that uses a link does not.

use std::io;
use std::pin::Pin;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, BufReader};
use tokio::process::Child;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::HostProblem;

/// Bytes of other output to keep for explaining a failure.
const KEPT_BYTES: usize = 16 << 10;

/// How long the rest of the standard error of a process that closed its pipe may take.
const STDERR_LIMIT: Duration = Duration::from_millis(500);

/// The driver's end of the link to an agent.
pub struct AgentLink {
    /// From the agent: its preamble, then frames. Other lines may precede them.
    pub reader: Box<dyn AsyncRead + Send + Unpin>,
    /// Frames to the agent.
    pub writer: Box<dyn AsyncWrite + Send + Unpin>,
    /// What the agent shares with the driver.
    pub traits: AgentTraits,
    /// Output that is not frames.
    pub heard: AgentOutput,
    /// What to tell the user if the agent is late.
    pub late: Option<oneshot::Receiver<String>>,
    /// Cuts the link, whereupon the agent ends everything on its host. Dropping it cuts nothing.
    pub cut: oneshot::Sender<()>,
    /// Completes once nothing of the link is left at this end, and returns why. Drop both
    /// directions before awaiting it.
    pub ended: Pin<Box<dyn Future<Output = HostProblem> + Send>>,
}

/// What an agent shares with the driver, which depends on how it was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentTraits {
    /// Whether it is a child of the driver, which then cleans up after it on this machine. Any
    /// other agent may vanish with its host, which its link does not necessarily notice: it needs a
    /// lifeline.
    pub child: bool,
    /// Whether it is on the driver's network, so that a loopback address works.
    pub network: bool,
    /// Whether its ranks inherit the driver's environment; otherwise they get that of their host.
    pub environment: bool,
}

/// What an agent printed other than frames: the reader of a link adds to it, and the code that
/// explains the link's end reads it.
#[derive(Clone, Debug, Default)]
pub struct AgentOutput(Arc<Mutex<OutputLines>>);

#[derive(Debug, Default)]
struct OutputLines {
    greeted: bool,
    said: Vec<u8>,
}

impl AgentOutput {
    /// The agent has sent its preamble.
    pub fn greeted(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).greeted = true;
    }

    /// Keeps a line that is not from the agent.
    pub fn keep(&self, line: &[u8]) {
        let OutputLines { said, .. } = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend_from_slice(line);
        let surplus = said.len().saturating_sub(KEPT_BYTES);
        said.drain(..surplus);
    }

    /// Whether the agent has sent its preamble, and the other output.
    pub fn summary(&self) -> (bool, String) {
        let output = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (output.greeted, String::from_utf8_lossy(&output.said).into_owned())
    }
}

/// What is known about the end of the process at this end of a link.
pub struct ProcessEnd<'a> {
    /// Exit status of the process.
    pub status: io::Result<ExitStatus>,
    /// Whether the agent had sent its preamble.
    pub greeted: bool,
    /// Output on standard output and error before, or instead of, the agent's.
    pub said: &'a str,
}

impl AgentLink {
    /// The link to an agent whose pipe is the standard input and output of a child process. If the
    /// child's standard error is a pipe, it is kept, and logged with `host`; `explain` says why the
    /// child ended.
    pub(super) fn from_child(
        mut child: Child,
        (host, traits): (&str, AgentTraits),
        explain: impl FnOnce(&ProcessEnd<'_>) -> HostProblem + Send + 'static,
    ) -> io::Result<AgentLink> {
        let (Some(writer), Some(reader)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("the child has no pipes"));
        };
        let heard = AgentOutput::default();
        let listening = child
            .stderr
            .take()
            .map(|pipe| tokio::spawn(listen(pipe, heard.clone(), host.to_owned())));
        let (cut, is_cut) = oneshot::channel();
        let output = heard.clone();
        let ended = async move {
            let status = tokio::select! {
                status = child.wait() => status,
                Ok(()) = is_cut => {
                    let _ = child.start_kill();
                    child.wait().await
                }
            };
            if let Some(listening) = listening {
                let _ = timeout(STDERR_LIMIT, listening).await;
            }
            let (greeted, said) = output.summary();
            explain(&ProcessEnd { status, greeted, said: &said })
        };
        Ok(AgentLink {
            reader: Box::new(reader),
            writer: Box::new(writer),
            traits,
            heard,
            late: None,
            cut,
            ended: Box::pin(ended),
        })
    }
}

/// Keeps and logs the standard error of a process.
async fn listen(pipe: impl AsyncRead + Unpin, heard: AgentOutput, host: String) {
    let mut pipe = BufReader::new(pipe);
    loop {
        let mut line = Vec::new();
        match (&mut pipe).take(KEPT_BYTES as u64).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                tracing::info!(host, "{}", String::from_utf8_lossy(&line).trim_end());
                heard.keep(&line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use tokio::process::Command;

    use super::*;

    const TRAITS: AgentTraits = AgentTraits { child: true, network: true, environment: true };

    fn link(script: &str) -> AgentLink {
        let child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let explain = |end: &ProcessEnd<'_>| {
            let status = end.status.as_ref().unwrap();
            HostProblem { reason: status.to_string(), hint: end.said.into() }
        };
        AgentLink::from_child(child.unwrap(), ("here", TRAITS), explain).unwrap()
    }

    #[tokio::test]
    async fn the_end_of_a_child_is_explained_with_its_last_output() {
        let mut link = link("read line; echo \"$line\"; echo why >&2; exit 3");
        tokio::io::AsyncWriteExt::write_all(&mut link.writer, b"hello\n").await.unwrap();
        let mut said = String::new();
        link.reader.read_to_string(&mut said).await.unwrap();
        let host_problem = link.ended.await;
        assert_eq!((said.as_str(), host_problem.hint.as_str()), ("hello\n", "why\n"));
        assert!(host_problem.reason.contains('3'), "{}", host_problem.reason);
    }

    #[tokio::test]
    async fn cutting_the_link_ends_a_child() {
        let link = link("exec sleep 1000");
        link.cut.send(()).unwrap();
        assert!(link.ended.await.reason.contains("signal: 9"));
    }
}
