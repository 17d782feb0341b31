//! The MPI library of this process, if it has one: opened at run time, not linked.
//!
//! In a job that `mpirun` started, ranks meet over MPI: one broadcast carries rank 0's invitation,
//! and that is all that Ronde uses MPI for. This initializes the library, so that other code of the
//! program that uses MPI finds a world with the same ranks. The families of MPI have different
//! handles: those of Open MPI are addresses of its symbols, those of MPICH and of the standard MPI
//! ABI are numbers.
#![expect(unsafe_code, reason = "calls a C library whose functions are found by name")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;

use crate::native::Library;

/// A communicator or a type: an address or a number, depending on the library.
pub(crate) type MpiHandle = usize;

const THREAD_SINGLE: c_int = 0;
const THREAD_MULTIPLE: c_int = 3;
const SUCCESS: c_int = 0;

type InitThread =
    unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;
type Asked = unsafe extern "C" fn(*mut c_int) -> c_int;
type Finalize = unsafe extern "C" fn() -> c_int;
type AskedOf = unsafe extern "C" fn(MpiHandle, *mut c_int) -> c_int;
type GroupOf = unsafe extern "C" fn(MpiHandle, *mut MpiHandle) -> c_int;
type Include = unsafe extern "C" fn(MpiHandle, c_int, *const c_int, *mut MpiHandle) -> c_int;
type CreateGroup = unsafe extern "C" fn(MpiHandle, MpiHandle, c_int, *mut MpiHandle) -> c_int;
type Abort = unsafe extern "C" fn(MpiHandle, c_int) -> c_int;
type Broadcast = unsafe extern "C" fn(*mut c_void, c_int, MpiHandle, c_int, MpiHandle) -> c_int;

/// The functions and handles that are used of an MPI library. It is never unloaded.
#[pyclass(frozen, module = "horovod._native")]
pub(crate) struct Mpi {
    init_thread: InitThread,
    initialized: Asked,
    finalized: Asked,
    query_thread: Asked,
    finalize: Finalize,
    abort: Abort,
    comm_rank: AskedOf,
    comm_size: AskedOf,
    comm_group: GroupOf,
    group_incl: Include,
    comm_create_group: CreateGroup,
    broadcast: Broadcast,
    world: MpiHandle,
    byte: MpiHandle,
    family: &'static str,
    /// Whether it was initialized here, and so must be finalized here.
    ours: AtomicBool,
}

#[pymethods]
impl Mpi {
    /// Opens the library at a path; OSError if it is not an MPI library, or of another family than
    /// requested.
    #[new]
    #[pyo3(signature = (path, family = None))]
    fn new(path: &str, family: Option<&str>) -> PyResult<Mpi> {
        open(path, family).map_err(PyOSError::new_err)
    }

