//! Where this process stands when somebody else's launcher has started it, and the way to the others.
//!
//! What a launcher's variables mean is decided in `control`, and rank 0's service is in `launch`; here
//! is what holds for the whole process: the meeting place is found once, and kept for every `init`.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ronde_control::Rank;
use ronde_control::launcher::{self, Invitation, Launcher, Spread, Started};
use ronde_control::settings::{Meeting, Place};
use ronde_launch::gather::{self, Gathered};
use ronde_launch::hosts;
use ronde_launch::private::Places;

use super::mpi::{Handle, Mpi};
use super::process::{interruptible, refused};

static HELD: Mutex<Vec<Held>> = Mutex::new(Vec::new());

/// A meeting place of this process's job: that of all ranks, or the last one of some of them.
struct Held {
    gathered: Gathered,
    circle: Circle,
    /// A forked child inherits this memory, but neither the service's thread nor the rank.
    pid: u32,
}

/// Who meets. Only all ranks can know without a word that they have met before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Circle {
    All,
    Some,
}

/// By which launcher this process was started if not by `horovodrun`, its rank, and their number.
#[pyfunction]
pub(crate) fn launched() -> PyResult<Option<(&'static str, u32, u32)>> {
    let started = launcher::detect(variable).map_err(|error| refused(&error))?;
    Ok(started.map(|started| (started.launcher.into(), started.rank.0, started.size)))
}

/// Finds this process's place under another launcher; `place` is what holds without one.
pub(crate) fn seat(
    py: Python<'_>,
    place: Place,
    mpi: Option<(&Mpi, Handle)>,
    limit: Duration,
) -> PyResult<Place> {
    let told = launcher::detect(variable);
    let started = match mpi {
        Some((mpi, comm)) => Some(among(mpi, comm, told.ok().flatten())?),
        None => told.map_err(|error| refused(&error))?,
    };
    let Some(started) = started else { return Ok(place) };
    let meeting = match started.size {
        1 => None,
        _ => Some(meet(py, &started, mpi, limit)?),
    };
    Ok(Place {
        rank: started.rank,
        size: started.size,
        local_rank: started.local_rank,
        host: hosts::hostname(),
        meeting,
        ..place
    })
}

/// Ends rank 0's service, once it has passed on what was said.
pub(crate) fn finish() {
    let held = std::mem::take(&mut *lock());
    held.into_iter().for_each(Held::end);
}

impl Held {
    fn end(self) {
        if self.pid != std::process::id() {
            std::mem::forget(self);
        }
    }
}

/// Who this process is in a communicator. What the launcher says of hosts holds for it, too.
fn among(mpi: &Mpi, comm: Handle, told: Option<Started>) -> PyResult<Started> {
    let (rank, size) = mpi.seat(comm).map_err(PyValueError::new_err)?;
    let unknown = Started {
        launcher: Launcher::Mpich,
        rank: Rank(rank),
        size,
        local_rank: 0,
        spread: Spread::Hosts,
        job: None,
        first_host: None,
    };
    let told = told.unwrap_or_else(|| unknown.clone());
    // Of some processes only, the launcher's count of a host does not hold.
    let local_rank = if told.size == size { told.local_rank } else { 0 };
    Ok(Started { rank: Rank(rank), size, local_rank, ..told })
}

fn meet(
    py: Python<'_>,
    started: &Started,
    mpi: Option<(&Mpi, Handle)>,
    limit: Duration,
) -> PyResult<Meeting> {
    let pid = std::process::id();
    let circle = match mpi {
        Some((mpi, comm)) if comm != mpi.everybody() => Circle::Some,
        _ => Circle::All,
    };
    let known = |held: &&Held| circle == Circle::All && held.circle == circle && held.pid == pid;
    if let Some(held) = lock().iter().find(known) {
        return Ok(held.gathered.meeting.clone());
    }
    let gathered = match mpi {
        Some((mpi, comm)) => py.detach(|| over_mpi(started, mpi, comm, limit)),
        None => by_variables(py, started.clone(), limit)?,
    };
    let gathered = gathered.map_err(|error| refused(&error))?;
    let meeting = gathered.meeting.clone();
    let mut all = lock();
    let before: Vec<Held> = all.extract_if(.., |held| held.circle == circle).collect();
    all.push(Held { gathered, circle, pid });
    drop(all);
    before.into_iter().for_each(Held::end);
    Ok(meeting)
}

fn by_variables(
    py: Python<'_>,
    started: Started,
    limit: Duration,
) -> PyResult<Result<Gathered, String>> {
    let way = launcher::way(&started, variable).map_err(|error| refused(&error))?;
    let places = Places::here();
    interruptible(py, move || {
        gather::gather(&started, &way, &places, limit).map_err(|error| error.to_string())
    })
}

/// Rank 0 invites all others by one broadcast, in which they also hear if it cannot.
fn over_mpi(
    started: &Started,
    mpi: &Mpi,
    comm: Handle,
    limit: Duration,
) -> Result<Gathered, String> {
    let mut bytes = vec![0; Invitation::LONGEST];
    let mut opened = None;
    if started.rank == Rank(0) {
        let (text, place) = match gather::open(started, None, limit) {
            Ok(gathered) => {
                let Meeting { addresses, key, .. } = gathered.meeting.clone();
                (Invitation { addresses, key }.to_text(), Ok(gathered))
            }
            Err(error) => (error.to_string(), Err(error.to_string())),
        };
        let length = text.len().min(bytes.len());
        bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        opened = Some(place);
    }
    mpi.broadcast(&mut bytes, comm)?;
    if let Some(opened) = opened {
        return opened;
    }
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim_end_matches('\0');
    let invitation = Invitation::from_text(text).ok_or_else(|| text.to_owned())?;
    gather::follow(started.rank, &invitation, limit).map_err(|error| error.to_string())
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn lock() -> MutexGuard<'static, Vec<Held>> {
    HELD.lock().expect("nothing panics while it holds this lock")
}
