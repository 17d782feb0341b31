//! Errors for native code of a framework: a class, and a text.

use ronde_core::Error;
use ronde_core::device::DeviceError;

use crate::child;

/// The class of an error; each framework maps it to its own class or code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorClass {
    /// The call is invalid.
    Invalid,
    /// The requests of the ranks do not match, or there is no world.
    Precondition,
    /// This rank has shut down.
    Aborted,
    /// The world has ended: a rank was lost or left.
    World,
}

/// Why a call failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) fault: ErrorClass,
    pub(crate) text: String,
}

impl Failure {
    /// There is no engine in this process.
    pub(crate) fn not_initialized() -> Failure {
        let unknown = || "Horovod has not been initialized; use hvd.init().".into();
        let text = child::refusal_text().unwrap_or_else(unknown);
        Failure { fault: ErrorClass::Precondition, text }
    }

    pub(crate) fn invalid(text: &str) -> Failure {
        Failure { fault: ErrorClass::Invalid, text: text.into() }
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Failure {
        Failure::from(&Error::from(error))
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Failure {
        let fault = match error {
            Error::Invalid(_) | Error::Setup(_) => ErrorClass::Invalid,
            Error::Mismatch(_) => ErrorClass::Precondition,
            Error::Shutdown => ErrorClass::Aborted,
            _ => ErrorClass::World,
        };
        Failure { fault, text: error.to_string() }
    }
}
