//! A launcher that starts nothing: it lets ranks meet, and says what a test tells it to say.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use ronde_control::cause::CauseKind;
use ronde_control::status::Report;
use ronde_control::wire::frame::Opener;
use ronde_control::wire::{DriverToRank, Greeting, JobKey, Peer, RankToDriver};
use ronde_control::{Epoch, Rank};

use crate::Net;
use crate::connection::{Connection, receive};

/// Lets `size` ranks meet once.
pub struct Launcher {
    address: SocketAddr,
    key: JobKey,
    ranks: Ranks,
    reports: Reports,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// How ranks reach each other: by the shortest way, unless a test wants it otherwise.
#[derive(Clone, Default)]
pub struct Roads {
    /// What carries every connection between two ranks.
    pub net: Option<Arc<Net>>,
    /// The island of each rank; ranks of different ones do not find each other's shared memory.
    pub islands: Option<Vec<usize>>,
}

type Ranks = Arc<Mutex<Vec<Met>>>;

struct Met {
    rank: Rank,
    connection: Connection,
}

/// What ranks have said of themselves.
type Reports = Arc<Mutex<Vec<(Rank, Report)>>>;

impl Launcher {
    /// Starts listening for that many ranks, which then reach each other by those roads.
    pub fn start(size: usize, roads: Roads) -> Launcher {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback can be listened on");
        let address = listener.local_addr().expect("a bound socket has an address");
        let key = JobKey::from_entropy([42; 32]);
        let ranks = Arc::new(Mutex::new(Vec::new()));
        let reports = Reports::default();
        let (their_key, their_ranks, their_reports) = (key.clone(), ranks.clone(), reports.clone());
        let thread = std::thread::spawn(move || {
            let (mut met, layout) = meet(&listener, &their_key, size, &roads)?;
            // Whoever has heard the last word of the meeting can be told of a loss.
            let mut ranks = their_ranks.lock().expect("nobody panics with this lock");
            for Met { connection, .. } in &mut met {
                connection.send(&DriverToRank::Ask)?;
                connection.send(&layout)?;
                connection.send(&DriverToRank::Ask)?;
            }
            for Met { connection, rank } in &mut met {
                let (ears, rank) = (connection.ears()?, *rank);
                let (ranks, reports) = (their_ranks.clone(), their_reports.clone());
                std::thread::spawn(move || listen(ears, rank, &ranks, &reports));
            }
            ranks.append(&mut met);
            Ok(())
        });
        Launcher { address, key, ranks, reports, thread: Some(thread) }
    }

    /// Where the ranks meet.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The job's key.
    pub fn key(&self) -> &JobKey {
        &self.key
    }

    /// Asks all ranks what they have done, as on behalf of somebody who watches the job.
    pub fn ask(&self) {
        tell(&self.ranks, |_| Some(DriverToRank::Ask));
    }

    /// What ranks have answered since the last look.
    pub fn reports(&self) -> Vec<(Rank, Report)> {
        std::mem::take(&mut *self.reports.lock().expect("nobody panics with this lock"))
    }

    /// Tells everybody else that a rank has died.
    pub fn lose(&self, rank: Rank, cause: &str) {
        tell(&self.ranks, |to| (to != rank).then(|| lost(rank, CauseKind::Signal, cause)));
    }
}

fn lost(rank: Rank, kind: CauseKind, cause: &str) -> DriverToRank {
    DriverToRank::Lost { rank, host: "testhost".into(), kind, cause: cause.into() }
}

/// Tells each rank what is meant for it, if it is still there.
fn tell(ranks: &Ranks, message: impl Fn(Rank) -> Option<DriverToRank>) {
    for Met { connection, rank } in ranks.lock().expect("nobody panics with this lock").iter_mut() {
        if let Some(message) = message(*rank) {
            // A rank that has gone already needs no news.
            let _ = connection.send(&message);
        }
    }
}

/// Passes on what a rank says of another, as the driver does, until it closes the connection.
fn listen(
    (mut stream, mut opener): (TcpStream, Opener),
    from: Rank,
    ranks: &Ranks,
    reports: &Reports,
) {
    while let Ok(message) = receive(&mut stream, &mut opener) {
        match message {
            RankToDriver::GivenUp { rank, cause } => tell(ranks, |to| {
                let whom = if to == rank { from } else { rank };
                Some(lost(whom, CauseKind::ConnectionLost, &cause))
            }),
            RankToDriver::Report(report) => {
                reports.lock().expect("nobody panics with this lock").push((from, report));
            }
            _ => {}
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take()
            && let Ok(Err(error)) = thread.join()
        {
            eprintln!("the test launcher failed: {error}");
        }
    }
}

fn meet(
    listener: &TcpListener,
    key: &JobKey,
    size: usize,
    roads: &Roads,
) -> io::Result<(Vec<Met>, DriverToRank)> {
    let mut ranks: Vec<Met> = Vec::new();
    for _ in 0..size {
        let (connection, greeting) = Connection::accept(listener.accept()?.0, key)?;
        let Greeting::Rendezvous { rank, .. } = greeting else {
            return Err(io::Error::other(format!("{greeting:?}")));
        };
        ranks.push(Met { rank, connection });
    }
    ranks.sort_by_key(|met| met.rank);
    let mut peers = Vec::new();
    for Met { connection, .. } in &mut ranks {
        match connection.receive()? {
            RankToDriver::Join(peer) => peers.push(peer),
            other => return Err(io::Error::other(format!("{other:?}"))),
        }
    }
    for Met { connection, rank } in &mut ranks {
        let mut peers = peers.clone();
        roads.lay(&mut peers, *rank);
        // Somebody may ask at any time, also while ranks are still on their way.
        connection.send(&DriverToRank::Ask)?;
        connection.send(&DriverToRank::World { epoch: Epoch(1), peers })?;
    }
    let mut leaders = Vec::new();
    for Met { connection, .. } in &mut ranks {
        match connection.receive()? {
            RankToDriver::Located { leader } => leaders.push(leader),
            other => return Err(io::Error::other(format!("{other:?}"))),
        }
    }
    Ok((ranks, DriverToRank::Layout { leaders }))
}

impl Roads {
    /// Changes what one rank hears of its peers.
    fn lay(&self, peers: &mut [Peer], me: Rank) {
        // The higher rank of a pair dials, so only lower ones need an address.
        for (rank, peer) in peers.iter_mut().enumerate().take(me.index()) {
            if let Some(net) = &self.net {
                for address in &mut peer.addresses {
                    *address = net.route(me.index(), rank, *address);
                }
            }
            if let Some(islands) = &self.islands
                && islands[rank] != islands[me.index()]
            {
                peer.unix = None;
            }
        }
    }
}
