//! The launcher of an elastic job that starts nothing and decides nothing: workers connect to it,
//! and a test decides step by step which of them form a world, and which messages each of them
//! gets.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ronde_control::cause::CauseKind;
use ronde_control::settings::{RankInfo, RendezvousInfo, RendezvousOwner, Settings};
use ronde_control::wire::{DriverToRank, Greeting, JobKey, Peer, RankToDriver};
use ronde_control::{Epoch, Rank, Worker};
use ronde_core::{Engine, Error};

use crate::connection::{RankConnection, receive};

/// Upper limit for any step of a test.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// The rendezvous of the workers of an elastic job.
pub struct ElasticLauncher {
    address: SocketAddr,
    key: JobKey,
    lobby: Arc<Lobby>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Lobby {
    state: Mutex<JobState>,
    bell: Condvar,
}

#[derive(Default)]
struct JobState {
    /// The last connection of each worker.
    present: HashMap<u32, PresentWorker>,
    arrivals: u64,
    /// Messages of workers after their `Join`, with worker and connection number, that no test has
    /// taken yet.
    said: Vec<(u32, u64, RankToDriver)>,
    epoch: u64,
    is_closed: bool,
}

struct PresentWorker {
    number: u64,
    connection: RankConnection,
    /// How others reach it, until it is part of a world.
    peer: Option<Peer>,
    /// It has disconnected.
    is_gone: bool,
}

impl ElasticLauncher {
    /// Starts listening for workers.
    pub fn start() -> ElasticLauncher {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback can be listened on");
        let address = listener.local_addr().expect("a bound socket has an address");
        let key = JobKey::from_entropy([43; 32]);
        let lobby = Arc::new(Lobby::default());
        let (their_key, their_lobby) = (key.clone(), lobby.clone());
        let thread = std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if their_lobby.lock().is_closed {
                    return;
                }
                let (key, lobby) = (their_key.clone(), their_lobby.clone());
                // A worker that dies during the handshake never counts.
                std::thread::spawn(move || lobby.serve(stream, &key));
            }
        });
        ElasticLauncher { address, key, lobby, thread: Some(thread) }
    }

    /// The address of the rendezvous.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The job's key.
    pub fn key(&self) -> &JobKey {
        &self.key
    }

    /// Joins as a worker, which is identified only by `worker` and its host.
    pub fn join(&self, worker: u32, settings: &Settings) -> Result<Engine, Error> {
        Engine::join(settings, elastic_place(worker, self.address, self.key.clone()))
    }

    /// Waits until these workers have connected, and makes them a world, in this order.
    pub fn form(&self, workers: &[u32]) {
        self.assign(workers);
        self.lay_out(workers);
    }

    /// First step of forming a world: waits until all have connected and assigns their ranks.
    pub fn assign(&self, workers: &[u32]) {
        let mut state = self.await_workers(workers);
        state.epoch += 1;
        let epoch = Epoch(state.epoch);
        let peer = |worker: &u32| state.present.get_mut(worker)?.peer.take();
        let peers: Vec<Peer> = workers.iter().filter_map(peer).collect();
        for (rank, worker) in workers.iter().enumerate() {
            let rank = Rank(rank as u32);
            state.tell(*worker, &DriverToRank::Assign { rank });
            state.tell(*worker, &DriverToRank::World { epoch, peers: peers.clone() });
        }
    }

    /// Second step: waits until all have reported with whom they share memory, and tells everyone
    /// the result.
    pub fn lay_out(&self, workers: &[u32]) {
        let leaders = self.located(workers);
        self.tell(workers, &DriverToRank::Layout { leaders });
    }

    /// Waits until all of these have reported with whom they share memory.
    pub fn located(&self, workers: &[u32]) -> Vec<Rank> {
        let leader = |worker: &u32| match self.said(*worker) {
            RankToDriver::Located { leader } => leader,
            other => panic!("worker {worker} said {other:?}"),
        };
        workers.iter().map(leader).collect()
    }

    /// Waits until these workers have connected and wait for a world.
    pub fn await_all(&self, workers: &[u32]) {
        drop(self.await_workers(workers));
    }

    /// Sends these workers a message.
    pub fn tell(&self, workers: &[u32], message: &DriverToRank) {
        let mut state = self.lobby.lock();
        workers.iter().for_each(|worker| state.tell(*worker, message));
    }

    /// Tells these workers that a rank of their world has died.
    pub fn lose(&self, workers: &[u32], rank: u32, cause: &str) {
        let (rank, host, kind) = (Rank(rank), "testhost".into(), CauseKind::Signal);
        self.tell(workers, &DriverToRank::Lost { rank, host, kind, cause: cause.into() });
    }

    /// Closes the connection to a worker without notice.
    pub fn hang_up(&self, worker: u32) {
        if let Some(present) = self.lobby.lock().present.get_mut(&worker) {
            present.connection.hang_up();
            present.peer = None;
        }
    }

    /// The next message of a worker, except that it leaves or has given up on another.
    pub fn said(&self, worker: u32) -> RankToDriver {
        let mut state = self.lobby.until(|state| state.next_of(worker).is_some());
        let index = state.next_of(worker).expect("just checked");
        state.said.remove(index).2
    }

    fn await_workers(&self, workers: &[u32]) -> MutexGuard<'_, JobState> {
        let waits = |state: &JobState, worker: &u32| {
            let present = state.present.get(worker);
            present.is_some_and(|present| present.peer.is_some() && !present.is_gone)
        };
        self.lobby.until(|state| workers.iter().all(|worker| waits(state, worker)))
    }
}

