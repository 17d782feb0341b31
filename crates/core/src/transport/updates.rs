//! Announcements of an elastic job's launcher about the next world. They end nothing: the program
//! reacts to them at its next commit.
//!
//! Announcements are numbered. The numbers of a world are higher than those of all worlds before
//! it, so that a waiting thread need not know which world its last number was from.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

use ronde_control::Epoch;
use ronde_control::wire::Change;

/// Upper bound on the announcements about one world.
const NUMBERS_PER_WORLD: u64 = 1 << 20;

/// The announcements so far about the world after this one.
#[derive(Debug, Default)]
pub struct Updates {
    state: Mutex<UpdateState>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct UpdateState {
    newest: u64,
    /// Number of the last announcement that workers will leave, that workers will be added, and
    /// that hosts have been found for new workers.
    removed: u64,
    added: u64,
    coming: u64,
    is_over: bool,
}

/// The result of waiting for an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateWait {
    /// The launcher has announced a change.
    Heard {
        /// The number of the newest announcement.
        number: u64,
        /// All announced changes combined.
        change: Change,
    },
    /// There is no announcement yet.
    None,
    /// The world has ended: there will be no more announcements.
    Over,
}

impl Updates {
    pub(crate) fn of(epoch: Epoch) -> Updates {
        let newest = epoch.0.saturating_mul(NUMBERS_PER_WORLD);
        Updates {
            state: Mutex::new(UpdateState { newest, ..UpdateState::default() }),
            bell: Condvar::new(),
        }
    }

    pub(crate) fn note(&self, change: Change) {
        let mut state = self.lock();
        state.newest += 1;
        if change.removed {
            state.removed = state.newest;
        }
        if change.added {
            state.added = state.newest;
        }
        if change.coming {
            state.coming = state.newest;
        }
        self.bell.notify_all();
    }

    /// The world has ended: wakes all waiting threads.
    pub(crate) fn close(&self) {
        self.lock().is_over = true;
        self.bell.notify_all();
    }

    /// Waits for an announcement with a number above `seen`, at most until the deadline.
    pub fn wait(&self, seen: u64, deadline: Instant) -> UpdateWait {
        let mut state = self.lock();
        loop {
            let change = Change {
                removed: state.removed > seen,
                added: state.added > seen,
                coming: state.coming > seen,
            };
            if change != Change::default() {
                return UpdateWait::Heard { number: state.newest, change };
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match (state.is_over, left.is_zero()) {
                (true, _) => return UpdateWait::Over,
                (false, true) => return UpdateWait::None,
                (false, false) => state = self.bell.wait_timeout(state, left).expect(LOCK).0,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, UpdateState> {
        self.state.lock().expect(LOCK)
    }
}

const LOCK: &str = "nothing panics while it holds this lock";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn change(removed: bool, added: bool) -> Change {
        Change { removed, added, coming: false }
    }

    #[test]
    fn announcements_since_a_number_are_combined_and_returned_once() {
        let (updates, now) = (Updates::of(Epoch(3)), Instant::now());
        assert_eq!(updates.wait(0, now), UpdateWait::None);
        updates.note(change(true, false));
        let UpdateWait::Heard { number: first, .. } = updates.wait(0, now) else { panic!() };
        updates.note(change(false, true));
        let UpdateWait::Heard { number, change: both } = updates.wait(0, now) else { panic!() };
        assert_eq!((number, both), (first + 1, change(true, true)));
        let later = UpdateWait::Heard { number, change: change(false, true) };
        assert_eq!(updates.wait(first, now), later);
        assert_eq!(updates.wait(number, now), UpdateWait::None);
        updates.note(Change { coming: true, ..Change::default() });
        let UpdateWait::Heard { change, .. } = updates.wait(number, now) else { panic!() };
        assert_eq!(change, Change { coming: true, ..Change::default() });
        let next = Updates::of(Epoch(4));
        next.note(Change { added: true, ..Change::default() });
        assert_ne!(next.wait(number, now), UpdateWait::None, "another world's numbers are higher");
    }

    #[test]
    fn a_waiting_thread_is_woken_by_an_announcement_and_by_the_end() {
        let updates = Updates::of(Epoch(1));
        let deadline = Instant::now() + Duration::from_secs(30);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| updates.wait(0, deadline));
            updates.note(change(false, true));
            let UpdateWait::Heard { number, .. } = waits.join().unwrap() else { panic!() };
            let waits = scope.spawn({
                let updates = &updates;
                move || updates.wait(number, deadline)
            });
            updates.close();
            assert_eq!(waits.join().unwrap(), UpdateWait::Over);
        });
    }
}
