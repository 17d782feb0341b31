//! The driver: starts the agents, runs the rendezvous, shows the output, and ends the job.
//!
//! One loop handles all inputs in the order in which they arrive. The state machine in
//! `ronde_control::job`, which serves all kinds of jobs, decides what they mean; the `executor`
//! carries its decisions out. Other modules connect it to the screen and standard input
//! (`context`), to the agents (`agent_handle`) and to the ranks themselves (`service`).

pub(crate) mod agent_handle;
mod cluster;
mod context;
pub mod delegated;
mod display;
mod environment;
mod event_bus;
mod executor;
mod files;
mod remote_call;
mod screen;
pub mod service;
mod side_connections;
pub(crate) mod start;
mod stdin;
mod watchers;

use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ronde_control::job::{JobOutcome, JobSpec};
use ronde_control::settings::{self, HostNetwork};
use ronde_control::wire::agent::{AgentToDriver, OutputStream, Terminal, WindowSize};
use ronde_control::wire::{Greeting, RankToDriver};
use ronde_control::{ConnectionId, Rank, event};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::hosts::Host;
use crate::logs::{Times, prefix};
use crate::private::PrivateDirs;
use crate::ranks::RankSet;
use crate::reach::dialed::DialedAgent;
use crate::reach::{HostProblem, ReachMethod};
use crate::signals::Signals;
use crate::source::HostSource;
use crate::window::{self, Window};
use crate::wire::SealedConnection;
use crate::{LaunchError, machine};
use event_bus::Subscription;
use executor::Driver;
use remote_call::CallResult;
pub use screen::ScreenLogWriter;
use screen::WindowCredit;
use service::Outbox;
pub use start::Span;
use watchers::Reply;

/// Inputs that may be queued for the driver; further senders wait.
const NEWS: usize = 1024;

/// A job, ready to run.
#[derive(Clone, Debug)]
pub struct Job {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// How many ranks run it, and whether the job survives losing some.
    pub job_spec: JobSpec,
    /// Where its hosts come from.
    pub hosts: HostSource,
    /// The environment that all ranks inherit.
    pub env: Vec<(OsString, OsString)>,
    /// Where all ranks run.
    pub cwd: PathBuf,
    /// This executable, which is also the agent.
    pub program: PathBuf,
    /// Where the ranks meet if all hosts are this machine; otherwise all addresses are tried.
    pub listen: IpAddr,
    /// The network interfaces that hosts may use to reach each other; all if empty.
    pub interfaces: Vec<String>,
    /// How this machine can be reached, and the ports that hosts may use.
    pub network: HostNetwork,
    /// How long hosts may take to find each other.
    pub start_timeout: Duration,
    /// How many GPUs of its host each rank sees; `None` leaves that to the ranks.
    pub gpus_per_rank: Option<u32>,
    /// What happens to the ranks' output.
    pub output: OutputOptions,
    /// Where watchers find the job, if watching is enabled.
    pub registry: Option<PrivateDirs>,
    /// The function that all ranks call, if `horovod.run` starts this job.
    pub function: Option<Arc<[u8]>>,
    /// Receives what ranks deliver, piece by piece, if this process itself wants it; output is then
    /// shown as usual.
    pub deliveries: Option<std::sync::mpsc::Sender<Vec<u8>>>,
}

impl Job {
    /// How long ranks may wait for a stalled one, if the user has set a limit.
    fn stall_shutdown(&self) -> Option<Duration> {
        settings::stall_shutdown(|name| {
            let (_, value) = self.env.iter().rev().find(|(known, _)| known == name)?;
            value.to_str().map(str::to_owned)
        })
    }
}

/// What happens to the ranks' output.
#[derive(Clone, Debug, Default)]
pub struct OutputOptions {
    /// The directory in which to save it as well.
    pub files: Option<PathBuf>,
    /// Whether lines begin with the time.
    pub times: Times,
    /// The file to which the job's events are written as JSON lines.
    pub event_log: Option<PathBuf>,
    /// Which ranks' output the screen shows, and which of them have a terminal.
    pub screen: ScreenOptions,
}

/// Which ranks' output the screen shows, and which of them have a terminal.
#[derive(Clone, Debug)]
pub struct ScreenOptions {
    /// The ranks whose output is shown; that of others only goes to files.
    pub shown: RankSet,
    /// The ranks that have a terminal instead of pipes.
    pub terminals: RankSet,
    /// The launcher's own terminal, if it has one.
    pub window: Option<Window>,
}

