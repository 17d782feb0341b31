//! The background thread: drives while no thread waits, so that tensors move while the program
//! computes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use rustix::event::PollFlags;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::EngineShared;
use super::progress::Progress;
use crate::error::Error;
use crate::transport::socket::Socket;
use crate::transport::waiter::Interest;

/// The sockets to poll: by the driving thread or, while there is none, by the background thread.
///
/// The background thread may be asleep on the sockets when a driver takes over, and must not be
/// woken by data that the driver will read. So it sleeps on an outer epoll set that contains the
/// set of sockets, and a driver removes the inner set from the outer one.
pub(super) struct SocketSets(Option<PollSets>);

struct PollSets {
    sockets: OwnedFd,
    outer: OwnedFd,
}

impl SocketSets {
    /// No sockets: all ranks share memory.
    pub(super) fn none() -> SocketSets {
        SocketSets(None)
    }

    pub(super) fn over<'a>(sockets: impl Iterator<Item = &'a Socket>) -> io::Result<SocketSets> {
        let sets = PollSets {
            sockets: epoll::create(CreateFlags::CLOEXEC)?,
            outer: epoll::create(CreateFlags::CLOEXEC)?,
        };
        for socket in sockets {
            epoll::add(&sets.sockets, socket, EventData::new_u64(0), EventFlags::IN)?;
        }
        let socket_sets = SocketSets(Some(sets));
        socket_sets.arm();
        Ok(socket_sets)
    }

    /// Lets sockets wake the background thread.
    pub(super) fn arm(&self) {
        if let Some(PollSets { sockets, outer }) = &self.0 {
            let _ = epoll::add(outer, sockets, EventData::new_u64(0), EventFlags::IN);
        }
    }

    /// Stops sockets from waking the background thread: only the driver polls them.
    pub(super) fn disarm(&self) {
        if let Some(PollSets { sockets, outer }) = &self.0 {
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

pub(super) fn start(shared: Arc<EngineShared>) -> Result<JoinHandle<()>, Error> {
    std::thread::Builder::new().name("ronde-engine".into()).spawn(move || watch(&shared)).map_err(
        |error| Error::Setup(format!("cannot start the engine's background thread: {error}")),
    )
}

fn watch(shared: &EngineShared) {
    let mut overslept = false;
    while !shared.stop.load(Ordering::SeqCst) {
        // If the lock is taken, another thread drives, and steps back properly.
        if let Ok(mut progress) = shared.progress.try_lock() {
            shared.waiter.wake_up();
            if overslept && progress.is_outstanding() && progress.has_input() {
                shared.waiter.note_missed();
            }
            drive(shared, &mut progress);
            let is_over = progress.is_over();
            shared.step_back(progress);
            if is_over {
                return;
            }
        }
        overslept = shared.waiter.background_sleep(&shared.socket_sets.background_interests());
    }
}

fn drive(shared: &EngineShared, progress: &mut Progress) {
    loop {
        let turned = shared.waiter.check().and_then(|()| progress.turn());
        match turned {
            Ok(true) => shared.wake_waiters(),
            Ok(false) => return,
            Err(error) => return progress.end(&error),
        }
    }
}
