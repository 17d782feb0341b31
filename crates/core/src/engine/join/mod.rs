//! Joining a world: from environment variables to a group of ranks that can reach each other.
//!
//! 1. Listen: on a TCP socket, and on an abstract unix socket unless shared memory is off.
//! 2. Connect to the launcher's rendezvous and learn the addresses of all ranks; in an elastic job,
//!    also this worker's own rank. Then accept connections for that rank.
//! 3. Find the first rank of this host by trying the unix sockets of all lower ranks; report it to
//!    the launcher, and learn what the others found.
//! 4. Ranks that turn out to share a host get the shared memory from its first rank; those that do
//!    not share memory with rank 0 connect to it for the negotiation. If all ranks share one host,
//!    the listening sockets are closed; otherwise they stay open for links.
//!
//! In an elastic job an attempt may fail at any step, because a rank that was to take part died.
//! Then the worker hangs up and tries again, until the launcher says that it is no longer part of
//! the job.

mod joining_rank;
mod layout;
mod link;
mod session;
mod settle;
mod share;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use ronde_control::settings::{RankInfo, RendezvousInfo, RendezvousOwner, Settings, Transport};
use ronde_control::wire::{Callee, Greeting, Peer, RankToDriver};
use ronde_control::{VERSION, WIDEN, placement};

use self::joining_rank::{JoiningRank, WorldInfo};
use self::layout::IslandLayout;
use self::link::IncomingPeers;
use self::session::JoinSession;
pub(super) use self::settle::ConnectedRank;
use self::settle::JoinResources;
use crate::error::Error;
use crate::transport::bell::Doorbell;
use crate::transport::dial::dial;
use crate::transport::rank_listener::BoundListener;
use crate::transport::shm;
use crate::transport::waiter::Doorbells;
use crate::transport::wire::SealedWire;

/// How much longer to wait for the other ranks than they have time to join: the owner of the
/// rendezvous has the same limit, and its error names the missing ranks.
const RENDEZVOUS_FIRST: Duration = Duration::from_secs(2);

/// How long a rank keeps trying to reach a launcher that hangs up on it.
const RETRY_FOR: Duration = Duration::from_secs(10);

/// How long a worker of an elastic job waits before it tries again, if the launcher has not asked
/// for that; the pause doubles each time, up to the second value.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// How often in a row a worker tries again unasked; after that, the cause must be the worker
/// itself.
const MAX_UNASKED: u32 = 30;

/// Why an attempt to join has failed.
enum JoinFailure {
    /// No other attempt can succeed.
    Final(Error),
    /// The launcher has removed this worker from the job, for this reason.
    Removed(String),
    /// The launcher has reported that the world broke up, for this reason.
    Reported(String),
    /// An error that the launcher has not reported, so the other ranks may not know of it.
    Unreported(Error),
}

/// Connects a rank to all ranks that it needs; in an elastic job, with as many attempts as it
/// takes.
pub(super) fn connect(
    settings: &Settings,
    place: &RankInfo,
    rendezvous_info: &RendezvousInfo,
) -> Result<ConnectedRank, Error> {
    let mut unasked = 0;
    loop {
        match attempt(settings, place, rendezvous_info) {
            Ok(connected) => return Ok(connected),
            Err(JoinFailure::Final(error)) => return Err(error),
            Err(JoinFailure::Removed(reason)) => {
                let (host, slot) = (place.host.clone(), place.local_rank);
                return Err(Error::Removed { host, slot, reason });
            }
            Err(JoinFailure::Reported(reason)) => {
                tracing::info!("the world broke up while it was forming: {reason}");
                unasked = 0;
            }
            Err(JoinFailure::Unreported(error)) if unasked == MAX_UNASKED => return Err(error),
            Err(JoinFailure::Unreported(error)) => {
                tracing::info!("joining failed, trying again: {error}");
                std::thread::sleep((PAUSES.0 * (1 << unasked.min(10))).min(PAUSES.1));
                unasked += 1;
            }
        }
    }
}

