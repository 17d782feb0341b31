//! An elastic job as Python sees it: what the launcher says of the next world, and what it is told.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ronde_control::settings::{self, Growth};
use ronde_control::wire::{Change, Milestone};
use ronde_core::engine::{Engine, News};

use super::process::{SIGNAL_CHECK, running, stay_out_at_exit};

/// How long somebody waits who asks for news while there is no world: whoever asks again and again
/// must not keep a processor busy with it.
const NO_WORLD: Duration = Duration::from_millis(20);
/// A longer wait than this has no end that anybody will see.
const LONGEST: f64 = 1e9;

/// What the environment says of the job's elasticity. It is read once, when somebody first asks: no
/// process changes from one kind of job to another.
fn growth() -> Growth {
    static GROWTH: OnceLock<Growth> = OnceLock::new();
    *GROWTH.get_or_init(|| settings::growth(|name| std::env::var(name).ok()))
}

/// Whether this process is a worker of an elastic job.
#[pyfunction]
pub(crate) fn is_elastic() -> bool {
    matches!(growth(), Growth::Elastic(_))
}

/// Whether the next world may have another number of ranks.
#[pyfunction]
pub(crate) fn may_grow() -> bool {
    growth() != Growth::Never
}

/// Waits for news of the next world that are later than `seen`.
#[pyfunction]
pub(crate) fn elastic_update(
    py: Python<'_>,
    seen: u64,
    timeout: f64,
) -> PyResult<Option<(u64, u32)>> {
    let timeout = Duration::from_secs_f64(timeout.clamp(0.0, LONGEST));
    // The engine itself must be free to end meanwhile, so it is let go of.
    let Some(updates) = running().and_then(|engine| engine.updates()) else {
        wait(py, || std::thread::sleep(timeout.min(NO_WORLD)));
        return Ok(None);
    };
    let end = Instant::now() + timeout;
    // Only the main thread has signals to look after.
    let is_main = rustix::thread::gettid() == rustix::process::getpid();
    let turn = if is_main { SIGNAL_CHECK } else { timeout };
    loop {
        let until = end.min(Instant::now() + turn);
        match wait(py, || updates.wait(seen, until)) {
            News::Heard { number, change } => return Ok(Some((number, flags(change)))),
            News::Over => return Ok(None),
            News::None if Instant::now() >= end => return Ok(None),
            News::None => py.check_signals()?,
        }
    }
}

/// Tells the launcher how far this worker has come in this world.
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

fn with_engine(py: Python<'_>, say: impl FnOnce(Arc<Engine>) + Send) {
    if let Some(engine) = running() {
        py.detach(|| say(engine));
    }
}

/// Waits without the interpreter lock.
fn wait<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    py.detach(|| {
        let done = work();
        stay_out_at_exit();
        done
    })
}

fn flags(change: Change) -> u32 {
    u32::from(change.removed) | u32::from(change.added) << 1 | u32::from(change.coming) << 2
}
