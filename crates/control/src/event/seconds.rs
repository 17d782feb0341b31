//! Times as numbers of seconds, to the microsecond, as programs and people read them.

use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_micros() as f64 / 1e6)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    time(f64::deserialize(from)?)
}

/// The nearest microsecond: that is what was meant.
fn time<E: Error>(seconds: f64) -> Result<Duration, E> {
    let exact = Duration::try_from_secs_f64(seconds).map_err(E::custom)?;
    let nanos = u64::try_from(exact.as_nanos()).map_err(E::custom)?;
    Ok(Duration::from_micros(nanos.saturating_add(500) / 1000))
}

/// The same where there may be none.
pub(super) mod optional {
    use super::{Deserialize, Deserializer, Duration, Serializer};

    #[expect(clippy::ref_option, reason = "serde passes fields so")]
    pub(in super::super) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => super::serialize(time, to),
            None => to.serialize_none(),
        }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        let seconds = Option::<f64>::deserialize(from)?;
        seconds.map(super::time).transpose()
    }
}
