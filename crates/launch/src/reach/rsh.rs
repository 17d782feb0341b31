//! An agent on another host, through any command that runs a program there and connects its
//! standard input and output to ours: `docker exec -i`, `kubectl exec -i`, `nsenter`.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Stdio;

use tokio::process::Command;

use super::{AgentLink, AgentTraits, HostProblem, ProcessEnd, VERBOSE, ssh};
use crate::hidden;
use crate::supervise::ended;

/// An agent on another host shares nothing with the driver.
pub const TRAITS: AgentTraits = AgentTraits { child: false, network: false, environment: false };

const HOST: &str = "{host}";
const COMMAND: &str = "{command}";

/// A command line that reaches any host: its words, in which `{host}` and `{command}` are replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RshCommand(Vec<String>);

impl RshCommand {
    /// Splits a command line into words, as a shell would; otherwise says what is wrong with it.
    pub fn parse(text: &str) -> Result<RshCommand, String> {
        let words = shlex::split(text).ok_or_else(|| format!("`{text}` has an unclosed quote"))?;
        match words.as_slice() {
            [] => Err("it is empty".into()),
            _ if !words.iter().any(|word| word.contains(HOST)) => {
                Err(format!("`{text}` does not say where `{HOST}` goes"))
            }
            _ => Ok(RshCommand(words)),
        }
    }

    /// The command line for one host. `{command}` as a word of its own becomes the words of the
    /// remote command; inside another word, it is quoted for a shell. Without it, the words follow.
    fn line(&self, host: &str, remote: &[String]) -> Vec<OsString> {
        let joined = shlex::try_join(remote.iter().map(String::as_str));
        let joined = joined.expect("no word of a command has a NUL");
        let mut line = Vec::new();
        for word in &self.0 {
            match word.as_str() {
                COMMAND => line.extend_from_slice(remote),
                _ => line.push(word.replace(HOST, host).replace(COMMAND, &joined)),
            }
        }
        if !self.0.iter().any(|word| word.contains(COMMAND)) {
            line.extend_from_slice(remote);
        }
        line.into_iter().map(OsString::from).collect()
    }
}

/// Starts the command, which starts the guardian on the host.
pub fn start(
    (rsh, host): (&RshCommand, &str),
    program: &Path,
    mark: &str,
) -> io::Result<AgentLink> {
    let line = rsh.line(host, &ssh::remote_command(program, mark));
    // The shim makes the command end with this process in any case, and shields it from the
    // terminal's signals.
    let child = Command::new(program)
        .arg(hidden::SHIM)
        .arg(std::process::id().to_string())
        .args(&line)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let name = line.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    let explain = move |end: &ProcessEnd<'_>| explain(&name, end);
    AgentLink::from_child(child, (host, TRAITS), explain)
}

fn explain(name: &str, end: &ProcessEnd<'_>) -> HostProblem {
    let status = match &end.status {
        Ok(status) => *status,
        Err(error) => {
            return HostProblem::new(format!("cannot wait for `{name}`: {error}"), VERBOSE);
        }
    };
    if let Some(missing) = ssh::messages::not_installed(end.said, "commands run that way") {
        return missing;
    }
    let last = end.said.lines().map(str::trim).rfind(|line| !line.is_empty());
    let last = last.map(|line| format!(": {line}")).unwrap_or_default();
    match end.greeted {
        true => HostProblem::new(
            format!("`{name}` {}{last}", ended(status)),
            "check whether the container or host is still running",
        ),
        false => HostProblem::new(
            format!("`{name}` could not start an agent there: it {}{last}", ended(status)),
            "run the command of `--rsh` by hand; standard input must stay open (`-i`), and there \
             must be no terminal (`-t`)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Vec<String> {
        let remote = ["sh", "-c", "echo 'hi'"].map(String::from);
        let words = RshCommand::parse(text).unwrap().line("pod-1", &remote);
        words.into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn the_host_and_the_command_are_put_in_their_places() {
        assert_eq!(
            line("kubectl exec -i {host} -- {command}"),
            ["kubectl", "exec", "-i", "pod-1", "--", "sh", "-c", "echo 'hi'"]
        );
        assert_eq!(line("docker exec -i {host}")[3..], ["pod-1", "sh", "-c", "echo 'hi'"]);
        assert_eq!(
            line("bash -c 'enter {host} {command}'"),
            ["bash", "-c", "enter pod-1 sh -c \"echo 'hi'\""]
        );
    }

    #[test]
    fn a_command_without_the_host_is_refused() {
        for text in ["", "docker exec -i node", "docker 'exec {host}"] {
            assert!(RshCommand::parse(text).is_err(), "{text}");
        }
    }
}
