//! Runs the actions of the script on a host, over ssh or, on this machine, in a shell. Data goes in
//! on standard input, so that no secret appears on a command line.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use ronde_control::provision::{FactsError, HostFacts};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::reach::ssh::{self, Destination};
use crate::reach::{HostProblem, ProcessEnd};

const SCRIPT: &str = include_str!("host.sh");

/// How long an action may take that only looks around or writes a small file.
pub(super) const QUICK: Duration = Duration::from_secs(60);

/// How long an installation or the download of an image may take.
pub(super) const LONG: Duration = Duration::from_secs(3600);

/// The exit code of the script if it has printed an error.
const REFUSED: i32 = 3;

/// A host on which the script runs.
#[derive(Clone, Debug)]
pub struct HostShell {
    /// Name of the host, as the user wrote it.
    pub name: String,
    /// How to log in; `None` if it is this machine.
    pub destination: Option<Destination>,
}

/// Why an action failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ActionError {
    /// The host answered, but ssh has no key that it accepts.
    LoginRefused(HostProblem),
    /// Anything else.
    Failed(HostProblem),
}

impl From<ActionError> for HostProblem {
    fn from(error: ActionError) -> HostProblem {
        match error {
            ActionError::LoginRefused(problem) | ActionError::Failed(problem) => problem,
        }
    }
}

fn failed(reason: impl Into<String>, hint: impl Into<String>) -> ActionError {
    ActionError::Failed(HostProblem { reason: reason.into(), hint: hint.into() })
}

/// What an action reads.
pub(super) enum ActionInput {
    Nothing,
    Text(String),
    File(PathBuf),
}

impl HostShell {
    /// Runs an action and returns its output.
    pub(super) async fn run(
        &self,
        action: &[&str],
        input: ActionInput,
        limit: Duration,
    ) -> Result<String, ActionError> {
        let words = [&["sh", "-c", SCRIPT, "ronde"], action].concat();
        let mut command: Vec<OsString> = match &self.destination {
            Some(destination) => ssh::invocation(destination, &words),
            None => words.iter().map(OsString::from).collect(),
        };
        tracing::debug!(host = self.name, action = action.join(" "), "runs an action");
        let (stdin, text) = match input {
            ActionInput::Nothing => (Stdio::null(), None),
            ActionInput::Text(text) => (Stdio::piped(), Some(text)),
            ActionInput::File(path) => {
                let unreadable = |error| {
                    let hint = "check the free space and the permissions of the temporary folder";
                    failed(format!("`{}` cannot be read: {error}", path.display()), hint)
                };
                (File::open(&path).map_err(unreadable)?.into(), None)
            }
        };
        let child = Command::new(command.remove(0))
            .args(command)
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| self.not_started(&error))?;
        let output = timeout(limit, talk(child, text)).await.map_err(|_| {
            let reason = format!("`{}` took longer than {} s", action[0], limit.as_secs());
            failed(reason, "check whether its disk or its network hangs")
        })?;
        let output =
            output.map_err(|error| failed(format!("the connection broke: {error}"), VERBOSE))?;
        self.answer(&output)
    }

    /// Asks the host about everything that matters for an agent at `port`, and in `image`.
    pub(super) async fn facts(
        &self,
        port: u16,
        image: Option<&str>,
    ) -> Result<HostFacts, ActionError> {
        let port = port.to_string();
        let action: Vec<&str> = ["probe", &port].into_iter().chain(image).collect();
        let output = self.run(&action, ActionInput::Nothing, QUICK).await?;
        HostFacts::parse(&output).map_err(|error: FactsError| {
            failed(error.to_string(), "check that its login shell runs commands")
        })
    }

    fn answer(&self, output: &Output) -> Result<String, ActionError> {
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(said);
        }
        if output.status.code() == Some(REFUSED) {
            let error = said.lines().rev().find_map(|line| line.strip_prefix("error="));
            let error = error.unwrap_or("an action failed without saying why");
            return Err(failed(error.trim(), VERBOSE));
        }
        let said = format!("{said}{}", String::from_utf8_lossy(&output.stderr));
        Err(match &self.destination {
            Some(destination) => {
                let end = ProcessEnd { status: Ok(output.status), greeted: false, said: &said };
                let problem = ssh::messages::explain(destination, &end);
                match ssh::messages::refuses_login(&said) {
                    true => ActionError::LoginRefused(problem),
                    false => ActionError::Failed(problem),
                }
            }
            None => failed(format!("the shell failed: {}", said.trim()), VERBOSE),
        })
    }

    fn not_started(&self, error: &io::Error) -> ActionError {
        let program = if self.destination.is_some() { "ssh" } else { "sh" };
        let hint = format!("install `{program}` on this machine");
        failed(format!("cannot run `{program}`: {error}"), hint)
    }
}

const VERBOSE: &str = "run it again with `--verbose` to see each step";

/// Writes the input while the output is read, so that neither side waits for the other.
async fn talk(mut child: Child, text: Option<String>) -> io::Result<Output> {
    let pipe = child.stdin.take();
    let write = async move {
        let (Some(mut pipe), Some(text)) = (pipe, text) else { return Ok(()) };
        pipe.write_all(text.as_bytes()).await?;
        pipe.shutdown().await
    };
    let (written, output) = tokio::join!(write, child.wait_with_output());
    let output = output?;
    // A script that failed has closed its input; its error says more.
    if output.status.success() {
        written?;
    }
    Ok(output)
}
