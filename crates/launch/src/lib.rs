//! The control plane: `horovodrun` is the driver, which starts an agent on every host, which starts
//! and watches the ranks there.
//!
//! ```text
//! driver ─▶ guardian ─▶ agent ─▶ rank, rank, …      one guardian and one agent per host
//!    ▲                             │
//!    └──────── rendezvous ─────────┘                where the ranks meet, on a socket of the driver
//! ```
//!
//! Nothing outlives the job, however a part of it ends: the agent removes everything when its pipe
//! from the driver closes; the guardian, to whom all orphans of the agent fall, when the agent ends;
//! the driver, by the mark in their environment, when both have gone. Decisions are in
//! `ronde-control`; this crate carries them out. It knows nothing of tensors.
//!
//! Under somebody else's launcher there is no driver: [`rank0_rendezvous`] opens the rendezvous in rank 0.
#![forbid(unsafe_code)]

pub mod agent;
pub mod caller;
pub mod delegate;
pub mod discovery;
pub mod doctor;
pub mod driver;
pub mod hidden;
pub mod hostfile;
pub mod hosts;
pub mod interfaces;
mod lifeline;
pub mod logs;
pub mod private;
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
pub use ronde_control::job::JobOutcome;
use ronde_control::wire::JobKey;

/// Why a job could not be run.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The machine would not give what every job needs.
    #[error("cannot {what}: {source}")]
    Machine {
        /// What was asked for.
        what: &'static str,
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
    /// The file of `--event-log` could not be made.
    #[error("cannot write the event log `{path}`: {source}")]
    EventLog {
        /// Path of the file or directory.
        path: String,
        /// The underlying I/O error.
        source: io::Error,
    },
    /// The files for what the ranks write could not be made.
    #[error("cannot keep output in `{path}`: {source}")]
    Files {
        /// Path of the file or directory.
        path: String,
        /// The underlying I/O error.
        source: io::Error,
    },
}

impl LaunchError {
    /// What to tell the user.
    fn report(&self) -> String {
        format!("error: {self}\n\nhint: {}\n", self.hint())
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            LaunchError::Files { .. } => "name a directory that can be made and written",
            LaunchError::EventLog { .. } => {
                "name a file that can be made, in a directory that exists"
            }
            LaunchError::Agent { .. } if !std::path::Path::new("/proc/self/stat").exists() => {
                "`/proc` is not mounted, and Ronde needs it to start and end processes: `mount -t proc \
                 proc /proc`, or start the container with it"
            }
            _ => "check the limits of this machine (`ulimit -a`) and run it again with `--verbose`",
        }
    }
}

/// A fresh key for a job.
pub fn new_key() -> Result<JobKey, LaunchError> {
    driver::entropy().map(JobKey::from_entropy)
}

fn machine(what: &'static str) -> impl FnOnce(io::Error) -> LaunchError {
    move |source| LaunchError::Machine { what, source }
}

/// Runs a job to its end: the blocking form for `main`, which also listens to this process's signals.
pub fn run(job: &Job) -> Result<JobOutcome, LaunchError> {
    block_on(async { driver::run(job, listen()?).await })
}

/// The same for a job whose ranks another launcher starts.
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
    // A screen that stands still does not hold the launcher back.
    runtime.shutdown_background();
    result
}
