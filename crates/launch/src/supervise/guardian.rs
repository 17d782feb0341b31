//! The parent of the agent, which outlives it to clear up.
//!
//! The guardian does nothing but wait. Because it is a subreaper, whatever the agent leaves behind
//! becomes its child and can be found, even without the job's mark. It has its own session, so that
//! the keys of a terminal reach only the driver. It keeps the agent's end of the pipe open: when the
//! driver sees it closed, nothing is left on this host.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use ronde_control::wire::JobKey;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper, setsid, wait,
};
use tokio::io::AsyncWriteExt;
use tokio::process::Child;

use super::{Scope, named, sweep};
use crate::private::Places;
use crate::{driver, hidden, registry, signals};

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

/// The same for an agent that dials in, whose guardian users have started: it offers what `words` say.
/// Somebody who wants this process to stop means the agent.
pub(crate) fn run_joining(program: &Path, words: &[OsString], key: &JobKey) -> io::Result<u8> {
    let own = getpid();
    let _ = set_child_subreaper(Some(own));
    let mark = driver::hex(&driver::entropy::<12>().map_err(io::Error::other)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let code = runtime.block_on(async {
        let mut signals = signals::listen()?;
        let mut agent = tokio::process::Command::new(program)
            .args([hidden::JOINING_AGENT, &mark, &own.as_raw_nonzero().to_string()])
            .args(words)
            .stdin(Stdio::piped())
            .spawn()?;
        if let Some(mut pipe) = agent.stdin.take() {
            pipe.write_all(key.to_hex().as_bytes()).await?;
        }
        let mut told = None;
        let status = loop {
            tokio::select! {
                status = agent.wait() => break status?,
                signal = signals.next() => pass_on(&agent, signal, &mut told),
            }
        };
        Ok(match (status.code(), told) {
            (Some(code @ 0..=1), _) => code as u8,
            (_, Some(signal)) => 128 + signal as u8,
            _ => super::code(status),
        })
    });
    sweep(&mark, Scope::Family);
    code
}

/// The first request to end lets the agent leave in order; it may have reached it, too.
fn pass_on(agent: &Child, number: i32, told: &mut Option<i32>) {
    let first = told.replace(number).is_none();
    let signal = match named(number) {
        Some(Signal::TERM) if first => Signal::USR1,
        Some(signal) => signal,
        None => return,
    };
    if let Some(pid) = agent.id().and_then(|pid| Pid::from_raw(pid as i32)) {
        let _ = kill_process(pid, signal);
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
