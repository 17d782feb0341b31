//! Child processes of a rank, such as the workers of a data loader.
//!
//! A child may ask what its parent could be asked: its rank, the number of ranks and the like. It takes
//! no part in anything: the engine's threads are not here, and the others know only the parent. A forked
//! child finds the parent's place in the memory that it inherits. One that Python's `multiprocessing`
//! has started afresh is told by `horovod.common.children`, which is asked only where there is no world.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use ronde_control::Rank;
use ronde_control::settings::Place;

use super::process;

/// The rank that this process is a child of.
pub(crate) struct Parent {
    pid: u32,
    place: Place,
    /// Whether a launcher has started it: then others may meet it, and nobody else in its name.
    launched: bool,
}

/// The same as Python passes it on: process, rank, size, local rank and size, cross rank and size.
type Told = (u32, u32, u32, u32, u32, u32, u32, bool);

/// What this rank has its children told.
#[pyfunction]
pub(crate) fn for_children() -> PyResult<Told> {
    process::place(|place| {
        let Place { rank, size, local_rank, local_size, cross_rank, cross_size, .. } = *place;
        let launched = place.meeting.is_some();
        let pid = std::process::id();
        (pid, rank.0, size, local_rank, local_size, cross_rank, cross_size, launched)
    })
}

/// Whether this process is a child of a rank and not a rank itself.
#[pyfunction]
pub(crate) fn in_child() -> bool {
    parent().is_some()
}

/// Raises in a child that would join its parent's world a second time. Where the parent is alone and
/// without a launcher, a child may have a world of its own.
#[pyfunction]
pub(crate) fn check_may_join() -> PyResult<()> {
    let Some(parent) = parent().filter(|parent| parent.launched) else { return Ok(()) };
    Err(PyRuntimeError::new_err(format!(
        "{}, so it cannot call hvd.init(); its parent has done so, and hvd.rank(), hvd.size() and the \
         like answer here as they do there. If hvd.init() stands at the top level of your script, put \
         it under `if __name__ == \"__main__\":`, because child processes import the script again.",
        parent.told()
    )))
}

/// The exception for what only a rank can do, if this process is a child of one.
pub(crate) fn refusal() -> Option<PyErr> {
    refusal_text().map(PyRuntimeError::new_err)
}

/// Its text, for native code.
pub(crate) fn refusal_text() -> Option<String> {
    let parent = parent()?;
    Some(format!(
        "{}. Collectives, hvd.init() and hvd.shutdown() work only in the rank's own process; \
         hvd.rank(), hvd.size() and the like work here, too. Communicate in the rank, and pass the \
         result on to its child processes.",
        parent.told()
    ))
}

/// The rank that has started this process by `multiprocessing`, with an interpreter of its own.
pub(crate) fn spawned_by() -> Option<Parent> {
    let ask = |py: Python<'_>| -> PyResult<Option<Told>> {
        py.import("horovod.common.children")?.call_method0("parent")?.extract()
    };
    let told = Python::attach(|py| ask(py).ok().flatten())?;
    let (pid, rank, size, local_rank, local_size, cross_rank, cross_size, launched) = told;
    let (rank, host, meeting) = (Rank(rank), String::new(), None);
    let place = Place { rank, size, local_rank, local_size, cross_rank, cross_size, host, meeting };
    Some(Parent { pid, place, launched })
}

fn parent() -> Option<Parent> {
    if process::running().is_some() {
        return None;
    }
    let forked = process::forked_from().map(|(pid, place)| {
        let launched = place.meeting.is_some();
        Parent { pid, place, launched }
    });
    forked.or_else(spawned_by)
}

impl Parent {
    /// Where the parent stands.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    fn told(&self) -> String {
        let (own, rank, pid) = (std::process::id(), self.place.rank.0, self.pid);
        format!("this process (pid {own}) is a child of rank {rank} (pid {pid}) and not a rank")
    }
}
