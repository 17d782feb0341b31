//! Child processes of a rank, such as the workers of a data loader.
//!
//! A child may ask what its parent may ask: its rank, the number of ranks and so on. It takes part
//! in nothing: the engine's threads are not here, and the other ranks know only the parent. A
//! forked child finds the parent's place in the memory that it inherits. A child that Python's
//! `multiprocessing` started with a new interpreter gets it from `horovod.common.children`, which
//! is consulted only where there is no world.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use ronde_control::Rank;
use ronde_control::settings::RankInfo;

use super::process;

/// The rank that this process is a child of.
pub(crate) struct Parent {
    pid: u32,
    place: RankInfo,
    /// Whether a launcher has started it: then others may be waiting for it, and no other process
    /// may take its place.
    launched: bool,
}

/// The same as Python passes it on: process ID, rank, size, local rank and size, cross rank and
/// size, and whether it was launched.
type ParentInfo = (u32, u32, u32, u32, u32, u32, u32, bool);

/// What this rank passes on to its children.
#[pyfunction]
pub(crate) fn for_children() -> PyResult<ParentInfo> {
    process::place(|place| {
        let RankInfo { rank, size, local_rank, local_size, cross_rank, cross_size, .. } = *place;
        let launched = place.rendezvous_info.is_some();
        let pid = std::process::id();
        (pid, rank.0, size, local_rank, local_size, cross_rank, cross_size, launched)
    })
}

/// Whether this process is a child of a rank and not a rank itself.
#[pyfunction]
pub(crate) fn in_child() -> bool {
    parent().is_some()
}

/// Raises an error in a child that would join its parent's world a second time. If the parent is
/// alone and without a launcher, a child may have its own world.
#[pyfunction]
pub(crate) fn check_may_join() -> PyResult<()> {
    let Some(parent) = parent().filter(|parent| parent.launched) else { return Ok(()) };
    Err(PyRuntimeError::new_err(format!(
        "{}, so it cannot call hvd.init(); its parent has done so, and hvd.rank(), hvd.size() and \
         the like return the same values here as there. If hvd.init() is at the top level of your \
         script, put it under `if __name__ == \"__main__\":`, because child processes import the \
         script again.",
        parent.description()
    )))
}

/// The exception for an operation that only a rank can do, if this process is a child of one.
pub(crate) fn refusal() -> Option<PyErr> {
    refusal_text().map(PyRuntimeError::new_err)
}

/// The text of that exception, for native code.
pub(crate) fn refusal_text() -> Option<String> {
    let parent = parent()?;
    Some(format!(
        "{}. Collectives, hvd.init() and hvd.shutdown() work only in the rank's own process; \
         hvd.rank(), hvd.size() and the like also work here. Communicate in the rank, and pass the \
         result on to its child processes.",
        parent.description()
    ))
}

/// The rank that started this process through `multiprocessing`, with a new interpreter.
pub(crate) fn spawned_by() -> Option<Parent> {
    let ask = |py: Python<'_>| -> PyResult<Option<ParentInfo>> {
        py.import("horovod.common.children")?.call_method0("parent")?.extract()
    };
    let info = Python::attach(|py| ask(py).ok().flatten())?;
    let (pid, rank, size, local_rank, local_size, cross_rank, cross_size, launched) = info;
    let (rank, host, rendezvous_info) = (Rank(rank), String::new(), None);
    let place = RankInfo {
        rank,
        size,
        local_rank,
        local_size,
        cross_rank,
        cross_size,
        host,
        rendezvous_info,
    };
    Some(Parent { pid, place, launched })
}

fn parent() -> Option<Parent> {
    if process::running().is_some() {
        return None;
    }
    let forked = process::forked_from().map(|(pid, place)| {
        let launched = place.rendezvous_info.is_some();
        Parent { pid, place, launched }
    });
    forked.or_else(spawned_by)
}

impl Parent {
    /// The place of the parent in its world.
    pub(crate) fn place(&self) -> &RankInfo {
        &self.place
    }

    fn description(&self) -> String {
        let (own, rank, pid) = (std::process::id(), self.place.rank.0, self.pid);
        format!("this process (pid {own}) is a child of rank {rank} (pid {pid}) and not a rank")
    }
}
