//! Which thread drives: one that waits, one that drives briefly after it has submitted something,
//! or the background thread. All other waiting threads sleep meanwhile.

use std::cell::Cell;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use super::AfterSubmit;
use super::background::SocketSets;
use super::inbox::{Inbox, Submission};
use super::progress::Progress;
use super::sets::ProcessSets;
use super::ticket::{CompletionCallback, Ticket};
use crate::error::Error;
use crate::transport::waiter::Waiter;

thread_local! {
    /// Whether this thread is inside a callback because its outcome was already there. It does not
    /// drive for what it submits meanwhile: that callback would run inside this one, and so on
    /// without limit.
    static IS_CALLING_BACK: Cell<bool> = const { Cell::new(false) };
}

/// Arranges for `done` to be called with the outcome of what this thread has submitted.
pub(super) fn call_back(ticket: &Ticket, done: CompletionCallback) {
    let was_calling_back = IS_CALLING_BACK.replace(true);
    ticket.then(done);
    IS_CALLING_BACK.set(was_calling_back);
}

/// What the threads of this process share.
pub(super) struct EngineShared {
    pub(super) progress: Mutex<Progress>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) sets: Arc<ProcessSets>,
    pub(super) waiter: Arc<Waiter>,
    pub(super) socket_sets: SocketSets,
    pub(super) stop: AtomicBool,
    /// The number of threads that sleep while another one drives, and what wakes them.
    pub(super) waiters: (Mutex<usize>, Condvar),
}

impl EngineShared {
    pub(super) fn put(&self, submission: Submission, next: AfterSubmit) -> Result<(), Error> {
        self.inbox.put(submission)?;
        if next == AfterSubmit::GoesOn {
            self.waiter.ring_own();
        }
        Ok(())
    }

    pub(super) fn wait(&self, is_done: &dyn Fn() -> bool, deadline: Instant) {
        while !is_done() {
            match self.progress.try_lock() {
                Ok(progress) => self.drive(progress, is_done, deadline),
                Err(TryLockError::WouldBlock) => {
                    // The driving thread may be asleep, and was not woken for lazy submissions.
                    self.waiter.ring_own();
                    self.wait_for_progress(is_done, deadline);
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
        self.waiter.wake_up();
        self.socket_sets.disarm();
        progress.gpu.await_results(true);
        let driven = self.waiter.until(&self.socket_sets.interests(), Some(deadline), || {
            while progress.turn()? {
                self.wake_waiters();
                if is_done() {
                    break;
                }
            }
            Ok(is_done().then_some(()))
        });
        progress.gpu.await_results(false);
        if let Err(error) = driven {
            progress.end(&error);
        }
        self.step_back(progress);
    }

    /// Whether driving for a moment is likely to complete what this thread submits next.
    pub(super) fn is_driving_worth_it(&self) -> bool {
        !IS_CALLING_BACK.get() && self.inbox.is_serial()
    }

    /// Drives for a moment if that is still likely to complete what was just submitted. Otherwise,
    /// or afterwards, the background thread takes care of it.
    pub(super) fn drive_briefly(&self, ticket: &Ticket) {
        let is_worth_it = self.is_driving_worth_it();
        let Some(mut progress) = is_worth_it.then(|| self.progress.try_lock().ok()).flatten()
        else {
            return self.waiter.ring_own();
        };
        self.waiter.wake_up();
        self.socket_sets.disarm();
        let driven = self.waiter.glance(|| {
            while !ticket.is_done() && progress.turn()? {
                self.wake_waiters();
            }
            Ok(ticket.is_done().then_some(()))
        });
        if let Err(error) = driven {
            progress.end(&error);
        }
        self.step_back(progress);
    }

    /// Hands the engine back to the background thread, which sleeps unless there is work left.
    pub(super) fn step_back(&self, progress: MutexGuard<'_, Progress>) {
        if !progress.is_over() {
            self.socket_sets.arm();
        }
        self.waiter.leave_to_background(progress.is_outstanding());
        if progress.has_input() {
            self.waiter.ring_own();
        }
        drop(progress);
        self.waiter.ring_background_again();
        self.wake_waiters();
    }

    /// Waits while another thread drives. That thread wakes all sleeping threads when it stops.
    fn wait_for_progress(&self, is_done: &dyn Fn() -> bool, deadline: Instant) {
        let (waiting, bell) = &self.waiters;
        let mut count = waiting.lock().expect("nothing panics while it holds this lock");
        *count += 1;
        // The driver may have stopped before this thread was counted, and then nothing wakes it.
        let limit = deadline.saturating_duration_since(Instant::now());
        let limit = limit.min(Duration::from_millis(20));
        if !is_done() && self.progress.try_lock().is_err() {
            count = bell.wait_timeout(count, limit).expect("nothing panics with this lock").0;
        }
        *count -= 1;
    }

    pub(super) fn wake_waiters(&self) {
        let (waiting, bell) = &self.waiters;
        if *waiting.lock().expect("nothing panics while it holds this lock") > 0 {
            bell.notify_all();
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().expect("the engine's driver has not panicked")
    }
}
