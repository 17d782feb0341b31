//! Joining a world: from an environment to a group of ranks that can reach each other.
//!
//! 1. Listen: on a socket, and on an abstract unix socket unless shared memory is off.
//! 2. Meet at the launcher's rendezvous and learn who and where everybody is; in an elastic job also
//!    which rank this worker is. Then open the door to whoever calls that rank.
//! 3. Find the first rank of this host by trying the unix sockets of all lower ranks; tell the
//!    launcher, and learn what the others found.
//! 4. Ranks that turned out to share a host get the shared memory from its first rank; those who do
//!    not share rank 0's connect to it for the negotiation. If all share one host, the door is closed;
//!    otherwise it stays open for links.
//!
//! In an elastic job an attempt may fail at any step, because somebody died who was to take part.
//! Then the worker hangs up and comes again, until the launcher says that it is not wanted any more.

mod ear;
mod layout;
mod link;
mod newcomer;
mod settle;
mod share;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use ronde_control::settings::{Keeper, Meeting, Place, Settings, Transport};
use ronde_control::wire::{Callee, Greeting, Peer, RankToDriver};
use ronde_control::{VERSION, seating};

use self::ear::Ear;
use self::layout::Layout;
use self::link::Reception;
use self::newcomer::{Newcomer, World};
pub(super) use self::settle::Entered;
use self::settle::Holdings;
use crate::error::Error;
use crate::transport::bell::Bell;
use crate::transport::dial::dial;
use crate::transport::door::Doorway;
use crate::transport::vigil::Bells;
use crate::transport::wire::Wire;

/// How much longer to wait for the others than they have time to come: whoever keeps the rendezvous
/// has the same limit, and knows who is missing.
const LAST_WORD: Duration = Duration::from_secs(2);

/// For how long a rank tries to reach a launcher that hangs up on it.
const INSISTENCE: Duration = Duration::from_secs(10);

/// How long a worker of an elastic job waits before it comes again, if the launcher has not told it
/// to; twice as long each time, up to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// How often in a row it comes again unasked: beyond that the reason lies with itself.
const MOST_TRIES: u32 = 30;

/// Why an attempt to join has failed.
enum Setback {
    /// No other attempt can succeed.
    Final(Error),
    /// The launcher wants this worker no longer, and says why.
    Removed(String),
    /// The launcher has said that the world fell apart, and why.
    Told(String),
    /// Something else.
    Untold(Error),
}

/// Takes a rank to where everybody who must reach it can; in an elastic job as often as it takes.
pub(super) fn enter(
    settings: &Settings,
    place: &Place,
    meeting: &Meeting,
) -> Result<Entered, Error> {
    let mut unasked = 0;
    loop {
        match attempt(settings, place, meeting) {
            Ok(entered) => return Ok(entered),
            Err(Setback::Final(error)) => return Err(error),
            Err(Setback::Removed(reason)) => {
                let (host, slot) = (place.host.clone(), place.local_rank);
                return Err(Error::Removed { host, slot, reason });
            }
            Err(Setback::Told(reason)) => {
                tracing::info!("the world fell apart while it formed: {reason}");
                unasked = 0;
            }
            Err(Setback::Untold(error)) if unasked == MOST_TRIES => return Err(error),
            Err(Setback::Untold(error)) => {
                tracing::info!("joining did not succeed, trying again: {error}");
                std::thread::sleep((PAUSES.0 * (1 << unasked.min(10))).min(PAUSES.1));
                unasked += 1;
            }
        }
    }
}

fn attempt(settings: &Settings, place: &Place, meeting: &Meeting) -> Result<Entered, Setback> {
    let deadline = Instant::now() + settings.join_timeout;
    let doorway = open_doorway(settings, meeting).map_err(Setback::Final)?;
    let mut ear = call(place, meeting, &doorway, deadline).map_err(Setback::Final)?;
    let world = match meet(place, &mut ear, deadline) {
        Ok(world) => world,
        Err(error) => return Err(ear.setback(error)),
    };
    let place = world.place.clone();
    // Those who have met must not wait for one who does not come any further.
    let deadline = Instant::now() + settings.join_timeout;
    let mut newcomer = Newcomer::new(world, meeting, ear);
    match unite(settings, &mut newcomer, doorway, deadline) {
        Ok((layout, holdings)) => Ok(Entered { place, newcomer, layout, holdings }),
        Err(error) => Err(newcomer.ear.setback(error)),
    }
}

