//! The background thread: drives while nobody waits, so that tensors move while the program computes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use rustix::event::PollFlags;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::Shared;
use super::progress::Progress;
use crate::error::Error;
use crate::transport::socket::Socket;
use crate::transport::vigil::Interest;

/// The sockets that someone must listen to, for whoever drives and, while nobody does, for the
/// background thread.
///
/// The background thread may be asleep on them when a driver takes over, and must not be woken by
/// what the driver will read. So it sleeps on a set that holds the set of sockets, and a driver takes
/// the inner set out of the outer one.
pub(super) struct Standby(Option<Sets>);

struct Sets {
    sockets: OwnedFd,
    outer: OwnedFd,
}

impl Standby {
    /// In shared memory there are no sockets to listen to.
    pub(super) fn none() -> Standby {
        Standby(None)
    }

    pub(super) fn over<'a>(sockets: impl Iterator<Item = &'a Socket>) -> io::Result<Standby> {
        let sets = Sets {
            sockets: epoll::create(CreateFlags::CLOEXEC)?,
            outer: epoll::create(CreateFlags::CLOEXEC)?,
        };
        for socket in sockets {
            epoll::add(&sets.sockets, socket, EventData::new_u64(0), EventFlags::IN)?;
        }
        let standby = Standby(Some(sets));
        standby.arm();
        Ok(standby)
    }

    /// The background thread listens.
    pub(super) fn arm(&self) {
        if let Some(Sets { sockets, outer }) = &self.0 {
            let _ = epoll::add(outer, sockets, EventData::new_u64(0), EventFlags::IN);
        }
    }

    /// Only the driver listens.
    pub(super) fn disarm(&self) {
        if let Some(Sets { sockets, outer }) = &self.0 {
            let _ = epoll::delete(outer, sockets);
        }
    }

    /// What a driver sleeps on.
    pub(super) fn interests(&self) -> Vec<Interest<'_>> {
        self.0.iter().map(|sets| (sets.sockets.as_fd(), PollFlags::IN)).collect()
    }

    fn background_interests(&self) -> Vec<Interest<'_>> {
        self.0.iter().map(|sets| (sets.outer.as_fd(), PollFlags::IN)).collect()
    }
}

pub(super) fn start(shared: Arc<Shared>) -> Result<JoinHandle<()>, Error> {
    std::thread::Builder::new()
        .name("ronde-engine".into())
        .spawn(move || watch(&shared))
        .map_err(|error| Error::Setup(format!("no thread could be started: {error}")))
}

fn watch(shared: &Shared) {
    let mut overslept = false;
    while !shared.stop.load(Ordering::SeqCst) {
        // If the lock is taken, somebody drives and will leave in order.
        if let Ok(mut progress) = shared.progress.try_lock() {
            shared.vigil.get_up();
            if overslept && progress.is_outstanding() && progress.has_input() {
                shared.vigil.note_missed();
            }
            drive(shared, &mut progress);
            let is_over = progress.is_over();
            shared.step_back(progress);
            if is_over {
                return;
            }
        }
        overslept = shared.vigil.background_sleep(&shared.standby.background_interests());
    }
}

fn drive(shared: &Shared, progress: &mut Progress) {
    loop {
        let turned = shared.vigil.check().and_then(|()| progress.turn());
        match turned {
            Ok(true) => shared.leave_bench(),
            Ok(false) => return,
            Err(error) => return progress.end(&error),
        }
    }
}
