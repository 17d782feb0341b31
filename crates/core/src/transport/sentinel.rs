//! The lookout: the connection to the launcher, which knows how processes end, and connections to
//! other ranks that break when their owner dies. All that they carry is the farewell of a rank that
//! leaves in order: the end of the connection then says nothing, however late the news of it is read.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use ronde_control::Rank;
use ronde_control::cause::CauseKind;
use ronde_control::settings::Keeper;
use ronde_control::status::Report;
use ronde_control::wire::{DriverToRank, RankToDriver};
use rustix::event::PollFlags;

use super::fate::Fate;
use super::socket::Socket;
use super::updates::Updates;
use super::vigil::Interest;
use super::wire::Wire;
use crate::error::Error;

/// What a rank that leaves in order says, in full.
const FAREWELL: [u8; 1] = [b'.'];

#[derive(Default)]
pub(crate) struct Sentinel {
    launcher: Option<Launcher>,
    lifelines: Vec<Lifeline>,
    /// What the launcher of an elastic job says of the next world.
    pub(crate) updates: Arc<Updates>,
}

/// What this rank says of itself when the launcher asks: everything, or for how long it has waited.
pub(crate) struct Reporter {
    pub(crate) report: Box<dyn Fn() -> Report + Send + Sync>,
    pub(crate) waits: Box<dyn Fn() -> Option<Duration> + Send + Sync>,
}

struct Launcher {
    keeper: Keeper,
    wire: Mutex<Wire>,
    reporter: OnceLock<Reporter>,
    /// The same socket again, so that a sleeper can poll it without the lock.
    watched: Socket,
    gone: AtomicBool,
    /// When it last asked whether this process runs, or the world began.
    pinged: Mutex<Instant>,
}

struct Lifeline {
    rank: Rank,
    socket: Socket,
    /// Its owner is gone, or about to go.
    over: AtomicBool,
}

impl Sentinel {
    /// A lookout over the launcher, or rank 0 in its place, and over ranks by connections that only
    /// their death closes.
    pub(crate) fn new(
        (keeper, wire): (Keeper, Wire),
        lifelines: Vec<(Rank, Socket)>,
        updates: Updates,
    ) -> std::io::Result<Sentinel> {
        let (watched, gone) = (wire.socket().duplicate()?, AtomicBool::new(false));
        let (wire, reporter) = (Mutex::new(wire), OnceLock::new());
        let pinged = Mutex::new(Instant::now());
        let launcher = Launcher { keeper, wire, reporter, watched, gone, pinged };
        let lifeline = |(rank, socket)| Lifeline { rank, socket, over: AtomicBool::new(false) };
        let lifelines = lifelines.into_iter().map(lifeline).collect();
        Ok(Sentinel { launcher: Some(launcher), lifelines, updates: Arc::new(updates) })
    }

    /// Says who answers the launcher.
    pub(crate) fn report_by(&self, reporter: Reporter) {
        if let Some(launcher) = &self.launcher {
            let _ = launcher.reporter.set(reporter);
        }
    }

    /// Adds what a sleeper must wake up for; gives how many there are.
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

    /// Takes in what the launcher says and which lifelines broke; gives whether there was news.
    pub(crate) fn look(&self, fate: &Fate) -> bool {
        let mut news =
            self.launcher.as_ref().is_some_and(|launcher| launcher.listen(fate, &self.updates));
        for Lifeline { rank, socket, over } in &self.lifelines {
            if over.load(Ordering::Relaxed) {
                continue;
            }
            match socket.read(&mut [0; 16]) {
                Ok(None) => {}
                Ok(Some(_farewell)) => over.store(true, Ordering::Relaxed),
                Err(_) => {
                    over.store(true, Ordering::Relaxed);
                    fate.suspect(*rank, gone(), Instant::now());
                    news = true;
                }
            }
        }
        news
    }

    /// Tells the ranks on the other ends that this one leaves in order.
    pub(crate) fn say_farewell(&self) {
        for lifeline in &self.lifelines {
            // Whoever is gone already needs no farewell.
            let _ = lifeline.socket.write_vectored(&[IoSlice::new(&FAREWELL)]);
        }
    }

    /// For how long rank 0 has not asked, where it takes the launcher's place.
    pub(crate) fn silence_of_first_rank(&self) -> Option<Duration> {
        let launcher = self.launcher.as_ref().filter(|it| it.keeper == Keeper::FirstRank)?;
        let pinged = launcher.pinged.lock().expect("nothing panics while it holds this lock");
        Some(pinged.elapsed())
    }

    /// Tells the launcher something, if it still listens.
    pub(crate) fn tell_launcher(&self, message: &RankToDriver, deadline: Instant) {
        if let Some(launcher) = &self.launcher {
            let mut wire = launcher.wire.lock().expect("nothing panics while it holds this lock");
            let _ = wire.send(message).and_then(|()| wire.flush_by(deadline));
        }
    }
}

impl Launcher {
    fn listen(&self, fate: &Fate, updates: &Updates) -> bool {
        // Whoever holds the lock is listening already.
        let Ok(mut wire) = self.wire.try_lock() else { return false };
        let mut news = false;
        loop {
            match wire.receive() {
                Ok(Some(DriverToRank::Lost { rank, kind, cause, .. })) => {
                    fate.lose(rank, (kind, cause));
                    news = true;
                }
                Ok(Some(DriverToRank::Update { change })) => updates.note(change),
                Ok(Some(DriverToRank::Ask)) => {
                    // A report fits into any socket; one that does not is not worth a wait.
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
                    tracing::debug!(?other, "the launcher said something out of turn");
                }
                Ok(None) => return news,
                Err(error) => {
                    if !self.gone.swap(true, Ordering::Relaxed) {
                        self.went_away(fate, &error);
                    }
                    return true;
                }
            }
        }
    }

    fn went_away(&self, fate: &Fate, error: &std::io::Error) {
        match self.keeper {
            Keeper::Launcher | Keeper::Elastic(_) => {
                fate.lose_launcher(Error::launcher_gone(error));
            }
            // Its last words may still be on their way: a rank that ends may do so in order.
            Keeper::FirstRank => fate.suspect(Rank(0), gone(), Instant::now()),
        }
    }
}

/// What is known of a process whose connection closed without a farewell: others know more.
fn gone() -> (CauseKind, String) {
    (CauseKind::Unknown, "its process is gone".into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// The lookouts of two ranks that see each other.
    fn pair() -> [Sentinel; 2] {
        let (one, other) = UnixStream::pair().unwrap();
        [(1, one), (0, other)].map(|(rank, stream)| {
            stream.set_nonblocking(true).unwrap();
            let socket = Socket::Unix(stream);
            let lifeline = Lifeline { rank: Rank(rank), socket, over: AtomicBool::new(false) };
            Sentinel { lifelines: vec![lifeline], ..Sentinel::default() }
        })
    }

    fn is_suspect_after(end: impl FnOnce(Sentinel)) -> bool {
        let ([here, there], fate) = (pair(), Fate::new(Vec::new()));
        assert!(!here.look(&fate), "nothing has happened yet");
        end(there);
        // The farewell and the end of the connection may be two pieces of news.
        let news = here.look(&fate) | here.look(&fate);
        assert_eq!(here.interests(&mut Vec::new()), 0, "nobody waits for the dead");
        assert_eq!(fate.settle(Instant::now()).is_some(), news);
        news
    }

    #[test]
    fn whoever_goes_without_a_farewell_is_a_suspect() {
        assert!(is_suspect_after(drop));
        assert!(!is_suspect_after(|there| there.say_farewell()));
    }
}