fn open_doorway(settings: &Settings, meeting: &Meeting) -> Result<Doorway, Error> {
    // Unless told where, a rank listens no wider than the launcher: on this host only, if that is
    // where the launcher is.
    let local = meeting.addresses.iter().all(|address| address.ip().is_loopback());
    let wide = if local { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
    let wide = [IpAddr::V4(wide)];
    let at = if meeting.listen.is_empty() { &wide } else { &meeting.listen[..] };
    let unix = match settings.transport {
        Transport::Auto => Some(random_name()?),
        Transport::Tcp => None,
    };
    Doorway::at(at, unix)
        .map_err(|error| Error::Setup(format!("no listening socket could be opened: {error}")))
}

/// Calls the launcher, says who has come and where it can be reached.
fn call(
    place: &Place,
    meeting: &Meeting,
    doorway: &Doorway,
    deadline: Instant,
) -> Result<Ear, Error> {
    let version = VERSION.into();
    let greeting = match meeting.keeper {
        Keeper::Elastic(worker) => Greeting::Worker { version, worker },
        _ => Greeting::Rendezvous { version, rank: place.rank },
    };
    let unreachable = |error: io::Error| {
        let whose = match meeting.keeper {
            Keeper::Launcher | Keeper::Elastic(_) => "the launcher's rendezvous",
            Keeper::FirstRank => "the rendezvous of rank 0",
        };
        Error::Setup(format!("{whose} could not be reached: {error}"))
    };
    insist(deadline, || {
        let proof = (&meeting.key, Callee::Launcher);
        let mut launcher = dial(&meeting.addresses, proof, &greeting, deadline)?;
        launcher.send(&RankToDriver::Join(Peer {
            pid: std::process::id(),
            host: place.host.clone(),
            local_rank: place.local_rank,
            addresses: reachable(&launcher, doorway),
            unix: doorway.unix().map(str::to_owned),
        }))?;
        launcher.flush_by(deadline)?;
        Ok(Ear::new(meeting.keeper, launcher))
    })
    .map_err(unreachable)
}

/// Waits until all have come. The workers of an elastic job wait for as long as the launcher wants.
fn meet(place: &Place, ear: &mut Ear, deadline: Instant) -> Result<World, Error> {
    use ronde_control::wire::DriverToRank::{Seat, World as Met};
    let keeper = place.meeting.as_ref().map(|meeting| meeting.keeper);
    let (step, seat) = match ear.hear(match keeper {
        Some(Keeper::Elastic(_)) => None,
        _ => Some(deadline + LAST_WORD),
    })? {
        Seat { rank } if matches!(keeper, Some(Keeper::Elastic(_))) => {
            (ear.hear(None)?, Some(rank))
        }
        step => (step, None),
    };
    match (step, seat) {
        (Met { epoch, mut peers }, Some(rank)) if rank.index() < peers.len() => {
            seating::number(&mut peers);
            let place = Place { rank, size: peers.len() as u32, ..place.clone() }.among(&peers);
            Ok(World { epoch, place, peers })
        }
        (Met { epoch, mut peers }, None) if peers.len() == place.size as usize => {
            if keeper == Some(Keeper::FirstRank) {
                seating::number(&mut peers);
            }
            Ok(World { epoch, place: place.among(&peers), peers })
        }
        (step, _) => Err(ear::out_of_turn(&step)),
    }
}

/// Connects a rank to whom it must be connected.
fn unite(
    settings: &Settings,
    newcomer: &mut Newcomer,
    doorway: Doorway,
    deadline: Instant,
) -> Result<(Layout, Holdings), Error> {
    let door = newcomer.open(doorway)?;
    let leader = newcomer.locate(settings, deadline)?;
    let first = leader.as_ref().map_or(newcomer.me, |(rank, _)| *rank);
    let layout = Layout::new(newcomer.exchange_leaders(first, deadline)?, newcomer.me)?;
    let mut reception = Reception::default();
    newcomer.receive_guests(&layout, &door, &mut reception, deadline)?;
    let own = new_bells().map_err(|error| share::failed(&error))?;
    let estate =
        newcomer.share((&layout, settings.arena), leader, &own, &mut reception, deadline)?;
    let wire = newcomer.call_coordinator(&layout, deadline)?;
    Ok((layout, Holdings { door, own, estate, wire, reception }))
}

/// Where others reach a door; one that listens on all addresses, at the one by which this rank
/// reached the launcher.
fn reachable(launcher: &Wire, doorway: &Doorway) -> Vec<SocketAddr> {
    let own = launcher.socket().local_ip();
    let at = |address: &SocketAddr| match own {
        Some(ip) if address.ip().is_unspecified() => SocketAddr::new(ip, address.port()),
        _ => *address,
    };
    doorway.addresses().iter().map(at).collect()
}

/// Tries again for a while if somebody hung up: in a crowd those who hesitate are sent away.
fn insist<T>(deadline: Instant, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    let end = deadline.min(Instant::now() + INSISTENCE);
    loop {
        match call() {
            Err(error)
                if matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
                    && Instant::now() < end =>
            {
                std::thread::sleep(INSISTENCE / 100);
            }
            other => return other,
        }
    }
}

fn new_bells() -> io::Result<Bells> {
    Ok(Bells { driver: Bell::new()?, background: Bell::new()? })
}

fn random_name() -> Result<String, Error> {
    let mut bytes = [0u8; 12];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::Setup(format!("no random number could be had: {error}")))?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("ronde-{digits}"))
}
