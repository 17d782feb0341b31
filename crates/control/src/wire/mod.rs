//! What travels between processes: the handshake, the sealed frames and the messages inside them.
//!
//! Every socket of Ronde starts with [`handshake`], which proves to each end that the other holds
//! the job key; everything after it travels in [`frame`]s sealed with the keys it derived.

pub mod agent;
pub mod copy;
pub mod frame;
pub mod handshake;
mod key;
pub mod remote_call;
mod rendezvous;
pub mod standing;

pub use handshake::Callee;
pub use key::{JobKey, KeyError, LinkKeys};
pub use rendezvous::{Change, DriverToRank, Greeting, Milestone, Peer, RankToDriver};

use serde::{Serialize, de::DeserializeOwned};

/// A message that could not be decoded.
#[derive(Debug, thiserror::Error)]
#[error("a message of {length} bytes could not be decoded")]
pub struct DecodeError {
    length: usize,
    source: postcard::Error,
}

/// Encodes a message for a frame.
pub fn encode<M: Serialize>(message: &M) -> Vec<u8> {
    postcard::to_stdvec(message).expect("our messages hold only encodable types")
}

/// Decodes a message. Trailing bytes are an error, so each frame holds exactly one message.
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, DecodeError> {
    let fail = |source| DecodeError { length: bytes.len(), source };
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(fail(postcard::Error::DeserializeBadEncoding)),
        Err(source) => Err(fail(source)),
    }
}
