//! How the function of `horovod.run` reaches the ranks, and its results the driver.
//!
//! Both travel over their own connections to the rendezvous, after the handshake and sealed like
//! all others, in pieces of bounded size:
//!
//! 1. A rank greets with `Fetch`. The driver sends `Piece`s and `End`.
//! 2. When the function has returned, the rank greets with `Deliver` and sends `Piece`s and `End`.
//!    The driver answers `End` once it has them all; only then does the rank exit.
//!
//! Only Python interprets the bytes, on either end.

use serde::{Deserialize, Serialize};

/// Maximum size of one piece, in bytes.
pub const LARGEST_PIECE: usize = 1 << 20;

/// Messages of both directions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallMessage {
    /// The next bytes.
    Piece {
        /// At most [`LARGEST_PIECE`] of them.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// End of the data.
    End,
    /// There is nothing to fetch, or nothing wants the result.
    Refused {
        /// Why, and how to fix it.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::super::{decode, encode};
    use super::*;

    #[test]
    fn bytes_are_encoded_as_one_block_and_a_length_past_the_end_is_refused() {
        let piece = CallMessage::Piece { bytes: vec![7; 300] };
        let sent = encode(&piece);
        assert_eq!(sent[..3], [0, 172, 2]);
        assert_eq!((sent.len(), decode::<CallMessage>(&sent).unwrap()), (303, piece));
        assert!(decode::<CallMessage>(&sent[..302]).is_err());
        assert!(decode::<CallMessage>(&[0, 255, 255, 255, 255, 15]).is_err());
    }
}
