//! The failure detector: the connection to the launcher, which knows how processes ended, and
//! connections to other ranks that break when their owner dies. These carry one message only, the
//! farewell of a rank that leaves in order; after it, the end of the connection means nothing, no
//! matter how late it is noticed.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use ronde_control::Rank;
use ronde_control::cause::CauseKind;
use ronde_control::settings::RendezvousOwner;
use ronde_control::status::RankReport;
use ronde_control::wire::{DriverToRank, RankToDriver};
use rustix::event::PollFlags;

use super::socket::Socket;
use super::updates::Updates;
use super::waiter::Interest;
use super::wire::SealedWire;
use super::world_state::WorldState;
use crate::error::Error;

/// The whole message of a rank that leaves in order.
const FAREWELL: [u8; 1] = [b'.'];

#[derive(Default)]
pub(crate) struct FailureDetector {
    launcher: Option<LauncherConnection>,
    lifelines: Vec<Lifeline>,
    /// Announcements of the launcher of an elastic job about the next world.
    pub(crate) updates: Arc<Updates>,
}

/// How this rank answers the launcher: with a full report, or with how long it has been waiting.
pub(crate) struct SelfReport {
    pub(crate) report: Box<dyn Fn() -> RankReport + Send + Sync>,
    pub(crate) waits: Box<dyn Fn() -> Option<Duration> + Send + Sync>,
}

struct LauncherConnection {
    keeper: RendezvousOwner,
    wire: Mutex<SealedWire>,
    reporter: OnceLock<SelfReport>,
    /// A duplicate of the wire's socket, so that a sleeper can poll it without the lock.
    watched: Socket,
    gone: AtomicBool,
    /// Time of the last ping, or of the start of the world.
    pinged: Mutex<Instant>,
}

struct Lifeline {
    rank: Rank,
    socket: Socket,
    /// Its owner is gone, or is leaving.
    over: AtomicBool,
}

impl FailureDetector {
    /// Watches the launcher, or rank 0 in its place, and ranks through connections that only their
    /// death closes.
    pub(crate) fn new(
        (keeper, wire): (RendezvousOwner, SealedWire),
        lifelines: Vec<(Rank, Socket)>,
        updates: Updates,
    ) -> std::io::Result<FailureDetector> {
        let (watched, gone) = (wire.socket().duplicate()?, AtomicBool::new(false));
        let (wire, reporter) = (Mutex::new(wire), OnceLock::new());
        let pinged = Mutex::new(Instant::now());
        let launcher = LauncherConnection { keeper, wire, reporter, watched, gone, pinged };
        let lifeline = |(rank, socket)| Lifeline { rank, socket, over: AtomicBool::new(false) };
        let lifelines = lifelines.into_iter().map(lifeline).collect();
        Ok(FailureDetector { launcher: Some(launcher), lifelines, updates: Arc::new(updates) })
    }

    /// Sets who answers the launcher's requests.
    pub(crate) fn report_by(&self, reporter: SelfReport) {
        if let Some(launcher) = &self.launcher {
            let _ = launcher.reporter.set(reporter);
        }
    }

    /// Adds the descriptors that a sleeper must wake up for; returns their number.
    pub(crate) fn interests<'a>(&'a self, fds: &mut Vec<Interest<'a>>) -> usize {
        let before = fds.len();
        if let Some(launcher) = &self.launcher
            && !launcher.gone.load(Ordering::Relaxed)
        {
            fds.push((launcher.watched.as_fd(), PollFlags::IN));
        }
        for lifeline in &self.lifelines {
            if !lifeline.over.load(Ordering::Relaxed) {
                fds.push((lifeline.socket.as_fd(), PollFlags::IN));
            }
        }
        fds.len() - before
    }

    /// Processes messages from the launcher and broken lifelines; returns whether there was
    /// anything to act on.
    pub(crate) fn look(&self, world_state: &WorldState) -> bool {
        let mut news = self
            .launcher
            .as_ref()
            .is_some_and(|launcher| launcher.listen(world_state, &self.updates));
        for Lifeline { rank, socket, over } in &self.lifelines {
            if over.load(Ordering::Relaxed) {
                continue;
            }
            match socket.read(&mut [0; 16]) {
                Ok(None) => {}
                Ok(Some(_farewell)) => over.store(true, Ordering::Relaxed),
                Err(_) => {
                    over.store(true, Ordering::Relaxed);
                    world_state.suspect(*rank, gone(), Instant::now());
                    news = true;
                }
            }
        }
        news
    }

    /// Tells the ranks at the other ends that this one leaves in order.
    pub(crate) fn say_farewell(&self) {
        for lifeline in &self.lifelines {
            // A rank that is already gone needs no farewell.
            let _ = lifeline.socket.write_vectored(&[IoSlice::new(&FAREWELL)]);
        }
    }

    /// Time since rank 0's last ping, where rank 0 takes the launcher's place.
    pub(crate) fn silence_of_first_rank(&self) -> Option<Duration> {
        let launcher =
            self.launcher.as_ref().filter(|it| it.keeper == RendezvousOwner::FirstRank)?;
        let pinged = launcher.pinged.lock().expect("nothing panics while it holds this lock");
        Some(pinged.elapsed())
    }

    /// Sends the launcher a message, if it is still connected.
    pub(crate) fn tell_launcher(&self, message: &RankToDriver, deadline: Instant) {
        if let Some(launcher) = &self.launcher {
            let mut wire = launcher.wire.lock().expect("nothing panics while it holds this lock");
            let _ = wire.send(message).and_then(|()| wire.flush_by(deadline));
        }
    }
}

