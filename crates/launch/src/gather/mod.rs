//! How ranks that another launcher has started meet: rank 0 keeps the rendezvous in its own process.
//!
//! 1. Rank 0 listens, with a key that nobody else has, and writes an invitation: key and addresses.
//! 2. The invitation reaches the other ranks over MPI, or as a private note in a file; or they need
//!    none, because the user has given all ranks a secret.
//! 3. Each of them tries the addresses until one answers that holds the key. An invitation that an
//!    earlier job has left behind fails here, and is looked at again until its time is over.
//!
//! From there on everything is as under `horovodrun`.

pub mod keep;
pub mod note;
mod probe;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use ronde_control::Rank;
use ronde_control::launcher::{Invitation, Spread, Started, Way};
use ronde_control::settings::{Keeper, Meeting};
use ronde_control::wire::JobKey;

use crate::private::Places;
use crate::{hosts, interfaces};
use keep::Keep;
use note::Note;

/// After how long a rank says what it waits for.
const SILENCE: Duration = Duration::from_secs(10);

/// How long to wait between two looks, at first and at last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// Why the ranks could not meet.
#[derive(Debug, thiserror::Error)]
pub enum GatherError {
    /// Rank 0 cannot let the others meet.
    #[error("rank 0 cannot listen on {address} for the other ranks: {source}")]
    Listen {
        /// Where it wanted to.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The machine would not give what rank 0 needs.
    #[error("rank 0 cannot let the others meet: {0}")]
    Machine(String),
    /// The note cannot be used.
    #[error("the note by which the ranks meet cannot be used: {0}")]
    Note(String),
    /// Nobody who holds the key was found in time.
    #[error("{rank} has not found rank 0 within {seconds} s: {last}. {}", Way::ADVICE)]
    Late {
        /// Who looked.
        rank: Rank,
        /// For how long.
        seconds: u64,
        /// What came of the last attempt.
        last: String,
    },
}

/// Where the ranks meet; on rank 0 also what keeps the place open.
pub struct Gathered {
    /// Where, and with which key.
    pub meeting: Meeting,
    /// The service, on rank 0. The place is closed when it is dropped.
    pub keep: Option<Keep>,
}

/// Finds the others of a job, as `way` says; `limit` is the time for it, and for every gathering.
pub fn gather(
    started: &Started,
    way: &Way,
    places: &Places,
    limit: Duration,
) -> Result<Gathered, GatherError> {
    match way {
        Way::Secret { key, host, port } if started.rank == Rank(0) => {
            let door = Door::open(started.spread, Some(host), *port)?;
            invite(started.size, door, key.clone(), limit, || {})
        }
        Way::Secret { key, host, port } => look(started.rank, limit, || {
            let addresses = resolve(host, *port)?;
            Ok(Invitation { addresses, key: key.clone() })
        }),
        Way::HostNote | Way::SharedNote { .. } => {
            let note = Note::of(started, way, places).map_err(GatherError::Note)?;
            by_note(started, note, limit)
        }
    }
}

/// Rank 0: opens the place where `started.size` ranks meet, for an invitation that travels otherwise.
pub fn open(started: &Started, limit: Duration) -> Result<(Invitation, Gathered), GatherError> {
    let door = Door::open(started.spread, started.first_host.as_deref(), 0)?;
    let invitation = Invitation { addresses: door.addresses.clone(), key: fresh_key()? };
    let gathered = invite(started.size, door, invitation.key.clone(), limit, || {})?;
    Ok((invitation, gathered))
}

/// Another rank: follows an invitation that came otherwise.
pub fn follow(
    rank: Rank,
    invitation: &Invitation,
    limit: Duration,
) -> Result<Gathered, GatherError> {
    look(rank, limit, || Ok(invitation.clone()))
}

fn by_note(started: &Started, note: Note, limit: Duration) -> Result<Gathered, GatherError> {
    if started.rank != Rank(0) {
        return look(started.rank, limit, || note.read());
    }
    let door = Door::open(started.spread, started.first_host.as_deref(), 0)?;
    let invitation = Invitation { addresses: door.addresses.clone(), key: fresh_key()? };
    // Whatever an earlier job of the same name has left is replaced.
    note.write(&invitation).map_err(GatherError::Note)?;
    invite(started.size, door, invitation.key, limit, move || note.remove())
}

fn invite(
    size: u32,
    door: Door,
    key: JobKey,
    limit: Duration,
    formed: impl FnOnce() + Send + 'static,
) -> Result<Gathered, GatherError> {
    let Door { listener, addresses } = door;
    let listen = listening(&addresses);
    let keep = Keep::start(listener, key.clone(), size, limit, Box::new(formed))
        .map_err(|error| GatherError::Machine(error.to_string()))?;
    let meeting = Meeting { addresses, key, listen, keeper: Keeper::FirstRank };
    Ok(Gathered { meeting, keep: Some(keep) })
}

/// Looks for an invitation, and for somebody behind it, until the time is over.
fn look(
    rank: Rank,
    limit: Duration,
    find: impl Fn() -> Result<Invitation, String>,
) -> Result<Gathered, GatherError> {
    let start = Instant::now();
    let (mut pause, longest) = PAUSES;
    let mut told = false;
    loop {
        let found = find().and_then(|invitation| {
            let address = probe::probe(&invitation)?;
            let addresses = vec![address];
            let listen = listening(&addresses);
            Ok(Meeting { addresses, key: invitation.key, listen, keeper: Keeper::FirstRank })
        });
        let last = match found {
            Ok(meeting) => return Ok(Gathered { meeting, keep: None }),
            Err(last) => last,
        };
        let waited = start.elapsed();
        if waited >= limit {
            return Err(GatherError::Late { rank, seconds: limit.as_secs(), last });
        }
        if waited >= SILENCE && !told {
            tracing::warn!("{rank} has waited {} s for rank 0: {last}", waited.as_secs());
            told = true;
        }
        std::thread::sleep(pause.min(limit - waited));
        pause = (pause * 2).min(longest);
    }
}

/// Where a rank listens for the others: on every address of its host, unless all are on this one.
fn listening(rank_0: &[SocketAddr]) -> Vec<IpAddr> {
    match rank_0.iter().all(|address| address.ip().is_loopback()) {
        true => Vec::new(),
        false => own_addresses(None),
    }
}

/// What rank 0 listens on.
struct Door {
    listener: TcpListener,
    /// Every address at which others may reach it, the best first.
    addresses: Vec<SocketAddr>,
}

impl Door {
    /// Listens no wider than the job is: on loopback if all ranks are here. Port 0 is any.
    fn open(spread: Spread, host: Option<&str>, port: u16) -> Result<Door, GatherError> {
        let at = |ip: IpAddr| {
            let address = SocketAddr::new(ip, port);
            TcpListener::bind(address).map_err(|source| GatherError::Listen { address, source })
        };
        let listener = match spread {
            Spread::OneHost => at(Ipv4Addr::LOCALHOST.into())?,
            // A kernel without IPv6 listens without it.
            Spread::Hosts => {
                at(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| at(Ipv4Addr::UNSPECIFIED.into()))?
            }
        };
        let address = listener.local_addr();
        let port = address.map_err(|error| GatherError::Machine(error.to_string()))?.port();
        let addresses = match spread {
            Spread::OneHost => vec![IpAddr::from(Ipv4Addr::LOCALHOST)],
            Spread::Hosts => own_addresses(host),
        };
        let addresses = addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
        Ok(Door { listener, addresses })
    }
}

/// The addresses of this machine, best first: by which it is known as rank 0's host, by which it
/// reaches the world, then all others.
fn own_addresses(host: Option<&str>) -> Vec<IpAddr> {
    let named = host.and_then(|host| resolve(host, 0).ok()).unwrap_or_default();
    let named = named.into_iter().map(|address| address.ip());
    // Nothing is sent: connecting such a socket only asks the routes.
    let outward = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        socket.local_addr()
    });
    let outward = outward.map(|address| address.ip());
    let all = interfaces::for_others().into_iter().map(|interface| interface.address);
    let mut best: Vec<IpAddr> = Vec::new();
    for ip in named.chain(outward).chain(all) {
        let usable = !ip.is_loopback() && !ip.is_unspecified() && hosts::is_own(ip);
        if usable && !best.contains(&ip) {
            best.push(ip);
        }
    }
    if best.is_empty() { vec![Ipv4Addr::LOCALHOST.into()] } else { best }
}

fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    match (host, port).to_socket_addrs() {
        Ok(addresses) => Ok(addresses.collect()),
        Err(error) => Err(format!("the host of rank 0, `{host}`, cannot be found: {error}")),
    }
}

fn fresh_key() -> Result<JobKey, GatherError> {
    let entropy = crate::driver::entropy();
    entropy.map(JobKey::from_entropy).map_err(|error| GatherError::Machine(error.to_string()))
}

#[cfg(test)]
mod tests;
