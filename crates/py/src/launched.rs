//! The place of this process when another launcher has started it, and its rendezvous with the
//! other ranks.
//!
//! `control` interprets the launcher's variables, and rank 0's service is in `launch`. This file
//! has the state of the process: the rendezvous is found once, and kept for every `init`.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ronde_control::Rank;
use ronde_control::launcher::{self, Invitation, LaunchedProcess, LauncherKind, Spread};
use ronde_control::settings::{self, RankInfo, RendezvousInfo};
use ronde_launch::hosts;
use ronde_launch::private::PrivateDirs;
use ronde_launch::rank0_rendezvous::{self, OpenRendezvous};

use super::mpi::{Mpi, MpiHandle};
use super::process::{interruptible, refused};

static MEETINGS: Mutex<Vec<OpenMeeting>> = Mutex::new(Vec::new());

/// A rendezvous of this process's job: of all ranks, or the last one of a subset.
struct OpenMeeting {
    rendezvous: OpenRendezvous,
    scope: MeetingScope,
    /// A forked child inherits this memory, but neither the service's thread nor the rank.
    pid: u32,
}

/// Who meets. Only all ranks together can know without communication that they have met before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MeetingScope {
    All,
    Some,
    /// The ranks that the program itself invites.
    Invited,
}

static ASSIGNED: Mutex<Option<AssignedPlace>> = Mutex::new(None);

/// The place that the program gave this process with `use_rendezvous`.
#[derive(Clone)]
struct AssignedPlace {
    invitation: Invitation,
    rank: Rank,
    size: u32,
    /// The identity of its host, if it is not the host name.
    host: Option<String>,
    /// A forked child inherits this memory, but not the rank.
    pid: u32,
}

/// Opens the rendezvous of a world whose rank 0 this process will be; returns the invitation.
#[pyfunction]
pub(crate) fn open_rendezvous(size: u32) -> PyResult<String> {
    let (settings, _) = settings::read(variable).map_err(|error| refused(&error))?;
    let started = called(Rank(0), size)?;
    let rendezvous = rank0_rendezvous::open(&started, None, settings.join_timeout)
        .map_err(|error| refused(&error))?;
    let RendezvousInfo { addresses, key, .. } = rendezvous.rendezvous_info.clone();
    keep(rendezvous, MeetingScope::Invited);
    Ok(Invitation { addresses, key }.to_text())
}

/// Has the next `init` of this process join the world of this invitation; with none, what the
/// environment says counts again.
#[pyfunction]
#[pyo3(signature = (invitation, rank = 0, size = 1, host = None))]
pub(crate) fn use_rendezvous(
    invitation: Option<&str>,
    rank: u32,
    size: u32,
    host: Option<String>,
) -> PyResult<()> {
    let place = match invitation {
        None => None,
        Some(text) => {
            let invitation = Invitation::from_text(text).ok_or_else(|| {
                PyValueError::new_err(
                    "this is not an invitation; pass the text that open_rendezvous returned, \
                     unchanged",
                )
            })?;
            let (rank, pid) = (Rank(rank), std::process::id());
            Some(AssignedPlace { invitation, rank, size, host, pid })
        }
    };
    *ASSIGNED.lock().expect("nothing panics while it holds this lock") = place;
    Ok(())
}

/// Whether the program has given this process a place with `use_rendezvous`.
#[pyfunction]
pub(crate) fn has_rendezvous() -> bool {
    assigned().is_some()
}

fn assigned() -> Option<AssignedPlace> {
    let place = ASSIGNED.lock().expect("nothing panics while it holds this lock").clone();
    place.filter(|place| place.pid == std::process::id())
}

/// A process whose place comes from a call of its program.
fn called(rank: Rank, size: u32) -> PyResult<LaunchedProcess> {
    Ok(LaunchedProcess {
        launcher: LauncherKind::Program,
        rank,
        size,
        local_rank: 0,
        spread: Spread::Hosts,
        job: None,
        first_host: None,
        network: settings::host_network(variable).map_err(|error| refused(&error))?,
    })
}

/// The rendezvous of an invitation: this process's own on rank 0, found by dialing on others.
fn by_invitation(
    py: Python<'_>,
    AssignedPlace { invitation, rank, size, .. }: &AssignedPlace,
    limit: Duration,
) -> PyResult<RendezvousInfo> {
    if *rank == Rank(0) {
        let is_own = |held: &&OpenMeeting| {
            held.scope == MeetingScope::Invited
                && held.pid == std::process::id()
                && held.rendezvous.rendezvous_info.key == invitation.key
        };
        let own = lock().iter().find(is_own).map(|held| held.rendezvous.rendezvous_info.clone());
        return own.ok_or_else(|| {
            PyValueError::new_err(
                "rank 0 must be the process that called open_rendezvous, and this one did not open \
                 the rendezvous of this invitation",
            )
        });
    }
    let (started, invitation) = (called(*rank, *size)?, invitation.clone());
    let found = interruptible(py, move || {
        rank0_rendezvous::follow(&started, &invitation, limit).map_err(|error| error.to_string())
    })?;
    Ok(found.map_err(|error| refused(&error))?.rendezvous_info)
}

/// The launcher that started this process, other than `horovodrun`, with this process's rank and
/// the number of ranks.
#[pyfunction]
pub(crate) fn launched() -> PyResult<Option<(&'static str, u32, u32)>> {
    let started = launcher::detect(variable).map_err(|error| refused(&error))?;
    Ok(started.map(|started| (started.launcher.into(), started.rank.0, started.size)))
}

