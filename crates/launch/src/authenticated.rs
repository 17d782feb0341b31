//! A socket that only acts on what comes from callers that hold a key.
//!
//! A caller must prove that it holds the key before we act on anything it sends. The number of
//! unauthenticated connections is bounded; `ronde_control::admission` decides which of them is
//! evicted and when one has taken too long, so that idle connections without the key cannot keep
//! others out.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ronde_control::Time;
use ronde_control::admission::{Admission, AdmissionLimits, Caller, HandshakeProgress, Origin};
use ronde_control::wire::{Callee, JobKey};
use serde::de::DeserializeOwned;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::wire::{SealedConnection, answer};

/// Connections that may wait to be accepted; the system may allow fewer.
const BACKLOG: i32 = 4096;

/// Number of handshake steps that may queue for the accept loop.
const STEPS: usize = 256;

/// Largest first message, in bytes; larger ones are accepted only after it.
const LONGEST_GREETING: usize = 4096;

/// Accepts connections until dropped. A caller that holds the key and has sent its first message is
/// passed to `greeted`, whose future is its own task and outlives this one.
pub(crate) async fn serve<M, F>(
    listener: TcpListener,
    (key, callee): (JobKey, Callee),
    greeted: impl Fn(Caller, SealedConnection, M) -> F + Send + Sync + 'static,
) where
    M: DeserializeOwned + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    // Ranks connect all at once, and one that finds the queue full retries a second later.
    let _ = rustix::net::listen(&listener, BACKLOG);
    let (steps, mut progress) = mpsc::channel(STEPS);
    let mut handshakes = Handshakes::new(callee);
    let greeted = Arc::new(greeted);
    loop {
        // Read all progress first, so that a connection that has authenticated is not evicted.
        while let Ok((caller, step)) = progress.try_recv() {
            handshakes.step(caller, step);
        }
        let (opens, wakeup) = handshakes.tick();
        tokio::select! {
            accepted = listener.accept(), if opens <= Instant::now() => match accepted {
                Ok((stream, _)) => {
                    let caller = handshakes.arrive();
                    let (key, greeted, steps) = (key.clone(), greeted.clone(), steps.clone());
                    let task = tokio::spawn(async move {
                        let met = meet(stream, (&key, callee), caller, &steps).await;
                        let _ = steps.send((caller, CallerStep::Done)).await;
                        match met {
                            Ok(Some((sealed, message))) => greeted(caller, sealed, message).await,
                            Ok(None) => tracing::debug!("a host of the job has checked that it can reach {callee}"),
                            Err(error) => tracing::debug!(%error, "dropped a connection that did not authenticate"),
                        }
                    });
                    handshakes.tasks.insert(caller, task.abort_handle());
                }
                // The machine has run out of a resource, most likely descriptors; that may be
                // temporary.
                Err(error) => {
                    tracing::debug!(%error, "a connection could not be accepted");
                    sleep(Duration::from_millis(100)).await;
                }
            },
            Some((caller, step)) = progress.recv() => handshakes.step(caller, step),
            () = sleep_until(wakeup.unwrap_or(opens)), if wakeup.is_some() => {}
        }
    }
}

/// Callers that have not yet authenticated and sent a greeting.
struct Handshakes {
    callee: Callee,
    start: Instant,
    admission: Admission,
    tasks: HashMap<Caller, AbortHandle>,
}

/// Progress of a caller.
#[derive(Clone, Copy)]
enum CallerStep {
    /// The handshake has reached this point.
    Reached(HandshakeProgress),
    /// The caller has sent its greeting, or the connection is closed.
    Done,
}

impl Handshakes {
    fn new(callee: Callee) -> Handshakes {
        let admission = Admission::new(AdmissionLimits::default());
        Handshakes { callee, start: Instant::now(), admission, tasks: HashMap::new() }
    }

    fn now(&self) -> Time {
        self.start.elapsed()
    }

    /// Admits a new connection, which may evict another.
    fn arrive(&mut self) -> Caller {
        let (caller, evicted) = self.admission.arrive(Origin::Unknown, self.now());
        if let Some(evicted) = evicted {
            self.drop_one(evicted);
        }
        caller
    }

    fn step(&mut self, caller: Caller, step: CallerStep) {
        match step {
            CallerStep::Reached(context) => self.admission.advance(caller, context),
            CallerStep::Done => {
                self.admission.leave(caller);
                self.tasks.remove(&caller);
            }
        }
    }

    /// Handles timers that are due; returns when the next connection may be accepted, and when to
    /// wake up.
    fn tick(&mut self) -> (Instant, Option<Instant>) {
        let now = self.now();
        for late in self.admission.expire(now) {
            self.drop_one(late);
        }
        if let Some(notice) = self.admission.notice(now) {
            tracing::warn!("{}'s port {notice}", self.callee);
        }
        let opens = self.admission.opens_at();
        let room = (opens > now).then_some(opens);
        let wakeup = self.admission.next_wakeup().into_iter().chain(room).min();
        (self.start + opens, wakeup.map(|at| self.start + at))
    }

    fn drop_one(&mut self, caller: Caller) {
        tracing::debug!(
            caller = caller.0,
            "dropped a connection that did not authenticate in time"
        );
        if let Some(task) = self.tasks.remove(&caller) {
            task.abort();
        }
    }
}

/// None if it has the key and wants nothing, as an agent that tries which addresses reach the
/// launcher.
async fn meet<M: DeserializeOwned>(
    stream: TcpStream,
    (key, callee): (&JobKey, Callee),
    caller: Caller,
    steps: &mpsc::Sender<(Caller, CallerStep)>,
) -> io::Result<Option<(SealedConnection, M)>> {
    let reached = async |context| {
        let _ = steps.send((caller, CallerStep::Reached(context))).await;
    };
    stream.readable().await?;
    reached(HandshakeProgress::Begun).await;
    let mut sealed = answer(stream, key, callee).await?;
    reached(HandshakeProgress::Proven).await;
    let greeting = sealed.hear(LONGEST_GREETING).await?;
    Ok(greeting.map(|greeting| (sealed, greeting)))
}