impl Default for ScreenOptions {
    fn default() -> ScreenOptions {
        ScreenOptions { shown: RankSet::All, terminals: RankSet::None, window: None }
    }
}

impl ScreenOptions {
    /// The rank whose terminal is passed through to the launcher's own.
    fn passed_through(&self) -> Option<Rank> {
        self.window.and_then(|_| self.terminals.lowest_of_both(&self.shown))
    }

    /// The terminal of a rank, if it has one; `size` is the size of the launcher's terminal.
    fn terminal(&self, rank: Rank, size: WindowSize) -> Option<Terminal> {
        if !self.terminals.contains(rank) {
            return None;
        }
        // Each line of the other ranks has a prefix.
        let used = match self.passed_through() == Some(rank) {
            true => 0,
            false => prefix(rank, OutputStream::Stdout).len() as u16,
        };
        let columns = size.columns.saturating_sub(used).max(1);
        let stderr = self.window.is_some_and(|window| window.stderr);
        Some(Terminal { size: WindowSize { columns, ..size }, stderr })
    }
}

/// Everything that the driver reacts to.
pub(crate) enum DriverInput {
    /// A rank has connected to the rendezvous.
    Greeted(ConnectionId, Greeting, Outbox),
    /// A rank sent a message.
    Said(ConnectionId, RankToDriver),
    /// A rank's connection has ended, no matter from which side.
    Closed(ConnectionId),
    /// An agent is late; this says which one, and why.
    Late(String),
    /// An agent has started; this is its version.
    Hello(usize, String),
    /// An agent sent a message.
    Agent(usize, AgentToDriver),
    /// An agent has ended, for this reason.
    AgentGone(usize, HostProblem),
    /// A host has stopped responding, or its lifeline was cut.
    Silent(usize, io::Error),
    /// Output has been written.
    Printed(WindowCredit),
    /// Standard input, or its end.
    Stdin(Option<Vec<u8>>),
    /// An authenticated peer has connected for something other than the rendezvous.
    SideConnection(SealedConnection, Greeting),
    /// A rank has returned something to the caller of `horovod.run`.
    Returned(Rank, CallResult),
    /// A watcher asks for the job's status.
    Asked(Reply),
    /// An agent that this launcher did not start offers its host.
    Offered(DialedAgent),
    /// A watcher subscribes to the events from now on.
    Followed(oneshot::Sender<Subscription>),
    /// Output of the job could not be written.
    OutputLost(event::OutputKind, String),
    /// The standing agent of this host was started again, after it had gone.
    StandsAgain(String),
    /// The current hosts of an elastic job, or why they are unknown.
    Hosts(Result<Vec<(Host, ReachMethod)>, String>),
}

/// Runs a job to its end.
pub async fn run(job: &Job, mut signals: Signals) -> Result<JobOutcome, LaunchError> {
    let (sender, mut news) = mpsc::channel(NEWS);
    let mut driver = Driver::start(job, sender).await?;
    let start = Instant::now();
    let mut resizes = signals.resizes();
    driver.tick(start.elapsed());
    while !driver.is_over() {
        let wakeup = driver.next_wakeup().map(|time| start + time);
        tokio::select! {
            Some(item) = news.recv() => driver.on(item, start.elapsed()),
            signal = signals.next() => driver.signalled(signal, start.elapsed()),
            () = resizes.next() => driver.resized(window::size()),
            () = sleep_until(wakeup.unwrap_or(start)), if wakeup.is_some() => {}
        }
        driver.tick(start.elapsed());
    }
    while let Ok(item) = news.try_recv() {
        driver.on(item, start.elapsed());
    }
    // Otherwise the threads would wait for a loop that has ended.
    drop(news);
    Ok(driver.finish(&mut signals).await)
}

/// Cryptographically secure random bytes.
pub(crate) fn entropy<const COUNT: usize>() -> Result<[u8; COUNT], LaunchError> {
    let mut bytes = [0; COUNT];
    let count = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match count {
        Ok(count) if count == COUNT => Ok(bytes),
        Ok(_) => Err(machine("get random bytes")(std::io::Error::other("too few were returned"))),
        Err(error) => Err(machine("get random bytes")(error.into())),
    }
}
