//! Connections that are not authenticated yet. [`Admission`] decides which one is evicted when
//! there are too many; this file keeps a handle on each, to close it.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ronde_control::admission::{Admission, AdmissionLimits, Caller, Origin};

use crate::transport::socket::Socket;

/// Maximum number of pending handshakes: each takes a thread.
const PLACES: usize = 64;

pub(super) struct PendingCallers {
    begun: Instant,
    inside: Mutex<(Admission, HashMap<Caller, Socket>)>,
}

impl Default for PendingCallers {
    fn default() -> PendingCallers {
        let admission =
            Admission::new(AdmissionLimits { places: PLACES, ..AdmissionLimits::default() });
        PendingCallers { begun: Instant::now(), inside: Mutex::new((admission, HashMap::new())) }
    }
}

impl PendingCallers {
    /// How long to accept no connection, because all pending ones have just arrived.
    pub(super) fn closed_for(&self) -> Duration {
        let inside = self.inside.lock().expect("nothing panics while it holds this lock");
        inside.0.opens_at().saturating_sub(self.begun.elapsed())
    }

    /// Adds a connection, and closes the one evicted for it, if any.
    pub(super) fn enter(&self, handle: Socket) -> Caller {
        let now = self.begun.elapsed();
        let mut inside = self.inside.lock().expect("nothing panics while it holds this lock");
        let (admission, handles) = &mut *inside;
        let (caller, evicted) = admission.arrive(Origin::Unknown, now);
        handles.insert(caller, handle);
        if let Some(evicted) = evicted.and_then(|evicted| handles.remove(&evicted)) {
            evicted.hang_up();
        }
        if let Some(notice) = admission.notice(now) {
            tracing::warn!("the port of the data service {notice}");
        }
        caller
    }

    /// Removes a connection that has finished its handshake.
    pub(super) fn leave(&self, caller: Caller) {
        let mut inside = self.inside.lock().expect("nothing panics while it holds this lock");
        inside.0.leave(caller);
        inside.1.remove(&caller);
    }

    pub(super) fn hang_up(&self) {
        let inside = self.inside.lock().expect("nothing panics while it holds this lock");
        inside.1.values().for_each(Socket::hang_up);
    }
}
