//! Helper processes of a job, which run the same program.
//!
//! Guardian, agent (with a pipe, or one that dials in), shim and delegate are this executable with
//! one of the names below as its first argument. Users never type them.

use std::ffi::OsString;
use std::path::Path;

use crate::agent;
use crate::supervise::{delegate, guardian, shim};

pub(crate) const GUARDIAN: &str = "__ronde-guardian";
pub(crate) const AGENT: &str = "__ronde-agent";
pub(crate) const JOINING_AGENT: &str = "__ronde-joining-agent";
pub(crate) const SHIM: &str = "__ronde-shim";
pub(crate) const DELEGATE: &str = "__ronde-delegate";

/// Runs the helper that the arguments (after the program's name) select, if they select one, and
/// returns its exit code. `program` is this executable.
pub fn dispatch(program: &Path, arguments: &[OsString]) -> Option<u8> {
    let (part, rest) = arguments.split_first()?;
    Some(match (part.to_str()?, rest) {
        (GUARDIAN, [mark]) => guardian::run(program, mark),
        (AGENT, [mark, parent]) => agent::main(program, mark, parent),
        (JOINING_AGENT, [mark, parent]) => agent::join::main(program, mark, parent),
        (SHIM, [parent, command, rest @ ..]) => shim::run(parent, command, rest),
        (DELEGATE, [mark, parent, command, rest @ ..]) => {
            delegate::run(mark, parent, command, rest)
        }
        _ => return None,
    })
}
