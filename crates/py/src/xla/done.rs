//! The end of a call: XLA is told through a future, or the handler waits where there are none.
//!
//! Whoever completes a future may find itself running the rest of the program, which is long and may
//! wait for other collectives. So threads of the engine do not: they leave it to a thread of its own,
//! which is started with the first call and ends with the process.
#![expect(unsafe_code, reason = "functions of XLA's table are called")]

use std::ffi::{CString, c_int};
use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::thread::Builder;

use super::api::{Api, ErrorArguments, Frame, FutureArguments, FutureErrorArguments, Handle};
use super::tensorflow;
use crate::native::{Failure, Fault};

/// A call that is made of several submissions, and done when the last of them is.
pub(super) struct Pending {
    left: AtomicUsize,
    failure: Mutex<Option<Failure>>,
    end: End,
}

enum End {
    Future { api: &'static Api, future: Handle },
    Waiter(Sender<Option<Failure>>),
}

// SAFETY: the future may be completed by any thread; that is what it is for.
unsafe impl Send for Pending {}
// SAFETY: only whoever counts down to nothing touches the future.
unsafe impl Sync for Pending {}

/// What the handler does after it has submitted.
pub(super) enum Then {
    /// Returns: the future completes.
    Return,
    /// Waits.
    Wait(Receiver<Option<Failure>>),
}

impl Pending {
    /// A call of so many submissions.
    pub(super) fn new(
        api: &'static Api,
        frame: &mut Frame,
        submissions: usize,
    ) -> Result<(Pending, Then), Handle> {
        let (left, failure) = (AtomicUsize::new(submissions), Mutex::default());
        let expected = EXPECTED.load(Ordering::Relaxed) && !tensorflow::has_table(api);
        let has_futures = has_futures(api.size, expected);
        let Some(create) = has_futures.then_some(api.future_create).flatten() else {
            let (sender, receiver) = channel();
            return Ok((Pending { left, failure, end: End::Waiter(sender) }, Then::Wait(receiver)));
        };
        let mut arguments = FutureArguments::new(null_mut());
        // SAFETY: the function is of the table that came with this call, and the structure is ours.
        let error = unsafe { create(&raw mut arguments) };
        if !error.is_null() {
            return Err(error);
        }
        frame.future = arguments.future;
        let end = End::Future { api, future: arguments.future };
        Ok((Pending { left, failure, end }, Then::Return))
    }

    /// One of the submissions has come to its end.
    pub(super) fn count(&self, failure: Option<Failure>) {
        let mut first = self.failure.lock().expect("nothing panics while it holds this lock");
        if let Some(failure) = failure {
            first.get_or_insert(failure);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.finish(first.take());
        }
    }

    fn finish(&self, failure: Option<Failure>) {
        match &self.end {
            End::Future { api, future } => leave(Ended { api, future: *future, failure }),
            // The handler may have been ended; then nobody wants to know.
            End::Waiter(sender) => sender.send(failure).unwrap_or_default(),
        }
    }
}

impl Then {
    /// What the handler returns: nothing, or an error.
    pub(super) fn outcome(self, api: &Api) -> Handle {
        match self {
            Then::Return => null_mut(),
            // Whoever counts holds the sender until it has sent.
            Then::Wait(receiver) => {
                receiver.recv().ok().flatten().map_or(null_mut(), |failure| error(api, &failure))
            }
        }
    }
}

/// Whether this XLA has futures even if the size of its table does not tell.
static EXPECTED: AtomicBool = AtomicBool::new(false);

/// From now on every XLA of this process is believed to have futures, but for TensorFlow's.
pub(super) fn expect_futures() {
    EXPECTED.store(true, Ordering::Relaxed);
}

/// The frame has a place for a future wherever the table has the functions. Its size says nothing of
/// it: no release counts that place.
fn has_futures(size_of_table: usize, expected: bool) -> bool {
    expected || size_of_table > offset_of!(Api, future_set_error)
}

/// A future to be completed.
struct Ended {
    api: &'static Api,
    future: Handle,
    failure: Option<Failure>,
}

// SAFETY: the future may be completed by any thread; that is what it is for.
unsafe impl Send for Ended {}

/// As much as the threads of XLA have, whose work is done here.
const STACK: usize = 8 << 20;

static COMPLETER: OnceLock<Option<Sender<Ended>>> = OnceLock::new();

fn leave(ended: Ended) {
    let completer = COMPLETER.get_or_init(|| {
        let (sender, receiver) = channel::<Ended>();
        let work = move || receiver.iter().for_each(complete);
        let thread = Builder::new().name("ronde-xla".into()).stack_size(STACK).spawn(work);
        thread.ok().map(|_| sender)
    });
    match completer {
        Some(completer) => {
            // The thread ends with the process, so that it listens.
            let _ = completer.send(ended);
        }
        None => complete(ended),
    }
}

fn complete(Ended { api, future, failure }: Ended) {
    let Some(failure) = failure else {
        let set = api.future_set_available.expect("who creates futures completes them");
        let mut arguments = FutureArguments::new(future);
        // SAFETY: the future is open, and completed once: here.
        unsafe { set(&raw mut arguments) };
        return;
    };
    let set = api.future_set_error.expect("who creates futures completes them");
    let mut arguments = FutureErrorArguments::new(future, error(api, &failure));
    // SAFETY: the future is open, and completed once; it takes the error over.
    unsafe { set(&raw mut arguments) };
}

/// An error as XLA has them.
pub(super) fn error(api: &Api, failure: &Failure) -> Handle {
    // The numbers of absl's status codes. The end of a world is "unknown", as it is for programs
    // that are not compiled.
    let code: c_int = match failure.fault {
        Fault::Invalid => 3,
        Fault::Precondition => 9,
        Fault::Aborted | Fault::World => 2,
    };
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    let mut arguments = ErrorArguments::new(text.as_ptr(), code);
    // SAFETY: the function is of XLA's table, and copies the text.
    unsafe { (api.error_create)(&raw mut arguments) }
}

#[cfg(test)]
mod tests {
    use super::has_futures;

    #[test]
    fn releases_of_jax_have_futures_by_the_size_of_their_table_or_by_what_was_said() {
        // 0.4.31, 0.5.3 and 0.10.2.
        for (size, told) in [(88, false), (88, false), (192, true)] {
            assert_eq!(has_futures(size, false), told);
            assert!(has_futures(size, true));
        }
    }
}
