//! The engine of this process: there is only one, no matter how many frameworks are loaded.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ronde_control::settings::{self, RankInfo};
use ronde_control::watching::Cycles;
use ronde_core::{Engine, Error};

use super::mpi::{Mpi, MpiHandle};
use super::{child, errors, handles, launched};

/// How long a wait may keep Python from handling a signal.
pub(crate) const SIGNAL_CHECK: Duration = Duration::from_millis(100);

/// Written only with the interpreter lock held, as it is held during a fork: so a forked child can
/// always read it, while a mutex might have been left locked by a thread that the child does not
/// have.
static PROCESS: RwLock<Option<RunningEngine>> = RwLock::new(None);

struct RunningEngine {
    engine: Arc<Engine>,
    /// A forked child inherits this memory, but neither the threads nor the connections.
    pid: u32,
    over_mpi: bool,
}

static LATE: Mutex<Option<PendingJoin>> = Mutex::new(None);

/// A process that joins its world when it first needs to.
struct PendingJoin {
    /// Called to join the world.
    arrive: Py<PyAny>,
    /// Its expected place.
    place: RankInfo,
    /// A forked child inherits this, too, and must not join in place of its parent.
    pid: u32,
}

/// The engine, for submitting and waiting.
pub(crate) fn engine() -> PyResult<Arc<Engine>> {
    engine_if_joined()?.ok_or_else(|| child::refusal().unwrap_or_else(not_initialized))
}

fn not_initialized() -> PyErr {
    PyValueError::new_err("Horovod has not been initialized; use hvd.init().")
}

/// The engine, if this process is part of a world; a pending join happens now.
pub(crate) fn engine_if_joined() -> PyResult<Option<Arc<Engine>>> {
    if let Some(engine) = running() {
        return Ok(Some(engine));
    }
    let late = lock_late().take_if(|late| late.pid == std::process::id());
    if let Some(PendingJoin { arrive, .. }) = late {
        Python::attach(|py| arrive.call0(py))?;
    }
    Ok(running())
}

/// Like [`engine_if_joined`] for native code, which cannot raise the error of a failed join.
pub(crate) fn native_engine() -> Option<Arc<Engine>> {
    engine_if_joined().ok().flatten()
}

/// Lets this process join its world later: when it first needs to. Until then its place is the one
/// that its environment names.
#[pyfunction]
pub(crate) fn init_later(arrive: Py<PyAny>) -> PyResult<()> {
    let variable = |name: &str| std::env::var(name).ok();
    let (_, place) = settings::read(variable).map_err(|error| refused(&error))?;
    *lock_late() = Some(PendingJoin { arrive, place, pid: std::process::id() });
    Ok(())
}

fn lock_late() -> MutexGuard<'static, Option<PendingJoin>> {
    LATE.lock().expect("nothing panics while it holds this lock")
}

/// The engine, if this process is part of a world.
pub(crate) fn running() -> Option<Arc<Engine>> {
    known()
        .as_ref()
        .filter(|running| running.pid == std::process::id())
        .map(|running| running.engine.clone())
}

/// Whether the ranks of this process's world have met over MPI.
pub(crate) fn met_over_mpi() -> bool {
    known().as_ref().is_some_and(|running| running.over_mpi)
}

/// The place of this process or, in a forked child, of the rank it was forked from.
pub(crate) fn inherited<T>(read: impl FnOnce(&RankInfo) -> T) -> Option<T> {
    known().as_ref().map(|running| read(running.engine.place()))
}

/// The rank that this process was forked from: its process ID and its place.
pub(crate) fn forked_from() -> Option<(u32, RankInfo)> {
    let own = std::process::id();
    if let Some(running) = known().as_ref() {
        return Some((running.pid, running.engine.place().clone())).filter(|(pid, _)| *pid != own);
    }
    let late = lock_late();
    late.as_ref().filter(|late| late.pid != own).map(|late| (late.pid, late.place.clone()))
}

