//! Kinds of causes, by which programs tell one from another.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::wire::agent::Exit;

/// What kind of thing ended a process or a world. The words beside it are for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CauseKind {
    /// Nobody knows.
    #[default]
    Unknown,
    /// An exception ended the program.
    Exception,
    /// The program ended itself: with a code other than 0, or without leaving its world.
    ExitCode,
    /// A signal killed it.
    Signal,
    /// The kernel killed it because memory ran out.
    OutOfMemory,
    /// It could not be started.
    NotStarted,
    /// Its host is gone, or does not answer any more.
    HostLost,
    /// Ranks waited too long for a tensor that others never submitted.
    Stalled,
    /// Its process was stopped or frozen for too long.
    Halted,
    /// It did not join or come back in time.
    Late,
    /// The connection to it broke though its process may live.
    ConnectionLost,
    /// It left in order while others still wanted something of it.
    Left,
    /// Something has written into the memory that ranks share.
    Overwritten,
    /// The launcher is gone.
    LauncherLost,
}

impl CauseKind {
    /// Judges by how a process ended.
    pub fn of(exit: &Exit) -> CauseKind {
        match exit {
            Exit::Code(_) => CauseKind::ExitCode,
            Exit::Signal(_) => CauseKind::Signal,
            Exit::OutOfMemory => CauseKind::OutOfMemory,
            Exit::NotStarted { .. } => CauseKind::NotStarted,
            Exit::Unknown { .. } => CauseKind::HostLost,
        }
    }
}

/// The exception that ends a process, as the process itself tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Raised {
    /// What matters in it: its class and message, and where it was raised.
    pub text: String,
    /// What kind of thing it tells of: `Exception`, unless the world of its process ended by
    /// something that is nobody's death, such as a stall.
    pub kind: CauseKind,
}

impl Raised {
    /// An exception of the program itself.
    pub fn by_program(text: impl Into<String>) -> Raised {
        Raised { text: text.into(), kind: CauseKind::Exception }
    }
}

impl fmt::Display for CauseKind {
    /// The name by which programs know it: `out_of_memory`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
