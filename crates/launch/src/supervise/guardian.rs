//! The parent of the agent, which outlives it to clear up.
//!
//! The guardian does nothing but wait. Because it is a subreaper, whatever the agent leaves behind
//! becomes its child and can be found, even without the job's mark. It has its own session, so that
//! the keys of a terminal reach only the driver. It keeps the agent's end of the pipe open: when the
//! driver sees it closed, nothing is left on this host.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use ronde_control::wire::{JobKey, encode};
use rustix::process::{Signal, getpid, set_child_subreaper, setsid};
use tokio::io::AsyncWriteExt;

use super::{Scope, signal_child, sweep};
use crate::agent::join::AgentOffer;
use crate::private::PrivateDirs;
use crate::{driver, hidden, registry, signals};

/// Starts the agent and waits for its end; gives its exit code, 128 and more for a signal.
pub fn run(program: &Path, mark: &OsStr) -> u8 {
    let _ = setsid();
    let own = getpid();
    let _ = set_child_subreaper(Some(own));
    let number = own.as_raw_nonzero().to_string();
    let mut agent = Command::new(program);
    let status = agent.arg(hidden::AGENT).arg(mark).arg(number).status();
    sweep(&mark.to_string_lossy(), Scope::Family);
    // A driver on this host that was killed has left its entry behind.
    registry::jobs(&PrivateDirs::here());
    status.map(super::code).unwrap_or_else(|error| {
        tracing::error!(%error, "the agent could not be started, or not be waited for");
        126
    })
}

/// The same for an agent that dials in, whose guardian users have started: it makes this offering to
/// whoever holds the key, which stands on no command line.
/// Somebody who wants this process to stop means the agent.
pub fn run_joining(program: &Path, agent_offer: &AgentOffer, key: &JobKey) -> io::Result<u8> {
    let own = getpid();
    let _ = set_child_subreaper(Some(own));
    let mark = driver::hex(&driver::entropy::<12>().map_err(io::Error::other)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let code = runtime.block_on(async {
        let mut signals = signals::listen()?;
        let mut agent = tokio::process::Command::new(program)
            .args([hidden::JOINING_AGENT, &mark, &own.as_raw_nonzero().to_string()])
            .stdin(Stdio::piped())
            .spawn()?;
        if let Some(mut pipe) = agent.stdin.take() {
            pipe.write_all(&encode(&(agent_offer, key))).await?;
        }
        let mut told = None;
        let status = loop {
            tokio::select! {
                status = agent.wait() => break status?,
                signal = signals.next() => {
                    // The first request to end lets the agent leave in order; it may have reached it,
                    // too.
                    let leave = signal == Signal::TERM.as_raw() && told.is_none();
                    signal_child(&agent, if leave { Signal::USR1.as_raw() } else { signal });
                    told = Some(signal);
                }
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