/// Joins the world described by the environment, or by an MPI communicator.
#[pyfunction]
#[pyo3(signature = (mpi = None, comm = None))]
pub(crate) fn init(
    py: Python<'_>,
    mpi: Option<&Bound<'_, Mpi>>,
    comm: Option<MpiHandle>,
) -> PyResult<()> {
    if running().is_some() {
        return Ok(());
    }
    let variable = |name: &str| {
        let value = std::env::var(name).ok();
        if name == settings::RONDE_TUNING.name { value.map(content_of) } else { value }
    };
    let (settings, place) = settings::read(variable).map_err(|error| refused(&error))?;
    start_log();
    let mpi = mpi.map(Bound::get).zip(comm);
    let place = launched::find_place(py, place, mpi, settings.join_timeout)?;
    let engine = match place.rendezvous_info {
        None => Engine::join(&settings, place),
        Some(_) => interruptible(py, move || Engine::join(&settings, place))?,
    };
    let engine = engine.map_err(|error| match error {
        Error::Removed { .. } => errors::raise(py, &error),
        error => refused(&error),
    })?;
    handles::forget_done();
    errors::forget();
    let engine = Arc::new(engine);
    let running = RunningEngine { engine, pid: std::process::id(), over_mpi: mpi.is_some() };
    let before = change().replace(running);
    handles::after_joining();
    // A forked child must not close what it has inherited.
    if let Some(inherited) = before {
        std::mem::forget(inherited);
    }
    Ok(())
}

/// The exception of an `init` that failed, with Horovod's text and then ours.
pub(crate) fn refused(error: &dyn std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!(
        "Horovod initialization failed. Please check log messages above for a more descriptive \
         error. {error}"
    ))
}

/// The value of a setting that may name a file: the file's content, or else the value itself.
fn content_of(value: String) -> String {
    std::fs::read_to_string(&value).unwrap_or(value)
}

/// Whether the interpreter is about to end. Only daemon threads are left then, and Python ends a
/// thread that requests the interpreter lock, whatever native code it is in.
static EXITING: AtomicBool = AtomicBool::new(false);

