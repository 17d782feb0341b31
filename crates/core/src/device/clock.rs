//! Tells when something happened on the GPU, by the host's clock.

use std::sync::Arc;
use std::time::Duration;

use super::{DeviceError, Event, Gpu};

/// How long reading both clocks may take: half of it is the largest error.
const PATIENCE: Duration = Duration::from_millis(2);
/// How long it may be used before the two clocks have drifted apart.
const LIFETIME: Duration = Duration::from_secs(30);

/// A moment that both clocks know.
pub(crate) struct GpuClock {
    base: Event,
    at: Duration,
}

impl GpuClock {
    /// Compares the clocks; nothing if the GPU or this thread was held up meanwhile.
    pub(crate) fn set(
        gpu: &Arc<Gpu>,
        now: impl Fn() -> Duration,
    ) -> Result<Option<GpuClock>, DeviceError> {
        let before = now();
        let base = gpu.mark_beside()?;
        while !base.is_done()? && now().saturating_sub(before) <= PATIENCE {}
        let taken = now().saturating_sub(before);
        let at = before + taken / 2;
        Ok((taken <= PATIENCE).then_some(GpuClock { base, at }))
    }

    /// Whether it should be set again.
    pub(crate) fn is_stale(&self, now: Duration) -> bool {
        now.saturating_sub(self.at) > LIFETIME
    }

    /// When an event that is done was reached.
    pub(crate) fn time_of(&self, event: &Event) -> Result<Duration, DeviceError> {
        let seconds = event.milliseconds_since(&self.base)? / 1000.0;
        let shift = Duration::try_from_secs_f64(seconds.abs()).unwrap_or_default();
        Ok(match seconds < 0.0 {
            true => self.at.saturating_sub(shift),
            false => self.at + shift,
        })
    }
}
