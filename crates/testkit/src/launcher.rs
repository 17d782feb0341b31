//! A launcher that starts nothing: it runs the rendezvous, and sends the messages that a test asks
//! for.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use ronde_control::cause::CauseKind;
use ronde_control::status::RankReport;
use ronde_control::wire::frame::Opener;
use ronde_control::wire::{DriverToRank, Greeting, JobKey, Peer, RankToDriver};
use ronde_control::{Epoch, Rank};

use crate::Net;
use crate::connection::{RankConnection, receive};

/// Runs the rendezvous of `size` ranks, once.
pub struct TestLauncher {
    address: SocketAddr,
    key: JobKey,
    ranks: Ranks,
    reports: RankReports,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// How ranks reach each other: directly, unless a test configures it otherwise.
#[derive(Clone, Default)]
pub struct Routes {
    /// A network that carries every connection between two ranks.
    pub net: Option<Arc<Net>>,
    /// The island of each rank; ranks on different islands do not find each other's shared memory.
    pub islands: Option<Vec<usize>>,
}

type Ranks = Arc<Mutex<Vec<MetRanks>>>;

struct MetRanks {
    rank: Rank,
    connection: RankConnection,
}

/// Status reports received from ranks.
type RankReports = Arc<Mutex<Vec<(Rank, RankReport)>>>;

impl TestLauncher {
    /// Starts listening for `size` ranks, which then reach each other over these routes.
    pub fn start(size: usize, routes: Routes) -> TestLauncher {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback can be listened on");
        let address = listener.local_addr().expect("a bound socket has an address");
        let key = JobKey::from_entropy([42; 32]);
        let ranks = Arc::new(Mutex::new(Vec::new()));
        let reports = RankReports::default();
        let (their_key, their_ranks, their_reports) = (key.clone(), ranks.clone(), reports.clone());
        let thread = std::thread::spawn(move || {
            let (mut met, layout) = meet(&listener, &their_key, size, &routes)?;
            // From the last message of the rendezvous on, a rank can be notified of a loss.
            let mut ranks = their_ranks.lock().expect("nothing panics while it holds this lock");
            for MetRanks { connection, .. } in &mut met {
                connection.send(&DriverToRank::Ask)?;
                connection.send(&layout)?;
                connection.send(&DriverToRank::Ask)?;
            }
            for MetRanks { connection, rank } in &mut met {
                let (receiver, rank) = (connection.take_receiver()?, *rank);
                let (ranks, reports) = (their_ranks.clone(), their_reports.clone());
                std::thread::spawn(move || listen(receiver, rank, &ranks, &reports));
            }
            ranks.append(&mut met);
            Ok(())
        });
        TestLauncher { address, key, ranks, reports, thread: Some(thread) }
    }

    /// The address of the rendezvous.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The job's key.
    pub fn key(&self) -> &JobKey {
        &self.key
    }

    /// Asks all ranks for a status report, as a watcher of the job would.
    pub fn ask(&self) {
        tell(&self.ranks, |_| Some(DriverToRank::Ask));
    }

    /// The reports received since the last call.
    pub fn reports(&self) -> Vec<(Rank, RankReport)> {
        std::mem::take(&mut *self.reports.lock().expect("nothing panics while it holds this lock"))
    }

    /// Tells all other ranks that a rank has died.
    pub fn lose(&self, rank: Rank, cause: &str) {
        tell(&self.ranks, |to| (to != rank).then(|| lost(rank, CauseKind::Signal, cause)));
    }
}

fn lost(rank: Rank, kind: CauseKind, cause: &str) -> DriverToRank {
    DriverToRank::Lost { rank, host: "testhost".into(), kind, cause: cause.into() }
}

/// Sends each rank its message, if it is still connected.
fn tell(ranks: &Ranks, message: impl Fn(Rank) -> Option<DriverToRank>) {
    for MetRanks { connection, rank } in
        ranks.lock().expect("nothing panics while it holds this lock").iter_mut()
    {
        if let Some(message) = message(*rank) {
            // The rank may have disconnected already.
            let _ = connection.send(&message);
        }
    }
}

/// Forwards what a rank reports about another, as the driver does, until the rank disconnects.
fn listen(
    (mut stream, mut opener): (TcpStream, Opener),
    from: Rank,
    ranks: &Ranks,
    reports: &RankReports,
) {
    while let Ok(message) = receive(&mut stream, &mut opener) {
        match message {
            RankToDriver::GivenUp { rank, cause } => tell(ranks, |to| {
                let lost_rank = if to == rank { from } else { rank };
                Some(lost(lost_rank, CauseKind::ConnectionLost, &cause))
            }),
            RankToDriver::Report(report) => {
                reports
                    .lock()
                    .expect("nothing panics while it holds this lock")
                    .push((from, report));
            }
            _ => {}
        }
    }
}

impl Drop for TestLauncher {
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
    routes: &Routes,
) -> io::Result<(Vec<MetRanks>, DriverToRank)> {
    let mut ranks: Vec<MetRanks> = Vec::new();
    for _ in 0..size {
        let (connection, greeting) = RankConnection::accept(listener.accept()?.0, key)?;
        let Greeting::Rendezvous { rank, .. } = greeting else {
            return Err(io::Error::other(format!("{greeting:?}")));
        };
        ranks.push(MetRanks { rank, connection });
    }
    ranks.sort_by_key(|met| met.rank);
    let mut peers = Vec::new();
    for MetRanks { connection, .. } in &mut ranks {
        match connection.receive()? {
            RankToDriver::Join(peer) => peers.push(peer),
            other => return Err(io::Error::other(format!("{other:?}"))),
        }
    }
    for MetRanks { connection, rank } in &mut ranks {
        let mut peers = peers.clone();
        routes.apply(&mut peers, *rank);
        // A request may arrive at any time, even while ranks are still joining.
        connection.send(&DriverToRank::Ask)?;
        connection.send(&DriverToRank::World { epoch: Epoch(1), peers })?;
    }
    let mut leaders = Vec::new();
    for MetRanks { connection, .. } in &mut ranks {
        match connection.receive()? {
            RankToDriver::Located { leader } => leaders.push(leader),
            other => return Err(io::Error::other(format!("{other:?}"))),
        }
    }
    Ok((ranks, DriverToRank::Layout { leaders }))
}

impl Routes {
    /// Changes the addresses of its peers that a rank gets.
    fn apply(&self, peers: &mut [Peer], me: Rank) {
        // The higher rank of a pair dials, so only the addresses of lower ranks matter.
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
