//! When the ranks of a job that must end are asked, and when they are made to.
//!
//! After the first failure the other ranks have [`NOTICE`] to hear of it and fail with their own
//! words, then they are asked to end, then killed. A signal to the launcher is passed on at once, and
//! the kill follows [`GRACE`] later. A second interrupt kills at once. If even that ends nothing, the
//! driver gives up waiting.

use std::time::Duration;

use crate::Time;

/// From the first failure to the request to end.
pub const NOTICE: Duration = Duration::from_secs(1);

/// From that request to the kill.
pub const TERMINATION: Duration = Duration::from_millis(2500);

/// From a signal that was passed on to the kill.
pub const GRACE: Duration = Duration::from_secs(5);

/// From the kill to giving up.
pub const PATIENCE: Duration = Duration::from_secs(5);

const INTERRUPT: i32 = 2;
pub(super) const KILL: i32 = 9;
pub(super) const TERMINATE: i32 = 15;

/// Where a job's end stands, and when it goes on; it may not have begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending(Option<(Stage, Time)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A rank has failed; the others may fail by themselves until then.
    Failed,
    /// The ranks have been asked to end; they are killed then.
    Asked,
    /// The ranks have been sent the launcher's signal; they are killed then.
    Signalled,
    /// The ranks have been killed; nobody waits for them after then.
    Killed,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send all ranks the signal of this number; what ends from now on was stopped.
    Send(i32),
    /// Stop waiting.
    GiveUp,
}

impl Ending {
    /// A rank has failed.
    pub fn failed(&mut self, now: Time) {
        self.0.get_or_insert((Stage::Failed, now + NOTICE));
    }

    /// The launcher was sent a signal.
    pub fn signalled(&mut self, signal: i32, now: Time) -> Option<Step> {
        match self.0 {
            Some((Stage::Killed, _)) => return None,
            Some((Stage::Signalled, _)) if signal == INTERRUPT => return Some(self.kill(now)),
            Some((Stage::Signalled, _)) => {}
            _ => self.0 = Some((Stage::Signalled, now + GRACE)),
        }
        Some(Step::Send(signal))
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time) -> Option<Step> {
        let (stage, _) = self.0.filter(|(_, time)| *time <= now)?;
        Some(match stage {
            Stage::Failed => {
                self.0 = Some((Stage::Asked, now + TERMINATION));
                Step::Send(TERMINATE)
            }
            Stage::Asked | Stage::Signalled => self.kill(now),
            Stage::Killed => Step::GiveUp,
        })
    }

    /// When something must happen even if nothing else does.
    pub fn next_wakeup(&self) -> Option<Time> {
        self.0.map(|(_, time)| time)
    }

    fn kill(&mut self, now: Time) -> Step {
        self.0 = Some((Stage::Killed, now + PATIENCE));
        Step::Send(KILL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Time {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn a_failure_is_announced_then_asked_for_then_enforced() {
        let mut ending = Ending::default();
        assert_eq!((ending.tick(seconds(9.0)), ending.next_wakeup()), (None, None));
        ending.failed(seconds(10.0));
        ending.failed(seconds(10.9));
        for (time, step) in [
            (10.9, None),
            (11.0, Some(Step::Send(15))),
            (13.4, None),
            (13.5, Some(Step::Send(9))),
            (18.0, None),
            (18.5, Some(Step::GiveUp)),
        ] {
            assert_eq!(ending.tick(seconds(time)), step, "at {time}");
        }
    }

    #[test]
    fn a_signal_is_passed_on_and_a_second_interrupt_kills() {
        let mut ending = Ending::default();
        assert_eq!(ending.signalled(2, seconds(1.0)), Some(Step::Send(2)));
        assert_eq!(ending.signalled(15, seconds(2.0)), Some(Step::Send(15)));
        assert_eq!(ending.signalled(2, seconds(3.0)), Some(Step::Send(9)));
        assert_eq!(ending.signalled(2, seconds(4.0)), None);
        let mut ending = Ending::default();
        assert_eq!(ending.signalled(15, seconds(1.0)), Some(Step::Send(15)));
        ending.failed(seconds(1.1));
        assert_eq!(ending.tick(seconds(5.9)), None);
        assert_eq!(ending.tick(seconds(6.0)), Some(Step::Send(9)));
    }
}
