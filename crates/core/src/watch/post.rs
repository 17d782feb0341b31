//! The lookout: a thread that sleeps until somebody wants to see something. It writes the flight
//! recorder down when asked by the engine or by SIGUSR1, and answers whoever reads metrics. The disk
//! and the readers are its business, so that whoever drives the engine never waits for either.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::{read, write};

use super::Watch;
use super::metrics::Reading;
use super::metrics::http::Server;
use super::signal::Bell;
use crate::error::Error;

/// How long the end of the lookout waits for a disk or a reader.
const FAREWELL: Duration = Duration::from_secs(3);
/// Reasons to write the recorder down that may wait; more would tell the same.
const MOST_REASONS: usize = 8;

/// Numbers that other rooms count.
pub(crate) type Readings = Box<dyn Fn() -> Vec<Reading> + Send>;

pub(super) struct Post {
    bell: Arc<OwnedFd>,
    orders: Arc<Mutex<Orders>>,
    /// Disconnected once the thread has ended.
    done: Receiver<()>,
}

#[derive(Default)]
struct Orders {
    reasons: Vec<String>,
    is_over: bool,
}

impl Post {
    pub(super) fn start(
        watch: Arc<Watch>,
        server: Option<Server>,
        signal: Option<&'static Bell>,
        readings: Readings,
    ) -> Result<Post, Error> {
        let failed = |error: io::Error| Error::Setup(format!("nobody can watch: {error}"));
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = Arc::new(bell.map_err(|error| failed(error.into()))?);
        let orders = Arc::new(Mutex::new(Orders::default()));
        let (finished, done) = sync_channel(0);
        let (their_bell, their_orders) = (bell.clone(), orders.clone());
        std::thread::Builder::new()
            .name("ronde-watch".into())
            .spawn(move || {
                let _finished: SyncSender<()> = finished;
                let lookout = Lookout { bell: their_bell, orders: their_orders, server, signal };
                lookout.stand(&watch, &readings);
            })
            .map_err(failed)?;
        Ok(Post { bell, orders, done })
    }

    /// Has the flight recorder written down.
    pub(super) fn order(&self, reason: String) {
        let mut orders = self.orders.lock().expect(LOCK);
        if orders.reasons.len() < MOST_REASONS {
            orders.reasons.push(reason);
        }
        drop(orders);
        let _ = write(&*self.bell, &1u64.to_ne_bytes());
    }

    /// Ends the thread once it has done what it was asked for.
    pub(super) fn end(self) {
        self.orders.lock().expect(LOCK).is_over = true;
        let _ = write(&*self.bell, &1u64.to_ne_bytes());
        if self.done.recv_timeout(FAREWELL) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the flight recorder's disk does not answer");
        }
    }
}

struct Lookout {
    bell: Arc<OwnedFd>,
    orders: Arc<Mutex<Orders>>,
    server: Option<Server>,
    signal: Option<&'static Bell>,
}

impl Lookout {
    fn stand(&self, watch: &Watch, readings: &Readings) {
        loop {
            let (is_signalled, is_asked) = self.sleep();
            let orders = std::mem::take(&mut *self.orders.lock().expect(LOCK));
            for reason in orders.reasons {
                watch.write_down(&reason);
            }
            if is_signalled {
                watch.write_down("SIGUSR1");
            }
            if is_asked && let Some(server) = &self.server {
                // Whoever asks badly gets no answer, and is nobody's error.
                let _ = server.serve(|| watch.metrics_text(&readings()));
            }
            if orders.is_over {
                return;
            }
        }
    }

    /// Sleeps until there is something to do; gives whether a signal came, and whether a reader.
    fn sleep(&self) -> (bool, bool) {
        let fds = [
            Some(self.bell.as_fd()),
            self.signal.map(AsFd::as_fd),
            self.server.as_ref().map(AsFd::as_fd),
        ];
        let polled = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut present: Vec<PollFd<'_>> = fds.into_iter().flatten().map(polled).collect();
        let awake = match poll(&mut present, None) {
            Ok(_) => present.iter().map(|fd| !fd.revents().is_empty()).collect(),
            Err(_) => vec![false; present.len()],
        };
        let _ = read(&*self.bell, &mut [0; 8]);
        let is_signalled = self.signal.is_some() && awake[1];
        if let Some(signal) = self.signal.filter(|_| is_signalled) {
            signal.hush();
        }
        (is_signalled, self.server.is_some() && awake.last() == Some(&true))
    }
}

const LOCK: &str = "nothing panics while it holds this lock";