impl Drop for ElasticLauncher {
    fn drop(&mut self) {
        self.lobby.close();
        // The accepting thread must wake up to see that.
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A worker's place, as its environment would describe it.
pub fn elastic_place(worker: u32, address: SocketAddr, key: JobKey) -> RankInfo {
    let keeper = RendezvousOwner::Elastic(Worker(worker));
    let rendezvous_info = RendezvousInfo {
        addresses: vec![address],
        key,
        listen: Vec::new(),
        ports: ronde_control::PortRange::default(),
        keeper,
    };
    RankInfo {
        rank: Rank(0),
        size: 1,
        local_rank: worker,
        local_size: 1,
        cross_rank: 0,
        cross_size: 1,
        host: "testhost".into(),
        rendezvous_info: Some(rendezvous_info),
    }
}

impl Lobby {
    fn serve(&self, stream: TcpStream, key: &JobKey) -> io::Result<()> {
        let (mut connection, greeting) = RankConnection::accept(stream, key)?;
        let Greeting::Worker { worker: Worker(worker), .. } = greeting else {
            return Err(io::Error::other(format!("{greeting:?}")));
        };
        let peer = match connection.receive()? {
            RankToDriver::Join(peer) => peer,
            other => return Err(io::Error::other(format!("{other:?}"))),
        };
        let (mut stream, mut opener) = connection.take_receiver()?;
        let mut state = self.lock();
        state.arrivals += 1;
        let number = state.arrivals;
        let present = PresentWorker { number, connection, peer: Some(peer), is_gone: false };
        state.present.insert(worker, present);
        drop(state);
        self.bell.notify_all();
        while let Ok(message) = receive(&mut stream, &mut opener) {
            self.lock().said.push((worker, number, message));
            self.bell.notify_all();
        }
        let mut state = self.lock();
        if let Some(present) = state.present.get_mut(&worker).filter(|it| it.number == number) {
            present.is_gone = true;
        }
        Ok(())
    }

    fn until(&self, condition: impl Fn(&JobState) -> bool) -> MutexGuard<'_, JobState> {
        let deadline = Instant::now() + TIME_LIMIT;
        let mut state = self.lock();
        while !condition(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(state);
                // No rank may be left waiting for a failed test.
                self.close();
                panic!("timed out waiting for a condition of the test");
            }
            state = self
                .bell
                .wait_timeout(state, left)
                .expect("nothing panics while it holds this lock")
                .0;
        }
        state
    }

    fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.present.values().for_each(|present| present.connection.hang_up());
    }

    fn lock(&self) -> MutexGuard<'_, JobState> {
        self.state.lock().expect("nothing panics while it holds this lock")
    }
}

impl JobState {
    fn tell(&mut self, worker: u32, message: &DriverToRank) {
        use DriverToRank::{Again, Lost, Refused, Removed};
        if let Some(present) = self.present.get_mut(&worker) {
            // The worker may have disconnected already.
            let _ = present.connection.send(message);
            if matches!(message, Again { .. } | Lost { .. } | Refused { .. } | Removed { .. }) {
                present.peer = None;
            }
        }
    }

    fn next_of(&self, worker: u32) -> Option<usize> {
        let last = self.present.get(&worker).map(|present| present.number);
        self.said.iter().position(|(from, number, message)| match message {
            RankToDriver::Leaving { .. } | RankToDriver::GivenUp { .. } => false,
            RankToDriver::WorldEnded => false,
            // From an attempt that failed.
            RankToDriver::Located { .. } if Some(*number) != last => false,
            _ => *from == worker,
        })
    }
}
