//! Times as seconds, to the microsecond, for programs and people.

use std::fmt;
use std::time::{Duration, TryFromFloatSecsError};

use serde::{Deserialize, Serialize};

/// A duration that programs read as a number of seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "f64", try_from = "f64")]
pub struct Seconds(pub Duration);

impl From<Seconds> for f64 {
    fn from(Seconds(time): Seconds) -> f64 {
        time.as_micros() as f64 / 1e6
    }
}

impl TryFrom<f64> for Seconds {
    type Error = TryFromFloatSecsError;

    /// Rounds to the nearest microsecond, which undoes the conversion to a float.
    fn try_from(seconds: f64) -> Result<Seconds, TryFromFloatSecsError> {
        let exact = Duration::try_from_secs_f64(seconds)?;
        let micros = u64::from(exact.subsec_nanos() + 500) / 1000;
        Ok(Seconds(Duration::from_secs(exact.as_secs()) + Duration::from_micros(micros)))
    }
}

impl fmt::Display for Seconds {
    /// For people: `8 s`, `0.26 s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.subsec_nanos() {
            0 => write!(f, "{} s", self.0.as_secs()),
            _ => write!(f, "{:.2} s", self.0.as_secs_f64()),
        }
    }
}
