//! The parent of the agent, which outlives it to clear up.
//!
//! The guardian does nothing but wait. Because it is a subreaper, whatever the agent leaves behind
//! becomes its child and can be found, even without the job's mark. It has its own session, so that
//! the keys of a terminal reach only the driver. It keeps the agent's end of the pipe open: when the
//! driver sees it closed, nothing is left on this host.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus, getpid, set_child_subreaper, setsid, wait};

use super::{Scope, sweep};
use crate::private::Places;
use crate::{hidden, registry};

/// Starts the agent and waits for its end; gives its exit code, 128 and more for a signal.
pub fn run(program: &Path, mark: &OsStr) -> u8 {
    let _ = setsid();
    let own = getpid();
    let _ = set_child_subreaper(Some(own));
    let number = own.as_raw_nonzero().to_string();
    let agent = Command::new(program).arg(hidden::AGENT).arg(mark).arg(number).spawn();
    let agent = match agent {
        Ok(child) => Pid::from_child(&child),
        Err(error) => {
            tracing::error!(%error, "the agent could not be started");
            return 126;
        }
    };
    let status = await_end(agent);
    sweep(&mark.to_string_lossy(), Scope::Family);
    // A driver on this host that was killed has left its entry behind.
    registry::jobs(&Places::here());
    match status {
        Some(status) => match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => code as u8,
            (None, Some(signal)) => 128 + signal as u8,
            (None, None) => 1,
        },
        None => 1,
    }
}

fn await_end(agent: Pid) -> Option<WaitStatus> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == agent => return Some(status),
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}
