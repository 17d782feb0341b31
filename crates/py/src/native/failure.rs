//! Errors as native code of a framework wants them: whose fault it is, and a text.

use ronde_core::Error;

use crate::child;

/// Whose fault an error is; each framework has its own class or code for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The call cannot be carried out as it stands.
    Invalid,
    /// The ranks do not want the same, or there is no world.
    Precondition,
    /// This rank has ended its part.
    Aborted,
    /// The world ended under it: a rank was lost or left.
    World,
}

/// Why a call failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) fault: Fault,
    pub(crate) text: String,
}

impl Failure {
    /// There is no engine in this process.
    pub(crate) fn not_initialized() -> Failure {
        let unknown = || "Horovod has not been initialized; use hvd.init().".into();
        let text = child::refusal_text().unwrap_or_else(unknown);
        Failure { fault: Fault::Precondition, text }
    }

    pub(crate) fn invalid(text: &str) -> Failure {
        Failure { fault: Fault::Invalid, text: text.into() }
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Failure {
        let fault = match error {
            Error::Invalid(_) | Error::Setup(_) => Fault::Invalid,
            Error::Mismatch(_) => Fault::Precondition,
            Error::Shutdown => Fault::Aborted,
            _ => Fault::World,
        };
        Failure { fault, text: error.to_string() }
    }
}
