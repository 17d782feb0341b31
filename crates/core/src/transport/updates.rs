//! What the launcher of an elastic job says of the next world, kept for whoever asks: it ends
//! nothing, the program meets the others again when it comes to it.
//!
//! News are numbered. The numbers of a world lie above those of all worlds before it, so that whoever
//! waits need not know which world its last number was from.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

use ronde_control::Epoch;
use ronde_control::wire::Change;

/// No launcher says more of one world than this.
const NUMBERS_PER_WORLD: u64 = 1 << 20;

/// What has been heard so far of the world after this one.
#[derive(Debug, Default)]
pub struct Updates {
    state: Mutex<State>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct State {
    newest: u64,
    /// The number of the last news that workers will have gone, that some will have come, and that
    /// hosts have been found for some.
    removed: u64,
    added: u64,
    coming: u64,
    is_over: bool,
}

/// What a wait for news gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// There are some.
    Heard {
        /// The number of the newest.
        number: u64,
        /// All of them together.
        change: Change,
    },
    /// Not yet.
    None,
    /// Nor will there be any of this world.
    Over,
}

impl Updates {
    pub(crate) fn of(epoch: Epoch) -> Updates {
        let newest = epoch.0.saturating_mul(NUMBERS_PER_WORLD);
        Updates { state: Mutex::new(State { newest, ..State::default() }), bell: Condvar::new() }
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

    /// The world has ended; nobody waits any more.
    pub(crate) fn close(&self) {
        self.lock().is_over = true;
        self.bell.notify_all();
    }

    /// Waits for news with a higher number than `seen`, at most until the deadline.
    pub fn wait(&self, seen: u64, deadline: Instant) -> News {
        let mut state = self.lock();
        loop {
            let change = Change {
                removed: state.removed > seen,
                added: state.added > seen,
                coming: state.coming > seen,
            };
            if change != Change::default() {
                return News::Heard { number: state.newest, change };
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match (state.is_over, left.is_zero()) {
                (true, _) => return News::Over,
                (false, true) => return News::None,
                (false, false) => state = self.bell.wait_timeout(state, left).expect(LOCK).0,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
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
    fn news_since_a_number_are_given_together_and_only_once() {
        let (updates, now) = (Updates::of(Epoch(3)), Instant::now());
        assert_eq!(updates.wait(0, now), News::None);
        updates.note(change(true, false));
        let News::Heard { number: first, .. } = updates.wait(0, now) else { panic!() };
        updates.note(change(false, true));
        let News::Heard { number, change: both } = updates.wait(0, now) else { panic!() };
        assert_eq!((number, both), (first + 1, change(true, true)));
        let later = News::Heard { number, change: change(false, true) };
        assert_eq!(updates.wait(first, now), later);
        assert_eq!(updates.wait(number, now), News::None);
        updates.note(Change { coming: true, ..Change::default() });
        let News::Heard { change, .. } = updates.wait(number, now) else { panic!() };
        assert_eq!(change, Change { coming: true, ..Change::default() });
        let next = Updates::of(Epoch(4));
        next.note(Change { added: true, ..Change::default() });
        assert_ne!(next.wait(number, now), News::None, "another world's numbers are higher");
    }

    #[test]
    fn who_waits_is_woken_by_news_and_by_the_end() {
        let updates = Updates::of(Epoch(1));
        let deadline = Instant::now() + Duration::from_secs(30);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| updates.wait(0, deadline));
            updates.note(change(false, true));
            let News::Heard { number, .. } = waits.join().unwrap() else { panic!() };
            let waits = scope.spawn({
                let updates = &updates;
                move || updates.wait(number, deadline)
            });
            updates.close();
            assert_eq!(waits.join().unwrap(), News::Over);
        });
    }
}
