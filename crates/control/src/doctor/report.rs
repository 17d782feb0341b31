//! The result of a run: every host, every call and measurement between two hosts, and what all of
//! it means. The fields have the names of `ronde doctor --json`.

use std::net::SocketAddr;

use serde::Serialize;

use super::{Address, Facts};
use crate::host_setup::HostProblem;

/// All results of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DoctorReport {
    /// The hosts, in the order of the command line.
    pub hosts: Vec<HostReport>,
    /// The calls between hosts.
    pub paths: Vec<HostPath>,
    /// The speeds of the paths between hosts.
    pub speeds: Vec<Speed>,
    /// Problems, most severe first.
    pub findings: Vec<Finding>,
}

impl DoctorReport {
    /// Whether a job on these hosts would start.
    pub fn is_well(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity != Severity::Error)
    }
}

/// Findings about one host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostReport {
    /// Name of the host, as the user wrote it.
    pub name: String,
    /// Whether it is the launcher's own machine.
    pub here: bool,
    /// How many ranks it is to run.
    pub slots: u32,
    /// Why it cannot be used, if so.
    pub trouble: Option<HostProblem>,
    /// Its version of Ronde, if it has answered.
    pub ronde: Option<String>,
    /// Offset of its clock from the launcher's.
    pub clock: Option<ClockOffset>,
    /// The addresses that others dialed; all it has if there is no other machine.
    pub addresses: Vec<Address>,
    /// What its agent found out.
    pub facts: Option<Facts>,
}

/// Offset of a host's clock from the launcher's, from the fastest of a few answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ClockOffset {
    /// How far it is ahead; negative if behind.
    pub ahead_micros: i64,
    /// Round-trip time of the question; the offset may be wrong by half of it.
    pub round_trip_micros: u64,
}

/// All calls from one host to another, or to the launcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostPath {
    /// Name of the host that dialed.
    pub from: String,
    /// The host that was dialed; `None` is the launcher.
    pub to: Option<String>,
    /// The results, by address and port.
    pub calls: Vec<DialAttempt>,
}

/// One attempt to connect to an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DialAttempt {
    /// The address that was dialed.
    pub address: SocketAddr,
    /// How long the expected process took to answer; `None` if it did not.
    pub micros: Option<u32>,
    /// What happened otherwise, in words.
    pub failure: Option<String>,
}

/// Speed of the path from one host to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Speed {
    /// Name of the sending host.
    pub from: String,
    /// Name of the receiving host.
    pub to: String,
    /// Address of the receiving host that was used.
    pub address: SocketAddr,
    /// Bandwidth of one connection.
    pub bytes_per_second: u64,
    /// Median round-trip time of a few bytes.
    pub round_trip_micros: u32,
    /// Why there are no results.
    pub problem: Option<String>,
}

/// A problem or a note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The hosts it applies to.
    pub hosts: Vec<String>,
    /// Description of the finding.
    pub what: String,
    /// What to do about it.
    pub fix: String,
}

impl Finding {
    pub(super) fn new(
        severity: Severity,
        host: &str,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Finding {
        Finding { severity, hosts: vec![host.to_owned()], what: what.into(), fix: fix.into() }
    }

    pub(super) fn warning(host: &str, what: String, fix: impl Into<String>) -> Finding {
        Finding::new(Severity::Warning, host, what, fix)
    }
}

/// How severe a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// A job on these hosts would not start.
    Error,
    /// A job would start, but may be slow or fail later.
    Warning,
    /// No action is needed.
    Note,
}
