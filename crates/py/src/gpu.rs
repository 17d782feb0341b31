//! The GPUs of Python tensors: their streams, and memory for results.
//!
//! What a framework knows better is asked of it: the stream that its code runs on now, and a tensor
//! for a result from its own allocator. `horovod.torch` registers both.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use ronde_control::settings;
use ronde_core::Error;
use ronde_core::device::{
    DeviceError, Event, FoundGpu, FoundLibrary, Gpu, GpuLibraries, LibraryPaths,
};
use ronde_core::engine::Engine;

use super::errors;
use super::process::engine_if_joined;

/// How long a wait for the GPU sleeps before it looks again: nothing wakes it.
const LOOK_EVERY: Duration = Duration::from_micros(50);

/// What a framework does for its tensors on GPUs.
struct Streams {
    /// The stream of this thread on a GPU: `current_stream(index) -> int`.
    current: Py<PyAny>,
    /// A tensor like another one, with so many rows, from the memory of a stream:
    /// `allocate(like, rows, stream) -> tensor`.
    allocate: Py<PyAny>,
}

static STREAMS: Mutex<Option<Arc<Streams>>> = Mutex::new(None);

/// Registers the framework's functions.
#[pyfunction]
pub(crate) fn use_streams(current_stream: Py<PyAny>, allocate: Py<PyAny>) {
    let streams = Arc::new(Streams { current: current_stream, allocate });
    *STREAMS.lock().expect("nothing panics while it holds this lock") = Some(streams);
}

/// The version of NCCL as a number, or 0 if there is no GPU or no NCCL.
#[pyfunction]
pub(crate) fn nccl_version(py: Python<'_>) -> u32 {
    libraries(py).and_then(|libraries| libraries.nccl()).map_or(0, |nccl| nccl.version())
}

/// Whether the NVIDIA driver can be opened, and is new enough.
#[pyfunction]
pub(crate) fn has_cuda(py: Python<'_>) -> bool {
    libraries(py).is_ok()
}

static PATHS: OnceLock<LibraryPaths> = OnceLock::new();

/// Remembers where the libraries may be, for code that runs without the interpreter lock. Nothing
/// is opened yet.
pub(crate) fn remember_paths(py: Python<'_>) {
    PATHS.get_or_init(|| paths(py));
}

fn libraries(py: Python<'_>) -> Result<Arc<GpuLibraries>, DeviceError> {
    remember_paths(py);
    opened_libraries()
}

fn opened_libraries() -> Result<Arc<GpuLibraries>, DeviceError> {
    static LIBRARIES: OnceLock<Result<Arc<GpuLibraries>, DeviceError>> = OnceLock::new();
    let paths = || PATHS.get().cloned().unwrap_or_default();
    LIBRARIES.get_or_init(|| GpuLibraries::open(paths())).clone()
}

/// Where Python's packages are, and what the environment names.
fn paths(py: Python<'_>) -> LibraryPaths {
    let folders = py.import("sys").and_then(|sys| sys.getattr("path")?.extract::<Vec<PathBuf>>());
    let named = settings::named_libraries(|name| std::env::var(name).ok());
    LibraryPaths {
        driver: named.driver.map(PathBuf::from),
        nccl: named.nccl.map(PathBuf::from),
        packages: folders.unwrap_or_default(),
        connects_early: named.connects_early,
    }
}

/// What `ronde doctor` shows about GPUs, as `ronde-launch` reads it in `agent/gpus.rs`. Lists the
/// GPUs only if asked to, because that initializes the driver.
#[pyfunction]
pub(crate) fn gpu_software(py: Python<'_>, list_gpus: bool) -> PyResult<Bound<'_, PyDict>> {
    let paths = paths(py);
    let software = PyDict::new(py);
    let driver = library(py, paths.find_driver())?;
    let mut gpus = Vec::new();
    match if list_gpus { paths.find_gpus() } else { Ok(Vec::new()) } {
        Ok(all) => {
            for FoundGpu { name, memory_bytes } in all {
                let gpu = PyDict::new(py);
                gpu.set_item("name", name)?;
                gpu.set_item("memory_bytes", memory_bytes)?;
                gpus.push(gpu);
            }
        }
        Err(error) => driver.set_item("problem", error.to_string())?,
    }
    software.set_item("driver", driver)?;
    software.set_item("nccl", library(py, paths.find_nccl())?)?;
    software.set_item("gpus", gpus)?;
    Ok(software)
}

fn library(
    py: Python<'_>,
    found: Result<FoundLibrary, DeviceError>,
) -> PyResult<Bound<'_, PyDict>> {
    let library = PyDict::new(py);
    match found {
        Ok(FoundLibrary { version, path }) => {
            library.set_item("version", version)?;
            library.set_item("path", path)?;
        }
        Err(error) => library.set_item("problem", error.to_string())?,
    }
    Ok(library)
}

