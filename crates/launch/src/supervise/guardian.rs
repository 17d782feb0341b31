//! The parent of the agent; it outlives the agent to clean up.
//!
//! The guardian only waits, and passes signals on. It is a subreaper, so every process that the agent leaves behind
//! becomes its child and can be found, even without the job's mark. It has its own session, so that
//! the terminal's signals reach only the driver. It keeps the agent's end of the pipe open: when
//! the driver sees that closed, nothing is left on this host.

use std::ffi::OsStr;
use std::future::pending;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Stdio;

use ronde_control::to_hex;
use ronde_control::wire::{JobKey, encode};
use rustix::process::{Signal, getpid, set_child_subreaper, setsid};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::process::Child;

use super::{Scope, signal_child, sweep};
use crate::agent::join::AgentOffer;
use crate::private::PrivateDirs;
use crate::signals::Signals;
use crate::{driver, hidden, registry, signals};

/// Starts the agent and waits for it; returns its exit code, 128 plus the signal if one killed it.
pub fn run(program: &Path, mark: &OsStr) -> u8 {
    let _ = setsid();
    let code = guard(program, (hidden::AGENT, mark), None, AgentLifetime::UntilSignaled);
    // A killed driver on this host has left its registry entry behind.
    registry::jobs(&PrivateDirs::here());
    code.unwrap_or_else(|error| {
        tracing::error!(%error, "could not start the agent or wait for it");
        126
    })
}

/// Like [`run`], for an agent that dials in and whose guardian was started by the user. The
/// agent makes this offer to a launcher that holds the key; the key is never on a command line. A
/// signal to this process is meant for the agent.
pub fn run_joining(
    program: &Path,
    agent_offer: &AgentOffer,
    key: &JobKey,
    lifetime: AgentLifetime,
) -> io::Result<u8> {
    let mark = to_hex(&driver::entropy::<12>().map_err(io::Error::other)?);
    let offer = encode(&(agent_offer, key));
    guard(program, (hidden::JOINING_AGENT, OsStr::new(&mark)), Some(offer), lifetime)
}

/// How long an agent may run that joins a job by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentLifetime {
    /// Until its job ends or it gets a signal.
    UntilSignaled,
    /// Also only as long as standard input, a pipe, is open: as long as the program that started it
    /// lives.
    WithStdin,
}

impl AgentLifetime {
    /// The pipe that ends it, if there is one.
    fn pipe(self) -> io::Result<Option<pipe::Receiver>> {
        match self {
            AgentLifetime::UntilSignaled => Ok(None),
            AgentLifetime::WithStdin => {
                let input = io::stdin().as_fd().try_clone_to_owned()?;
                pipe::Receiver::from_owned_fd(input).map(Some)
            }
        }
    }
}

/// Starts an agent, writes `input` to its standard input, waits for it and cleans up.
fn guard(
    program: &Path,
    (part, mark): (&str, &OsStr),
    input: Option<Vec<u8>>,
    lifetime: AgentLifetime,
) -> io::Result<u8> {
    let own = getpid();
    let _ = set_child_subreaper(Some(own));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let code = runtime.block_on(async {
        let (signals, owner) = (signals::listen()?, lifetime.pipe()?);
        let mut agent = tokio::process::Command::new(program);
        agent.arg(part).arg(mark).arg(own.as_raw_nonzero().to_string());
        if input.is_some() {
            agent.stdin(Stdio::piped());
        }
        let mut agent = agent.spawn()?;
        if let (Some(mut pipe), Some(input)) = (agent.stdin.take(), input) {
            pipe.write_all(&input).await?;
        }
        wait(agent, signals, owner).await
    });
    sweep(&mark.to_string_lossy(), Scope::Family);
    code
}

/// Waits for the agent, passes signals on to it, and ends it when its owner has gone.
async fn wait(
    mut agent: Child,
    mut signals: Signals,
    mut owner: Option<pipe::Receiver>,
) -> io::Result<u8> {
    let mut last_signal = None;
    let status = loop {
        tokio::select! {
            status = agent.wait() => break status?,
            () = closed(&mut owner) => {
                owner = None;
                last_signal = Some(Signal::TERM.as_raw());
                signal_child(&agent, Signal::TERM.as_raw());
            }
            signal = signals.next() => {
                // The first SIGTERM lets the agent leave in order; the agent may have received it
                // as well.
                let leave = signal == Signal::TERM.as_raw() && last_signal.is_none();
                signal_child(&agent, if leave { Signal::USR1.as_raw() } else { signal });
                last_signal = Some(signal);
            }
        }
    };
    Ok(match (status.code(), last_signal) {
        (Some(code @ 0..=1), _) => code as u8,
        (_, Some(signal)) => 128 + signal as u8,
        _ => super::code(status),
    })
}

/// Waits until the other end of the pipe is closed; for ever if there is none.
async fn closed(pipe: &mut Option<pipe::Receiver>) {
    let Some(pipe) = pipe else { return pending().await };
    let mut ignored = [0; 64];
    while pipe.read(&mut ignored).await.is_ok_and(|count| count > 0) {}
}
