//! Who may stay: a connection occupies one of few places until a request on it is signed by somebody
//! whom the hub knows. When all places are taken, the next connection evicts the least trusted one,
//! so nobody can keep others out by connecting; `control::admission` decides which that is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ronde_control::admission::{Admission, AdmissionLimits, Caller, HandshakeProgress, Origin};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Strangers come from far away: their handshake takes some round trips.
const LIMITS: AdmissionLimits = AdmissionLimits {
    places: 256,
    floor: Duration::from_millis(300),
    deadline: Duration::from_secs(10),
};

/// The connections of strangers.
pub(crate) struct Door {
    start: Instant,
    strangers: Mutex<Strangers>,
}

struct Strangers {
    admission: Admission,
    tasks: HashMap<Caller, AbortHandle>,
}

/// A connection in its place; it leaves the place when this is dropped, or when the caller is known.
pub(crate) struct DoorPlace {
    door: Arc<Door>,
    caller: Caller,
}

impl Door {
    pub(crate) fn new() -> Arc<Door> {
        let strangers = Strangers { admission: Admission::new(LIMITS), tasks: HashMap::new() };
        Arc::new(Door { start: Instant::now(), strangers: Mutex::new(strangers) })
    }

    /// Gives a new connection a place, which may be that of another one; `spawn` starts its task.
    pub(crate) fn enter(self: &Arc<Door>, spawn: impl FnOnce(Arc<DoorPlace>) -> AbortHandle) {
        let now = self.start.elapsed();
        let mut strangers = self.lock();
        let (caller, evicted) = strangers.admission.arrive(Origin::Unknown, now);
        evicted.into_iter().for_each(|evicted| strangers.turn_out(evicted));
        let task = spawn(Arc::new(DoorPlace { door: self.clone(), caller }));
        strangers.tasks.insert(caller, task);
    }

    /// Handles what is due; returns when the next connection may be accepted, and when to look
    /// again.
    pub(crate) fn tick(&self) -> (Instant, Option<Instant>) {
        let now = self.start.elapsed();
        let mut strangers = self.lock();
        for late in strangers.admission.expire(now) {
            strangers.turn_out(late);
        }
        if let Some(notice) = strangers.admission.notice(now) {
            let seconds = notice.during.as_secs();
            tracing::warn!(
                "{} connections of strangers were dropped in the last {seconds} s, and {} are idle; \
                 find out what is connecting, for example a port scanner",
                notice.dropped,
                notice.waiting
            );
        }
        let wakeup = strangers.admission.next_wakeup().map(|at| self.start + at);
        (self.start + strangers.admission.opens_at(), wakeup)
    }

    fn lock(&self) -> MutexGuard<'_, Strangers> {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Strangers {
    fn turn_out(&mut self, caller: Caller) {
        if let Some(task) = self.tasks.remove(&caller) {
            task.abort();
        }
    }
}

impl DoorPlace {
    /// The connection is encrypted now.
    pub(crate) fn begun(&self) {
        self.door.lock().admission.advance(self.caller, HandshakeProgress::Begun);
    }

    /// Somebody whom the hub knows has signed a request on it, so it may stay.
    pub(crate) fn known(&self) {
        let mut strangers = self.door.lock();
        strangers.admission.leave(self.caller);
        strangers.tasks.remove(&self.caller);
    }
}

impl Drop for DoorPlace {
    fn drop(&mut self) {
        self.known();
    }
}
