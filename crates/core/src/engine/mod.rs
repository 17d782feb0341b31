//! The engine: one per process. It takes submissions from any thread and gives tickets for them.
//!
//! Whoever waits drives: a thread that waits for a ticket does the engine's work itself, so that in
//! the common blocking call no other thread has to be woken. The background thread works only while
//! nobody waits. A world of one has neither threads nor sockets.

mod alone;
mod background;
mod inbox;
mod join;
mod plane;
mod progress;
mod stall;
mod ticket;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ronde_control::Rank;
use ronde_control::negotiate::{Kind, Request};
use ronde_control::settings::{Place, Settings};
use ronde_control::wire::RankToDriver;

use self::background::Standby;
use self::inbox::{Inbox, Submission};
use self::progress::Progress;
pub use self::ticket::{Outcome, Ticket};
use crate::buffer::Region;
use crate::error::Error;
use crate::transport::vigil::Vigil;

/// How long an orderly end may take before it becomes a hard one.
const FAREWELL: Duration = Duration::from_secs(5);

/// This process's part in the world.
pub struct Engine {
    place: Place,
    world: Option<World>,
}

struct World {
    shared: Arc<Shared>,
    background: Mutex<Option<JoinHandle<()>>>,
}

/// What the threads of this process share.
struct Shared {
    progress: Mutex<Progress>,
    inbox: Arc<Inbox>,
    vigil: Arc<Vigil>,
    standby: Standby,
    stop: AtomicBool,
    /// Where threads wait while another one drives.
    bench: (Mutex<usize>, Condvar),
}

/// Whether the caller goes on to something else, or waits for the ticket at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Something else: the background thread takes care of it.
    GoesOn,
    /// A wait: the caller will drive, so nobody has to be woken.
    Waits,
}

impl Engine {
    /// Joins the world that the place describes, and waits until everybody has.
    pub fn join(settings: &Settings, place: Place) -> Result<Engine, Error> {
        let Some(meeting) = place.meeting.clone() else {
            return Ok(Engine { place, world: None });
        };
        let (progress, vigil, inbox, standby) = join::join(settings, &place, &meeting)?;
        let shared = Arc::new(Shared {
            progress: Mutex::new(progress),
            inbox,
            vigil,
            standby,
            stop: AtomicBool::new(false),
            bench: Default::default(),
        });
        let background = background::start(shared.clone())?;
        Ok(Engine {
            place,
            world: Some(World { shared, background: Mutex::new(Some(background)) }),
        })
    }

    /// Where this process stands.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Hands tensors over: the regions belong to the engine until the ticket is done.
    pub fn submit(
        &self,
        request: Request,
        sources: Vec<Region>,
        targets: Vec<Region>,
        next: Next,
    ) -> Result<Arc<Ticket>, Error> {
        if let Kind::Broadcast { root: Rank(root) } = request.kind
            && root >= self.place.size
        {
            return Err(Error::Invalid(format!(
                "broadcast received invalid root rank {root} for provided process set: the world \
                 has ranks 0 to {}",
                self.place.size - 1
            )));
        }
        let ticket = Arc::new(Ticket::default());
        let Some(World { shared, .. }) = &self.world else {
            ticket.complete(alone::run(&request, &sources, &targets));
            return Ok(ticket);
        };
        let submission = Submission::Tensor { request, sources, targets, ticket: ticket.clone() };
        shared.inbox.put(submission)?;
        if next == Next::GoesOn {
            shared.vigil.ring_own();
        }
        Ok(ticket)
    }

    /// Waits for a ticket, at most until the deadline; drives the engine meanwhile.
    pub fn wait(&self, ticket: &Ticket, deadline: Instant) {
        if let Some(World { shared, .. }) = &self.world {
            shared.wait(ticket, deadline);
        }
    }

    /// The error that ended the world, if one did.
    pub fn verdict(&self) -> Option<Error> {
        self.world.as_ref().and_then(|world| world.shared.vigil.fate.verdict())
    }

    /// Ends this rank's part: what is still in flight fails, here and on the other ranks.
    pub fn shutdown(&self, error: Option<String>) {
        let Some(World { shared, background }) = &self.world else { return };
        let Some(thread) = background.lock().expect("nothing panics with this lock").take() else {
            return;
        };
        let deadline = Instant::now() + FAREWELL;
        let blames = self.verdict().and_then(|error| error.blames());
        let leaving = RankToDriver::Leaving { error: error.clone(), blames };
        shared.vigil.sentinel.tell_launcher(&leaving, deadline);
        let ticket = Arc::new(Ticket::default());
        if shared.inbox.put(Submission::Leave { reason: error, ticket: ticket.clone() }).is_ok() {
            shared.vigil.ring_own();
            shared.wait(&ticket, deadline);
        }
        shared.vigil.fate.seal(Error::Shutdown);
        shared.stop.store(true, Ordering::SeqCst);
        shared.vigil.ring_all_own();
        let _ = thread.join();
        shared.lock().end(&Error::Shutdown);
        shared.leave_bench();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shutdown(None);
    }
}

impl Shared {
    fn wait(&self, ticket: &Ticket, deadline: Instant) {
        while !ticket.is_done() {
            match self.progress.try_lock() {
                Ok(progress) => self.drive(progress, ticket, deadline),
                Err(TryLockError::WouldBlock) => self.sit_out(ticket, deadline),
                Err(TryLockError::Poisoned(_)) => panic!("the engine's driver has panicked"),
            }
            if Instant::now() >= deadline {
                return;
            }
        }
    }

    fn drive(&self, mut progress: MutexGuard<'_, Progress>, ticket: &Ticket, deadline: Instant) {
        self.vigil.get_up();
        self.standby.disarm();
        let driven = self.vigil.until(&self.standby.interests(), Some(deadline), || {
            progress.turn()?;
            Ok(ticket.is_done().then_some(()))
        });
        if let Err(error) = driven {
            progress.end(&error);
        }
        self.step_back(progress);
    }

    /// Gives the engine back to the background thread, which sleeps unless there is something left.
    fn step_back(&self, progress: MutexGuard<'_, Progress>) {
        self.standby.arm();
        self.vigil.leave_to_background(progress.is_outstanding());
        if progress.has_input() {
            self.vigil.ring_own();
        }
        drop(progress);
        self.leave_bench();
    }

    /// Waits while another thread drives, which wakes everybody on the bench when it stops.
    fn sit_out(&self, ticket: &Ticket, deadline: Instant) {
        let (seats, bell) = &self.bench;
        let mut taken = seats.lock().expect("nothing panics while it holds this lock");
        *taken += 1;
        // The driver may have stopped before it could see this seat; then nobody would ring.
        let limit = deadline.saturating_duration_since(Instant::now());
        let limit = limit.min(Duration::from_millis(20));
        if !ticket.is_done() && self.progress.try_lock().is_err() {
            taken = bell.wait_timeout(taken, limit).expect("nothing panics with this lock").0;
        }
        *taken -= 1;
    }

    fn leave_bench(&self) {
        let (seats, bell) = &self.bench;
        if *seats.lock().expect("nothing panics while it holds this lock") > 0 {
            bell.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().expect("the engine's driver has not panicked")
    }
}
