//! The end of a call. Often it has come before the handler returns; else XLA is told through a future,
//! or the handler waits where there are none.
//!
//! Whoever completes a future may find itself running the rest of the program, which is long and may
//! wait for other collectives. So threads of the engine do not: they leave it to a thread of its own,
//! which is started with the first call and ends with the process.
#![expect(unsafe_code, reason = "functions of XLA's table are called")]

use std::ffi::{CString, c_int};
use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread::Builder;

use super::api::{
    Api, ErrorArguments, Frame, FutureArguments, FutureErrorArguments, Handle, OfFuture,
};
use super::tensorflow;
use crate::native::{self, Failure, Fault};

/// A call that is made of several submissions, and done when the last of them is.
pub(super) struct Pending(Mutex<State>);

#[derive(Default)]
struct State {
    left: usize,
    failure: Option<Failure>,
    /// What is completed at the end, once the handler has returned.
    future: Option<(&'static Api, Handle)>,
}

// SAFETY: the future may be completed by any thread; that is what it is for.
unsafe impl Send for State {}

impl Pending {
    /// A call of so many submissions.
    pub(super) fn of(submissions: usize) -> Pending {
        Pending(Mutex::new(State { left: submissions, ..State::default() }))
    }

    /// One of the submissions has come to its end.
    pub(super) fn count(&self, failure: Option<Failure>) {
        let mut state = self.lock();
        if let Some(failure) = failure {
            state.failure.get_or_insert(failure);
        }
        state.left -= 1;
        if state.left > 0 {
            return;
        }
        if let Some((api, future)) = state.future.take() {
            leave(Ended { api, future, failure: state.failure.take() });
        }
    }

    /// What the handler returns when it has submitted everything: the outcome if it is there, or else
    /// nothing, with a future for it in the frame. Where there are no futures it waits.
    pub(super) fn outcome(&self, api: &'static Api, frame: &mut Frame) -> Handle {
        if self.promise(api, frame) {
            return null_mut();
        }
        native::wait_until(&|| self.lock().left == 0);
        self.lock().failure.take().map_or(null_mut(), |failure| error(api, &failure))
    }

    /// Puts a future into the frame, if there can be one and something is left to wait for.
    fn promise(&self, api: &'static Api, frame: &mut Frame) -> bool {
        let mut state = self.lock();
        let Some(create) = creation(api).filter(|_| state.left > 0) else { return false };
        let mut arguments = FutureArguments::new(null_mut());
        // SAFETY: the function is of the table that came with this call, and the structure is ours.
        let problem = unsafe { create(&raw mut arguments) };
        if !problem.is_null() {
            return false;
        }
        frame.future = arguments.future;
        state.future = Some((api, arguments.future));
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics while it holds this lock")
    }
}

/// What makes futures, where this XLA has them.
fn creation(api: &Api) -> Option<OfFuture> {
    let expected = EXPECTED.load(Ordering::Relaxed) && !tensorflow::has_table(api);
    has_futures(api.size, expected).then_some(api.future_create).flatten()
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
