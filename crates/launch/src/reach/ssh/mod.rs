//! An agent on another host, through the system's `ssh`, so that the user's configuration, keys,
//! agent and jump hosts apply.
//!
//! One connection per host. It never prompts: where ssh would ask for a password or to confirm a
//! key, the user gets an error instead. The command line holds no secret; the job's key travels
//! inside the connection.

pub mod messages;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use super::{AgentLink, AgentTraits, ProcessEnd};
use crate::hidden;

/// An agent on another host shares nothing with the driver.
pub const TRAITS: AgentTraits = AgentTraits { child: false, network: false, environment: false };

/// Looks for this program at its path on this machine, then on the remote PATH, and becomes the
/// guardian. Prints an error if there is none.
const SCRIPT: &str = "for p in \"$1\" horovodrun; do \
     if command -v \"$p\" >/dev/null 2>&1; then exec \"$p\" \"$2\" \"$3\"; fi; \
     done; echo \"ronde-agent: not found\" >&2; exit 127";

/// A host to reach, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// `host` or `user@host`, in ssh's syntax.
    pub login: String,
    /// Options that all hosts of a job share.
    pub options: SshOptions,
}

/// The user's options for ssh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SshOptions {
    /// Port, if it differs from the user's configuration.
    pub port: Option<u16>,
    /// File of the private key to use.
    pub identity: Option<PathBuf>,
    /// Whether to refuse hosts whose key is unknown.
    pub strict: Strictness,
    /// Time limit for a connection, in seconds.
    pub time_limit: u64,
}

/// What to do with hosts whose key is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// Accept their key and remember it.
    #[default]
    FirstUse,
    /// Refuse them.
    Strict,
}

impl SshOptions {
    /// Options that keep ssh from prompting, each for an `-o`.
    pub(crate) fn unasking(&self) -> [String; 2] {
        let checking = match self.strict {
            Strictness::FirstUse => "accept-new",
            Strictness::Strict => "yes",
        };
        ["BatchMode=yes".to_owned(), format!("StrictHostKeyChecking={checking}")]
    }

    /// The arguments of ssh for the port and the key.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let port = self.port.map(|port| ["-p".into(), port.to_string().into()]);
        let key = self.identity.as_ref().map(|key| ["-i".into(), key.into()]);
        port.into_iter().chain(key).flatten().collect()
    }
}

/// Starts ssh, which starts the guardian on the host.
pub fn start(destination: &Destination, program: &Path, mark: &str) -> io::Result<AgentLink> {
    // The shim makes ssh end with this process in any case, and shields it from the terminal's
    // signals.
    let child = Command::new(program)
        .arg(hidden::SHIM)
        .arg(std::process::id().to_string())
        .args(command(destination, program, mark))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let destination = destination.clone();
    let host = destination.login.clone();
    let explain = move |end: &ProcessEnd<'_>| messages::explain(&destination, end);
    AgentLink::from_child(child, (&host, TRAITS), explain)
}

fn command(destination: &Destination, program: &Path, mark: &str) -> Vec<OsString> {
    let words = remote_command(program, mark);
    invocation(destination, &words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The command line of an ssh that runs these words on the host.
pub(crate) fn invocation(destination: &Destination, words: &[&str]) -> Vec<OsString> {
    let Destination { login, options } = destination;
    let mut command: Vec<OsString> = ["ssh", "-T", "-x"].map(OsString::from).to_vec();
    let more = [
        format!("ConnectTimeout={}", options.time_limit),
        // The lifeline notices a dead host, and the job machine a frozen one, which may resume: ssh
        // would take it for dead.
        "ServerAliveInterval=0".to_owned(),
        "LogLevel=ERROR".to_owned(),
    ];
    for option in options.unasking().into_iter().chain(more) {
        command.extend([OsString::from("-o"), option.into()]);
    }
    command.extend(options.words());
    command.extend([OsString::from("--"), login.into()]);
    let words = words.iter().copied();
    command.push(shlex::try_join(words).expect("no word of a command has a NUL").into());
    command
}

/// The command that becomes the guardian on another host.
pub(super) fn remote_command(program: &Path, mark: &str) -> [String; 7] {
    let program = program.to_string_lossy();
    ["sh", "-c", SCRIPT, "ronde", &program, hidden::GUARDIAN, mark].map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination(options: SshOptions) -> Destination {
        Destination { login: "me@node-b".into(), options }
    }

    #[test]
    fn ssh_never_prompts_and_gets_the_users_options() {
        let options = SshOptions {
            port: Some(12345),
            identity: Some("/keys/id".into()),
            strict: Strictness::Strict,
            time_limit: 30,
        };
        let words = command(&destination(options), Path::new("/venv/bin/horovodrun"), "m-1");
        let line = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        for part in [
            "BatchMode=yes",
            "StrictHostKeyChecking=yes",
            "ConnectTimeout=30",
            "ServerAliveInterval=0",
            "-p 12345 -i /keys/id -- me@node-b sh -c '",
            "' ronde /venv/bin/horovodrun __ronde-guardian m-1",
        ] {
            assert!(line.contains(part), "{part} is missing in {line}");
        }
        let line =
            format!("{:?}", command(&destination(SshOptions::default()), Path::new("x"), "m"));
        assert!(line.contains("StrictHostKeyChecking=accept-new") && !line.contains("\"-p\""));
    }

    #[test]
    fn the_remote_command_survives_quoting() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("it's $here");
        std::fs::write(&program, "#!/bin/sh\necho \"$1|$2\"\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).unwrap();
        let remote =
            command(&destination(SshOptions::default()), &program, "mark-0").pop().unwrap();
        let output = std::process::Command::new("sh").arg("-c").arg(remote).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "__ronde-guardian|mark-0\n");
        let remote = command(&destination(SshOptions::default()), Path::new("/no/such"), "m").pop();
        let output = std::process::Command::new("/bin/sh")
            .env("PATH", "/nowhere")
            .arg("-c")
            .arg(remote.unwrap().to_string_lossy().replacen("sh -c", "/bin/sh -c", 1))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(127));
        assert_eq!(String::from_utf8_lossy(&output.stderr), "ronde-agent: not found\n");
    }
}
