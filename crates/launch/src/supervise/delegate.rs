//! The parent of another launcher that starts ranks for `horovod.run`; it outlives that launcher to
//! clean up.
//!
//! It passes signals on and waits. When the driver dies, the kernel signals it, and it asks the
//! launcher to stop, which also stops the ranks on other hosts. The launcher may die from writing
//! to a driver that is gone, before it has stopped its ranks; so this process finally kills
//! everything that is left on this host.

use std::ffi::{OsStr, OsString};
use std::io;
use std::process::ExitStatus;

use rustix::process::{Signal, getpid, set_child_subreaper, setsid};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep_until};

use super::{Scope, end_with, shim, signal_child, sweep};
use crate::signals::{self, Signals};
use ronde_control::job::ending::GRACE;

/// Runs `command`; returns its exit code, 128 plus the signal if one killed it.
pub fn run(mark: &OsStr, parent: &OsStr, command: &OsString, arguments: &[OsString]) -> u8 {
    let _ = setsid();
    let _ = set_child_subreaper(Some(getpid()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let status = runtime.and_then(|runtime| {
        runtime.block_on(async {
            let signals = signals::listen()?;
            if !end_with(parent, Signal::TERM) {
                return Err(io::Error::other("the driver is gone"));
            }
            let child = Command::new(command).args(arguments).spawn()?;
            wait(child, signals).await
        })
    });
    sweep(&mark.to_string_lossy(), Scope::Family);
    match status {
        Ok(status) => super::code(status),
        Err(error) => shim::not_run(command, &error),
    }
}

async fn wait(mut child: Child, mut signals: Signals) -> io::Result<ExitStatus> {
    let mut limit = None;
    loop {
        tokio::select! {
            status = child.wait() => return status,
            signal = signals.next() => {
                signal_child(&child, signal);
                limit.get_or_insert_with(|| Instant::now() + GRACE);
            }
            () = sleep_until(limit.unwrap_or_else(Instant::now)), if limit.is_some() => {
                let _ = child.start_kill();
                limit = None;
            }
        }
    }
}
