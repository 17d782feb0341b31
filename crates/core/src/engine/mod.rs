//! The engine: one per process. It takes submissions from any thread and gives tickets for them.
//!
//! Whoever waits drives: a thread that waits for a ticket does the engine's work itself, so that in
//! the common blocking call no other thread has to be woken. The background thread works only while
//! nobody waits. A world of one has neither threads nor sockets, unless its job is elastic.

mod alone;
mod background;
mod drive;
mod elastic;
pub mod errand;
mod inbox;
mod join;
mod late;
mod plane;
mod progress;
mod results;
mod run;
mod sets;
mod solitude;
mod stall;
mod ticket;
mod tune;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ronde_control::cause::{self, CauseKind, Raised};
use ronde_control::negotiate::{Kind, Request};
use ronde_control::settings::{Keeper, Place, Settings};
use ronde_control::watching::Cycles;
use ronde_control::wire::RankToDriver;
use ronde_control::{Rank, SetId};

use self::drive::Shared;
use self::inbox::{Inbox, Submission};
use self::late::Late;
use self::sets::Sets;
use self::ticket::Pending;
pub use self::ticket::{Done, Made, Outcome, Room, Tensors, Ticket};
use crate::error::Error;
use crate::group::Arena;
pub use crate::group::Block;
use crate::transport::sentinel::Reporter;
use crate::transport::traffic::TRAFFIC;
pub use crate::transport::updates::{News, Updates};
use crate::transport::vigil::Vigil;
use crate::watch::{Reading, Readings, Server, Watch};

/// How long an orderly end may take before it becomes a hard one.
const FAREWELL: Duration = Duration::from_secs(5);
/// Bytes that take no longer than to wake two threads.
const SMALL: u64 = 1 << 20;

/// This process's part in the world.
pub struct Engine {
    place: Place,
    world: Option<World>,
    watch: Arc<Watch>,
}

