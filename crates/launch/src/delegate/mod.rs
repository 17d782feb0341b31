//! Hands a whole job over to another launcher: `horovodrun --mpi` and `--jsrun`.
//!
//! The options of `horovodrun` become the other launcher's command line. That launcher then
//! replaces this process: its output, its signals and its exit code are the job's. For
//! `horovod.run` it is a child instead (`driver::delegated`). The ranks find each other through its
//! variables, as under a bare `mpirun`. Building the command line is pure, so every flavor of
//! `mpirun` is tested without installing it.

pub mod jsrun;
pub mod mpirun;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use ronde_control::settings::{CONTRACT, NCCL_IB_DISABLE};

use crate::hosts::Host;
use crate::reach::ssh;

/// What the other launcher should run.
#[derive(Clone, Debug, Default)]
pub struct DelegatedJob {
    /// Number of ranks.
    pub count: u32,
    /// The hosts and their slots.
    pub hosts: Vec<Host>,
    /// What every rank runs.
    pub command: Vec<OsString>,
    /// The environment of the ranks.
    pub env: Vec<(OsString, OsString)>,
    /// Further variables to pass to the ranks; the caller sets their values when it runs the
    /// command.
    pub passed_on: Vec<&'static str>,
    /// The interfaces that may be used; all if empty.
    pub interfaces: Vec<String>,
    /// How to reach hosts over ssh.
    pub ssh: ssh::SshOptions,
    /// Where the ranks' output is written besides the screen.
    pub output_filename: Option<PathBuf>,
    /// Where the ranks run, if not in the current directory.
    pub workdir: Option<PathBuf>,
    /// Whether each line of output carries the time.
    pub timestamps: bool,
    /// Arguments passed to the launcher unchanged.
    pub extra: Vec<OsString>,
    /// Arguments for binding to cores, instead of the default ones.
    pub binding: Option<Vec<OsString>>,
    /// Whether to use TCP only, and no fast networks.
    pub tcp: bool,
}

/// A launcher's whole command line and environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LauncherCommand {
    /// The command.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Its environment, and that of the ranks.
    pub env: Vec<(OsString, OsString)>,
}

impl LauncherCommand {
    /// The command line as one would type it.
    pub fn to_text(&self) -> String {
        let words = std::iter::once(&self.program).chain(&self.arguments);
        let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
        let line = shlex::try_join(words.iter().map(AsRef::as_ref));
        line.expect("no word of a command contains a NUL")
    }

    /// Replaces this process with the launcher; returns only if it cannot be started.
    pub fn exec(&self) -> io::Error {
        Command::new(&self.program)
            .args(&self.arguments)
            .env_clear()
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .exec()
    }
}

/// The environment passed to the ranks: everything except what belongs to this shell, to this host,
/// or to an outer job in which this launcher may be running.
fn exported(order: &DelegatedJob) -> Vec<(OsString, OsString)> {
    let mut all: Vec<(OsString, OsString)> =
        order.env.iter().filter(|(name, _)| is_for_ranks(name)).cloned().collect();
    let mut set = |name: &str, value: OsString| {
        all.retain(|(key, _)| key != name);
        all.push((name.into(), value));
    };
    if order.tcp {
        set(NCCL_IB_DISABLE.name, "1".into());
    }
    if !order.interfaces.is_empty() {
        set("NCCL_SOCKET_IFNAME", order.interfaces.join(",").into());
    }
    set("PYTHONUNBUFFERED", "1".into());
    for name in &order.passed_on {
        set(name, OsString::new());
    }
    all.sort();
    all
}

/// Whether a variable of this process is passed to the ranks.
pub fn is_for_ranks(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let ours = CONTRACT.iter().any(|setting| setting.name == name);
    !(ours
        || name == "OLDPWD"
        || name == "_HOROVOD_SECRET_KEY"
        || name.starts_with("BASH_FUNC_")
        || name.ends_with("CUDA_VISIBLE_DEVICES"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_get_the_users_environment_without_this_shells_or_an_outer_jobs_variables() {
        let env = [
            ("HOME", "/h"),
            ("OLDPWD", "/"),
            ("BASH_FUNC_f%%", "() {}"),
            ("CUDA_VISIBLE_DEVICES", "0"),
            ("HOROVOD_RANK", "3"),
            ("HOROVOD_FUSION_THRESHOLD", "1"),
            ("RONDE_JOB_KEY", "secret"),
            ("NCCL_IB_DISABLE", "0"),
        ];
        let env = env.map(|(name, value)| (name.into(), value.into())).to_vec();
        let order = DelegatedJob {
            env,
            tcp: true,
            interfaces: vec!["eth1".into()],
            ..DelegatedJob::default()
        };
        let passed: Vec<String> = exported(&order)
            .iter()
            .map(|(name, value)| format!("{}={}", name.display(), value.display()))
            .collect();
        let expected = [
            "HOME=/h",
            "HOROVOD_FUSION_THRESHOLD=1",
            "NCCL_IB_DISABLE=1",
            "NCCL_SOCKET_IFNAME=eth1",
            "PYTHONUNBUFFERED=1",
        ];
        assert_eq!(passed, expected);
    }
}
