//! The secret shared by all processes of a job, and by nobody else.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{from_hex, to_hex};

/// The job key. It never appears in a log: its debug form hides it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobKey([u8; 32]);

/// The text is not a job key.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a job key must be 64 hexadecimal digits; this text has {length} characters, or some of them \
     are not hexadecimal"
)]
pub struct KeyError {
    length: usize,
}

impl JobKey {
    /// A key made of 32 random bytes.
    pub fn from_entropy(bytes: [u8; 32]) -> JobKey {
        JobKey(bytes)
    }

    /// Reads the form that [`JobKey::to_hex`] writes.
    pub fn from_hex(text: &str) -> Result<JobKey, KeyError> {
        from_hex(text).map(JobKey).ok_or(KeyError { length: text.len() })
    }

    /// The key as text, for the environment of the job's processes.
    pub fn to_hex(&self) -> String {
        to_hex(&self.0)
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobKey(hidden)")
    }
}

/// The two keys of one link: made by the side that dials, sent in its sealed greeting, and hidden
/// from every log.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkKeys {
    /// Seals what the dialing side sends.
    pub dialler: [u8; 32],
    /// Seals what the listening side sends.
    pub listener: [u8; 32],
}

impl fmt::Debug for LinkKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkKeys(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_conversion_to_text() {
        let key = JobKey::from_entropy(std::array::from_fn(|i| (i * 37) as u8));
        assert_eq!(JobKey::from_hex(&key.to_hex()), Ok(key));
    }

    #[test]
    fn other_texts_are_refused_and_keys_are_never_printed() {
        for text in ["", "ab", &"g".repeat(64), &"+1".repeat(32), &"é".repeat(32)] {
            assert!(JobKey::from_hex(text).is_err(), "{text:?}");
        }
        assert_eq!(format!("{:?}", JobKey::from_entropy([7; 32])), "JobKey(hidden)");
        let keys = LinkKeys { dialler: [7; 32], listener: [8; 32] };
        assert_eq!(format!("{keys:?}"), "LinkKeys(hidden)");
    }
}
