//! How ranks that another launcher started find each other: rank 0 runs the rendezvous in its own
//! process.
//!
//! 1. Rank 0 listens, with a fresh key, and writes an invitation: key and addresses.
//! 2. The invitation reaches the other ranks over MPI or through a private rendezvous file. They
//!    need none if the user gave all ranks a secret.
//! 3. Each rank tries the addresses until one answers that holds the key. An invitation that an
//!    earlier job left behind fails here, and the rank looks again until its time limit.
//!
//! From there on everything works as under `horovodrun`.

mod probe;
pub mod rendezvous_file;
pub mod server;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use ronde_control::launcher::{Invitation, LaunchedProcess, RendezvousMethod, Spread};
use ronde_control::settings::{HostNetwork, RendezvousInfo, RendezvousOwner};
use ronde_control::wire::JobKey;
use ronde_control::{Rank, WIDEN};

use crate::private::PrivateDirs;
use crate::{hosts, interfaces, ports};
use rendezvous_file::RendezvousFile;
use server::RendezvousServer;

/// How long a rank waits before it logs what it is waiting for.
const SILENCE: Duration = Duration::from_secs(10);

/// Pause between two attempts, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// Why the ranks could not find each other, as text.
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

/// The open rendezvous; on rank 0, with its server.
pub struct OpenRendezvous {
    /// Addresses and key of the rendezvous.
    pub rendezvous_info: RendezvousInfo,
    /// The server, on rank 0. Dropping it closes the rendezvous.
    pub server: Option<RendezvousServer>,
}

/// Finds the other ranks of a job with `rendezvous_method`; `limit` is the time limit for that, and
/// for forming every world.
pub fn gather(
    started: &LaunchedProcess,
    rendezvous_method: &RendezvousMethod,
    places: &PrivateDirs,
    limit: Duration,
) -> Result<OpenRendezvous, GatherError> {
    match rendezvous_method {
        RendezvousMethod::Secret { key, host, port } if started.rank == Rank(0) => {
            let network = HostNetwork { ports: (*port).into(), ..started.network.clone() };
            let listener = listen(started.spread, Some(host), &network)?;
            invite(started, listener, key.clone(), None, limit)
        }
        RendezvousMethod::Secret { key, host, port } => find_rank_0(started, limit, || {
            let addresses = resolve(host, *port)?;
            Ok(Invitation { addresses, key: key.clone() })
        }),
        RendezvousMethod::HostFile | RendezvousMethod::SharedFile { .. } => {
            let rendezvous_file = RendezvousFile::of(started, rendezvous_method, places)
                .map_err(GatherError::rendezvous_file)?;
            match started.rank {
                Rank(0) => open(started, Some(rendezvous_file), limit),
                _ => find_rank_0(started, limit, || rendezvous_file.read()),
            }
        }
    }
}

/// Rank 0: opens the rendezvous for `started.size` ranks and writes the rendezvous file, unless the
/// invitation is sent some other way.
pub fn open(
    started: &LaunchedProcess,
    rendezvous_file: Option<RendezvousFile>,
    limit: Duration,
) -> Result<OpenRendezvous, GatherError> {
    let host = started.first_host.as_deref();
    let (listener, addresses) = listen(started.spread, host, &started.network)?;
    let key = crate::new_key().map_err(GatherError::machine)?;
    if let Some(rendezvous_file) = &rendezvous_file {
        // This replaces a file that an earlier job of the same name left behind.
        let invitation = Invitation { addresses: addresses.clone(), key: key.clone() };
        rendezvous_file.write(&invitation).map_err(GatherError::rendezvous_file)?;
    }
    invite(started, (listener, addresses), key, rendezvous_file, limit)
}

/// Other ranks: use an invitation that was received some other way.
pub fn follow(
    started: &LaunchedProcess,
    invitation: &Invitation,
    limit: Duration,
) -> Result<OpenRendezvous, GatherError> {
    find_rank_0(started, limit, || Ok(invitation.clone()))
}

