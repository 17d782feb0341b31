//! When the ranks of an ending job are asked to end, and when they are killed.
//!
//! After the first failure the other ranks have [`NOTICE`] to learn of it and fail with their own
//! error; then they are asked to end, then killed. A signal to the launcher is passed on at once,
//! and the kill follows after [`GRACE`]. A second interrupt kills at once. If even that does not
//! end them, the driver stops waiting.

use std::time::Duration;

use crate::Time;

/// Time from the first failure to the request to end.
pub const NOTICE: Duration = Duration::from_secs(1);

/// Time from that request to the kill.
pub const TERMINATION: Duration = Duration::from_millis(2500);

/// Time from a signal that was passed on to the kill.
pub const GRACE: Duration = Duration::from_secs(5);

/// Time from the kill to giving up.
pub const TIME_LIMIT: Duration = Duration::from_secs(5);

const INTERRUPT: i32 = 2;
pub(super) const KILL: i32 = 9;
pub(super) const TERMINATE: i32 = 15;

/// The current stage of a job's end and when the next one follows; `None` before the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending(Option<(ShutdownStage, Time)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShutdownStage {
    /// A rank has failed; until then the others may fail by themselves.
    Failed,
    /// The ranks were asked to end; then they are killed.
    Asked,
    /// The launcher's signal was passed on to the ranks; then they are killed.
    Signalled,
    /// The ranks were killed; then the driver stops waiting for them.
    Killed,
}

/// A step in ending a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownStep {
    /// Send this signal to all ranks; those that end from now on were stopped.
    Send(i32),
    /// Stop waiting.
    GiveUp,
}

impl Ending {
    /// A rank has failed.
    pub fn failed(&mut self, now: Time) {
        self.0.get_or_insert((ShutdownStage::Failed, now + NOTICE));
    }

    /// The launcher was sent a signal.
    pub fn signalled(&mut self, signal: i32, now: Time) -> Option<ShutdownStep> {
        match self.0 {
            Some((ShutdownStage::Killed, _)) => return None,
            Some((ShutdownStage::Signalled, _)) if signal == INTERRUPT => {
                return Some(self.kill(now));
            }
            Some((ShutdownStage::Signalled, _)) => {}
            _ => self.0 = Some((ShutdownStage::Signalled, now + GRACE)),
        }
        Some(ShutdownStep::Send(signal))
    }

    /// Handles timers that are due at `now`.
    pub fn tick(&mut self, now: Time) -> Option<ShutdownStep> {
        let (stage, _) = self.0.filter(|(_, time)| *time <= now)?;
        Some(match stage {
            ShutdownStage::Failed => {
                self.0 = Some((ShutdownStage::Asked, now + TERMINATION));
                ShutdownStep::Send(TERMINATE)
            }
            ShutdownStage::Asked | ShutdownStage::Signalled => self.kill(now),
            ShutdownStage::Killed => ShutdownStep::GiveUp,
        })
    }

    /// When `tick` must be called next.
    pub fn next_wakeup(&self) -> Option<Time> {
        self.0.map(|(_, time)| time)
    }

    fn kill(&mut self, now: Time) -> ShutdownStep {
        self.0 = Some((ShutdownStage::Killed, now + TIME_LIMIT));
        ShutdownStep::Send(KILL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Time {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn a_failure_is_followed_by_a_request_to_end_and_then_a_kill() {
        let mut ending = Ending::default();
        assert_eq!((ending.tick(seconds(9.0)), ending.next_wakeup()), (None, None));
        ending.failed(seconds(10.0));
        ending.failed(seconds(10.9));
        for (time, step) in [
            (10.9, None),
            (11.0, Some(ShutdownStep::Send(15))),
            (13.4, None),
            (13.5, Some(ShutdownStep::Send(9))),
            (18.0, None),
            (18.5, Some(ShutdownStep::GiveUp)),
        ] {
            assert_eq!(ending.tick(seconds(time)), step, "at {time}");
        }
    }

    #[test]
    fn a_signal_is_passed_on_and_a_second_interrupt_kills() {
        let mut ending = Ending::default();
        assert_eq!(ending.signalled(2, seconds(1.0)), Some(ShutdownStep::Send(2)));
        assert_eq!(ending.signalled(15, seconds(2.0)), Some(ShutdownStep::Send(15)));
        assert_eq!(ending.signalled(2, seconds(3.0)), Some(ShutdownStep::Send(9)));
        assert_eq!(ending.signalled(2, seconds(4.0)), None);
        let mut ending = Ending::default();
        assert_eq!(ending.signalled(15, seconds(1.0)), Some(ShutdownStep::Send(15)));
        ending.failed(seconds(1.1));
        assert_eq!(ending.tick(seconds(5.9)), None);
        assert_eq!(ending.tick(seconds(6.0)), Some(ShutdownStep::Send(9)));
    }
}