    /// `Open MPI`, `MPICH` or `MPI ABI`.
    #[getter]
    fn family(&self) -> &'static str {
        self.family
    }

    /// The communicator of all processes.
    #[getter]
    fn world(&self) -> MpiHandle {
        self.world
    }

    /// Whether MPI can be used: initialized, and not finalized yet.
    pub(crate) fn is_running(&self) -> bool {
        ask(self.initialized) == Ok(1) && ask(self.finalized) == Ok(0)
    }

    /// Initializes MPI, for many threads or for one, unless it has been initialized already.
    fn start(&self, py: Python<'_>, threads: bool) -> PyResult<()> {
        if ask(self.finalized) == Ok(1) {
            return Err(PyRuntimeError::new_err(
                "MPI has been finalized and cannot be initialized again",
            ));
        }
        if ask(self.initialized) == Ok(1) {
            return Ok(());
        }
        let level = if threads { THREAD_MULTIPLE } else { THREAD_SINGLE };
        let begin = self.init_thread;
        let code = py.detach(|| {
            let mut provided = 0;
            // SAFETY: MPI allows null for the arguments of the program, and `provided` is ours.
            unsafe { begin(null_mut(), null_mut(), level, &raw mut provided) }
        });
        if code != SUCCESS {
            return Err(PyRuntimeError::new_err(format!(
                "MPI_Init_thread failed with code {code}"
            )));
        }
        self.ours.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Whether MPI accepts calls from several threads at a time.
    fn supports_threads(&self) -> bool {
        self.is_running() && ask(self.query_thread) == Ok(THREAD_MULTIPLE)
    }

    /// The rank of this process in a communicator, and its size.
    #[pyo3(name = "rank_and_size")]
    fn comm_rank_and_size(&self, comm: MpiHandle) -> PyResult<(u32, u32)> {
        self.rank_and_size(comm).map_err(PyRuntimeError::new_err)
    }

    /// A communicator of these processes, in this order; all of them must call this, and no others.
    fn part(&self, py: Python<'_>, ranks: Vec<c_int>) -> PyResult<MpiHandle> {
        let ranks = ranks.into_boxed_slice();
        py.detach(|| self.create(&ranks)).map_err(PyRuntimeError::new_err)
    }

    /// Makes MPI end the whole job when this process ends, after all other exit handlers; only if
    /// MPI was initialized here.
    fn abort_at_exit(&self) {
        let ours = self.ours.load(Ordering::SeqCst) && self.is_running();
        if ours && ABORT.set((self.abort, self.world, self.finalized)).is_ok() {
            // SAFETY: the handler takes and returns nothing, and exists until the process ends.
            unsafe { libc::atexit(abort) };
        }
    }

    /// Finalizes MPI if it was initialized here and has not been finalized.
    fn finish(&self, py: Python<'_>) {
        if self.ours.swap(false, Ordering::SeqCst) && self.is_running() {
            let end = self.finalize;
            py.detach(|| {
                // SAFETY: MPI is running, we have initialized it, and nothing here uses it
                // afterwards.
                unsafe { end() }
            });
        }
    }
}

/// The arguments for `MPI_Abort` at the end of this process, and the check for whether MPI has been
/// finalized.
static ABORT: OnceLock<(Abort, MpiHandle, Asked)> = OnceLock::new();

extern "C" fn abort() {
    let Some((abort, world, finalized)) = ABORT.get() else { return };
    if ask(*finalized) == Ok(0) {
        // SAFETY: MPI is running, and the communicator is its own.
        unsafe { abort(*world, 1) };
    }
}

impl Mpi {
    /// The communicator of all processes.
    pub(crate) fn world_handle(&self) -> MpiHandle {
        self.world
    }

    /// The rank of this process in a communicator, and its size.
    pub(crate) fn rank_and_size(&self, comm: MpiHandle) -> Result<(u32, u32), String> {
        let number = |function: AskedOf| {
            let mut number = 0;
            // SAFETY: the communicator is the library's own, and `number` is ours.
            let code = unsafe { function(comm, &raw mut number) };
            match (code, u32::try_from(number)) {
                (SUCCESS, Ok(number)) => Ok(number),
                _ => Err(format!("MPI does not know this communicator (code {code})")),
            }
        };
        Ok((number(self.comm_rank)?, number(self.comm_size)?))
    }

    fn create(&self, ranks: &[c_int]) -> Result<MpiHandle, String> {
        let done = |code: c_int| match code {
            SUCCESS => Ok(()),
            code => Err(format!(
                "MPI could not create a communicator of the ranks {ranks:?} (code {code})"
            )),
        };
        let count = c_int::try_from(ranks.len()).map_err(|error| error.to_string())?;
        // A handle that is a number fills only the lower half of the zeroed word.
        let (mut all, mut some, mut comm): (MpiHandle, MpiHandle, MpiHandle) = (0, 0, 0);
        let (group, include, create) = (self.comm_group, self.group_incl, self.comm_create_group);
        // SAFETY: the communicator is the library's own, and `all` is ours.
        done(unsafe { group(self.world, &raw mut all) })?;
        // SAFETY: `count` is the number of ranks, and `some` is ours.
        done(unsafe { include(all, count, ranks.as_ptr(), &raw mut some) })?;
        // SAFETY: both handles are the library's own, and `comm` is ours.
        done(unsafe { create(self.world, some, 0, &raw mut comm) })?;
        Ok(comm)
    }

