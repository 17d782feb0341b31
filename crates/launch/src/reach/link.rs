//! An agent as the driver has it: two directions, a way to cut them, and how it ended.
//!
//! Whoever makes a link (a file in `reach/` each) knows what stands behind it, a child process or a
//! connection; whoever uses one does not.

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

/// Bytes of what is not an agent's that are kept, to explain what went wrong.
const NOISE: usize = 16 << 10;

/// How long the last words of a process that has closed its pipe may take.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The driver's end of the way to an agent.
pub struct AgentLink {
    /// What the agent says: its first line, then frames. Other lines may come before them.
    pub reader: Box<dyn AsyncRead + Send + Unpin>,
    /// What the agent is told, in frames.
    pub writer: Box<dyn AsyncWrite + Send + Unpin>,
    /// What the agent shares with the driver.
    pub traits: AgentTraits,
    /// What was heard that is no frame.
    pub heard: AgentOutput,
    /// Cuts the link, upon which the agent ends everything on its host. Dropping it cuts nothing.
    pub cut: oneshot::Sender<()>,
    /// Comes once nothing of the link is left at this end, and says why. Both directions are to be
    /// dropped before it is awaited.
    pub ended: Pin<Box<dyn Future<Output = HostProblem> + Send>>,
}

/// What an agent shares with the driver, because of the way in which it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentTraits {
    /// Whether it is a child of the driver, who sweeps up what it may leave behind on this machine.
    /// Any other one may vanish with its host, which its link need not show: it needs a lifeline.
    pub child: bool,
    /// Whether it has the driver's network, so that a loopback address will do.
    pub network: bool,
    /// Whether its ranks inherit the driver's environment, or their host has one of its own.
    pub environment: bool,
}

/// What was heard of an agent apart from frames: whoever reads a link adds to it, and whoever explains
/// its end looks at it.
#[derive(Clone, Debug, Default)]
pub struct AgentOutput(Arc<Mutex<OutputLines>>);

#[derive(Debug, Default)]
struct OutputLines {
    greeted: bool,
    said: Vec<u8>,
}

impl AgentOutput {
    /// The agent is there.
    pub fn greeted(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).greeted = true;
    }

    /// Keeps some of what is not the agent's.
    pub fn keep(&self, line: &[u8]) {
        let OutputLines { said, .. } = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend_from_slice(line);
        let surplus = said.len().saturating_sub(NOISE);
        said.drain(..surplus);
    }

    /// Whether the agent had been there, and what else was said.
    pub fn summary(&self) -> (bool, String) {
        let words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (words.greeted, String::from_utf8_lossy(&words.said).into_owned())
    }
}

/// What is known of a process at this end of a link when it has ended.
pub struct ProcessEnd<'a> {
    /// Exit status of the process.
    pub status: io::Result<ExitStatus>,
    /// Whether the agent had been there.
    pub greeted: bool,
    /// What was written before, or instead of, what an agent says: on standard output and error.
    pub said: &'a str,
}

impl AgentLink {
    /// The link to an agent whose pipe is the standard input and output of a child process. What the
    /// child writes to standard error is kept if that is a pipe, and logged as `host`'s; `explain` says
    /// why it has ended.
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
        let words = heard.clone();
        let ended = async move {
            let status = tokio::select! {
                status = child.wait() => status,
                Ok(()) = is_cut => {
                    let _ = child.start_kill();
                    child.wait().await
                }
            };
            if let Some(listening) = listening {
                let _ = timeout(LAST_WORDS, listening).await;
            }
            let (greeted, said) = words.summary();
            explain(&ProcessEnd { status, greeted, said: &said })
        };
        Ok(AgentLink {
            reader: Box::new(reader),
            writer: Box::new(writer),
            traits,
            heard,
            cut,
            ended: Box::pin(ended),
        })
    }
}

/// Takes what a process complains about.
async fn listen(pipe: impl AsyncRead + Unpin, heard: AgentOutput, host: String) {
    let mut pipe = BufReader::new(pipe);
    loop {
        let mut line = Vec::new();
        match (&mut pipe).take(NOISE as u64).read_until(b'\n', &mut line).await {
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

    const TIES: AgentTraits = AgentTraits { child: true, network: true, environment: true };

    fn link(script: &str) -> AgentLink {
        let child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let explain = |remains: &ProcessEnd<'_>| {
            let status = remains.status.as_ref().unwrap();
            HostProblem { reason: status.to_string(), hint: remains.said.into() }
        };
        AgentLink::from_child(child.unwrap(), ("here", TIES), explain).unwrap()
    }

    #[tokio::test]
    async fn a_child_that_ends_is_explained_with_its_last_words() {
        let mut link = link("read line; echo \"$line\"; echo why >&2; exit 3");
        tokio::io::AsyncWriteExt::write_all(&mut link.writer, b"hello\n").await.unwrap();
        let mut said = String::new();
        link.reader.read_to_string(&mut said).await.unwrap();
        let host_problem = link.ended.await;
        assert_eq!((said.as_str(), host_problem.hint.as_str()), ("hello\n", "why\n"));
        assert!(host_problem.reason.contains('3'), "{}", host_problem.reason);
    }

    #[tokio::test]
    async fn a_child_that_would_run_for_ever_ends_when_its_link_is_cut() {
        let link = link("exec sleep 1000");
        link.cut.send(()).unwrap();
        assert!(link.ended.await.reason.contains("signal: 9"));
    }
}