struct World {
    shared: Arc<Shared>,
    arena: Option<Arc<Arena>>,
    background: Mutex<Option<JoinHandle<()>>>,
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
        let Some(meeting) = place.meeting.clone() else { return Engine::alone(settings, place) };
        // A worker of an elastic job knows its rank only when it has met the others.
        let known = match meeting.keeper {
            Keeper::Elastic(_) => None,
            _ => Some(open_watch(settings, &place)?),
        };
        let entered = join::enter(settings, &place, &meeting)?;
        let place = entered.place.clone();
        let (watch, server) = match known {
            Some(watch) => watch,
            None => open_watch(settings, &place)?,
        };
        let (inbox, sets) = (Arc::new(Inbox::default()), Arc::new(Sets::of(place.size)));
        let mail = (inbox.clone(), sets.clone(), watch.clone());
        let (progress, vigil, standby) = entered.settle(settings, mail)?;
        let arena = progress.groups.arena().cloned();
        let shared = Arc::new(Shared {
            progress: Mutex::new(progress),
            inbox,
            sets,
            vigil,
            standby,
            stop: AtomicBool::new(false),
            bench: Default::default(),
        });
        shared.vigil.sentinel.report_by(reporter(&watch));
        let late = Late::new((settings.stall_warning, settings.stall_shutdown), place.rank);
        late.guard(&shared.vigil, &watch);
        watch.start(server, readings(&shared.vigil))?;
        let background = background::start(shared.clone()).inspect_err(|_| watch.end())?;
        let background = Mutex::new(Some(background));
        Ok(Engine { place, world: Some(World { shared, arena, background }), watch })
    }

    /// A world of one starts no thread and opens no socket that nobody asked for.
    fn alone(settings: &Settings, place: Place) -> Result<Engine, Error> {
        let (watch, server) = open_watch(settings, &place)?;
        if Watch::is_wanted(&settings.watching) {
            watch.start(server, Box::new(Vec::new))?;
        }
        Ok(Engine { place, world: None, watch })
    }

    /// Where this process stands.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Memory that every rank of this host can see: a reduction of tensors that lie there on all
    /// ranks copies nothing. None if there is no more, or no such memory here at all.
    pub fn allocate(&self, length: usize) -> Option<Block> {
        let World { shared, arena, .. } = self.world.as_ref()?;
        // Those who do not know yet that the world has ended may still write to the memory.
        shared.vigil.fate.check().ok()?;
        arena.as_ref()?.allocate(length)
    }

    /// Whether something at this address lies in memory that [`Engine::allocate`] gives out.
    pub fn is_in_arena(&self, address: usize) -> bool {
        let arena = self.world.as_ref().and_then(|world| world.arena.as_ref());
        arena.is_some_and(|arena| arena.holds(address))
    }

    /// How many bytes of this rank have been reduced where they lie, without a copy.
    pub fn bytes_in_place(&self) -> u64 {
        let arena = self.world.as_ref().and_then(|world| world.arena.as_ref());
        arena.map_or(0, |arena| arena.in_place().load(Ordering::Relaxed))
    }

    /// Hands tensors over: their memory belongs to the engine until the ticket is done.
    pub fn submit(
        &self,
        request: Request,
        tensors: Tensors,
        next: Next,
    ) -> Result<Arc<Ticket>, Error> {
        let ticket = Arc::new(Ticket::default());
        self.enter(request, Pending { tensors, ticket: ticket.clone() }, next)?;
        Ok(ticket)
    }

    /// Hands tensors over for somebody who will not wait: `done` is called with the outcome, at once
    /// if the request is refused or the outcome is there.
    pub fn submit_then(&self, request: Request, tensors: Tensors, done: Done) {
        let ticket = Arc::new(Ticket::default());
        let is_small = request.bytes() <= SMALL;
        let pending = Pending { tensors, ticket: ticket.clone() };
        let entered = self.enter(request, pending, Next::Waits);
        match (entered, &self.world) {
            (Err(error), _) => ticket.complete(Err(error)),
            (Ok(()), Some(World { shared, .. })) if is_small => shared.stay(&ticket),
            (Ok(()), Some(World { shared, .. })) => shared.vigil.ring_own(),
            (Ok(()), None) => {}
        }
        drive::call_back(&ticket, done);
    }

    fn enter(&self, mut request: Request, mut pending: Pending, next: Next) -> Result<(), Error> {
        self.check(&request)?;
        pending.tensors.check(&request)?;
        let Some(World { shared, .. }) = &self.world else {
            let outcome = alone::run_watched(&self.watch, request, &mut pending.tensors);
            pending.complete(outcome);
            return Ok(());
        };
        if request.set != SetId::WORLD {
            // Names are matched within a set: the same one may be in flight in another.
            request.name = format!("{}@{}", request.name, request.set.0);
        }
        shared.put(Submission::Tensor { request, pending }, next)
    }

    /// Contributes nothing from now on until everybody has joined.
    pub fn join_in(&self, next: Next) -> Result<Arc<Ticket>, Error> {
        let ticket = Arc::new(Ticket::default());
        self.enter_join(ticket.clone(), next)?;
        Ok(ticket)
    }

    /// The same for somebody who will not wait.
    pub fn join_in_then(&self, done: Done) {
        let ticket = Arc::new(Ticket::default());
        if let Err(error) = self.enter_join(ticket.clone(), Next::GoesOn) {
            ticket.complete(Err(error));
        }
        drive::call_back(&ticket, done);
    }

    fn enter_join(&self, ticket: Arc<Ticket>, next: Next) -> Result<(), Error> {
        match &self.world {
            Some(World { shared, .. }) => shared.put(Submission::Join { ticket }, next),
            None => {
                ticket.complete(Ok(Outcome::Joined { last: self.place.rank }));
                Ok(())
            }
        }
    }

    /// The members of a set of ranks, in rising order, if there is such a set.
    pub fn members(&self, set: SetId) -> Option<Vec<Rank>> {
        match &self.world {
            Some(World { shared, .. }) => shared.sets.members(set),
            None => (set == SetId::WORLD).then(|| vec![self.place.rank]),
        }
    }

    /// Refuses what cannot be right whatever the other ranks want.
    fn check(&self, request: &Request) -> Result<(), Error> {
        let Request { name, set, kind, .. } = request;
        let members = match &self.world {
            Some(World { shared, .. }) => shared.sets.check(name, *set, self.place.rank)?,
            None => Sets::of(1).check(name, *set, self.place.rank)?,
        };
        if let Some(problem) = request.unsuitable() {
            return Err(Error::Invalid(problem));
        }
        match kind {
            Kind::Broadcast { root } if !members.contains(root) => Err(Error::Invalid(format!(
                "broadcast received invalid root rank {} for provided process set: its members are \
                 {:?}",
                root.0,
                members.iter().map(|rank| rank.0).collect::<Vec<_>>()
            ))),
            Kind::AddSet { ranks } => self.check_new_set(ranks),
            Kind::RemoveSet { set } if self.members(*set).is_none() || *set == SetId::WORLD => {
                Err(Error::Invalid(format!("process set {} cannot be removed", set.0)))
            }
            Kind::Alltoall { splits } if splits.len() != members.len() => Err(Error::Invalid(
                "Number of entries in splits does not equal number of workers.".into(),
            )),
            Kind::Alltoall { splits } => {
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
            _ if ranks.is_empty() => Err(Error::Invalid("a process set needs a member".into())),
            Some(World { shared, .. }) if shared.sets.count() >= limit => {
                Err(Error::Invalid(format!("there can be {limit} process sets at a time")))
            }
            Some(_) => Ok(()),
            None => Err(Error::Invalid("a world of one rank has no other process sets".into())),
        }
    }

    /// Waits for a ticket, at most until the deadline; drives the engine meanwhile.
    pub fn wait(&self, ticket: &Ticket, deadline: Instant) {
        self.wait_until(&|| ticket.is_done(), deadline);
    }

    /// Waits for something that the end of submissions brings about, in the same way.
    pub fn wait_until(&self, is_done: &dyn Fn() -> bool, deadline: Instant) {
        if let Some(World { shared, .. }) = &self.world {
            shared.wait(is_done, deadline);
        }
    }

    /// Starts a timeline, if `HOROVOD_TIMELINE` was set when this rank joined; rank 0 writes it.
    pub fn start_timeline(&self, path: &Path, cycles: Cycles) -> Result<(), Error> {
        self.watch.start_timeline(path, cycles)
    }

    /// Ends the timeline; on rank 0 everything until now is in the file then.
    pub fn stop_timeline(&self) -> Result<(), Error> {
        self.watch.stop_timeline()
    }

    /// The error that ended the world, if one did.
    pub fn verdict(&self) -> Option<Error> {
        self.world.as_ref().and_then(|world| world.shared.vigil.fate.verdict())
    }

    /// How often a thread of this rank slept while there was something to do: never, unless there
    /// is a bug in the waking.
    pub fn missed_wakeups(&self) -> u64 {
        self.world.as_ref().map_or(0, |world| world.shared.vigil.missed())
    }

    /// Ends this rank's part: what is still in flight fails, here and on the other ranks.
    pub fn shutdown(&self, error: Option<String>) {
        let Some(World { shared, background, .. }) = &self.world else { return self.watch.end() };
        let Some(thread) = background.lock().expect("nothing panics with this lock").take() else {
            return;
        };
        let deadline = Instant::now() + FAREWELL;
        let error = error.map(|text| cause::gist(&text));
        let verdict = self.verdict();
        let kind = verdict.as_ref().map_or(CauseKind::Exception, Error::ends_itself_with);
        let raised = error.as_ref().map(|gist| Raised { text: gist.to_string(), kind });
        let blames = verdict.and_then(|error| error.blames());
        let leaving = RankToDriver::Leaving { error: raised, blames };
        shared.vigil.sentinel.tell_launcher(&leaving, deadline);
        let ticket = Arc::new(Ticket::default());
        let leave =
            Submission::Leave { reason: error.map(|gist| gist.headline), ticket: ticket.clone() };
        if shared.put(leave, Next::GoesOn).is_ok() {
            shared.wait(&|| ticket.is_done(), deadline);
        }
        shared.vigil.fate.seal(Error::Shutdown);
        shared.vigil.sentinel.updates.close();
        shared.stop.store(true, Ordering::SeqCst);
        shared.vigil.ring_all_own();
        let _ = thread.join();
        shared.lock().end(&Error::Shutdown);
        shared.leave_bench();
        self.watch.end();
    }
}

