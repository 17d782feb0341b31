//! How the function of `horovod.run` reaches the ranks and what it returns comes back.
//!
//! Both travel over connections of their own to the rendezvous, behind the handshake and sealed like
//! everything there, in pieces of bounded size:
//!
//! 1. A rank greets with `Fetch`. The driver sends `Piece`s and `End`.
//! 2. When the function has returned, the rank greets with `Deliver` and sends `Piece`s and `End`. The
//!    driver answers `End` once it has them all, and only then the rank ends.
//!
//! What the bytes mean is the business of Python on both sides; nothing in between looks into them.

use serde::{Deserialize, Serialize};

/// The most bytes of one piece.
pub const LARGEST_PIECE: usize = 1 << 20;

/// What both sides send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Parcel {
    /// The next bytes.
    Piece {
        /// At most [`LARGEST_PIECE`] of them.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// That was all.
    End,
    /// There is nothing to fetch, or nobody to deliver to.
    Refused {
        /// Why, and what to do.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::super::{decode, encode};
    use super::*;

    #[test]
    fn bytes_are_one_block_and_a_length_beyond_them_is_refused() {
        let piece = Parcel::Piece { bytes: vec![7; 300] };
        let sent = encode(&piece);
        assert_eq!(sent[..3], [0, 172, 2]);
        assert_eq!((sent.len(), decode::<Parcel>(&sent).unwrap()), (303, piece));
        assert!(decode::<Parcel>(&sent[..302]).is_err());
        assert!(decode::<Parcel>(&[0, 255, 255, 255, 255, 15]).is_err());
    }
}
