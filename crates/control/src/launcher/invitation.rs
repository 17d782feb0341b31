//! What rank 0 tells the others of a job that another launcher has started: where it lets the ranks
//! meet, and the job's key. The text form goes into a private file or over MPI, never into a log.

use std::net::SocketAddr;

use crate::wire::JobKey;

/// The first line, by which a text of another kind or version is known.
const TITLE: &str = "ronde invitation 1";

/// More addresses than these no machine needs to be found by.
const MOST_ADDRESSES: usize = 32;

/// Where and with which key the ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// Rank 0's service, by every address it has.
    pub addresses: Vec<SocketAddr>,
    /// The job's key.
    pub key: JobKey,
}

impl Invitation {
    /// The longest text form, which a reader may rely on.
    pub const LONGEST: usize = 4096;

    /// The text form.
    pub fn to_text(&self) -> String {
        let addresses = self.addresses.iter().take(MOST_ADDRESSES);
        let addresses: Vec<String> = addresses.map(ToString::to_string).collect();
        format!("{TITLE}\n{}\n{}\n", self.key.to_hex(), addresses.join(" "))
    }

    /// Reads the text form; none if it is anything else.
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
    fn an_invitation_survives_its_text_form_and_anything_else_is_none() {
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
