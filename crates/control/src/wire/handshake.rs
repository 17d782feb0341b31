//! The handshake in which both ends of a socket prove that they hold the job key.
//!
//! The Noise pattern `NNpsk0`, in three messages, each in a small plain envelope (two bytes of
//! length, little-endian):
//!
//! 1. The dialing side sends a fresh public key and a tag that requires the job key. A peer without
//!    the key fails here, before any of its bytes is interpreted.
//! 2. The listening side answers with its own fresh public key and a tag over both.
//! 3. The dialing side sends its first sealed frame, a [`Greeting`](super::Greeting). A replayed
//!    first message fails here: without the private half of the old key nobody can seal the frame.
//!
//! Both sides mix in the identity of the called process, so a [`Callee`] answers only calls meant
//! for it: an address, such as that of a docker bridge, may belong to a different machine on each
//! host.
//!
//! Neither side decodes anything before the other has proved itself. The functions only move bytes
//! between buffers; the caller reads and writes the socket.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use snow::{Builder, HandshakeState};

use super::JobKey;
use super::frame::{Opener, Sealer};
use crate::Rank;

/// The longest envelope body of the handshake; a longer one cannot come from a process of the job.
pub const MAX_ENVELOPE: usize = 128;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

/// The other end does not hold this job's key, or is not the process that was called.
#[derive(Debug, thiserror::Error)]
#[error("the other end does not hold this job's key")]
pub struct Refused;

/// Identity that the dialed process must prove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Callee {
    /// The launcher's rendezvous.
    Launcher,
    /// The agent of the host with this number.
    Host(u32),
    /// A rank, by its number.
    Rank(Rank),
    /// A process of TensorFlow's data service; its key is that of the service.
    DataService,
    /// A standing agent; its key is that of the standing agents, not a job's.
    StandingAgent,
}

impl fmt::Display for Callee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Callee::Launcher => f.write_str("the launcher"),
            Callee::Host(number) => write!(f, "the agent of host {number}"),
            Callee::Rank(rank) => write!(f, "{rank}"),
            Callee::DataService => f.write_str("the data service"),
            Callee::StandingAgent => f.write_str("the standing agent"),
        }
    }
}

impl Callee {
    fn prologue(self) -> String {
        match self {
            Callee::Launcher => "ronde/2 launcher".into(),
            Callee::Host(number) => format!("ronde/2 host {number}"),
            Callee::Rank(Rank(number)) => format!("ronde/2 rank {number}"),
            Callee::DataService => "ronde/2 data service".into(),
            Callee::StandingAgent => "ronde/2 standing agent".into(),
        }
    }
}

/// The two halves of an authenticated connection.
pub type SealedChannel = (Sealer, Opener);

/// The side that dials.
pub struct Initiator(HandshakeState);

impl Initiator {
    /// Starts a handshake; the returned bytes are the first envelope to send.
    pub fn start(key: &JobKey, callee: Callee) -> (Initiator, Vec<u8>) {
        let prologue = callee.prologue();
        let builder = builder(key, &prologue);
        let mut state =
            builder.build_initiator().expect("the pattern needs nothing but the shared key");
        let hello = envelope(&mut state).expect("a first message fits and needs no input");
        (Initiator(state), hello)
    }

    /// Completes the handshake with the body of the answer.
    pub fn finish(mut self, answer: &[u8]) -> Result<SealedChannel, Refused> {
        self.0.read_message(answer, &mut [0; MAX_ENVELOPE]).map_err(|_| Refused)?;
        channel(self.0)
    }
}

/// The listening side: takes the body of the first envelope and returns the envelope to answer
/// with. `callee` is its own identity.
pub fn respond(
    key: &JobKey,
    callee: Callee,
    hello: &[u8],
) -> Result<(Vec<u8>, SealedChannel), Refused> {
    let prologue = callee.prologue();
    let builder = builder(key, &prologue);
    let mut state =
        builder.build_responder().expect("the pattern needs nothing but the shared key");
    state.read_message(hello, &mut [0; MAX_ENVELOPE]).map_err(|_| Refused)?;
    let answer = envelope(&mut state)?;
    Ok((answer, channel(state)?))
}

