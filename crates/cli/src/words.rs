//! How mistakes are told: what happened, then what to do.

use std::fmt::Display;

/// The exit code for a mistake on the command line or in the settings.
pub(crate) const USAGE: u8 = 2;

/// Something the user can put right.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// What is wrong; one line for each thing.
    pub(crate) errors: Vec<String>,
    /// What to do.
    pub(crate) hint: String,
}

impl Mistake {
    pub(crate) fn new(error: impl Display, hint: impl Into<String>) -> Mistake {
        Mistake { errors: vec![error.to_string()], hint: hint.into() }
    }
}

impl Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for error in &self.errors {
            writeln!(f, "error: {error}")?;
        }
        write!(f, "\nhint: {}", self.hint)
    }
}