    /// Broadcasts the bytes of a communicator's first process to all its processes.
    pub(crate) fn broadcast(&self, bytes: &mut [u8], comm: MpiHandle) -> Result<(), String> {
        let count = c_int::try_from(bytes.len()).map_err(|error| error.to_string())?;
        let (call, byte) = (self.broadcast, self.byte);
        // SAFETY: the memory has this length, and is ours until the call returns.
        let code = unsafe { call(bytes.as_mut_ptr().cast(), count, byte, 0, comm) };
        if code == SUCCESS { Ok(()) } else { Err(format!("MPI_Bcast failed with code {code}")) }
    }
}

fn ask(function: Asked) -> Result<c_int, c_int> {
    let mut answer = 0;
    // SAFETY: these functions may be called at any time, and `answer` is ours.
    let code = unsafe { function(&raw mut answer) };
    if code == SUCCESS { Ok(answer) } else { Err(code) }
}

fn open(path: &str, family: Option<&str>) -> Result<Mpi, String> {
    // SAFETY: the user has installed the library, or `mpirun` has named it.
    let library = unsafe { Library::open(path, 0) }?;
    let found = family_of(&library, path);
    if family.is_some_and(|wanted| !is_of(found, wanted)) {
        return Err(format!("`{path}` is {found}, which is not {}", family.unwrap_or_default()));
    }
    let mpi = functions(&library, path, found)?;
    // Plug-ins of the library, and mpi4py, look its symbols up in the whole process.
    // SAFETY: it is already loaded.
    unsafe { Library::open(path, libc::RTLD_GLOBAL) }?.stay();
    Ok(mpi)
}

/// MPICH's launcher also starts programs of MPICH's derivatives, whichever ABI they have.
fn is_of(found: &str, wanted: &str) -> bool {
    found == wanted || (found == "MPI ABI" && wanted == "MPICH")
}

fn family_of(library: &Library, path: &str) -> &'static str {
    match library.address(c"ompi_mpi_comm_world") {
        Some(_) => "Open MPI",
        None if path.contains("mpi_abi") => "MPI ABI",
        None => "MPICH",
    }
}

fn functions(library: &Library, path: &str, family: &'static str) -> Result<Mpi, String> {
    let missing = |name: String| format!("`{path}` has no {name}");
    let handle = |name: &CStr| {
        let address = library.address(name).map(|address| address as MpiHandle);
        address.ok_or_else(|| missing(name.to_string_lossy().into_owned()))
    };
    let (world, byte) = match family {
        "Open MPI" => (handle(c"ompi_mpi_comm_world")?, handle(c"ompi_mpi_byte")?),
        "MPI ABI" => (0x101, 0x247),
        _ => (0x4400_0000, 0x4c00_010d),
    };
    // A handle that is a number is an `int` to its library, which reads the lower half of the
    // register that contains ours.
    macro_rules! function {
        ($name:literal as $kind:ty) => {{
            // SAFETY: the MPI standard defines the signature of this function.
            let found = unsafe { library.function::<$kind>($name) };
            found.map_err(missing)?
        }};
    }
    Ok(Mpi {
        init_thread: function!(c"MPI_Init_thread" as InitThread),
        initialized: function!(c"MPI_Initialized" as Asked),
        finalized: function!(c"MPI_Finalized" as Asked),
        query_thread: function!(c"MPI_Query_thread" as Asked),
        finalize: function!(c"MPI_Finalize" as Finalize),
        abort: function!(c"MPI_Abort" as Abort),
        comm_rank: function!(c"MPI_Comm_rank" as AskedOf),
        comm_size: function!(c"MPI_Comm_size" as AskedOf),
        comm_group: function!(c"MPI_Comm_group" as GroupOf),
        group_incl: function!(c"MPI_Group_incl" as Include),
        comm_create_group: function!(c"MPI_Comm_create_group" as CreateGroup),
        broadcast: function!(c"MPI_Bcast" as Broadcast),
        world,
        byte,
        family,
        ours: AtomicBool::new(false),
    })
}
