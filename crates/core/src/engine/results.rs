//! Where results go whose size is known only when all ranks have spoken: to memory of our own, or to
//! memory that the caller gives then.
//!
//! A caller that has no memory must not keep the others waiting: the collective runs all the same, to
//! memory of our own, and only this rank's submission fails.

use super::ticket::{Made, Outcome, Room};
use crate::buffer::{Buffer, Output};
use crate::error::Error;

pub(super) struct Results<'a> {
    room: Option<&'a Room>,
    /// What lies in memory of our own.
    made: Vec<Made>,
    /// What lies in the caller's, and its rows.
    placed: Vec<(Output, Vec<u64>)>,
    refused: Option<String>,
}

impl<'a> Results<'a> {
    pub(super) fn new(room: Option<&'a Room>) -> Results<'a> {
        Results { room, made: Vec::new(), placed: Vec::new(), refused: None }
    }

    /// Memory for the next result, which has so many bytes.
    pub(super) fn place(&mut self, rows: Vec<u64>, length: usize) -> &mut [u8] {
        if let Some(room) = self.room {
            match room(self.placed.len() + self.made.len(), &rows) {
                Ok(output) if output.length() == length => {
                    self.placed.push((output, rows));
                    let last = self.placed.len() - 1;
                    return self.placed[last].0.bytes_mut();
                }
                Ok(output) => {
                    let given = output.length();
                    self.refuse(format!("a result of {length} bytes got memory for {given}"));
                }
                Err(reason) => self.refuse(reason),
            }
        }
        self.made.push(Made { buffer: Buffer::new(length), rows });
        let last = self.made.len() - 1;
        self.made[last].buffer.bytes_mut()
    }

    fn refuse(&mut self, reason: String) {
        self.refused.get_or_insert(reason);
    }

    /// What came of it; the caller has its memory back.
    pub(super) fn outcome(self) -> Result<Outcome, Error> {
        match (self.refused, self.room) {
            (Some(reason), _) => Err(Error::Invalid(reason)),
            (None, Some(_)) => {
                Ok(Outcome::Placed(self.placed.into_iter().map(|(_, rows)| rows).collect()))
            }
            (None, None) => Ok(Outcome::Made(self.made)),
        }
    }
}
