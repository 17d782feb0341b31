//! Submissions that wait for the driving thread, and the names in flight.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use ronde_control::negotiate::Request;

use super::AfterSubmit;
use super::serial_submission::SerialSubmission;
use super::ticket::{PendingSubmission, Ticket};
use crate::error::Error;

pub(super) enum Submission {
    Tensor { request: Request, pending: PendingSubmission, next: AfterSubmit },
    Join { ticket: Arc<Ticket> },
    Leave { reason: Option<String>, ticket: Arc<Ticket> },
}

#[derive(Default)]
pub(super) struct Inbox {
    has_some: AtomicBool,
    state: Mutex<InboxState>,
}

#[derive(Default)]
struct InboxState {
    waiting: Vec<Submission>,
    names: HashSet<String>,
    serial_submission: SerialSubmission,
    closed: Option<Error>,
}

impl Inbox {
    pub(super) fn put(&self, submission: Submission) -> Result<(), Error> {
        let mut state = self.lock();
        if let Some(error) = &state.closed {
            return Err(error.clone());
        }
        if let Submission::Tensor { request, .. } = &submission
            && !state.names.insert(request.name.clone())
        {
            return Err(Error::Invalid(format!(
                "Requested to allreduce, allgather, or broadcast a tensor with the same name as \
                 another tensor that is currently being processed. If you want to request another \
                 tensor, use a different tensor name (`{}` is in flight)",
                request.name
            )));
        }
        let others =
            state.names.len() - usize::from(matches!(submission, Submission::Tensor { .. }));
        state.serial_submission.submitted(others);
        state.waiting.push(submission);
        self.has_some.store(true, Ordering::SeqCst);
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.has_some.load(Ordering::SeqCst)
    }

    pub(super) fn take(&self) -> Vec<Submission> {
        let mut state = self.lock();
        self.has_some.store(false, Ordering::SeqCst);
        std::mem::take(&mut state.waiting)
    }

    /// Allows these names to be submitted again.
    pub(super) fn release_names<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        let mut state = self.lock();
        for name in names {
            state.names.remove(name);
        }
        let left = state.names.len();
        state.serial_submission.completed(left);
    }

    /// Whether the latest submission will probably be the only one until it is done.
    pub(super) fn is_serial(&self) -> bool {
        self.lock().serial_submission.is_likely()
    }

    /// Refuses all further submissions with this error; returns those that were waiting.
    pub(super) fn close(&self, error: Error) -> Vec<Submission> {
        let mut state = self.lock();
        state.closed.get_or_insert(error);
        state.names.clear();
        self.has_some.store(false, Ordering::SeqCst);
        std::mem::take(&mut state.waiting)
    }

    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().expect("nothing panics while it holds this lock")
    }
}
