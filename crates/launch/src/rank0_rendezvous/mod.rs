//! How ranks that another launcher has started meet: rank 0 keeps the rendezvous in its own process.
//!
//! 1. Rank 0 listens, with a key that nobody else has, and writes an invitation: key and addresses.
//! 2. The invitation reaches the other ranks over MPI, or as a private note in a file; or they need
//!    none, because the user has given all ranks a secret.
//! 3. Each of them tries the addresses until one answers that holds the key. An invitation that an
//!    earlier job has left behind fails here, and is looked at again until its time is over.
//!
//! From there on everything is as under `horovodrun`.

mod probe;
pub mod rendezvous_file;
pub mod server;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use ronde_control::Rank;
use ronde_control::launcher::{Invitation, LaunchedProcess, RendezvousMethod, Spread};
use ronde_control::settings::{RendezvousInfo, RendezvousOwner};
use ronde_control::wire::JobKey;

use crate::private::PrivateDirs;
use crate::{hosts, interfaces};
use rendezvous_file::RendezvousFile;
use server::RendezvousServer;

/// After how long a rank says what it waits for.
const SILENCE: Duration = Duration::from_secs(10);

/// How long to wait between two looks, at first and at last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// Why the ranks could not meet, in words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct GatherError(String);

impl GatherError {
    fn machine(error: impl fmt::Display) -> GatherError {
        GatherError(format!("rank 0 cannot open the rendezvous: {error}"))
    }

    fn rendezvous_file(why: impl fmt::Display) -> GatherError {
        GatherError(format!("cannot use the rendezvous file: {why}"))
    }
}

/// Where the ranks meet; on rank 0 also what keeps the place open.
pub struct OpenRendezvous {
    /// Where, and with which key.
    pub rendezvous_info: RendezvousInfo,
    /// The service, on rank 0. The place is closed when it is dropped.
    pub server: Option<RendezvousServer>,
}

/// Finds the others of a job, as `rendezvous_method` says; `limit` is the time for it, and for every gathering.
pub fn gather(
    started: &LaunchedProcess,
    rendezvous_method: &RendezvousMethod,
    places: &PrivateDirs,
    limit: Duration,
) -> Result<OpenRendezvous, GatherError> {
    match rendezvous_method {
        RendezvousMethod::Secret { key, host, port } if started.rank == Rank(0) => {
            let door = listen(started.spread, Some(host), *port)?;
            invite(started.size, door, key.clone(), None, limit)
        }
        RendezvousMethod::Secret { key, host, port } => look(started.rank, limit, || {
            let addresses = resolve(host, *port)?;
            Ok(Invitation { addresses, key: key.clone() })
        }),
        RendezvousMethod::HostNote | RendezvousMethod::SharedNote { .. } => {
            let rendezvous_file = RendezvousFile::of(started, rendezvous_method, places)
                .map_err(GatherError::rendezvous_file)?;
            match started.rank {
                Rank(0) => open(started, Some(rendezvous_file), limit),
                rank => look(rank, limit, || rendezvous_file.read()),
            }
        }
    }
}

/// Rank 0: opens the place where `started.size` ranks meet, and leaves the note that leads there, unless
/// the invitation travels otherwise.
pub fn open(
    started: &LaunchedProcess,
    rendezvous_file: Option<RendezvousFile>,
    limit: Duration,
) -> Result<OpenRendezvous, GatherError> {
    let (listener, addresses) = listen(started.spread, started.first_host.as_deref(), 0)?;
    let key = crate::new_key().map_err(GatherError::machine)?;
    if let Some(rendezvous_file) = &rendezvous_file {
        // Whatever an earlier job of the same name has left is replaced.
        let invitation = Invitation { addresses: addresses.clone(), key: key.clone() };
        rendezvous_file.write(&invitation).map_err(GatherError::rendezvous_file)?;
    }
    invite(started.size, (listener, addresses), key, rendezvous_file, limit)
}

/// Another rank: follows an invitation that came otherwise.
pub fn follow(
    rank: Rank,
    invitation: &Invitation,
    limit: Duration,
) -> Result<OpenRendezvous, GatherError> {
    look(rank, limit, || Ok(invitation.clone()))
}

fn invite(
    size: u32,
    (listener, addresses): (TcpListener, Vec<SocketAddr>),
    key: JobKey,
    rendezvous_file: Option<RendezvousFile>,
    limit: Duration,
) -> Result<OpenRendezvous, GatherError> {
    let server = RendezvousServer::start(listener, key.clone(), size, limit, rendezvous_file)
        .map_err(GatherError::machine)?;
    Ok(OpenRendezvous { rendezvous_info: rendezvous_info(addresses, key), server: Some(server) })
}

/// Looks for an invitation, and for somebody behind it, until the time is over.
fn look(
    rank: Rank,
    limit: Duration,
    find: impl Fn() -> Result<Invitation, String>,
) -> Result<OpenRendezvous, GatherError> {
    let start = Instant::now();
    let (mut pause, longest) = PAUSES;
    let mut told = false;
    loop {
        let found = find().and_then(|invitation| {
            let address = probe::probe(&invitation)?;
            Ok(rendezvous_info(vec![address], invitation.key))
        });
        let last = match found {
            Ok(rendezvous_info) => return Ok(OpenRendezvous { rendezvous_info, server: None }),
            Err(last) => last,
        };
        let waited = start.elapsed();
        if waited >= limit {
            let (seconds, advice) = (limit.as_secs(), RendezvousMethod::ADVICE);
            let text = format!("{rank} has not found rank 0 within {seconds} s: {last}. {advice}");
            return Err(GatherError(text));
        }
        if waited >= SILENCE && !told {
            tracing::warn!("{rank} has waited {} s for rank 0: {last}", waited.as_secs());
            told = true;
        }
        std::thread::sleep(pause.min(limit - waited));
        pause = (pause * 2).min(longest);
    }
}

/// The meeting at addresses of rank 0. Each rank listens for the others on every address of its host,
/// unless all are on this one.
fn rendezvous_info(addresses: Vec<SocketAddr>, key: JobKey) -> RendezvousInfo {
    let listen = match addresses.iter().all(|address| address.ip().is_loopback()) {
        true => Vec::new(),
        false => own_addresses(None),
    };
    RendezvousInfo { addresses, key, listen, keeper: RendezvousOwner::FirstRank }
}

/// Listens no wider than the job is: on loopback if all ranks are here. Port 0 is any. Gives every
/// address at which others may reach it, too, the best first.
fn listen(
    spread: Spread,
    host: Option<&str>,
    port: u16,
) -> Result<(TcpListener, Vec<SocketAddr>), GatherError> {
    let at = |ip: IpAddr| {
        let address = SocketAddr::new(ip, port);
        let cannot = format!("rank 0 cannot listen on {address} for the other ranks");
        TcpListener::bind(address).map_err(|error| GatherError(format!("{cannot}: {error}")))
    };
    let listener = match spread {
        Spread::OneHost => at(Ipv4Addr::LOCALHOST.into())?,
        // A kernel without IPv6 listens without it.
        Spread::Hosts => {
            at(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| at(Ipv4Addr::UNSPECIFIED.into()))?
        }
    };
    let port = listener.local_addr().map_err(GatherError::machine)?.port();
    let addresses = match spread {
        Spread::OneHost => vec![IpAddr::from(Ipv4Addr::LOCALHOST)],
        Spread::Hosts => own_addresses(host),
    };
    let addresses = addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
    Ok((listener, addresses))
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

#[cfg(test)]
mod tests;
