//! Remote calls: a rank that was started for `horovod.run` fetches a function from the launcher and
//! uploads its result. This needs no world, and the bytes are never interpreted here.

use std::io;
use std::time::{Duration, Instant};

use ronde_control::settings::RendezvousInfo;
use ronde_control::wire::remote_call::{CallMessage, LARGEST_PIECE};
use ronde_control::wire::{Callee, Greeting};
use ronde_control::{Rank, VERSION};

use crate::error::Error;
use crate::transport::dial::dial;
use crate::transport::wire::SealedWire;

/// How long the launcher may take for one piece. The process that reads from the launcher may be
/// slow.
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// Fetches the function that this job runs.
pub fn fetch(rendezvous_info: &RendezvousInfo, rank: Rank) -> Result<Vec<u8>, Error> {
    let mut wire = call(rendezvous_info, &Greeting::Fetch { version: VERSION.into(), rank })?;
    let mut function = Vec::new();
    loop {
        match receive(&mut wire)? {
            CallMessage::Piece { bytes } => function.extend(bytes),
            CallMessage::End => return Ok(function),
            CallMessage::Refused { reason } => return Err(Error::Setup(reason)),
        }
    }
}

/// An upload of a result to the launcher, piece by piece.
pub struct ResultUpload {
    wire: SealedWire,
}

impl ResultUpload {
    /// Connects to the launcher.
    pub fn begin(rendezvous_info: &RendezvousInfo, rank: Rank) -> Result<ResultUpload, Error> {
        let wire = call(rendezvous_info, &Greeting::Deliver { version: VERSION.into(), rank })?;
        Ok(ResultUpload { wire })
    }

    /// The longest slice that [`ResultUpload::send`] accepts.
    pub const MOST: usize = LARGEST_PIECE;

    /// Sends the next bytes.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.send_message(&CallMessage::Piece { bytes: bytes.to_vec() })
    }

    /// Ends the upload and waits until the launcher has everything.
    pub fn end(mut self) -> Result<(), Error> {
        self.send_message(&CallMessage::End)?;
        match receive(&mut self.wire)? {
            CallMessage::Refused { reason } => Err(Error::Setup(reason)),
            _ => Ok(()),
        }
    }

    fn send_message(&mut self, call_message: &CallMessage) -> Result<(), Error> {
        let deadline = Instant::now() + TIME_LIMIT;
        self.wire
            .send(call_message)
            .and_then(|()| self.wire.flush_by(deadline))
            .map_err(|e| gone(&e))
    }
}

fn call(rendezvous_info: &RendezvousInfo, greeting: &Greeting) -> Result<SealedWire, Error> {
    let deadline = Instant::now() + TIME_LIMIT;
    let proof = (&rendezvous_info.key, Callee::Launcher);
    dial(&rendezvous_info.addresses, proof, greeting, deadline).map_err(|error| gone(&error))
}

fn receive(wire: &mut SealedWire) -> Result<CallMessage, Error> {
    wire.receive_by(Instant::now() + TIME_LIMIT).map_err(|error| gone(&error))
}

fn gone(error: &io::Error) -> Error {
    Error::LauncherGone { what: error.to_string(), tensor: None }
}