/// The body length that an envelope's first two bytes announce; an error if it is out of range.
pub fn envelope_length(header: [u8; 2]) -> Result<usize, Refused> {
    let length = usize::from(u16::from_le_bytes(header));
    if length == 0 || length > MAX_ENVELOPE { Err(Refused) } else { Ok(length) }
}

fn builder<'a>(key: &'a JobKey, prologue: &'a str) -> Builder<'a> {
    Builder::new(PATTERN.parse().expect("the pattern's name is a constant"))
        .psk(0, key.bytes())
        .and_then(|builder| builder.prologue(prologue.as_bytes()))
        .expect("each is set once")
}

fn envelope(state: &mut HandshakeState) -> Result<Vec<u8>, Refused> {
    let mut buffer = vec![0; 2 + MAX_ENVELOPE];
    let length = state.write_message(&[], &mut buffer[2..]).map_err(|_| Refused)?;
    buffer[..2].copy_from_slice(&(length as u16).to_le_bytes());
    buffer.truncate(2 + length);
    Ok(buffer)
}

fn channel(state: HandshakeState) -> Result<SealedChannel, Refused> {
    let state = Arc::new(state.into_stateless_transport_mode().map_err(|_| Refused)?);
    Ok((Sealer { state: state.clone(), next: 0 }, Opener { state, next: 0 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Callee = Callee::Rank(Rank(3));

    fn body(envelope: &[u8]) -> &[u8] {
        let length = envelope_length([envelope[0], envelope[1]]).unwrap();
        assert_eq!(envelope.len(), 2 + length);
        &envelope[2..]
    }

    fn key(seed: u8) -> JobKey {
        JobKey::from_entropy([seed; 32])
    }

    #[test]
    fn two_holders_of_the_key_can_exchange_messages() {
        let (initiator, hello) = Initiator::start(&key(1), ME);
        let (answer, (mut b_seal, mut b_open)) = respond(&key(1), ME, body(&hello)).unwrap();
        let (mut a_seal, mut a_open) = initiator.finish(body(&answer)).unwrap();
        for text in [&b"one"[..], b"", b"two"] {
            assert_eq!(b_open.open(&a_seal.seal(text)[4..]).unwrap(), text);
            assert_eq!(a_open.open(&b_seal.seal(text)[4..]).unwrap(), text);
        }
    }

    #[test]
    fn a_peer_without_the_key_fails_at_its_first_message() {
        let (_, hello) = Initiator::start(&key(1), ME);
        assert!(respond(&key(2), ME, body(&hello)).is_err());
        assert!(respond(&key(2), ME, b"").is_err());
        assert!(respond(&key(2), ME, &[0; MAX_ENVELOPE]).is_err());
    }

    #[test]
    fn only_the_called_process_can_answer() {
        for other in
            [Callee::Launcher, Callee::Host(3), Callee::Rank(Rank(30)), Callee::DataService]
        {
            let (_, hello) = Initiator::start(&key(1), ME);
            assert!(respond(&key(1), other, body(&hello)).is_err(), "{other:?}");
        }
    }

    #[test]
    fn a_listener_without_the_key_is_detected() {
        let (initiator, hello) = Initiator::start(&key(1), ME);
        let mut forged = respond(&key(1), ME, body(&hello)).unwrap().0;
        *forged.last_mut().unwrap() ^= 1;
        assert!(initiator.finish(body(&forged)).is_err());
    }

    #[test]
    fn a_replayed_handshake_cannot_send_messages() {
        let (initiator, hello) = Initiator::start(&key(1), ME);
        let (answer, _) = respond(&key(1), ME, body(&hello)).unwrap();
        let greeting = initiator.finish(body(&answer)).unwrap().0.seal(b"greeting");
        let (_, (_, mut again)) = respond(&key(1), ME, body(&hello)).unwrap();
        assert!(again.open(&greeting[4..]).is_err());
    }

    #[test]
    fn envelope_lengths_out_of_range_are_refused() {
        assert!(envelope_length(*b"GE").is_err());
        assert!(envelope_length([0, 0]).is_err());
        assert!(envelope_length([48, 0]).is_ok());
    }
}
