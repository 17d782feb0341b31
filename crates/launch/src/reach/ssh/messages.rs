//! Turns ssh's error messages into what happened and what to do.
//!
//! The messages are the same in every locale; an unknown one is passed on.

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;

use ronde_control::wire::agent::signal_name;
use ronde_control::{PACKAGE_VERSION, install};

use super::{Destination, SshOptions, Strictness};
use crate::reach::{HostProblem, ProcessEnd, VERBOSE};
use crate::supervise::ended;

/// ssh's own exit code when the connection, not the command, failed.
const SSH_FAILED: i32 = 255;

/// Explains why ssh ended before the agent started, or before it was dismissed.
pub fn explain(destination: &Destination, end: &ProcessEnd<'_>) -> HostProblem {
    let Destination { login, options } = destination;
    let status = match &end.status {
        Ok(status) => *status,
        Err(error) => {
            return HostProblem::new(format!("cannot wait for ssh: {error}"), VERBOSE);
        }
    };
    if end.said.contains("cannot run `ssh`") {
        return HostProblem::new(
            "there is no `ssh` on this machine",
            "install it: `openssh-client`",
        );
    }
    let known = known(login, options, end.said);
    if let Some(known) = known.filter(|_| !end.greeted || status.code() == Some(SSH_FAILED)) {
        return known;
    }
    let last = end.said.lines().map(str::trim).rfind(|line| !line.is_empty());
    let last = last.map(|line| format!(": {line}")).unwrap_or_default();
    match (status.code(), status.signal()) {
        (_, Some(signal)) => HostProblem::new(
            format!("its ssh connection was killed by {}{last}", signal_name(signal)),
            "something killed this job's ssh process on the launcher's machine",
        ),
        (Some(SSH_FAILED), _) => HostProblem::new(
            format!("its ssh connection broke{last}"),
            format!("check that `{}` works", command("ssh", login, options)),
        ),
        (Some(code), _) if end.greeted => HostProblem::new(
            format!("its agent {}{last}", ended(status)),
            match code {
                129..=192 => {
                    "find out what killed it there: a scheduler, a time limit or a lack of memory"
                }
                _ => VERBOSE,
            },
        ),
        (code, _) => HostProblem::new(
            format!("could not start an agent there (exit code {}){last}", code.unwrap_or(0)),
            format!(
                "check the output of `{} horovodrun --version`",
                command("ssh", login, options)
            ),
        ),
    }
}

/// The problem and its fix, if the host has no program of ours; `sessions` are what looked for it.
pub(in crate::reach) fn not_installed(said: &str, sessions: &str) -> Option<HostProblem> {
    said.contains("ronde-agent: not found").then(|| {
        HostProblem::new(
            format!(
                "Ronde is not installed there, or `horovodrun` is not in the PATH of {sessions}"
            ),
            format!(
                "install it there, preferably at the same path as here: {}",
                install::command(PACKAGE_VERSION)
            ),
        )
    })
}

