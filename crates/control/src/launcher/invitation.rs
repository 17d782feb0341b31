//! What rank 0 gives the other ranks under another launcher: the addresses of its rendezvous and
//! the job key. The text form goes into a private file or over MPI, never into a log.

use std::net::SocketAddr;

use crate::wire::JobKey;

/// The first line, which identifies the format and its version.
const TITLE: &str = "ronde invitation 1";

/// How many addresses of rank 0 are passed on at most.
const MOST_ADDRESSES: usize = 32;

/// The rendezvous of rank 0 and the key to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// Every address of rank 0's rendezvous.
    pub addresses: Vec<SocketAddr>,
    /// The job key.
    pub key: JobKey,
}

impl Invitation {
    /// Maximum length of the text form.
    pub const LONGEST: usize = 4096;

    /// The text form, which [`Invitation::from_text`] reads.
    pub fn to_text(&self) -> String {
        let addresses = self.addresses.iter().take(MOST_ADDRESSES);
        let addresses: Vec<String> = addresses.map(ToString::to_string).collect();
        format!("{TITLE}\n{}\n{}\n", self.key.to_hex(), addresses.join(" "))
    }

    /// Parses the text form; `None` if it is anything else.
    pub fn from_text(text: &str) -> Option<Invitation> {
        let [TITLE, key, addresses] = text.lines().collect::<Vec<_>>()[..] else { return None };
        let addresses: Option<Vec<SocketAddr>> =
            addresses.split(' ').map(|address| address.parse().ok()).collect();
        Some(Invitation { addresses: addresses?, key: JobKey::from_hex(key).ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_survives_conversion_to_text_and_other_texts_are_refused() {
        let addresses = ["10.0.0.1:5", "[fd00::1]:5"].map(|text| text.parse().unwrap());
        let invitation =
            Invitation { addresses: addresses.into(), key: JobKey::from_entropy([3; 32]) };
        let text = invitation.to_text();
        assert!(text.len() < Invitation::LONGEST);
        assert_eq!(Invitation::from_text(&text), Some(invitation));
        for cut in 0..text.len() - 1 {
            assert_ne!(Invitation::from_text(&text[..cut]).map(|i| i.addresses.len()), Some(2));
        }
        for other in ["", "\n\n", "ronde invitation 2\n", &text.replace("10.", "x.")] {
            assert_eq!(Invitation::from_text(other), None, "{other:?}");
        }
    }
}
