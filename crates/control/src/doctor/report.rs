//! What a visit has found out: every host, every call between two, every measurement, and what all of
//! it means. The names of the fields are those of `ronde doctor --json`.

use std::net::SocketAddr;

use serde::Serialize;

use super::{Address, Facts};
use crate::muster::Trouble;

/// All that was found out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The hosts, in the order of the command line.
    pub hosts: Vec<HostReport>,
    /// Who was called by whom.
    pub paths: Vec<Path>,
    /// How fast the way from one to another is.
    pub speeds: Vec<Speed>,
    /// What is wrong, worst first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether a job on these hosts would start.
    pub fn is_well(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity != Severity::Error)
    }
}

/// One host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostReport {
    /// Its name, as the user wrote it.
    pub name: String,
    /// Whether it is the launcher's own machine.
    pub here: bool,
    /// How many ranks it is to take.
    pub slots: u32,
    /// Why it cannot take part, if it cannot.
    pub trouble: Option<Trouble>,
    /// The version of its Ronde, if it has answered.
    pub ronde: Option<String>,
    /// How its clock differs from the launcher's.
    pub clock: Option<Clock>,
    /// The addresses at which it was looked for; all that it has if there is nobody else.
    pub addresses: Vec<Address>,
    /// What its agent found out.
    pub facts: Option<Facts>,
}

/// A host's clock beside the launcher's, as the fastest of a few questions showed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Clock {
    /// How far it is ahead; behind if negative.
    pub ahead_micros: i64,
    /// How long the question and its answer took, half of which the offset may be wrong by.
    pub round_trip_micros: u64,
}

/// All calls from one host to another, or to the launcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Path {
    /// Who called.
    pub from: String,
    /// Who was called; none is the launcher.
    pub to: Option<String>,
    /// What came of it at each address and port.
    pub calls: Vec<Call>,
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Call {
    /// Where.
    pub address: SocketAddr,
    /// How long it took to be answered by the one who was meant; none if it was not.
    pub micros: Option<u32>,
    /// What came of it instead, in words.
    pub failure: Option<String>,
}

/// How fast the way from one host to another is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Speed {
    /// Who sent.
    pub from: String,
    /// Who received.
    pub to: String,
    /// At which address.
    pub address: SocketAddr,
    /// What one connection carries.
    pub bytes_per_second: u64,
    /// The median time of a few bytes there and back.
    pub round_trip_micros: u32,
    /// Why there are no figures.
    pub problem: Option<String>,
}

/// Something to know about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The hosts that have it.
    pub hosts: Vec<String>,
    /// What it is.
    pub what: String,
    /// What to do about it.
    pub fix: String,
}

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// A job on these hosts would not start.
    Error,
    /// It would start, and may be slow or fail later.
    Warning,
    /// Nothing has to be done.
    Note,
}
