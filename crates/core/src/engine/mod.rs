//! The engine: one per process. It takes submissions from any thread and returns tickets for them.
//!
//! A waiting thread drives: it does the engine's work itself, so that a blocking call, the common
//! case, wakes no other thread. The background thread works only while no thread waits. A world of
//! one has neither threads nor sockets, unless its job is elastic.

mod alone;
mod alone_on_gpu;
mod background;
mod drive;
mod elastic;
mod express;
mod gpu_buckets;
mod gpu_tensors;
mod inbox;
mod join;
mod late;
mod plane;
mod progress;
pub mod remote_call;
mod results;
mod run;
mod serial_submission;
mod sets;
mod stall;
mod ticket;
mod tune;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ronde_control::cause::{self, CauseKind, Raised};
use ronde_control::negotiate::{CollectiveKind, Request};
use ronde_control::settings::{RankInfo, RendezvousOwner, Settings};
use ronde_control::watching::Cycles;
use ronde_control::wire::RankToDriver;
use ronde_control::{Rank, SetId};

use self::drive::EngineShared;
pub use self::gpu_tensors::{AllocateOnGpu, GpuMemory, GpuTensors};
use self::inbox::{Inbox, Submission};
use self::late::WaitClock;
use self::sets::ProcessSets;
use self::ticket::PendingSubmission;
pub use self::ticket::{AllocateResult, CompletionCallback, Outcome, OwnedResult, Tensors, Ticket};
use crate::error::Error;
use crate::group::Arena;
pub use crate::group::ArenaBlock;
use crate::transport::failure_detector::SelfReport;
use crate::transport::traffic::TRAFFIC;
pub use crate::transport::updates::{UpdateWait, Updates};
use crate::transport::waiter::Waiter;
use crate::watch::{MetricsServer, Reading, Readings, Watch};

/// How long an orderly shutdown may take before it is forced.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// A reduction of this many bytes takes no longer than waking two threads.
const SMALL: u64 = 1 << 20;

/// This process's membership in a world.
pub struct Engine {
    place: RankInfo,
    world: Option<JoinedWorld>,
    watch: Arc<Watch>,
    /// The GPU of this rank's tensors, if there were any.
    gpu: OnceLock<u32>,
}

struct JoinedWorld {
    shared: Arc<EngineShared>,
    arena: Option<Arc<Arena>>,
    background: Mutex<Option<JoinHandle<()>>>,
}

/// What the caller does after it has submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterSubmit {
    /// It continues with other work; the background thread takes care of the submission.
    GoesOn,
    /// It waits for the ticket and drives, so no other thread has to be woken.
    Waits,
}

impl Engine {
    /// Joins the world that `place` describes and waits until every rank has joined.
    pub fn join(settings: &Settings, place: RankInfo) -> Result<Engine, Error> {
        let Some(rendezvous_info) = place.rendezvous_info.clone() else {
            return Engine::alone(settings, place);
        };
        // A worker of an elastic job learns its rank only at the rendezvous.
        let known = match rendezvous_info.keeper {
            RendezvousOwner::Elastic(_) => None,
            _ => Some(open_watch(settings, &place)?),
        };
        let connected = join::connect(settings, &place, &rendezvous_info)?;
        let place = connected.place.clone();
        let (watch, server) = match known {
            Some(watch) => watch,
            None => open_watch(settings, &place)?,
        };
        let (inbox, sets) = (Arc::new(Inbox::default()), Arc::new(ProcessSets::of(place.size)));
        let inputs = (inbox.clone(), sets.clone(), watch.clone());
        let (progress, waiter, socket_sets) = connected.settle(settings, inputs)?;
        let arena = progress.groups.arena().cloned();
        let shared = Arc::new(EngineShared {
            progress: Mutex::new(progress),
            inbox,
            sets,
            waiter,
            socket_sets,
            stop: AtomicBool::new(false),
            waiters: Default::default(),
        });
        shared.waiter.failure_detector.report_by(reporter(&watch));
        let wait_clock =
            WaitClock::new((settings.stall_warning, settings.stall_shutdown), place.rank);
        wait_clock.guard(&shared.waiter, &watch);
        watch.start(server, readings(&shared.waiter))?;
        let background = background::start(shared.clone()).inspect_err(|_| watch.end())?;
        let background = Mutex::new(Some(background));
        Ok(Engine {
            place,
            world: Some(JoinedWorld { shared, arena, background }),
            watch,
            gpu: OnceLock::new(),
        })
    }

