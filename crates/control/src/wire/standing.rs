//! What a launcher and a standing agent tell each other before the launcher's job begins.
//!
//! The launcher dials, proves that it holds the key of the standing agents, and sends one request.
//! The agent answers with what it is. After [`StandingRequest::Start`], the connection then carries
//! the bytes of an agent's pipe, as an ssh session would. Other versions must understand these
//! messages, so none of them ever changes.

use serde::{Deserialize, Serialize};

/// Longest mark of a job's processes, in bytes.
const LONGEST_MARK: usize = 64;

/// What a launcher wants from a standing agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StandingRequest {
    /// Only the answer.
    Describe,
    /// An agent for a job, on this connection.
    Start {
        /// The mark that all processes of its ranks carry in their environment.
        mark: String,
    },
}

impl StandingRequest {
    /// Whether a launcher can have sent this: marks are hexadecimal numbers joined by dashes.
    pub fn is_valid(&self) -> bool {
        match self {
            StandingRequest::Describe => true,
            StandingRequest::Start { mark } => {
                let is_known = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
                (1..=LONGEST_MARK).contains(&mark.len()) && mark.bytes().all(is_known)
            }
        }
    }
}

/// A standing agent's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StandingAnswer {
    /// It serves the request.
    Here(StandingInfo),
    /// It does not.
    Refused {
        /// Human-readable reason.
        reason: String,
    },
}

/// What a standing agent says about its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandingInfo {
    /// Its version of Ronde.
    pub version: String,
    /// The name of its host.
    pub name: String,
    /// Number of ranks that the host can run.
    pub slots: u32,
    /// A random number that tells this process from one that was started before or after it.
    pub instance: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::encode;

    #[test]
    fn the_bytes_of_the_messages_never_change() {
        assert_eq!(encode(&StandingRequest::Describe), [0]);
        assert_eq!(encode(&StandingRequest::Start { mark: "a-0".into() }), b"\x01\x03a-0");
        let info = StandingInfo { version: "1".into(), name: "n".into(), slots: 4, instance: 9 };
        assert_eq!(encode(&StandingAnswer::Here(info)), b"\x00\x011\x01n\x04\x09");
        assert_eq!(encode(&StandingAnswer::Refused { reason: "x".into() }), b"\x01\x01x");
    }

    #[test]
    fn only_marks_of_launchers_are_accepted() {
        let start = |mark: &str| StandingRequest::Start { mark: mark.into() };
        assert!(StandingRequest::Describe.is_valid() && start("00ff-12").is_valid());
        for mark in ["", "x y", "../a", "__ronde-agent", &"a".repeat(65)] {
            assert!(!start(mark).is_valid(), "{mark}");
        }
    }
}