impl LauncherConnection {
    fn listen(&self, world_state: &WorldState, updates: &Updates) -> bool {
        // The thread that holds the lock is already listening.
        let Ok(mut wire) = self.wire.try_lock() else { return false };
        let mut news = false;
        loop {
            match wire.receive() {
                Ok(Some(DriverToRank::Lost { rank, kind, cause, .. })) => {
                    world_state.lose(rank, (kind, cause));
                    news = true;
                }
                Ok(Some(DriverToRank::Update { change })) => updates.note(change),
                Ok(Some(DriverToRank::Ask)) => {
                    // A report fits into any socket buffer; if not, it is not worth waiting for.
                    if let Some(reporter) = self.reporter.get() {
                        let _ = wire.send(&RankToDriver::Report((reporter.report)()));
                    }
                }
                Ok(Some(DriverToRank::Ping)) => {
                    *self.pinged.lock().expect("nothing panics while it holds this lock") =
                        Instant::now();
                    let waits = self.reporter.get().and_then(|reporter| (reporter.waits)());
                    let _ = wire.send(&RankToDriver::Pong { waits });
                }
                Ok(Some(other)) => {
                    tracing::debug!(?other, "unexpected message from the launcher");
                }
                Ok(None) => return news,
                Err(error) => {
                    if !self.gone.swap(true, Ordering::Relaxed) {
                        self.went_away(world_state, &error);
                    }
                    return true;
                }
            }
        }
    }

    fn went_away(&self, world_state: &WorldState, error: &std::io::Error) {
        match self.keeper {
            RendezvousOwner::Launcher | RendezvousOwner::Elastic(_) => {
                world_state.lose_launcher(Error::launcher_gone(error));
            }
            // Its last message may still be in flight: rank 0 may be leaving in order.
            RendezvousOwner::FirstRank => world_state.suspect(Rank(0), gone(), Instant::now()),
        }
    }
}

/// The cause of a connection that closed without a farewell: others may know more.
fn gone() -> (CauseKind, String) {
    (CauseKind::Unknown, "its process is gone".into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// The failure detectors of two ranks with a lifeline between them.
    fn pair() -> [FailureDetector; 2] {
        let (one, other) = UnixStream::pair().unwrap();
        [(1, one), (0, other)].map(|(rank, stream)| {
            stream.set_nonblocking(true).unwrap();
            let socket = Socket::Unix(stream);
            let lifeline = Lifeline { rank: Rank(rank), socket, over: AtomicBool::new(false) };
            FailureDetector { lifelines: vec![lifeline], ..FailureDetector::default() }
        })
    }

    fn is_suspect_after(end: impl FnOnce(FailureDetector)) -> bool {
        let ([here, there], world_state) = (pair(), WorldState::new(Vec::new()));
        assert!(!here.look(&world_state), "nothing has happened yet");
        end(there);
        // The farewell and the end of the connection may be seen separately.
        let news = here.look(&world_state) | here.look(&world_state);
        assert_eq!(here.interests(&mut Vec::new()), 0, "a finished lifeline is not polled");
        assert_eq!(world_state.settle(Instant::now()).is_some(), news);
        news
    }

    #[test]
    fn a_rank_that_goes_without_a_farewell_is_a_suspect() {
        assert!(is_suspect_after(drop));
        assert!(!is_suspect_after(|there| there.say_farewell()));
    }
}