    /// A world of one starts no thread and opens no socket unless the settings ask for it.
    fn alone(settings: &Settings, place: RankInfo) -> Result<Engine, Error> {
        let (watch, server) = open_watch(settings, &place)?;
        if Watch::is_wanted(&settings.watching) {
            watch.start(server, Box::new(Vec::new))?;
        }
        Ok(Engine { place, world: None, watch, gpu: OnceLock::new() })
    }

    /// This process's rank, host and slot in the world.
    pub fn place(&self) -> &RankInfo {
        &self.place
    }

    /// Allocates memory that every rank of this host can see. A reduction whose tensors are in such
    /// memory on all ranks copies nothing. None if the arena is full or this host has none.
    pub fn allocate(&self, length: usize) -> Option<ArenaBlock> {
        let JoinedWorld { shared, arena, .. } = self.world.as_ref()?;
        // Ranks that do not know yet that the world has ended may still write to the memory.
        shared.waiter.world_state.check().ok()?;
        arena.as_ref()?.allocate(length)
    }

    /// Whether this address is in the memory that [`Engine::allocate`] allocates from.
    pub fn is_in_arena(&self, address: usize) -> bool {
        let arena = self.world.as_ref().and_then(|world| world.arena.as_ref());
        arena.is_some_and(|arena| arena.holds(address))
    }

    /// How many of this rank's bytes have been reduced in place, without a copy.
    pub fn bytes_in_place(&self) -> u64 {
        let arena = self.world.as_ref().and_then(|world| world.arena.as_ref());
        arena.map_or(0, |arena| arena.in_place().load(Ordering::Relaxed))
    }

    /// Submits tensors. Their memory belongs to the engine until the ticket is done.
    pub fn submit(
        &self,
        request: Request,
        tensors: Tensors,
        next: AfterSubmit,
    ) -> Result<Arc<Ticket>, Error> {
        let ticket = Arc::new(Ticket::default());
        self.enqueue(request, PendingSubmission { tensors, ticket: ticket.clone() }, next)?;
        Ok(ticket)
    }

    /// Submits tensors for a caller that will not wait. `done` is called with the outcome:
    /// immediately if the request is refused or the outcome is already known.
    pub fn submit_then(&self, request: Request, tensors: Tensors, done: CompletionCallback) {
        let ticket = Arc::new(Ticket::default());
        let next = match &self.world {
            Some(JoinedWorld { shared, .. })
                if request.bytes() <= SMALL && shared.is_driving_worth_it() =>
            {
                AfterSubmit::Waits
            }
            _ => AfterSubmit::GoesOn,
        };
        let pending = PendingSubmission { tensors, ticket: ticket.clone() };
        let queued = self.enqueue(request, pending, next);
        match (queued, &self.world) {
            (Err(error), _) => ticket.complete(Err(error)),
            (Ok(()), Some(JoinedWorld { shared, .. })) if next == AfterSubmit::Waits => {
                shared.drive_briefly(&ticket);
            }
            (Ok(()), _) => {}
        }
        drive::call_back(&ticket, done);
    }

    fn enqueue(
        &self,
        mut request: Request,
        mut pending: PendingSubmission,
        next: AfterSubmit,
    ) -> Result<(), Error> {
        self.check(&request)?;
        pending.tensors.check(&request)?;
        if let Tensors::OnGpu(tensors) = &pending.tensors {
            self.check_gpu(&request.name, tensors.gpu().index())?;
        }
        let Some(JoinedWorld { shared, .. }) = &self.world else {
            let outcome = alone::run_watched(&self.watch, request, &mut pending.tensors);
            pending.complete(outcome);
            return Ok(());
        };
        if request.set != SetId::WORLD {
            // Names are matched within a set: the same name may be in flight in another set.
            request.name = format!("{}@{}", request.name, request.set.0);
        }
        shared.put(Submission::Tensor { request, pending, next }, next)
    }

    /// A rank uses one GPU: its communicators belong to it.
    fn check_gpu(&self, name: &str, index: u32) -> Result<(), Error> {
        let first = *self.gpu.get_or_init(|| index);
        match first == index {
            true => Ok(()),
            false => Err(Error::Invalid(format!(
                "`{name}` is on GPU {index}, but this rank's earlier tensors were on GPU {first}; a \
                 rank uses one GPU: choose it at the start, with \
                 `torch.cuda.set_device(hvd.local_rank())` or `horovodrun --gpus-per-rank 1`"
            ))),
        }
    }

