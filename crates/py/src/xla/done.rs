//! Completion of a call. Often it is complete before the handler returns; otherwise it is reported
//! through a future or, where there are none, the handler waits. On a GPU it always waits, but only
//! until the collectives are launched: from there on the program's stream waits for them.
//!
//! Completing a future may run the rest of the program in the same thread, which takes long and may
//! wait for other collectives. So the engine's threads leave this to a separate thread, which
//! starts with the first call and ends with the process.
#![expect(unsafe_code, reason = "calls functions of XLA's table")]

use std::ffi::{CString, c_int};
use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::Builder;

use ronde_core::device::Event;

use super::api::{
    ErrorArguments, Frame, FutureArguments, FutureErrorArguments, OfFuture, XlaApi, XlaHandle,
};
use super::stream::XlaStream;
use super::tensorflow;
use crate::gpu;
use crate::native::{self, CallOutcome, ErrorClass, Failure};

/// A call that consists of several submissions, and is done when the last of them is.
pub(super) struct PendingCall(Mutex<CallState>);

#[derive(Default)]
struct CallState {
    left: usize,
    failure: Option<Failure>,
    /// What the program's stream has to wait for.
    launched: Vec<Arc<Event>>,
    /// The future to complete at the end, once the handler has returned.
    future: Option<(&'static XlaApi, XlaHandle)>,
}

// SAFETY: any thread may complete the future.
unsafe impl Send for CallState {}

impl PendingCall {
    /// A call of this many submissions.
    pub(super) fn of(submissions: usize) -> PendingCall {
        PendingCall(Mutex::new(CallState { left: submissions, ..CallState::default() }))
    }

    /// Counts a completed submission.
    pub(super) fn count(&self, answer: Result<CallOutcome, Failure>) {
        let mut state = self.lock();
        match answer {
            Ok(CallOutcome::Launched(event)) => state.launched.push(event),
            Ok(_) => {}
            Err(failure) => {
                state.failure.get_or_insert(failure);
            }
        }
        state.left -= 1;
        if state.left > 0 {
            return;
        }
        if let Some((api, future)) = state.future.take() {
            complete_elsewhere(CompletedFuture { api, future, failure: state.failure.take() });
        }
    }

    /// What the handler returns after submitting everything: the outcome if the call is complete,
    /// or else null, with a future for it in the frame. Where there are no futures it waits.
    pub(super) fn outcome(&self, api: &'static XlaApi, frame: &mut Frame) -> XlaHandle {
        if self.promise(api, frame) {
            return null_mut();
        }
        self.wait();
        self.lock().failure.take().map_or(null_mut(), |failure| error(api, &failure))
    }

    /// What the handler of a program on a GPU returns after submitting everything. The stream waits
    /// for whatever is launched even if another part has failed: XLA then frees all the memory.
    pub(super) fn outcome_on(&self, api: &XlaApi, stream: &XlaStream) -> XlaHandle {
        self.wait();
        let mut state = self.lock();
        for event in std::mem::take(&mut state.launched) {
            if let Err(failure) = stream.wait_for(&event) {
                state.failure.get_or_insert(failure);
            }
            gpu::remember(event);
        }
        state.failure.take().map_or(null_mut(), |failure| error(api, &failure))
    }

    fn wait(&self) {
        native::wait_until(&|| self.lock().left == 0);
    }

    /// Puts a future into the frame, if this XLA has futures and the call is not complete.
    fn promise(&self, api: &'static XlaApi, frame: &mut Frame) -> bool {
        let mut state = self.lock();
        let Some(create) = creation(api).filter(|_| state.left > 0) else { return false };
        let mut arguments = FutureArguments::new(null_mut());
        // SAFETY: the function is from the table that was passed with this call, and the structure
        // is ours.
        let problem = unsafe { create(&raw mut arguments) };
        if !problem.is_null() {
            return false;
        }
        frame.future = arguments.future;
        state.future = Some((api, arguments.future));
        true
    }

    fn lock(&self) -> MutexGuard<'_, CallState> {
        self.0.lock().expect("nothing panics while it holds this lock")
    }
}

/// The function that creates futures, if this XLA has it.
fn creation(api: &XlaApi) -> Option<OfFuture> {
    let expected = EXPECTED.load(Ordering::Relaxed) && !tensorflow::has_table(api);
    has_futures(api.size, expected).then_some(api.future_create).flatten()
}

/// Whether XLA has futures even if the size of its table does not show it.
static EXPECTED: AtomicBool = AtomicBool::new(false);

/// From now on every XLA in this process except TensorFlow's is expected to have futures.
pub(super) fn expect_futures() {
    EXPECTED.store(true, Ordering::Relaxed);
}

/// If the table has the functions, then the frame has a field for a future. The frame's size does
/// not show it: no release counts that field.
fn has_futures(size_of_table: usize, expected: bool) -> bool {
    expected || size_of_table > offset_of!(XlaApi, future_set_error)
}

/// A future to be completed.
struct CompletedFuture {
    api: &'static XlaApi,
    future: XlaHandle,
    failure: Option<Failure>,
}

// SAFETY: any thread may complete the future.
unsafe impl Send for CompletedFuture {}

/// The stack size of XLA's own threads, whose work runs here.
const STACK: usize = 8 << 20;

static COMPLETER: OnceLock<Option<Sender<CompletedFuture>>> = OnceLock::new();

fn complete_elsewhere(ended: CompletedFuture) {
    let completer = COMPLETER.get_or_init(|| {
        let (sender, receiver) = channel::<CompletedFuture>();
        let work = move || receiver.iter().for_each(complete);
        let thread = Builder::new().name("ronde-xla".into()).stack_size(STACK).spawn(work);
        thread.ok().map(|_| sender)
    });
    match completer {
        Some(completer) => {
            // The thread lives as long as the process, so it receives this.
            let _ = completer.send(ended);
        }
        None => complete(ended),
    }
}

fn complete(CompletedFuture { api, future, failure }: CompletedFuture) {
    let Some(failure) = failure else {
        let set =
            api.future_set_available.expect("a table that can create futures can complete them");
        let mut arguments = FutureArguments::new(future);
        // SAFETY: the future is open, and completed only here.
        unsafe { set(&raw mut arguments) };
        return;
    };
    let set = api.future_set_error.expect("a table that can create futures can complete them");
    let mut arguments = FutureErrorArguments::new(future, error(api, &failure));
    // SAFETY: the future is open, and completed only here; it takes ownership of the error.
    unsafe { set(&raw mut arguments) };
}

/// An XLA error for a failure.
pub(super) fn error(api: &XlaApi, failure: &Failure) -> XlaHandle {
    // Numbers of absl's status codes. The end of a world is "unknown", as it is for programs that
    // are not compiled.
    let code: c_int = match failure.fault {
        ErrorClass::Invalid => 3,
        ErrorClass::Precondition => 9,
        ErrorClass::Aborted | ErrorClass::World => 2,
    };
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    let mut arguments = ErrorArguments::new(text.as_ptr(), code);
    // SAFETY: the function is from XLA's table, and copies the text.
    unsafe { (api.error_create)(&raw mut arguments) }
}

#[cfg(test)]
mod tests {
    use super::has_futures;

    #[test]
    fn futures_are_detected_by_the_size_of_the_table_or_expected() {
        // 0.4.31, 0.5.3 and 0.10.2.
        for (size, detected) in [(88, false), (88, false), (192, true)] {
            assert_eq!(has_futures(size, false), detected);
            assert!(has_futures(size, true));
        }
    }
}
