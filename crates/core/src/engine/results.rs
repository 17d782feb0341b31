//! Where results go whose size is known only when all ranks have spoken: to memory of our own, or to
//! memory that the caller gives then.
//!
//! A caller that has no memory must not keep the others waiting: the collective runs all the same, to
//! memory of our own, and only this rank's submission fails.

use super::ticket::{Made, Outcome, Room, Targets};
use crate::buffer::{Buffer, Region};
use crate::error::Error;

pub(super) struct Results<'a> {
    room: Option<&'a Room>,
    /// What lies in memory of our own.
    made: Vec<Made>,
    /// The rows of what lies in the caller's.
    placed: Vec<Vec<u64>>,
    refused: Option<String>,
}

impl<'a> Results<'a> {
    pub(super) fn new(targets: &'a Targets) -> Results<'a> {
        let room = match targets {
            Targets::Regions(_) => None,
            Targets::Room(room) => Some(room),
        };
        Results { room, made: Vec::new(), placed: Vec::new(), refused: None }
    }

    /// Memory for the next result, which has so many bytes.
    pub(super) fn place(&mut self, rows: Vec<u64>, length: usize) -> Region {
        if let Some(room) = self.room {
            match room(self.placed.len() + self.made.len(), &rows) {
                Ok(region) if region.length() == length => {
                    self.placed.push(rows);
                    return region;
                }
                Ok(region) => {
                    let given = region.length();
                    self.refuse(format!("a result of {length} bytes got memory for {given}"));
                }
                Err(reason) => self.refuse(reason),
            }
        }
        let buffer = Buffer::new(length);
        let region = buffer.region();
        self.made.push(Made { buffer, rows });
        region
    }

    fn refuse(&mut self, reason: String) {
        self.refused.get_or_insert(reason);
    }

    pub(super) fn outcome(self) -> Result<Outcome, Error> {
        match (self.refused, self.room) {
            (Some(reason), _) => Err(Error::Invalid(reason)),
            (None, Some(_)) => Ok(Outcome::Placed(self.placed)),
            (None, None) => Ok(Outcome::Made(self.made)),
        }
    }
}