    /// Contributes nothing from now on, until every rank has joined.
    pub fn join_in(&self, next: AfterSubmit) -> Result<Arc<Ticket>, Error> {
        let ticket = Arc::new(Ticket::default());
        self.enqueue_join(ticket.clone(), next)?;
        Ok(ticket)
    }

    /// The same as [`Engine::join_in`], for a caller that will not wait.
    pub fn join_in_then(&self, done: CompletionCallback) {
        let ticket = Arc::new(Ticket::default());
        if let Err(error) = self.enqueue_join(ticket.clone(), AfterSubmit::GoesOn) {
            ticket.complete(Err(error));
        }
        drive::call_back(&ticket, done);
    }

    fn enqueue_join(&self, ticket: Arc<Ticket>, next: AfterSubmit) -> Result<(), Error> {
        match &self.world {
            Some(JoinedWorld { shared, .. }) => shared.put(Submission::Join { ticket }, next),
            None => {
                ticket.complete(Ok(Outcome::Joined { last: self.place.rank }));
                Ok(())
            }
        }
    }

    /// The members of a process set in rising order, if it exists.
    pub fn members(&self, set: SetId) -> Option<Vec<Rank>> {
        match &self.world {
            Some(JoinedWorld { shared, .. }) => shared.sets.members(set),
            None => (set == SetId::WORLD).then(|| vec![self.place.rank]),
        }
    }