/// Keeps a thread that has waited without the interpreter lock from requesting it while the
/// interpreter ends.
pub(crate) fn park_at_exit() {
    while EXITING.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// Leaves the world; `exiting` says that the interpreter is ending, too.
#[pyfunction]
#[pyo3(signature = (error = None, exiting = false))]
pub(crate) fn shutdown(py: Python<'_>, error: Option<String>, exiting: bool) -> PyResult<()> {
    if running().is_none()
        && !exiting
        && let Some(refusal) = child::refusal()
    {
        return Err(refusal);
    }
    EXITING.store(exiting, Ordering::SeqCst);
    let pending = lock_late().take();
    drop(pending);
    if let Some(engine) = running() {
        end(py, &engine, error);
    }
    if exiting {
        py.detach(launched::finish);
    }
    Ok(())
}

fn end(py: Python<'_>, engine: &Arc<Engine>, error: Option<String>) {
    // Until it has ended, other threads must still find the engine: they may be waiting in it, and
    // it refuses their new submissions.
    py.detach(|| engine.shutdown(error));
    change().take_if(|running| Arc::ptr_eq(&running.engine, engine));
    handles::release_engine(engine);
}

/// Starts a timeline; all ranks may request it, and rank 0 writes it.
#[pyfunction]
#[pyo3(signature = (path, mark_cycles = false))]
pub(crate) fn start_timeline(py: Python<'_>, path: PathBuf, mark_cycles: bool) -> PyResult<()> {
    let engine = engine()?;
    let cycles = if mark_cycles { Cycles::Marked } else { Cycles::Unmarked };
    py.detach(move || engine.start_timeline(&path, cycles))
        .map_err(|error| errors::raise(py, &error))
}

/// Ends the timeline.
#[pyfunction]
pub(crate) fn stop_timeline(py: Python<'_>) -> PyResult<()> {
    let engine = engine()?;
    py.detach(|| engine.stop_timeline()).map_err(|error| errors::raise(py, &error))
}

/// Whether this process is part of a world, or a child of a process that is.
#[pyfunction]
pub(crate) fn is_initialized() -> bool {
    known().is_some() || lock_late().is_some() || child::spawned_by().is_some()
}

/// The rank of this process.
#[pyfunction]
pub(crate) fn rank() -> PyResult<u32> {
    place(|place| place.rank.0)
}

/// The number of ranks.
#[pyfunction]
pub(crate) fn size() -> PyResult<u32> {
    place(|place| place.size)
}

/// The rank of this process among those on its host.
#[pyfunction]
pub(crate) fn local_rank() -> PyResult<u32> {
    place(|place| place.local_rank)
}

/// The number of ranks on this host.
#[pyfunction]
pub(crate) fn local_size() -> PyResult<u32> {
    place(|place| place.local_size)
}

/// The rank of this host among those with this local rank.
#[pyfunction]
pub(crate) fn cross_rank() -> PyResult<u32> {
    place(|place| place.cross_rank)
}

/// The number of hosts with this local rank.
#[pyfunction]
pub(crate) fn cross_size() -> PyResult<u32> {
    place(|place| place.cross_size)
}

/// Whether every host has the same number of ranks.
#[pyfunction]
pub(crate) fn is_homogeneous() -> PyResult<bool> {
    place(homogeneous)
}

/// Whether every host has the same number of ranks, as far as this one can tell.
pub(crate) fn homogeneous(place: &RankInfo) -> bool {
    place.local_size * place.cross_size == place.size
}

/// The place of this process, or of the rank that it is a child of.
pub(crate) fn place<T>(read: impl FnOnce(&RankInfo) -> T) -> PyResult<T> {
    if let Some(PendingJoin { place, .. }) = &*lock_late() {
        return Ok(read(place));
    }
    if let Some(running) = known().as_ref() {
        return Ok(read(running.engine.place()));
    }
    let parent = child::spawned_by().ok_or_else(not_initialized)?;
    Ok(read(parent.place()))
}

/// Runs something long in a separate thread, so that Ctrl-C can interrupt the wait for it.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = sync_channel(1);
    let thread = std::thread::Builder::new()
        .name("ronde-join".into())
        .spawn(move || sender.send(work()).is_ok())
        .map_err(|error| errors::raise(py, &Error::Setup(error.to_string())))?;
    let receiver = Mutex::new(receiver);
    loop {
        let received = py.detach(|| {
            receiver.lock().expect("nobody else takes this lock").recv_timeout(SIGNAL_CHECK)
        });
        match received {
            Ok(done) => {
                let _ = thread.join();
                return Ok(done);
            }
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(errors::raise(py, &Error::Setup("joining the world panicked".into())));
            }
        }
    }
}

fn start_log() {
    let level = std::env::var("RONDE_LOG").or_else(|_| std::env::var("HOROVOD_LOG_LEVEL"));
    let level = level.unwrap_or_default().to_ascii_lowercase();
    let level = match level.as_str() {
        "trace" | "debug" | "info" | "error" => level.as_str(),
        "fatal" => "error",
        _ => "warn",
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new(format!(
            "ronde_core={level},ronde_launch={level}"
        )))
        .with_writer(std::io::stderr)
        .with_ansi(false);
    let hidden = std::env::var(settings::HOROVOD_LOG_HIDE_TIME.name).unwrap_or_default();
    // A second `init`, or a program with its own subscriber, keeps the existing one.
    let _ = match hidden.trim().parse::<i64>().is_ok_and(|number| number > 0) {
        true => log.without_time().try_init(),
        false => log.try_init(),
    };
}

fn known() -> RwLockReadGuard<'static, Option<RunningEngine>> {
    PROCESS.read().expect("nothing panics while it holds this lock")
}

fn change() -> RwLockWriteGuard<'static, Option<RunningEngine>> {
    PROCESS.write().expect("nothing panics while it holds this lock")
}