/// The problem and its fix, if ssh printed one of the known messages.
fn known(login: &str, options: &SshOptions, said: &str) -> Option<HostProblem> {
    let host = login.rsplit('@').next().unwrap_or(login);
    let port = options.port.map_or("its port".into(), |port| format!("port {port}"));
    let try_it = command("ssh", login, options);
    let contains = |text: &str| said.contains(text);
    if let Some(missing) = not_installed(said, "its ssh sessions") {
        return Some(missing);
    }
    Some(match () {
        () if contains("REMOTE HOST IDENTIFICATION HAS CHANGED") => {
            let target = options.port.map_or(host.to_owned(), |port| format!("[{host}]:{port}"));
            HostProblem::new(
                "ssh refuses it because its host key has changed",
                format!(
                    "if the host was reinstalled, remove the old key with `ssh-keygen -R \
                     '{target}'`; if not, someone may be intercepting the connection"
                ),
            )
        }
        () if contains("host key is known for") || contains("Host key verification failed") => {
            let why = match options.strict {
                Strictness::Strict => {
                    "ssh does not know its host key, and `--ssh-strict` was given"
                }
                Strictness::FirstUse => "ssh does not accept its host key",
            };
            let check = format!("check the key with `ssh-keyscan {host}`");
            HostProblem::new(why, format!("{check} and add it to `~/.ssh/known_hosts`"))
        }
        () if refuses_login(said) => {
            let line = |text: &str| said.lines().map(str::trim).find(|line| line.contains(text));
            let hint = match line("Identity file") {
                Some(warning) => format!("check what `-i` names: {warning}"),
                None => format!(
                    "install your key with `{}`, or pass another key with `-i`",
                    command("ssh-copy-id", login, options)
                ),
            };
            let denied = line("Permission denied").unwrap_or_default();
            HostProblem::new(format!("ssh login failed: {denied}"), hint)
        }
        () if contains("Could not resolve hostname") => HostProblem::new(
            format!("cannot resolve the host name `{host}`"),
            "check its spelling, `/etc/hosts` and DNS, or use its address",
        ),
        () if contains("Connection refused") => HostProblem::new(
            format!("no ssh server is listening on {port}"),
            format!("start `sshd` there, or pass its port with `-p`; try `{try_it}`"),
        ),
        () if contains("No route to host") || contains("Network is unreachable") => {
            HostProblem::new(
                "there is no network route to it",
                format!("check that it is up and its address is right; try `{try_it}`"),
            )
        }
        () if contains("timed out") => HostProblem::new(
            format!("it did not answer ssh on {port} in time"),
            format!("check that it is up and no firewall blocks it; try `{try_it}`"),
        ),
        () => return None,
    })
}

/// Whether the host answered but accepted no key.
pub(crate) fn refuses_login(said: &str) -> bool {
    said.contains("Permission denied (")
}

/// The command for the user to try.
fn command(program: &str, login: &str, options: &SshOptions) -> String {
    let words = [vec![program.into()], options.words(), vec![login.into()]].concat();
    words.join(OsStr::new(" ")).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::ExitStatus;

    fn explained(code: i32, greeted: bool, said: &str) -> HostProblem {
        let options = SshOptions { port: Some(2222), ..SshOptions::default() };
        let destination = Destination { login: "me@b".into(), options };
        let status = Ok(ExitStatus::from_raw(code << 8));
        explain(&destination, &ProcessEnd { status, greeted, said })
    }

    #[test]
    fn messages_of_ssh_become_a_reason_and_a_hint() {
        for (code, said, reason, hint) in [
            (
                255,
                "me@b: Permission denied (publickey).",
                "login failed",
                "ssh-copy-id -p 2222 me@b",
            ),
            (
                255,
                "Warning: Identity file k not accessible: No such file or directory.\nme@b: \
                 Permission denied (publickey).",
                "login failed: me@b: Permission denied",
                "check what `-i` names: Warning: Identity file k not accessible",
            ),
            (
                255,
                "@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
                "its host key has changed",
                "ssh-keygen -R '[b]:2222'",
            ),
            (255, "No ED25519 host key is known for b", "host key", "known_hosts"),
            (
                255,
                "ssh: Could not resolve hostname b: Name",
                "cannot resolve the host name `b`",
                "DNS",
            ),
            (255, "connect to host b port 2222: Connection refused", "on port 2222", "sshd"),
            (255, "connect to host b: Connection timed out", "in time", "firewall"),
            (255, "connect to host b: No route to host", "no network route", "ssh -p 2222 me@b"),
            (127, "motd\nronde-agent: not found", "not installed", "`pip install "),
            (255, "kex_exchange_identification: odd", "broke: kex_exchange", "works"),
            (126, "sh: 1: bad", "exit code 126): sh: 1: bad", "horovodrun --version"),
        ] {
            let host_problem = explained(code, false, said);
            assert!(host_problem.reason.contains(reason), "{said}: {host_problem:?}");
            assert!(host_problem.hint.contains(hint), "{said}: {host_problem:?}");
        }
    }

    #[test]
    fn a_broken_connection_is_distinguished_from_an_agent_that_died() {
        let broken = explained(255, true, "Connection to b closed by remote host.");
        assert!(broken.reason.contains("ssh connection broke"), "{broken:?}");
        let killed = explained(137, true, "Permission denied, from a rank");
        assert_eq!(
            killed.reason,
            "its agent was killed by signal 9 (SIGKILL): Permission denied, from a rank"
        );
    }
}
