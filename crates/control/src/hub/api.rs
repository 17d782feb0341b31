//! What travels between a hub and those who use it: JSON, with the version in the path.
//!
//! Hubs and nodes are not all of one version, so unknown fields are ignored and new ones have
//! defaults. Who calls is proved by a signature of the connection: see [`signed`].

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString};

use super::{Moment, PersonId};

/// What every path of the API begins with.
pub const PREFIX: &str = "/v1";

/// The longest name of a person or a node, in characters.
pub const LONGEST_NAME: usize = 64;

/// What TLS derives for both ends of one connection and for nobody else, under this label.
pub const PROOF_LABEL: &[u8] = b"EXPORTER-ronde-hub-caller";

/// The scheme of the header `Authorization`: `Ronde KEY.SIGNATURE`, both in hexadecimal.
pub const SCHEME: &str = "Ronde ";

/// What a caller signs: the secret that only the two ends of this connection know. A signature that
/// somebody has overheard is thus of no use on another connection, and no clock is needed.
pub fn signed(proof: &[u8; 32]) -> Vec<u8> {
    [b"ronde hub caller, version 1\0".as_slice(), proof].concat()
}

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[derive(Display, EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum PersonRole {
    /// Use the machines of others.
    Borrower,
    /// Also lend machines.
    Lender,
    /// Also invite and revoke people.
    Admin,
}

/// `POST /login`: makes the key of this connection that of a person.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Login {
    /// The token of an invitation.
    pub token: String,
    /// What others are to see.
    pub name: String,
}

/// `POST /invites`: lets people in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Invite {
    /// What they may do.
    pub role: PersonRole,
    /// How many people.
    pub uses: u32,
    /// For how long, in seconds.
    pub seconds: u64,
}

/// The answer to [`Invite`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Invited {
    /// The token; only its hash is kept.
    pub token: String,
    /// When it ends.
    pub expires: Moment,
}

/// Somebody, as others see them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Person {
    /// Their number.
    pub person: PersonId,
    /// Their name.
    pub name: String,
    /// What they may do.
    pub role: PersonRole,
    /// Their public key, in hexadecimal.
    pub key: String,
    /// When they came.
    pub joined: Moment,
    /// When they were shut out, if they were.
    pub revoked: Option<Moment>,
}

/// The answer to a request that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What is wrong.
    pub error: String,
    /// What to do about it.
    #[serde(default)]
    pub hint: Option<String>,
}

/// A name as it is stored: trimmed, and free of what would spoil a terminal or a page.
pub fn name(text: &str) -> Result<String, String> {
    let text = text.trim();
    let is_plain = |letter: char| !letter.is_control() && !is_invisible(letter);
    match text.chars().count() {
        0 => Err("a name is needed".into()),
        1..=LONGEST_NAME if text.chars().all(is_plain) => Ok(text.to_owned()),
        1..=LONGEST_NAME => Err("a name must consist of visible characters".into()),
        _ => Err(format!("a name may have up to {LONGEST_NAME} characters")),
    }
}

/// Characters without a shape that reverse or hide others.
fn is_invisible(letter: char) -> bool {
    matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_trimmed_and_what_would_spoil_a_screen_is_refused() {
        assert_eq!(name("  Zoë O'Neil \n"), Ok("Zoë O'Neil".into()));
        for text in ["", " ", "a\u{1b}[2J", "a\u{202e}b", "a\nb", &"x".repeat(65)] {
            assert!(name(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn messages_from_other_versions_are_understood() {
        let later = r#"{"error": "no", "hint": "ask", "more": [1]}"#;
        let refusal: Refusal = serde_json::from_str(later).unwrap();
        assert_eq!(refusal.hint.as_deref(), Some("ask"));
        let earlier: Refusal = serde_json::from_str(r#"{"error": "no"}"#).unwrap();
        assert_eq!(earlier.hint, None);
    }

    #[test]
    fn roles_include_those_below_them() {
        assert!(
            PersonRole::Admin > PersonRole::Lender && PersonRole::Lender > PersonRole::Borrower
        );
        assert_eq!("admin".parse(), Ok(PersonRole::Admin));
    }
}
