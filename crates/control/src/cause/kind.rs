//! Kinds of causes, which programs can distinguish.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::wire::agent::Exit;

/// The kind of event that ended a process or a world. Texts beside it are for people.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
pub enum CauseKind {
    /// The cause could not be determined.
    #[default]
    Unknown,
    /// An exception ended the program.
    Exception,
    /// The program exited with a code other than 0, or without leaving its world.
    ExitCode,
    /// A signal killed it.
    Signal,
    /// The kernel killed it because memory ran out.
    OutOfMemory,
    /// It could not be started.
    NotStarted,
    /// Its host is gone or no longer answers.
    HostLost,
    /// Ranks waited too long for a tensor that others never submitted.
    Stalled,
    /// Its process was stopped or frozen for too long.
    Halted,
    /// It did not join or rejoin in time.
    Late,
    /// The connection to it broke, although its process may be alive.
    ConnectionLost,
    /// It left in an orderly way while others still needed it.
    Left,
    /// Something overwrote the memory that ranks share.
    Overwritten,
    /// The launcher is gone.
    LauncherLost,
}

impl CauseKind {
    /// Derives the kind from how a process ended.
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

/// The exception that ends a process, as the process reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Raised {
    /// A summary: its class and message, and where it was raised.
    pub text: String,
    /// `Exception`, unless the process's world ended for another reason than a death, such as a
    /// stall.
    pub kind: CauseKind,
}

impl Raised {
    /// An exception raised by the program itself.
    pub fn by_program(text: impl Into<String>) -> Raised {
        Raised { text: text.into(), kind: CauseKind::Exception }
    }
}

impl fmt::Display for CauseKind {
    /// The name for programs: `out_of_memory`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
