//! Sealed frames: four bytes of length (little-endian), then that many bytes of ciphertext.
//!
//! Frames are encrypted, authenticated and numbered, so they cannot be read, changed, dropped,
//! repeated or reordered. Noise seals at most 65,535 bytes at once; a longer frame consists of full
//! pieces and a shorter last one. The length is checked before anything is allocated.

use std::sync::Arc;

use snow::StatelessTransportState;

/// The longest plaintext of a control frame.
pub const MAX_FRAME: usize = 16 << 20;

const TAG: usize = 16;
const PIECE: usize = 65_535 - TAG;

/// A frame that no process of this job can have sent.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The announced length exceeds the longest message.
    #[error("received a corrupt message: it claims to be {0} bytes long, which is over the limit")]
    TooLong(usize),
    /// The content was changed, repeated, reordered or sealed by someone else.
    #[error(
        "received a corrupt message: it was altered in transit, replayed, or sent by \
         someone else"
    )]
    Tampered,
}

/// Seals the frames that this end sends.
pub struct Sealer {
    pub(super) state: Arc<StatelessTransportState>,
    pub(super) next: u64,
}

/// Opens the frames that the other end sealed.
pub struct Opener {
    pub(super) state: Arc<StatelessTransportState>,
    pub(super) next: u64,
}

/// How many bytes of ciphertext follow the length prefix of a frame.
pub fn frame_length(header: [u8; 4]) -> Result<usize, FrameError> {
    let length = u32::from_le_bytes(header) as usize;
    if length > sealed_length(MAX_FRAME) { Err(FrameError::TooLong(length)) } else { Ok(length) }
}

fn sealed_length(plain: usize) -> usize {
    plain + TAG * plain.div_ceil(PIECE).max(1)
}

impl Sealer {
    /// Seals a message into a frame, prefixed with its length.
    pub fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        assert!(plain.len() <= MAX_FRAME, "a message of {} bytes fits no frame", plain.len());
        let total = sealed_length(plain.len());
        let mut frame = vec![0; 4 + total];
        frame[..4].copy_from_slice(&(total as u32).to_le_bytes());
        let mut at = 4;
        for piece in pieces(plain, PIECE) {
            at += self
                .state
                .write_message(self.next, piece, &mut frame[at..])
                .expect("a piece and its tag fit");
            self.next += 1;
        }
        frame
    }
}

impl Opener {
    /// Opens a frame's ciphertext.
    pub fn open(&mut self, sealed: &[u8]) -> Result<Vec<u8>, FrameError> {
        let mut plain = vec![0; sealed.len()];
        let mut at = 0;
        for piece in pieces(sealed, PIECE + TAG) {
            let opened = self.state.read_message(self.next, piece, &mut plain[at..]);
            at += opened.map_err(|_| FrameError::Tampered)?;
            self.next += 1;
        }
        plain.truncate(at);
        Ok(plain)
    }
}

/// Splits into pieces; empty input gives one empty piece.
fn pieces(bytes: &[u8], size: usize) -> impl Iterator<Item = &[u8]> {
    let empty = bytes.is_empty().then_some(bytes);
    empty.into_iter().chain(bytes.chunks(size))
}

#[cfg(test)]
mod tests {
    use super::super::handshake::{Callee, Initiator, respond};
    use super::super::{Greeting, JobKey, decode};
    use super::*;
    use proptest::prelude::*;

    fn pair() -> (Sealer, Opener) {
        let key = JobKey::from_entropy([3; 32]);
        let (initiator, hello) = Initiator::start(&key, Callee::Launcher);
        let (answer, (_, opener)) = respond(&key, Callee::Launcher, &hello[2..]).unwrap();
        (initiator.finish(&answer[2..]).unwrap().0, opener)
    }

    #[test]
    fn frames_of_boundary_lengths_arrive_intact() {
        let (mut sealer, mut opener) = pair();
        for length in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 7] {
            let plain: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let frame = sealer.seal(&plain);
            let header = [frame[0], frame[1], frame[2], frame[3]];
            assert_eq!(frame_length(header).unwrap(), frame.len() - 4);
            assert_eq!(opener.open(&frame[4..]).unwrap(), plain);
        }
    }

    #[test]
    fn repeated_reordered_and_changed_frames_are_refused() {
        let (mut sealer, mut opener) = pair();
        let (first, second) = (sealer.seal(b"first"), sealer.seal(b"second"));
        assert!(opener.open(&second[4..]).is_err());
        assert!(opener.open(&first[4..]).is_ok());
        assert!(opener.open(&first[4..]).is_err());
        let mut changed = second.clone();
        changed[6] ^= 1;
        assert!(opener.open(&changed[4..]).is_err());
        assert!(opener.open(&[]).is_err());
    }

    #[test]
    fn an_excessive_length_is_refused_before_allocating() {
        assert!(matches!(frame_length([255; 4]), Err(FrameError::TooLong(_))));
    }

    proptest! {
        #[test]
        fn garbage_is_never_a_frame_and_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(pair().1.open(&bytes).is_err());
            let _ = decode::<Greeting>(&bytes);
            let _ = respond(&JobKey::from_entropy([3; 32]), Callee::Launcher, &bytes).is_err();
        }
    }
}
