//! Why a host cannot take part.

use serde::Serialize;

/// What went wrong with a host, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trouble {
    /// What was seen.
    pub reason: String,
    /// What to do.
    pub hint: String,
}

impl Trouble {
    /// What was seen, and what to do.
    pub fn new(reason: impl Into<String>, hint: impl Into<String>) -> Trouble {
        Trouble { reason: reason.into(), hint: hint.into() }
    }
}