/// Finds this process's place under another launcher; `place` applies without one.
pub(crate) fn find_place(
    py: Python<'_>,
    place: RankInfo,
    mpi: Option<(&Mpi, MpiHandle)>,
    limit: Duration,
) -> PyResult<RankInfo> {
    if let Some(assigned) = assigned() {
        let rendezvous_info = match assigned.size {
            1 => None,
            _ => Some(by_invitation(py, &assigned, limit)?),
        };
        let AssignedPlace { rank, size, host, .. } = assigned;
        let host = host.unwrap_or_else(hosts::hostname);
        // The rendezvous numbers the ranks of each host.
        return Ok(RankInfo {
            rank,
            size,
            local_rank: 0,
            local_size: 1,
            cross_rank: 0,
            cross_size: 1,
            host,
            rendezvous_info,
        });
    }
    let detected = launcher::detect(variable);
    let started = match mpi {
        Some((mpi, comm)) => Some(among(mpi, comm, detected.ok().flatten())?),
        None => detected.map_err(|error| refused(&error))?,
    };
    let Some(started) = started else { return Ok(place) };
    let rendezvous_info = match started.size {
        1 => None,
        _ => Some(meet(py, &started, mpi, limit)?),
    };
    Ok(RankInfo {
        rank: started.rank,
        size: started.size,
        local_rank: started.local_rank,
        host: hosts::hostname(),
        rendezvous_info,
        ..place
    })
}

/// Ends rank 0's service, once it has delivered its messages.
pub(crate) fn finish() {
    let held = std::mem::take(&mut *lock());
    held.into_iter().for_each(OpenMeeting::end);
}

impl OpenMeeting {
    fn end(self) {
        if self.pid != std::process::id() {
            std::mem::forget(self);
        }
    }
}

/// The place of this process in a communicator. What the launcher says about hosts applies here,
/// too.
fn among(
    mpi: &Mpi,
    comm: MpiHandle,
    detected: Option<LaunchedProcess>,
) -> PyResult<LaunchedProcess> {
    let (rank, size) = mpi.rank_and_size(comm).map_err(PyValueError::new_err)?;
    let unknown = LaunchedProcess {
        launcher: LauncherKind::Mpich,
        rank: Rank(rank),
        size,
        local_rank: 0,
        spread: Spread::Hosts,
        job: None,
        first_host: None,
        network: settings::host_network(variable).map_err(|error| refused(&error))?,
    };
    let detected = detected.unwrap_or_else(|| unknown.clone());
    // For a subset of the processes, the launcher's local ranks do not apply.
    let local_rank = if detected.size == size { detected.local_rank } else { 0 };
    Ok(LaunchedProcess { rank: Rank(rank), size, local_rank, ..detected })
}

fn meet(
    py: Python<'_>,
    started: &LaunchedProcess,
    mpi: Option<(&Mpi, MpiHandle)>,
    limit: Duration,
) -> PyResult<RendezvousInfo> {
    let pid = std::process::id();
    let scope = match mpi {
        Some((mpi, comm)) if comm != mpi.world_handle() => MeetingScope::Some,
        _ => MeetingScope::All,
    };
    let known =
        |held: &&OpenMeeting| scope == MeetingScope::All && held.scope == scope && held.pid == pid;
    if let Some(held) = lock().iter().find(known) {
        return Ok(held.rendezvous.rendezvous_info.clone());
    }
    let rendezvous = match mpi {
        Some((mpi, comm)) => py.detach(|| over_mpi(started, mpi, comm, limit)),
        None => by_variables(py, started.clone(), limit)?,
    };
    let rendezvous = rendezvous.map_err(|error| refused(&error))?;
    let rendezvous_info = rendezvous.rendezvous_info.clone();
    keep(rendezvous, scope);
    Ok(rendezvous_info)
}

/// Keeps a rendezvous for the next `init`, and ends the one before it.
fn keep(rendezvous: OpenRendezvous, scope: MeetingScope) {
    let mut all = lock();
    let before: Vec<OpenMeeting> = all.extract_if(.., |held| held.scope == scope).collect();
    all.push(OpenMeeting { rendezvous, scope, pid: std::process::id() });
    drop(all);
    before.into_iter().for_each(OpenMeeting::end);
}

fn by_variables(
    py: Python<'_>,
    started: LaunchedProcess,
    limit: Duration,
) -> PyResult<Result<OpenRendezvous, String>> {
    let method =
        launcher::rendezvous_method(&started, variable).map_err(|error| refused(&error))?;
    let places = PrivateDirs::here();
    interruptible(py, move || {
        rank0_rendezvous::gather(&started, &method, &places, limit)
            .map_err(|error| error.to_string())
    })
}

/// Rank 0 invites all others with one broadcast, which carries the error if it fails.
fn over_mpi(
    started: &LaunchedProcess,
    mpi: &Mpi,
    comm: MpiHandle,
    limit: Duration,
) -> Result<OpenRendezvous, String> {
    let mut bytes = vec![0; Invitation::LONGEST];
    let mut opened = None;
    if started.rank == Rank(0) {
        let (text, place) = match rank0_rendezvous::open(started, None, limit) {
            Ok(rendezvous) => {
                let RendezvousInfo { addresses, key, .. } = rendezvous.rendezvous_info.clone();
                (Invitation { addresses, key }.to_text(), Ok(rendezvous))
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
    rank0_rendezvous::follow(started, &invitation, limit).map_err(|error| error.to_string())
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn lock() -> MutexGuard<'static, Vec<OpenMeeting>> {
    MEETINGS.lock().expect("nothing panics while it holds this lock")
}
