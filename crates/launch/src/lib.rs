//! The control plane: `horovodrun` is the driver and starts an agent on every host; the agent
//! starts and watches the ranks there.
//!
//! ```text
//! driver ─▶ guardian ─▶ agent ─▶ rank, rank, …      one guardian and one agent per host
//!    ▲                             │
//!    └──────── rendezvous ─────────┘                ranks find each other through the driver
//! ```
//!
//! Nothing outlives the job, however a part of it ends. The agent kills all its processes when its
//! pipe from the driver closes. The guardian, which inherits all orphans of the agent, does so when
//! the agent ends. The driver finds processes by the mark in their environment when both are gone.
//! `ronde-control` makes the decisions; this crate carries them out. It knows nothing about
//! tensors.
//!
//! Under another launcher there is no driver: [`rank0_rendezvous`] opens the rendezvous in rank 0.
#![forbid(unsafe_code)]

pub mod agent;
mod authenticated;
pub mod caller;
mod cgroup;
pub mod copy;
pub mod delegate;
pub mod discovery;
pub mod doctor;
pub mod driver;
pub mod hidden;
pub mod hostfile;
pub mod hosts;
pub mod hub;
pub mod interfaces;
mod lifeline;
pub mod logs;
pub mod ports;
pub mod private;
pub mod provision;
pub mod rank0_rendezvous;
pub mod ranks;
pub mod reach;
pub mod registry;
pub mod signals;
pub mod source;
mod stream;
pub mod supervise;
pub mod watcher;
pub mod window;
mod wire;
pub mod writing;

use std::io;

pub use driver::{Job, OutputOptions, ScreenLogWriter, ScreenOptions};
pub use hidden::dispatch;
use ronde_control::WIDEN;
pub use ronde_control::job::JobOutcome;
use ronde_control::wire::JobKey;

/// Why a job could not be run.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The machine does not provide something that every job needs.
    #[error("cannot {what}: {source}")]
    Machine {
        /// What failed, as a verb phrase.
        what: &'static str,
        /// The underlying I/O error.
        source: io::Error,
    },
    /// No port of the range that the user has set can be listened on.
    #[error("the launcher cannot listen for the ranks: {source}")]
    Ports {
        /// The underlying I/O error.
        source: io::Error,
    },
    /// The agent of a host could not be started.
    #[error("cannot start the agent on `{host}`: {source}")]
    Agent {
        /// The host of the agent.
        host: String,
        /// The underlying I/O error.
        source: io::Error,
    },
    /// The file given with `--event-log` could not be created.
    #[error("cannot write the event log `{path}`: {source}")]
    EventLog {
        /// Path of the file or directory.
        path: String,
        /// The underlying I/O error.
        source: io::Error,
    },
    /// The files for the ranks' output could not be created.
    #[error("cannot save output in `{path}`: {source}")]
    Files {
        /// Path of the file or directory.
        path: String,
        /// The underlying I/O error.
        source: io::Error,
    },
}

impl LaunchError {
    /// The error and its hint, formatted for the user.
    fn report(&self) -> String {
        format!("error: {self}\n\nhint: {}\n", self.hint())
    }

    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            LaunchError::Files { .. } => "use a directory that can be created and written to",
            LaunchError::Ports { source } if source.kind() == io::ErrorKind::AddrInUse => WIDEN,
            LaunchError::Ports { .. } => "use ports above 1023, which need no privilege",
            LaunchError::EventLog { .. } => {
                "use a file that can be created, in an existing directory"
            }
            LaunchError::Agent { .. } if !std::path::Path::new("/proc/self/stat").exists() => {
                "`/proc` is not mounted, and Ronde needs it to start and end processes: `mount -t proc \
                 proc /proc`, or start the container with it"
            }
            _ => "check the limits of this machine (`ulimit -a`) and run it again with `--verbose`",
        }
    }
}

/// A new key for a job.
pub fn new_key() -> Result<JobKey, LaunchError> {
    driver::entropy().map(JobKey::from_entropy)
}

/// A random number.
pub fn random_number() -> Result<u64, LaunchError> {
    driver::entropy().map(u64::from_ne_bytes)
}

fn machine(what: &'static str) -> impl FnOnce(io::Error) -> LaunchError {
    move |source| LaunchError::Machine { what, source }
}

/// Runs a job to its end. Blocks, and handles this process's signals: for use in `main`.
pub fn run(job: &Job) -> Result<JobOutcome, LaunchError> {
    block_on(async { driver::run(job, listen()?).await })
}

/// Like [`run`], for a job whose ranks another launcher starts.
pub fn run_delegated(job: &driver::delegated::Delegated) -> Result<JobOutcome, LaunchError> {
    block_on(async { driver::delegated::run(job, listen()?).await })
}

fn listen() -> Result<signals::Signals, LaunchError> {
    signals::listen().map_err(machine("listen to signals"))
}

fn block_on<T>(work: impl Future<Output = Result<T, LaunchError>>) -> Result<T, LaunchError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(machine("start the event loop"))?;
    let result = runtime.block_on(work);
    // A blocked terminal must not delay the launcher's exit.
    runtime.shutdown_background();
    result
}
