//! Connections that have not proved anything yet. [`Admission`] decides who of them makes room when
//! there are too many; here is a handle on each, to hang up on.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ronde_control::admission::{Admission, Caller, Limits, Origin};

use crate::transport::socket::Socket;

/// How many are heard at the same time: each takes a thread.
const PLACES: usize = 64;

pub(super) struct Newcomers {
    begun: Instant,
    inside: Mutex<(Admission, HashMap<Caller, Socket>)>,
}

impl Default for Newcomers {
    fn default() -> Newcomers {
        let admission = Admission::new(Limits { places: PLACES, ..Limits::default() });
        Newcomers { begun: Instant::now(), inside: Mutex::new((admission, HashMap::new())) }
    }
}

impl Newcomers {
    /// How long nobody else is to be accepted, because all who are there have just come.
    pub(super) fn closed_for(&self) -> Duration {
        let inside = self.inside.lock().expect("nothing panics while it holds this lock");
        inside.0.opens_at().saturating_sub(self.begun.elapsed())
    }

    /// Takes a handle on one more, and hangs up on whoever has to make room for it.
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

    /// One is a newcomer no longer.
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
