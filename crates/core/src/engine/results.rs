//! Memory for results whose size is known only after negotiation: the engine's own memory, or
//! memory that the caller then allocates.
//!
//! If the caller cannot allocate, the other ranks must not wait for it. The collective still runs,
//! into the engine's memory, and only this rank's submission fails.

use super::ticket::{AllocateResult, Outcome, OwnedResult};
use crate::buffer::{Buffer, Output};
use crate::error::Error;

pub(super) struct Results<'a> {
    allocate: Option<&'a AllocateResult>,
    /// Results in the engine's own memory.
    made: Vec<OwnedResult>,
    /// Results in the caller's memory, with their row counts.
    placed: Vec<(Output, Vec<u64>)>,
    refused: Option<String>,
}

impl<'a> Results<'a> {
    pub(super) fn new(allocate: Option<&'a AllocateResult>) -> Results<'a> {
        Results { allocate, made: Vec::new(), placed: Vec::new(), refused: None }
    }

    /// Memory of `length` bytes for the next result.
    pub(super) fn place(&mut self, rows: Vec<u64>, length: usize) -> &mut [u8] {
        if let Some(allocate) = self.allocate {
            match allocate(self.placed.len() + self.made.len(), &rows) {
                Ok(output) if output.length() == length => {
                    self.placed.push((output, rows));
                    let last = self.placed.len() - 1;
                    return self.placed[last].0.bytes_mut();
                }
                Ok(output) => {
                    let given = output.length();
                    self.refuse(format!("memory for a result of {length} bytes has {given} bytes"));
                }
                Err(reason) => self.refuse(reason),
            }
        }
        self.made.push(OwnedResult { buffer: Buffer::new(length), rows });
        let last = self.made.len() - 1;
        self.made[last].buffer.bytes_mut()
    }

    fn refuse(&mut self, reason: String) {
        self.refused.get_or_insert(reason);
    }

    /// The outcome. The caller's memory is returned to it.
    pub(super) fn outcome(self) -> Result<Outcome, Error> {
        match (self.refused, self.allocate) {
            (Some(reason), _) => Err(Error::Invalid(reason)),
            (None, Some(_)) => {
                Ok(Outcome::Placed(self.placed.into_iter().map(|(_, rows)| rows).collect()))
            }
            (None, None) => Ok(Outcome::Made(self.made)),
        }
    }
}
