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

impl Mistake {
    /// Both mistakes at once.
    pub(crate) fn and(mut self, other: Mistake) -> Mistake {
        self.errors.extend(other.errors);
        if !self.hint.contains(&other.hint) {
            self.hint = format!("{}; {}", self.hint, other.hint);
        }
        self
    }
}

/// Two results, or all that is wrong with them.
pub(crate) fn both<A, B>(
    one: Result<A, Mistake>,
    other: Result<B, Mistake>,
) -> Result<(A, B), Mistake> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok((one, other)),
        (Err(one), Err(other)) => Err(one.and(other)),
        (Err(mistake), _) | (_, Err(mistake)) => Err(mistake),
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
