//! The parts of a job that are the same program under another name.
//!
//! Guardian, agent (with a pipe, or one that dials), shim and delegate are started as this very executable with one of the words below as its
//! first argument. Users never type them.

use std::ffi::OsString;
use std::path::Path;

use crate::{agent, supervise};

pub(crate) const GUARDIAN: &str = "__ronde-guardian";
pub(crate) const AGENT: &str = "__ronde-agent";
pub(crate) const JOINING_AGENT: &str = "__ronde-joining-agent";
pub(crate) const SHIM: &str = "__ronde-shim";
pub(crate) const DELEGATE: &str = "__ronde-delegate";

/// Plays the part that the arguments (behind the program's name) ask for, if they ask for one, and
/// gives its exit code. `program` is this executable.
pub fn dispatch(program: &Path, arguments: &[OsString]) -> Option<u8> {
    let (part, rest) = arguments.split_first()?;
    match (part.to_str()?, rest) {
        (GUARDIAN, [mark]) => Some(supervise::guardian::run(program, mark)),
        (AGENT, [mark, parent]) => Some(agent::main(program, mark, parent)),
        (JOINING_AGENT, [mark, parent]) => Some(agent::join::main(program, mark, parent)),
        (SHIM, [parent, command, arguments @ ..]) => {
            Some(supervise::shim::run(parent, command, arguments))
        }
        (DELEGATE, [mark, parent, command, arguments @ ..]) => {
            Some(supervise::delegate::run(mark, parent, command, arguments))
        }
        _ => None,
    }
}