    /// Refuses a request that is wrong whatever the other ranks submit.
    fn check(&self, request: &Request) -> Result<(), Error> {
        let Request { name, set, kind, .. } = request;
        let members = match &self.world {
            Some(JoinedWorld { shared, .. }) => shared.sets.check(name, *set, self.place.rank)?,
            None => ProcessSets::of(1).check(name, *set, self.place.rank)?,
        };
        if let Some(problem) = request.unsuitable() {
            return Err(Error::Invalid(problem));
        }
        match kind {
            CollectiveKind::Broadcast { root } if !members.contains(root) => {
                Err(Error::Invalid(format!(
                    "broadcast received invalid root rank {} for provided process set: its members are \
                 {:?}",
                    root.0,
                    members.iter().map(|rank| rank.0).collect::<Vec<_>>()
                )))
            }
            CollectiveKind::AddSet { ranks } => self.check_new_set(ranks),
            CollectiveKind::RemoveSet { set }
                if self.members(*set).is_none() || *set == SetId::WORLD =>
            {
                Err(Error::Invalid(format!("process set {} cannot be removed", set.0)))
            }
            CollectiveKind::Alltoall { splits } if splits.len() != members.len() => {
                Err(Error::Invalid(
                    "Number of entries in splits does not equal number of workers.".into(),
                ))
            }
            CollectiveKind::Alltoall { splits } => {
                let rows = request.shapes.first().and_then(|shape| shape.first()).copied();
                match rows.is_some_and(|rows| splits.iter().sum::<u64>() > rows) {
                    true => Err(Error::Invalid(
                        "Sum of splits entries is greater than the first dimension of tensor."
                            .into(),
                    )),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn check_new_set(&self, ranks: &[Rank]) -> Result<(), Error> {
        if let Some(rank) = ranks.iter().find(|rank| rank.0 >= self.place.size) {
            let error = format!("Tried to register process set with invalid rank: {}", rank.0);
            return Err(Error::Invalid(error));
        }
        if let Some(pair) = ranks.windows(2).find(|pair| pair[0] >= pair[1]) {
            let error = format!("Tried to register process set with duplicate rank: {}", pair[1].0);
            return Err(Error::Invalid(error));
        }
        let limit = crate::group::MOST_SETS;
        match &self.world {
            _ if ranks.is_empty() => {
                Err(Error::Invalid("a process set needs at least one rank".into()))
            }
            Some(JoinedWorld { shared, .. }) if shared.sets.count() >= limit => {
                Err(Error::Invalid(format!("there can be at most {limit} process sets at a time")))
            }
            Some(_) => Ok(()),
            None => {
                Err(Error::Invalid("a world of one rank cannot have other process sets".into()))
            }
        }
    }

    /// Waits for a ticket, at most until the deadline, and drives the engine meanwhile.
    pub fn wait(&self, ticket: &Ticket, deadline: Instant) {
        self.wait_until(&|| ticket.is_done(), deadline);
    }

    /// The same as [`Engine::wait`], for any condition that completed submissions make true.
    pub fn wait_until(&self, is_done: &dyn Fn() -> bool, deadline: Instant) {
        if let Some(JoinedWorld { shared, .. }) = &self.world {
            shared.wait(is_done, deadline);
        }
    }

    /// Starts a timeline if `HOROVOD_TIMELINE` was set when this rank joined. Rank 0 writes it.
    pub fn start_timeline(&self, path: &Path, cycles: Cycles) -> Result<(), Error> {
        self.watch.start_timeline(path, cycles)
    }

    /// Ends the timeline. On rank 0, everything up to now is in the file when this returns.
    pub fn stop_timeline(&self) -> Result<(), Error> {
        self.watch.stop_timeline()
    }

    /// The error that ended the world, if one did.
    pub fn verdict(&self) -> Option<Error> {
        self.world.as_ref().and_then(|world| world.shared.waiter.world_state.verdict())
    }

    /// How often a thread of this rank slept while there was work to do. Anything but zero is a bug
    /// in the wake-up code.
    pub fn missed_wakeups(&self) -> u64 {
        self.world.as_ref().map_or(0, |world| world.shared.waiter.missed())
    }

    /// Leaves the world. Whatever is still in flight fails, here and on the other ranks.
    pub fn shutdown(&self, error: Option<String>) {
        let Some(JoinedWorld { shared, background, .. }) = &self.world else {
            return self.watch.end();
        };
        let Some(thread) = background.lock().expect("nothing panics with this lock").take() else {
            return;
        };
        let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
        let error = error.map(|text| cause::error_summary(&text));
        let verdict = self.verdict();
        let kind = verdict.as_ref().map_or(CauseKind::Exception, Error::kind_when_leaving);
        let raised =
            error.as_ref().map(|error_summary| Raised { text: error_summary.to_string(), kind });
        let blames = verdict.and_then(|error| error.blames());
        let leaving = RankToDriver::Leaving { error: raised, blames };
        shared.waiter.failure_detector.tell_launcher(&leaving, deadline);
        let ticket = Arc::new(Ticket::default());
        let leave = Submission::Leave {
            reason: error.map(|error_summary| error_summary.headline),
            ticket: ticket.clone(),
        };
        if shared.put(leave, AfterSubmit::GoesOn).is_ok() {
            shared.wait(&|| ticket.is_done(), deadline);
        }
        shared.waiter.world_state.end(Error::Shutdown);
        shared.waiter.failure_detector.updates.close();
        shared.stop.store(true, Ordering::SeqCst);
        shared.waiter.ring_all_own();
        let _ = thread.join();
        shared.lock().end(&Error::Shutdown);
        shared.wake_waiters();
        self.watch.end();
    }
}

/// Opens the watch over a rank and, if the settings ask for one, its metrics server.
fn open_watch(
    settings: &Settings,
    place: &RankInfo,
) -> Result<(Arc<Watch>, Option<MetricsServer>), Error> {
    let watch = Arc::new(Watch::new(&settings.watching, place));
    watch.start_wished_timeline()?;
    let server = match (
        watch.open(place),
        place.rendezvous_info.as_ref().map(|rendezvous_info| rendezvous_info.keeper),
    ) {
        // A stopped worker that the job continues without may still occupy the address.
        (Err(error), Some(RendezvousOwner::Elastic(_))) => {
            tracing::warn!("{error}");
            None
        }
        (server, _) => server?,
    };
    Ok((watch, server))
}

/// What answers the launcher's questions. It must not keep the watch alive.
fn reporter(watch: &Arc<Watch>) -> SelfReport {
    let (reporting, waiting) = (Arc::downgrade(watch), Arc::downgrade(watch));
    SelfReport {
        report: Box::new(move || {
            reporting.upgrade().map(|watch| watch.report()).unwrap_or_default()
        }),
        waits: Box::new(move || waiting.upgrade().and_then(|watch| watch.longest_wait())),
    }
}

/// Metrics of the layers below the engine.
fn readings(waiter: &Arc<Waiter>) -> Readings {
    let waiter = waiter.clone();
    Box::new(move || {
        let reading = |name, help, value| Reading { name, help, value };
        let (sent, received) = (TRAFFIC.sent(), TRAFFIC.received());
        let missed = "Times a thread slept while there was work to do; each is a bug.";
        vec![
            reading("ronde_link_sent_bytes_total", "Bytes sent through sockets.", sent),
            reading("ronde_link_received_bytes_total", "Bytes received through sockets.", received),
            reading("ronde_missed_wakeups_total", missed, waiter.missed()),
        ]
    })
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shutdown(None);
    }
}
