//! Sealed frames: four bytes of length (little-endian), then that many bytes of ciphertext.
//!
//! A frame is encrypted, authenticated and numbered, so that it can be neither read, changed,
//! dropped, repeated nor reordered. Noise seals at most 65,535 bytes at once; a longer frame is a
//! row of full pieces and a rest. The length is checked before anything is allocated.

use std::sync::Arc;

use snow::StatelessTransportState;

/// The longest plaintext of one control frame.
pub const MAX_FRAME: usize = 16 << 20;

const TAG: usize = 16;
const PIECE: usize = 65_535 - TAG;

/// A frame that cannot be ours.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The announced length is beyond what any message needs.
    #[error("a message arrived damaged: it claims to have {0} bytes, and none is that long")]
    TooLong(usize),
    /// The content was changed, repeated, reordered or sealed by somebody else.
    #[error(
        "a message arrived damaged: its bytes were changed on their way, or it was repeated or sent by \
         somebody else"
    )]
    Tampered,
}

/// Seals what one end sends.
pub struct Sealer {
    pub(super) state: Arc<StatelessTransportState>,
    pub(super) next: u64,
}

/// Opens what the other end sealed.
pub struct Opener {
    pub(super) state: Arc<StatelessTransportState>,
    pub(super) next: u64,
}

/// The number of ciphertext bytes that follow a frame's four bytes of length.
pub fn frame_length(header: [u8; 4]) -> Result<usize, FrameError> {
    let length = u32::from_le_bytes(header) as usize;
    if length > sealed_length(MAX_FRAME) { Err(FrameError::TooLong(length)) } else { Ok(length) }
}

fn sealed_length(plain: usize) -> usize {
    plain + TAG * plain.div_ceil(PIECE).max(1)
}

impl Sealer {
    /// Seals a message into a frame, its length in front.
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

/// Even nothing is one piece.
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
    fn frames_of_every_awkward_length_arrive_whole() {
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
    fn a_length_beyond_any_message_is_refused_before_allocating() {
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