/// The GPU with this index.
pub(crate) fn of(py: Python<'_>, index: u32) -> PyResult<Arc<Gpu>> {
    libraries(py).and_then(|libraries| keep(&libraries, index)).map_err(|error| failed(&error))
}

/// The GPU of a stream, without the interpreter lock.
pub(crate) fn of_stream(stream: usize) -> Result<Arc<Gpu>, DeviceError> {
    let libraries = opened_libraries()?;
    keep(&libraries, libraries.index_of_stream(stream)?)
}

/// Opens the GPU with this index, once; this process keeps it.
fn keep(libraries: &Arc<GpuLibraries>, index: u32) -> Result<Arc<Gpu>, DeviceError> {
    static GPUS: Mutex<Option<HashMap<u32, Arc<Gpu>>>> = Mutex::new(None);
    let mut gpus = GPUS.lock().expect("nothing panics while it holds this lock");
    let gpus = gpus.get_or_insert_default();
    if let Some(gpu) = gpus.get(&index) {
        return Ok(gpu.clone());
    }
    let gpu = Arc::new(Gpu::open(libraries, index)?);
    gpus.insert(index, gpu.clone());
    Ok(gpu)
}

/// The last collective that somebody waits for. Our stream keeps its order, so all are done when it
/// is.
static LAST: Mutex<Option<Arc<Event>>> = Mutex::new(None);

/// Makes the stream that the framework's code runs on now wait for a collective.
pub(crate) fn wait_for(py: Python<'_>, done: Arc<Event>) -> PyResult<()> {
    let stream = current_stream(py, done.gpu().index())?;
    done.make_stream_wait(stream).map_err(|error| failed(&error))?;
    remember(done);
    Ok(())
}

/// Remembers that somebody's stream waits for a collective.
pub(crate) fn remember(done: Arc<Event>) {
    *LAST.lock().expect("nothing panics while it holds this lock") = Some(done);
}

/// Waits until all results so far are on the GPU; raises if a rank was lost before they were.
#[pyfunction]
pub(crate) fn finish_on_gpu(py: Python<'_>) -> PyResult<()> {
    let last = LAST.lock().expect("nothing panics while it holds this lock").clone();
    let Some(last) = last else { return Ok(()) };
    while !last.is_done().map_err(|error| failed(&error))? {
        py.check_signals()?;
        py.detach(|| std::thread::sleep(LOOK_EVERY));
    }
    match engine_if_joined()?.and_then(|engine| broken(&engine)) {
        Some(error) => Err(errors::raise(py, &error)),
        None => Ok(()),
    }
}

/// Why results on the GPU cannot be trusted: whoever ends a world ends what it has running there.
pub(crate) fn broken(engine: &Engine) -> Option<Error> {
    engine.verdict().filter(|error| !matches!(error, Error::Shutdown | Error::Left { .. }))
}

/// The stream that the framework's code runs on now, on this GPU.
pub(crate) fn current_stream(py: Python<'_>, index: u32) -> PyResult<usize> {
    streams()?.current.call1(py, (index,))?.extract(py)
}

/// Everything that the framework has enqueued so far on the stream that its code runs on now.
pub(crate) fn now(py: Python<'_>, index: u32) -> PyResult<(Event, usize)> {
    let stream = current_stream(py, index)?;
    let event = Event::on_stream(&of(py, index)?, stream).map_err(|error| failed(&error))?;
    Ok((event, stream))
}

/// A new tensor like this one, with so many rows, from the memory of a stream.
pub(crate) fn allocate(
    py: Python<'_>,
    like: &Py<PyAny>,
    rows: u64,
    stream: usize,
) -> PyResult<Py<PyAny>> {
    streams()?.allocate.call1(py, (like, rows, stream))
}

fn streams() -> PyResult<Arc<Streams>> {
    let streams = STREAMS.lock().expect("nothing panics while it holds this lock").clone();
    streams.ok_or_else(|| {
        PyRuntimeError::new_err(
            "tensors on a GPU need the module of their framework; import horovod.torch",
        )
    })
}

pub(crate) fn failed(error: &DeviceError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}
