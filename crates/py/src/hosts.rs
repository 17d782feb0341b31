//! Hosts, slots and environment variables as the launcher reads them, for the Python modules that
//! offer the same.

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use ronde_control::settings;
use ronde_launch::hosts::{self, Host};
use ronde_launch::{delegate, discovery, hostfile, ports};

/// A rank's place: host, rank, local rank, cross rank, size, local size, cross size.
type RankPlace = (String, u32, u32, u32, u32, u32, u32);

/// The hosts in `node-a:4,node-b:4` and their slots.
#[pyfunction]
pub(crate) fn parse_hosts(text: &str) -> PyResult<Vec<(String, u32)>> {
    hosts::parse(text).map(pairs).map_err(|error| refused(&error))
}

/// The hosts in a hostfile and their slots.
#[pyfunction]
pub(crate) fn parse_hostfile(text: &str) -> PyResult<Vec<(String, u32)>> {
    hostfile::parse(text).map(pairs).map_err(|errors| refused(&errors.join("; ")))
}

/// The hosts in the output of a discovery script and their slots; `slots` applies to hosts without
/// a number.
#[pyfunction]
#[pyo3(signature = (text, slots = None))]
pub(crate) fn parse_discovered(text: &str, slots: Option<u32>) -> PyResult<Vec<(String, u32)>> {
    discovery::parse(text, slots).map(pairs).map_err(|error| refused(&error))
}

/// The places of `count` ranks on these hosts.
#[pyfunction]
pub(crate) fn assign_ranks(hosts: Vec<(String, u32)>, count: u32) -> PyResult<Vec<RankPlace>> {
    let host = |(name, slots)| Host { name, user: None, slots };
    let hosts: Vec<Host> = hosts.into_iter().map(host).collect();
    let slots = hosts::assign(&hosts, count).map_err(|error| refused(&error))?;
    let place = |slot: hosts::Slot| {
        let (local, cross) = (slot.local_rank, slot.cross_rank);
        (slot.host, slot.rank.0, local, cross, count, slot.local_size, slot.cross_size)
    };
    Ok(slots.into_iter().map(place).collect())
}

/// The network interfaces of this machine that are up, and their addresses; a name may occur more
/// than once.
#[pyfunction]
pub(crate) fn interfaces() -> PyResult<Vec<(String, String)>> {
    let all =
        ronde_launch::interfaces::all().map_err(|error| PyOSError::new_err(error.to_string()))?;
    Ok(all.into_iter().map(|each| (each.interface, each.address.to_string())).collect())
}

/// A port that is free now, of those that this process may listen on.
#[pyfunction]
pub(crate) fn free_port() -> PyResult<u16> {
    let network = settings::host_network(|name| std::env::var(name).ok());
    let ports = ports::free(1, &network.map_err(|error| refused(&error))?.ports)?;
    ports.first().copied().ok_or_else(|| PyOSError::new_err("no port is free"))
}

/// Whether an environment variable of the launcher is passed on to ranks.
#[pyfunction]
pub(crate) fn is_exportable(name: &str) -> bool {
    delegate::is_for_ranks(name.as_ref())
}

fn pairs(hosts: Vec<Host>) -> Vec<(String, u32)> {
    hosts.into_iter().map(|host| (host.name, host.slots)).collect()
}

fn refused(error: &dyn std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}