fn attempt(
    settings: &Settings,
    place: &RankInfo,
    rendezvous_info: &RendezvousInfo,
) -> Result<ConnectedRank, JoinFailure> {
    let deadline = Instant::now() + settings.join_timeout;
    let bound_listener =
        open_bound_listener(settings, place, rendezvous_info).map_err(JoinFailure::Final)?;
    let mut session =
        call(place, rendezvous_info, &bound_listener, deadline).map_err(JoinFailure::Final)?;
    let world = match wait_for_world(place, &mut session, deadline) {
        Ok(world) => world,
        Err(error) => return Err(session.join_failure(error)),
    };
    let place = world.place.clone();
    // The time limit starts again, so that ranks do not wait forever for one that gets stuck here.
    let deadline = Instant::now() + settings.join_timeout;
    let mut joining_rank = JoiningRank::new(world, rendezvous_info, session);
    match connect_peers(settings, &mut joining_rank, bound_listener, deadline) {
        Ok((layout, join_resources)) => {
            Ok(ConnectedRank { place, joining_rank, layout, join_resources })
        }
        Err(error) => Err(joining_rank.session.join_failure(error)),
    }
}

fn open_bound_listener(
    settings: &Settings,
    place: &RankInfo,
    rendezvous_info: &RendezvousInfo,
) -> Result<BoundListener, Error> {
    // Unless the settings say where, a rank listens no wider than the launcher: on this host only,
    // if the launcher is here.
    let local = rendezvous_info.addresses.iter().all(|address| address.ip().is_loopback());
    let wide = if local { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
    let wide = [IpAddr::V4(wide)];
    let at = if rendezvous_info.listen.is_empty() { &wide } else { &rendezvous_info.listen[..] };
    let unix = match settings.transport {
        Transport::Auto if can_share() => Some(random_name()?),
        Transport::Auto | Transport::Tcp => None,
    };
    BoundListener::at(at, &rendezvous_info.ports, unix).map_err(|error| {
        let is_full = error.kind() == io::ErrorKind::AddrInUse && !rendezvous_info.ports.is_any();
        let hint = if is_full { format!("\n\nhint: {WIDEN}") } else { String::new() };
        Error::Setup(format!("{} cannot listen for the others: {error}{hint}", place.rank))
    })
}

/// Connects to the launcher and sends it this rank's identity and addresses.
fn call(
    place: &RankInfo,
    rendezvous_info: &RendezvousInfo,
    bound_listener: &BoundListener,
    deadline: Instant,
) -> Result<JoinSession, Error> {
    let version = VERSION.into();
    let greeting = match rendezvous_info.keeper {
        RendezvousOwner::Elastic(worker) => Greeting::Worker { version, worker },
        _ => Greeting::Rendezvous { version, rank: place.rank },
    };
    let unreachable = |error: io::Error| {
        let whose = match rendezvous_info.keeper {
            RendezvousOwner::Launcher | RendezvousOwner::Elastic(_) => "the launcher's rendezvous",
            RendezvousOwner::FirstRank => "the rendezvous of rank 0",
        };
        Error::Setup(format!("{whose} could not be reached: {error}"))
    };
    retry_hangups(deadline, || {
        let proof = (&rendezvous_info.key, Callee::Launcher);
        let mut launcher = dial(&rendezvous_info.addresses, proof, &greeting, deadline)?;
        launcher.send(&RankToDriver::Join(Peer {
            pid: std::process::id(),
            host: place.host.clone(),
            machine: machine(),
            local_rank: place.local_rank,
            addresses: reachable(&launcher, bound_listener),
            unix: bound_listener.unix().map(str::to_owned),
        }))?;
        launcher.flush_by(deadline)?;
        Ok(JoinSession::new(rendezvous_info.keeper, launcher))
    })
    .map_err(unreachable)
}

/// Identifies this machine and, if it is one, this container: those on one machine have processes or
/// networks of their own.
fn machine() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = |kind: &str| std::fs::read_link(format!("/proc/self/ns/{kind}"));
    match (namespace("pid"), namespace("net")) {
        (Ok(pid), Ok(net)) => format!("{} {} {}", boot.trim(), pid.display(), net.display()),
        _ => String::new(),
    }
}