fn invite(
    started: &LaunchedProcess,
    (listener, addresses): (TcpListener, Vec<SocketAddr>),
    key: JobKey,
    rendezvous_file: Option<RendezvousFile>,
    limit: Duration,
) -> Result<OpenRendezvous, GatherError> {
    let server =
        RendezvousServer::start(listener, key.clone(), started.size, limit, rendezvous_file)
            .map_err(GatherError::machine)?;
    let rendezvous_info = rendezvous_info(addresses, key, &started.network);
    Ok(OpenRendezvous { rendezvous_info, server: Some(server) })
}

/// Retries until an invitation is found and rank 0 answers, or the time limit is reached.
fn find_rank_0(
    started: &LaunchedProcess,
    limit: Duration,
    find: impl Fn() -> Result<Invitation, String>,
) -> Result<OpenRendezvous, GatherError> {
    let (start, rank) = (Instant::now(), started.rank);
    let (mut pause, longest) = PAUSES;
    let mut is_reported = false;
    loop {
        let found = find().and_then(|invitation| {
            let address = probe::probe(&invitation)?;
            Ok(rendezvous_info(vec![address], invitation.key, &started.network))
        });
        let last = match found {
            Ok(rendezvous_info) => return Ok(OpenRendezvous { rendezvous_info, server: None }),
            Err(last) => last,
        };
        let waited = start.elapsed();
        if waited >= limit {
            let (seconds, advice) = (limit.as_secs(), RendezvousMethod::ADVICE);
            let text = format!("{rank} did not find rank 0 within {seconds} s: {last}. {advice}");
            return Err(GatherError(text));
        }
        if waited >= SILENCE && !is_reported {
            tracing::warn!("{rank} has waited {} s for rank 0: {last}", waited.as_secs());
            is_reported = true;
        }
        std::thread::sleep(pause.min(limit - waited));
        pause = (pause * 2).min(longest);
    }
}

/// The rendezvous at these addresses of rank 0. Each rank listens on every address of its host,
/// unless all ranks are on one host.
fn rendezvous_info(
    addresses: Vec<SocketAddr>,
    key: JobKey,
    network: &HostNetwork,
) -> RendezvousInfo {
    let listen = match addresses.iter().all(|address| address.ip().is_loopback()) {
        true => Vec::new(),
        false => {
            ports::announced(network, own_addresses(None), 0).iter().map(SocketAddr::ip).collect()
        }
    };
    let (ports, keeper) = (network.ports.clone(), RendezvousOwner::FirstRank);
    RendezvousInfo { addresses, key, listen, ports, keeper }
}

/// Listens only as widely as the job needs: on loopback if all ranks are on this host. Also returns
/// the addresses that others may use, best first.
fn listen(
    spread: Spread,
    host: Option<&str>,
    network: &HostNetwork,
) -> Result<(TcpListener, Vec<SocketAddr>), GatherError> {
    let here = IpAddr::from(Ipv4Addr::LOCALHOST);
    let listener = match spread {
        Spread::OneHost => ports::listen_at(here, &network.ports),
        Spread::Hosts => ports::listen_everywhere(&network.ports),
    };
    let listener = listener.map_err(|error| {
        let is_full = error.kind() == io::ErrorKind::AddrInUse && network.ports.count() > 1;
        let hint = if is_full { format!("\n\nhint: {WIDEN}") } else { String::new() };
        GatherError(format!("rank 0 cannot listen for the other ranks: {error}{hint}"))
    })?;
    let port = listener.local_addr().map_err(GatherError::machine)?.port();
    let addresses = match spread {
        Spread::OneHost => vec![SocketAddr::new(here, port)],
        Spread::Hosts => ports::announced(network, own_addresses(host), port),
    };
    Ok((listener, addresses))
}

/// The addresses of this machine, best first: the ones its name as rank 0's host resolves to, the
/// one that the default route uses, then all others.
fn own_addresses(host: Option<&str>) -> Vec<IpAddr> {
    let named = host.and_then(|host| resolve(host, 0).ok()).unwrap_or_default();
    let named = named.into_iter().map(|address| address.ip());
    // Connecting a UDP socket sends nothing; it only consults the routing table.
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
        Err(error) => Err(format!("cannot resolve `{host}`, the host of rank 0: {error}")),
    }
}

#[cfg(test)]
mod tests;