/// The watch over a rank, and where its metrics are read, if anywhere.
fn open_watch(settings: &Settings, place: &Place) -> Result<(Arc<Watch>, Option<Server>), Error> {
    let watch = Arc::new(Watch::new(&settings.watching, place));
    watch.start_wished_timeline()?;
    let server = match (watch.open(place), place.meeting.as_ref().map(|meeting| meeting.keeper)) {
        // A stopped worker that the job goes on without may still have the place.
        (Err(error), Some(Keeper::Elastic(_))) => {
            tracing::warn!("{error}");
            None
        }
        (server, _) => server?,
    };
    Ok((watch, server))
}

/// Who answers the launcher. It must not keep the watch alive.
fn reporter(watch: &Arc<Watch>) -> Reporter {
    let (one, other) = (Arc::downgrade(watch), Arc::downgrade(watch));
    Reporter {
        report: Box::new(move || one.upgrade().map(|watch| watch.report()).unwrap_or_default()),
        waits: Box::new(move || other.upgrade().and_then(|watch| watch.longest_wait())),
    }
}

/// The numbers that metrics show of rooms below.
fn readings(vigil: &Arc<Vigil>) -> Readings {
    let vigil = vigil.clone();
    Box::new(move || {
        let reading = |name, help, value| Reading { name, help, value };
        let (sent, received) = (TRAFFIC.sent(), TRAFFIC.received());
        let missed = "Times a thread slept while there was something to do; each is a bug.";
        vec![
            reading("ronde_link_sent_bytes_total", "Bytes sent through sockets.", sent),
            reading("ronde_link_received_bytes_total", "Bytes received through sockets.", received),
            reading("ronde_missed_wakeups_total", missed, vigil.missed()),
        ]
    })
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shutdown(None);
    }
}
