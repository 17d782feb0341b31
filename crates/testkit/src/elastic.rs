//! The launcher of an elastic job that starts nothing and decides nothing: workers come to it, and a
//! test says step by step which of them are a world, and what each of them hears.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ronde_control::cause::CauseKind;
use ronde_control::settings::{Keeper, Meeting, Place, Settings};
use ronde_control::wire::{DriverToRank, Greeting, JobKey, Peer, RankToDriver};
use ronde_control::{Epoch, Rank, Worker};
use ronde_core::{Engine, Error};

use crate::connection::{Connection, receive};

/// No step of a test takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where the workers of an elastic job meet.
pub struct ElasticLauncher {
    address: SocketAddr,
    key: JobKey,
    hall: Arc<Hall>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Hall {
    state: Mutex<State>,
    bell: Condvar,
}

#[derive(Default)]
struct State {
    /// The last connection of each worker, with its number.
    present: HashMap<u32, Present>,
    arrivals: u64,
    /// What workers have said after their `Join`, on which connection, and nobody has taken yet.
    said: Vec<(u32, u64, RankToDriver)>,
    epoch: u64,
    is_closed: bool,
}

struct Present {
    number: u64,
    connection: Connection,
    /// Where it is, until it is part of a world.
    peer: Option<Peer>,
    /// It is there no longer.
    is_gone: bool,
}

impl ElasticLauncher {
    /// Starts listening for workers.
    pub fn start() -> ElasticLauncher {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback can be listened on");
        let address = listener.local_addr().expect("a bound socket has an address");
        let key = JobKey::from_entropy([43; 32]);
        let hall = Arc::new(Hall::default());
        let (their_key, their_hall) = (key.clone(), hall.clone());
        let thread = std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if their_hall.lock().is_closed {
                    return;
                }
                let (key, hall) = (their_key.clone(), their_hall.clone());
                // A worker that dies while it greets was never here.
                std::thread::spawn(move || hall.welcome(stream, &key));
            }
        });
        ElasticLauncher { address, key, hall, thread: Some(thread) }
    }

    /// Where the workers meet.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The job's key.
    pub fn key(&self) -> &JobKey {
        &self.key
    }

    /// Joins as a worker; only `worker` and its host say who it is.
    pub fn join(&self, worker: u32, settings: &Settings) -> Result<Engine, Error> {
        Engine::join(settings, elastic_place(worker, self.address, self.key.clone()))
    }

    /// Waits until these workers have come, and makes them a world, in this order.
    pub fn form(&self, workers: &[u32]) {
        self.seat(workers);
        self.lay_out(workers);
    }

    /// The first step of it: all have come and hear who they are.
    pub fn seat(&self, workers: &[u32]) {
        let mut state = self.await_workers(workers);
        state.epoch += 1;
        let epoch = Epoch(state.epoch);
        let peer = |worker: &u32| state.present.get_mut(worker)?.peer.take();
        let peers: Vec<Peer> = workers.iter().filter_map(peer).collect();
        for (rank, worker) in workers.iter().enumerate() {
            let rank = Rank(rank as u32);
            state.tell(*worker, &DriverToRank::Seat { rank });
            state.tell(*worker, &DriverToRank::World { epoch, peers: peers.clone() });
        }
    }

    /// The second step: all have said with whom they share memory, and hear what the others said.
    pub fn lay_out(&self, workers: &[u32]) {
        let leaders = self.located(workers);
        self.tell(workers, &DriverToRank::Layout { leaders });
    }

    /// Waits until all of these have said with whom they share memory.
    pub fn located(&self, workers: &[u32]) -> Vec<Rank> {
        let leader = |worker: &u32| match self.said(*worker) {
            RankToDriver::Located { leader } => leader,
            other => panic!("worker {worker} said {other:?}"),
        };
        workers.iter().map(leader).collect()
    }

    /// Waits until these workers have come and wait for a world.
    pub fn await_all(&self, workers: &[u32]) {
        drop(self.await_workers(workers));
    }

    /// Tells these workers something.
    pub fn tell(&self, workers: &[u32], message: &DriverToRank) {
        let mut state = self.hall.lock();
        workers.iter().for_each(|worker| state.tell(*worker, message));
    }

    /// Tells these workers that a rank of their world has died.
    pub fn lose(&self, workers: &[u32], rank: u32, cause: &str) {
        let (rank, host, kind) = (Rank(rank), "testhost".into(), CauseKind::Signal);
        self.tell(workers, &DriverToRank::Lost { rank, host, kind, cause: cause.into() });
    }

    /// Hangs up on a worker without a word.
    pub fn hang_up(&self, worker: u32) {
        if let Some(present) = self.hall.lock().present.get_mut(&worker) {
            present.connection.hang_up();
            present.peer = None;
        }
    }

    /// What a worker says next, other than that it leaves or has given up on another.
    pub fn said(&self, worker: u32) -> RankToDriver {
        let mut state = self.hall.until(|state| state.next_of(worker).is_some());
        let index = state.next_of(worker).expect("it was just there");
        state.said.remove(index).2
    }

    fn await_workers(&self, workers: &[u32]) -> MutexGuard<'_, State> {
        let waits = |state: &State, worker: &u32| {
            let present = state.present.get(worker);
            present.is_some_and(|present| present.peer.is_some() && !present.is_gone)
        };
        self.hall.until(|state| workers.iter().all(|worker| waits(state, worker)))
    }
}

impl Drop for ElasticLauncher {
    fn drop(&mut self) {
        self.hall.close();
        // Whoever accepts must wake up to see that.
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The place of a worker as its environment would describe it.
pub fn elastic_place(worker: u32, address: SocketAddr, key: JobKey) -> Place {
    let keeper = Keeper::Elastic(Worker(worker));
    let meeting = Meeting { addresses: vec![address], key, listen: Vec::new(), keeper };
    Place {
        rank: Rank(0),
        size: 1,
        local_rank: worker,
        local_size: 1,
        cross_rank: 0,
        cross_size: 1,
        host: "testhost".into(),
        meeting: Some(meeting),
    }
}

impl Hall {
    fn welcome(&self, stream: TcpStream, key: &JobKey) -> io::Result<()> {
        let (mut connection, greeting) = Connection::accept(stream, key)?;
        let Greeting::Worker { worker: Worker(worker), .. } = greeting else {
            return Err(io::Error::other(format!("{greeting:?}")));
        };
        let peer = match connection.receive()? {
            RankToDriver::Join(peer) => peer,
            other => return Err(io::Error::other(format!("{other:?}"))),
        };
        let (mut stream, mut opener) = connection.ears()?;
        let mut state = self.lock();
        state.arrivals += 1;
        let number = state.arrivals;
        let present = Present { number, connection, peer: Some(peer), is_gone: false };
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

    fn until(&self, is_so: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.lock();
        while !is_so(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(state);
                // Nobody must wait for a test that has failed.
                self.close();
                panic!("what the test waits for does not happen");
            }
            state = self.bell.wait_timeout(state, left).expect("nobody panics with this lock").0;
        }
        state
    }

    fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.present.values().for_each(|present| present.connection.hang_up());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with this lock")
    }
}

impl State {
    fn tell(&mut self, worker: u32, message: &DriverToRank) {
        use DriverToRank::{Again, Lost, Refused, Removed};
        if let Some(present) = self.present.get_mut(&worker) {
            // A worker that has gone already needs no news.
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
            // Of an attempt that came to nothing.
            RankToDriver::Located { .. } if Some(*number) != last => false,
            _ => *from == worker,
        })
    }
}