/// Waits until all ranks have joined. Workers of an elastic job wait as long as the launcher wants.
fn wait_for_world(
    place: &RankInfo,
    session: &mut JoinSession,
    deadline: Instant,
) -> Result<WorldInfo, Error> {
    use ronde_control::wire::DriverToRank::{Assign, World as Formed};
    let keeper = place.rendezvous_info.as_ref().map(|rendezvous_info| rendezvous_info.keeper);
    let (step, assigned) = match session.receive(match keeper {
        Some(RendezvousOwner::Elastic(_)) => None,
        _ => Some(deadline + RENDEZVOUS_FIRST),
    })? {
        Assign { rank } if matches!(keeper, Some(RendezvousOwner::Elastic(_))) => {
            (session.receive(None)?, Some(rank))
        }
        step => (step, None),
    };
    match (step, assigned) {
        (Formed { epoch, mut peers }, Some(rank)) if rank.index() < peers.len() => {
            placement::number(&mut peers);
            let place = RankInfo { rank, size: peers.len() as u32, ..place.clone() }.among(&peers);
            Ok(WorldInfo { epoch, place, peers })
        }
        (Formed { epoch, mut peers }, None) if peers.len() == place.size as usize => {
            if keeper == Some(RendezvousOwner::FirstRank) {
                placement::number(&mut peers);
            }
            Ok(WorldInfo { epoch, place: place.among(&peers), peers })
        }
        (step, _) => Err(session::unexpected(&step)),
    }
}

/// Connects a rank to all ranks that it needs.
fn connect_peers(
    settings: &Settings,
    joining_rank: &mut JoiningRank,
    bound_listener: BoundListener,
    deadline: Instant,
) -> Result<(IslandLayout, JoinResources), Error> {
    let rank_listener = joining_rank.open(bound_listener)?;
    let leader = joining_rank.locate(settings, deadline)?;
    let first = leader.as_ref().map_or(joining_rank.me, |(rank, _)| *rank);
    let layout =
        IslandLayout::new(joining_rank.exchange_leaders(first, deadline)?, joining_rank.me)?;
    let mut incoming_peers = IncomingPeers::default();
    joining_rank.accept_peers(&layout, &rank_listener, &mut incoming_peers, deadline)?;
    let own = new_bells().map_err(|error| share::failed(&error))?;
    let resources = joining_rank.share(
        (&layout, settings.arena),
        leader,
        &own,
        &mut incoming_peers,
        deadline,
    )?;
    let wire = joining_rank.call_coordinator(&layout, deadline)?;
    Ok((layout, JoinResources { rank_listener, own, resources, wire, incoming_peers }))
}

/// The addresses at which others reach the listener. For a listener on all addresses, the one from
/// which this rank reached the launcher.
fn reachable(launcher: &SealedWire, bound_listener: &BoundListener) -> Vec<SocketAddr> {
    let own = launcher.socket().local_ip();
    let at = |address: &SocketAddr| match own {
        Some(ip) if address.ip().is_unspecified() => SocketAddr::new(ip, address.port()),
        _ => *address,
    };
    bound_listener.addresses().iter().map(at).collect()
}

/// Tries again for a while if the other end hung up: a crowded listener drops connections that are
/// slow to authenticate.
fn retry_hangups<T>(deadline: Instant, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    let end = deadline.min(Instant::now() + RETRY_FOR);
    loop {
        match call() {
            Err(error)
                if matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
                    && Instant::now() < end =>
            {
                std::thread::sleep(RETRY_FOR / 100);
            }
            other => return other,
        }
    }
}

fn new_bells() -> io::Result<Doorbells> {
    Ok(Doorbells { foreground: Doorbell::new()?, background: Doorbell::new()? })
}

/// Whether this rank can make memory that others share with it. If not, it says what to do.
fn can_share() -> bool {
    let refused = shm::memfd().err();
    if let Some(error) = &refused {
        tracing::warn!(
            "this rank uses TCP instead of shared memory, because the system refuses \
             `memfd_create`: {error}; allow it in the container's seccomp profile"
        );
    }
    refused.is_none()
}

fn random_name() -> Result<String, Error> {
    let mut bytes = [0u8; 12];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::Setup(format!("cannot get random bytes: {error}")))?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("ronde-{digits}"))
}
