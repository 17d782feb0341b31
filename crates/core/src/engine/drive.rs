//! Who drives: a thread that waits, one that stays for a moment after it has submitted something, or
//! the background thread. The others sit on a bench meanwhile.

use std::cell::Cell;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use super::Next;
use super::background::Standby;
use super::inbox::{Inbox, Submission};
use super::progress::Progress;
use super::sets::Sets;
use super::ticket::{Done, Ticket};
use crate::error::Error;
use crate::transport::vigil::Vigil;

thread_local! {
    /// Whether this thread has found its outcome there and calls back. What it submits meanwhile it
    /// does not stay for: its callback would be called from within this one, and so on.
    static IS_CALLING_BACK: Cell<bool> = const { Cell::new(false) };
}

/// Has `done` called with the outcome of what this thread has submitted.
pub(super) fn call_back(ticket: &Ticket, done: Done) {
    let was_calling_back = IS_CALLING_BACK.replace(true);
    ticket.then(done);
    IS_CALLING_BACK.set(was_calling_back);
}

/// What the threads of this process share.
pub(super) struct Shared {
    pub(super) progress: Mutex<Progress>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) sets: Arc<Sets>,
    pub(super) vigil: Arc<Vigil>,
    pub(super) standby: Standby,
    pub(super) stop: AtomicBool,
    /// Where threads wait while another one drives.
    pub(super) bench: (Mutex<usize>, Condvar),
}

impl Shared {
    pub(super) fn put(&self, submission: Submission, next: Next) -> Result<(), Error> {
        self.inbox.put(submission)?;
        if next == Next::GoesOn {
            self.vigil.ring_own();
        }
        Ok(())
    }

    pub(super) fn wait(&self, is_done: &dyn Fn() -> bool, deadline: Instant) {
        while !is_done() {
            match self.progress.try_lock() {
                Ok(progress) => self.drive(progress, is_done, deadline),
                Err(TryLockError::WouldBlock) => {
                    // Whoever drives may sleep, and does not know of what was submitted lazily.
                    self.vigil.ring_own();
                    self.sit_out(is_done, deadline);
                }
                Err(TryLockError::Poisoned(_)) => panic!("the engine's driver has panicked"),
            }
            if Instant::now() >= deadline {
                return;
            }
        }
    }

    fn drive(
        &self,
        mut progress: MutexGuard<'_, Progress>,
        is_done: &dyn Fn() -> bool,
        deadline: Instant,
    ) {
        self.vigil.get_up();
        self.standby.disarm();
        let driven = self.vigil.until(&self.standby.interests(), Some(deadline), || {
            while progress.turn()? {
                self.leave_bench();
                if is_done() {
                    break;
                }
            }
            Ok(is_done().then_some(()))
        });
        if let Err(error) = driven {
            progress.end(&error);
        }
        self.step_back(progress);
    }

    /// Drives for a moment, if that is likely to be enough for what was just submitted; else, or
    /// afterwards, the background thread takes care of it.
    pub(super) fn stay(&self, ticket: &Ticket) {
        let is_worth_it = !IS_CALLING_BACK.get() && self.inbox.is_solitary();
        let Some(mut progress) = is_worth_it.then(|| self.progress.try_lock().ok()).flatten()
        else {
            return self.vigil.ring_own();
        };
        self.vigil.get_up();
        self.standby.disarm();
        let driven = self.vigil.glance(|| {
            while !ticket.is_done() && progress.turn()? {
                self.leave_bench();
            }
            Ok(ticket.is_done().then_some(()))
        });
        if let Err(error) = driven {
            progress.end(&error);
        }
        self.step_back(progress);
    }

    /// Gives the engine back to the background thread, which sleeps unless there is something left.
    pub(super) fn step_back(&self, progress: MutexGuard<'_, Progress>) {
        if !progress.is_over() {
            self.standby.arm();
        }
        self.vigil.leave_to_background(progress.is_outstanding());
        if progress.has_input() {
            self.vigil.ring_own();
        }
        drop(progress);
        self.vigil.ring_background_again();
        self.leave_bench();
    }

    /// Waits while another thread drives, which wakes everybody on the bench when it stops.
    fn sit_out(&self, is_done: &dyn Fn() -> bool, deadline: Instant) {
        let (seats, bell) = &self.bench;
        let mut taken = seats.lock().expect("nothing panics while it holds this lock");
        *taken += 1;
        // The driver may have stopped before it could see this seat; then nobody would ring.
        let limit = deadline.saturating_duration_since(Instant::now());
        let limit = limit.min(Duration::from_millis(20));
        if !is_done() && self.progress.try_lock().is_err() {
            taken = bell.wait_timeout(taken, limit).expect("nothing panics with this lock").0;
        }
        *taken -= 1;
    }

    pub(super) fn leave_bench(&self) {
        let (seats, bell) = &self.bench;
        if *seats.lock().expect("nothing panics while it holds this lock") > 0 {
            bell.notify_all();
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().expect("the engine's driver has not panicked")
    }
}
