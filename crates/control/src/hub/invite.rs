//! The line that lets a newcomer in: where the hub is, how to recognise it, and a token.
//!
//! `hub.example.org:7433/CERTIFICATE/TOKEN`: the fingerprint of the hub's certificate makes the
//! first connection as safe as all later ones, without any authority. Whoever has the line may use
//! the token, so it is a secret until it has been used.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{from_hex, to_hex};

/// What `ronde hub invite` prints, and `ronde login` takes.
#[derive(Clone, PartialEq, Eq)]
pub struct InviteLine {
    /// Where the hub listens: `host:port`.
    pub address: String,
    /// The hub's certificate.
    pub certificate: Fingerprint,
    /// The secret.
    pub token: Token,
}

/// The SHA-256 of something public, such as a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Fingerprint(pub [u8; 32]);

/// A secret that lets somebody in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token(pub [u8; 16]);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl fmt::Debug for InviteLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InviteLine").field("address", &self.address).finish_non_exhaustive()
    }
}

impl fmt::Display for InviteLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.address, self.certificate, self.token)
    }
}

impl FromStr for InviteLine {
    type Err = String;

    fn from_str(text: &str) -> Result<InviteLine, String> {
        // The text is not repeated: it may contain most of a token.
        let invalid = |what: &str| {
            format!(
                "this is not an invitation ({what}); paste the whole line that `ronde hub invite` \
                 printed"
            )
        };
        let mut parts = text.trim().split('/');
        let (Some(address), Some(certificate), Some(token), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(invalid("it has three parts with `/` between them"));
        };
        let port = address.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        if !matches!(port, Some(Ok(1..))) {
            return Err(invalid("it begins with `host:port`"));
        }
        Ok(InviteLine {
            address: address.to_owned(),
            certificate: certificate.parse().map_err(|_| invalid("its second part is damaged"))?,
            token: token.parse().map_err(|_| invalid("its third part is damaged"))?,
        })
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

impl FromStr for Fingerprint {
    type Err = String;

    fn from_str(text: &str) -> Result<Fingerprint, String> {
        from_hex(text).map(Fingerprint).ok_or_else(|| "it must be 64 hexadecimal digits".into())
    }
}

impl FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Token, String> {
        from_hex(text).map(Token).ok_or_else(|| "it must be 32 hexadecimal digits".into())
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> String {
        fingerprint.to_string()
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = String;

    fn try_from(text: String) -> Result<Fingerprint, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> InviteLine {
        InviteLine {
            address: "hub.example.org:7433".into(),
            certificate: Fingerprint([0xab; 32]),
            token: Token([0x17; 16]),
        }
    }

    #[test]
    fn a_line_survives_pasting() {
        let text = format!("  {}\n", line());
        assert_eq!(text.parse(), Ok(line()));
        let at_an_address = InviteLine { address: "[fe80::1]:7433".into(), ..line() };
        assert_eq!(at_an_address.to_string().parse(), Ok(at_an_address));
    }

    #[test]
    fn a_damaged_line_is_refused_without_repeating_the_token() {
        let whole = line().to_string();
        let damaged = [
            whole[..whole.len() - 1].to_owned(),
            whole.replacen(":7433", "", 1),
            whole.replacen("7433", "0", 1),
            whole.replacen('/', " ", 1),
            format!("https://{whole}"),
            whole.replacen("abab", "abxy", 1),
            String::new(),
        ];
        for text in damaged {
            let error = text.parse::<InviteLine>().unwrap_err();
            assert!(error.contains("`ronde hub invite`") && !error.contains("1717"), "{error}");
        }
    }

    #[test]
    fn secrets_are_not_shown_by_accident() {
        assert!(!format!("{:?} {:?}", line(), line().token).contains("17"));
    }
}
