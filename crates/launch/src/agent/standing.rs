//! The standing agent: a process that waits on a host for launchers that hold its key, and starts a
//! guardian with an agent for each of them, as an ssh server would.
//!
//! Each connection is the pipe of one agent: when it closes, that agent ends its ranks; when the
//! agent has ended, the connection is closed. Several jobs may come one after the other, or at the
//! same time. Asked to stop, it accepts nobody any more, lets the agents leave in order, and exits
//! when the last one has.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use ronde_control::settings::RONDE_AGENT_KEY;
use ronde_control::wire::standing::{StandingAnswer, StandingInfo, StandingRequest};
use ronde_control::wire::{self, Callee, JobKey};
use ronde_control::{counted, printable};
use rustix::process::Signal;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;

use super::worker::OWN_PROGRAMS;
use crate::authenticated;
use crate::hidden;
use crate::signals::{self, Signals};
use crate::stream;
use crate::supervise::signal_child;
use crate::wire::SealedConnection;

/// How many jobs may use a host at the same time.
const MOST_JOBS: usize = 64;

/// How long the last bytes of an agent that has ended may take to reach its launcher.
const DRAIN: Duration = Duration::from_secs(5);

/// SIGTERM.
const TERMINATE: i32 = Signal::TERM.as_raw();

/// What a standing agent offers.
#[derive(Clone, Debug)]
pub struct StandingOffer {
    /// The key that launchers must hold.
    pub key: JobKey,
    /// What it says about its host.
    pub info: StandingInfo,
}

/// Serves launchers until a signal ends it; returns its exit code. `program` is this executable.
pub fn run(
    listener: std::net::TcpListener,
    offer: &StandingOffer,
    program: &Path,
) -> io::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let signals = signals::listen()?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        Ok(serve(listener, offer, program, signals).await)
    })
}

async fn serve(
    listener: TcpListener,
    offer: &StandingOffer,
    program: &Path,
    mut signals: Signals,
) -> u8 {
    let (orders, ordered) = watch::channel(0);
    // Every session holds a sender; when the last one is dropped, nothing is left.
    let (session, mut left) = mpsc::channel::<()>(1);
    let host = Arc::new(StandingHost {
        info: offer.info.clone(),
        program: program.to_owned(),
        room: Semaphore::new(MOST_JOBS),
        signals: ordered,
    });
    let greeted = move |_, sealed, wanted| {
        let (host, session) = (host.clone(), session.clone());
        async move {
            host.attend(sealed, wanted).await;
            drop(session);
        }
    };
    let authentication = (offer.key.clone(), Callee::StandingAgent);
    let accepting = tokio::spawn(authenticated::serve(listener, authentication, greeted));
    let first = signals.next().await;
    accepting.abort();
    let _ = accepting.await;
    orders.send_replace(first);
    loop {
        tokio::select! {
            _ = left.recv() => break,
            signal = signals.next() => drop(orders.send_replace(signal)),
        }
    }
    if first == TERMINATE { 0 } else { 128 + first as u8 }
}

/// What all sessions of a standing agent share.
struct StandingHost {
    info: StandingInfo,
    program: PathBuf,
    room: Semaphore,
    /// The last signal that this process has received, for the guardians.
    signals: watch::Receiver<i32>,
}

impl StandingHost {
    /// Serves a launcher that holds the key.
    async fn attend(&self, mut sealed: SealedConnection, wanted: StandingRequest) {
        let refused = |reason: &str| StandingAnswer::Refused { reason: reason.into() };
        let here = StandingAnswer::Here(self.info.clone());
        let StandingRequest::Start { mark } = &wanted else {
            // A caller that does not read the answer is none of our business.
            let _ = sealed.say(&here).await;
            return;
        };
        let Ok(_room) = self.room.try_acquire() else {
            let _ = sealed.say(&refused("it is running as many jobs as it can")).await;
            return;
        };
        if !wanted.is_valid() {
            let _ = sealed.say(&refused("it does not understand the request")).await;
            return;
        }
        say(&format!("a launcher has started a job, {mark}"));
        match self.run_agent(sealed, mark, wire::encode(&here)).await {
            Ok(()) => say(&format!("the job {mark} is over here")),
            Err(error) => say(&format!("cannot run an agent for the job {mark}: {error}")),
        }
    }

    /// Runs a guardian with its agent, whose pipe is the connection, until it ends.
    async fn run_agent(
        &self,
        sealed: SealedConnection,
        mark: &str,
        answer: Vec<u8>,
    ) -> io::Result<()> {
        let mut guardian = Command::new(&self.program)
            .args([hidden::GUARDIAN, mark])
            // The ranks are not to know it.
            .env_remove(RONDE_AGENT_KEY.name)
            .env(OWN_PROGRAMS, self.program.parent().unwrap_or(Path::new("")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(mut to_agent), Some(mut from_agent)) =
            (guardian.stdin.take(), guardian.stdout.take())
        else {
            return Err(io::Error::other("the guardian has no pipes"));
        };
        let (user, own) = stream::pipe();
        let (receiving, sending) = stream::join(sealed, Some(answer), own)?;
        let (mut from_launcher, mut to_launcher) = tokio::io::split(user);
        let hearing = tokio::spawn(async move {
            // Dropping the pipe at the end tells the agent that its launcher is gone.
            let _ = tokio::io::copy(&mut from_launcher, &mut to_agent).await;
        });
        let telling = tokio::spawn(async move {
            let _ = tokio::io::copy(&mut from_agent, &mut to_launcher).await;
        });
        let mut signals = self.signals.clone();
        let status = loop {
            tokio::select! {
                status = guardian.wait() => break status,
                Ok(()) = signals.changed() => signal_child(&guardian, *signals.borrow_and_update()),
            }
        };
        let _ = telling.await;
        hearing.abort();
        let _ = timeout(DRAIN, sending).await;
        receiving.abort();
        status.map(|_| ())
    }
}

/// Says how many ranks a standing agent takes, and where.
pub fn announce(info: &StandingInfo, address: std::net::SocketAddr) {
    let (name, slots) = (&info.name, counted(info.slots, "slot"));
    say(&format!("`{name}` waits for launchers at {address} with {slots}"));
}

fn say(text: &str) {
    let _ = writeln!(io::stderr(), "[ronde] {}", printable(text));
}
