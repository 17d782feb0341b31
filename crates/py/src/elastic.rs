//! An elastic job as Python sees it: the launcher's announcements of the next world, and messages
//! to the launcher.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ronde_control::settings::{self, Growth};
use ronde_control::wire::{Change, Milestone};
use ronde_core::engine::{Engine, UpdateWait};

use super::process::{SIGNAL_CHECK, park_at_exit, running};

/// How long to wait for an announcement while there is no world: a caller that polls must not keep
/// a processor busy.
const NO_WORLD: Duration = Duration::from_millis(20);
/// Maximum timeout in seconds: longer than anyone will wait.
const MAX_TIMEOUT: f64 = 1e9;

/// The job's elasticity according to the environment. It is read once: a process never changes from
/// one kind of job to another.
fn growth() -> Growth {
    static GROWTH: OnceLock<Growth> = OnceLock::new();
    *GROWTH.get_or_init(|| settings::growth(|name| std::env::var(name).ok()))
}

/// Whether this process is a worker of an elastic job.
#[pyfunction]
pub(crate) fn is_elastic() -> bool {
    matches!(growth(), Growth::Elastic(_))
}

/// Whether the next world may have a different number of ranks.
#[pyfunction]
pub(crate) fn may_grow() -> bool {
    growth() != Growth::Never
}

/// Waits for an announcement of the next world with a number above `seen`.
#[pyfunction]
pub(crate) fn elastic_update(
    py: Python<'_>,
    seen: u64,
    timeout: f64,
) -> PyResult<Option<(u64, u32)>> {
    let timeout = Duration::from_secs_f64(timeout.clamp(0.0, MAX_TIMEOUT));
    // The engine must be able to end meanwhile, so this does not hold on to it.
    let Some(updates) = running().and_then(|engine| engine.updates()) else {
        wait(py, || std::thread::sleep(timeout.min(NO_WORLD)));
        return Ok(None);
    };
    let end = Instant::now() + timeout;
    // Only the main thread handles signals.
    let is_main = rustix::thread::gettid() == rustix::process::getpid();
    let turn = if is_main { SIGNAL_CHECK } else { timeout };
    loop {
        let until = end.min(Instant::now() + turn);
        match wait(py, || updates.wait(seen, until)) {
            UpdateWait::Heard { number, change } => return Ok(Some((number, flags(change)))),
            UpdateWait::Over => return Ok(None),
            UpdateWait::None if Instant::now() >= end => return Ok(None),
            UpdateWait::None => py.check_signals()?,
        }
    }
}

/// Reports a milestone of this worker in this world to the launcher.
#[pyfunction]
pub(crate) fn elastic_reached(py: Python<'_>, milestone: &str) -> PyResult<()> {
    let milestone = match milestone {
        "state" => Milestone::State,
        "commit" => Milestone::Commit,
        other => {
            let error = format!("a milestone is `state` or `commit`, not `{other}`");
            return Err(PyValueError::new_err(error));
        }
    };
    with_engine(py, |engine| engine.reached(milestone));
    Ok(())
}

/// Tells the launcher that this worker wants to be left out of the next world.
#[pyfunction]
pub(crate) fn elastic_departing(py: Python<'_>, reason: String) {
    with_engine(py, |engine| engine.departing(reason));
}

fn with_engine(py: Python<'_>, call: impl FnOnce(Arc<Engine>) + Send) {
    if let Some(engine) = running() {
        py.detach(|| call(engine));
    }
}

/// Waits without the interpreter lock.
fn wait<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    py.detach(|| {
        let done = work();
        park_at_exit();
        done
    })
}

fn flags(change: Change) -> u32 {
    u32::from(change.removed) | u32::from(change.added) << 1 | u32::from(change.coming) << 2
}
