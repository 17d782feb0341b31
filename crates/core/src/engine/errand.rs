//! The errand of a rank that was started for `horovod.run`: it fetches a function from the launcher and
//! delivers what that returned. It needs no world, and nothing here looks into the bytes.

use std::io;
use std::time::{Duration, Instant};

use ronde_control::settings::Meeting;
use ronde_control::wire::errand::{LARGEST_PIECE, Parcel};
use ronde_control::wire::{Callee, Greeting};
use ronde_control::{Rank, VERSION};

use crate::error::Error;
use crate::transport::dial::dial;
use crate::transport::wire::Wire;

/// How long the launcher may let a rank wait for one piece. Whoever reads behind it may be slow.
const PATIENCE: Duration = Duration::from_secs(600);

/// Fetches the function of this job.
pub fn fetch(meeting: &Meeting, rank: Rank) -> Result<Vec<u8>, Error> {
    let mut wire = call(meeting, &Greeting::Fetch { version: VERSION.into(), rank })?;
    let mut function = Vec::new();
    loop {
        match hear(&mut wire)? {
            Parcel::Piece { bytes } => function.extend(bytes),
            Parcel::End => return Ok(function),
            Parcel::Refused { reason } => return Err(Error::Setup(reason)),
        }
    }
}

/// A delivery to the launcher, piece by piece.
pub struct Delivery {
    wire: Wire,
}

impl Delivery {
    /// Begins it.
    pub fn begin(meeting: &Meeting, rank: Rank) -> Result<Delivery, Error> {
        let wire = call(meeting, &Greeting::Deliver { version: VERSION.into(), rank })?;
        Ok(Delivery { wire })
    }

    /// The longest slice that [`Delivery::send`] takes.
    pub const MOST: usize = LARGEST_PIECE;

    /// Sends the next bytes.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.tell(&Parcel::Piece { bytes: bytes.to_vec() })
    }

    /// Ends it, once the launcher has everything.
    pub fn end(mut self) -> Result<(), Error> {
        self.tell(&Parcel::End)?;
        match hear(&mut self.wire)? {
            Parcel::Refused { reason } => Err(Error::Setup(reason)),
            _ => Ok(()),
        }
    }

    fn tell(&mut self, parcel: &Parcel) -> Result<(), Error> {
        let deadline = Instant::now() + PATIENCE;
        self.wire.send(parcel).and_then(|()| self.wire.flush_by(deadline)).map_err(|e| gone(&e))
    }
}

fn call(meeting: &Meeting, greeting: &Greeting) -> Result<Wire, Error> {
    let deadline = Instant::now() + PATIENCE;
    let proof = (&meeting.key, Callee::Launcher);
    dial(&meeting.addresses, proof, greeting, deadline).map_err(|error| gone(&error))
}

fn hear(wire: &mut Wire) -> Result<Parcel, Error> {
    wire.receive_by(Instant::now() + PATIENCE).map_err(|error| gone(&error))
}

fn gone(error: &io::Error) -> Error {
    Error::LauncherGone { what: error.to_string(), tensor: None }
}
