//! Joining a world: from an environment to a group of ranks that can reach each other.
//!
//! 1. Open a door: a listening socket, and an abstract unix socket unless shared memory is off.
//! 2. Meet at the launcher's rendezvous and learn who and where everybody is.
//! 3. Find the first rank of this host by trying the unix sockets of all lower ranks; tell the
//!    launcher, and learn what the others found.
//! 4. Ranks that turned out to share a host get the shared memory from its first rank; those who do
//!    not share rank 0's connect to it for the negotiation. If all share one host, the door is closed;
//!    otherwise it stays open for links.

mod layout;
mod link;
mod share;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ronde_control::autotune::Parameter;
use ronde_control::negotiate::Coordinator;
use ronde_control::seating;
use ronde_control::settings::{Keeper, Meeting, Place, Settings, Transport};
use ronde_control::wire::{Callee, DriverToRank, Greeting, JobKey, Peer, RankToDriver};
use ronde_control::{Epoch, Rank, Tuning, VERSION};
use rustix::event::PollFlags;

use self::layout::Layout;
use self::link::Reception;
use self::share::Estate;
use super::background::Standby;
use super::inbox::Inbox;
use super::plane::{FollowPlane, LeadPlane};
use super::progress::{Progress, Role};
use super::sets::Sets;
use super::stall::StallWatch;
use super::tune::Tuner;
use crate::error::Error;
use crate::group::{Arena, Fabric, Groups, Hands, Links, Opening, Stage};
use crate::transport::bell::Bell;
use crate::transport::door::{Arrival, Door};
use crate::transport::fate::Fate;
use crate::transport::link::{PATIENCE, dial};
use crate::transport::patience::Patience;
use crate::transport::sentinel::Sentinel;
use crate::transport::socket::{Socket, sleep};
use crate::transport::vigil::{Bells, House, Vigil};
use crate::transport::wire::Wire;
use crate::watch::Watch;

/// How much longer to wait for the others than they have time to come: whoever keeps the rendezvous
/// has the same limit, and knows who is missing.
const LAST_WORD: Duration = Duration::from_secs(2);

/// For how long a rank tries to reach a launcher that hangs up on it.
const INSISTENCE: Duration = Duration::from_secs(10);

/// What a joined world consists of.
type Joined = (Progress, Arc<Vigil>, Standby);

/// The same, and where this rank turned out to be in it.
type Seated = (Place, Joined);

/// What the engine's callers put in: submissions, and what is known of sets; and who watches.
type Mail = (Arc<Inbox>, Arc<Sets>, Arc<Watch>);

pub(super) fn join(
    settings: &Settings,
    place: &Place,
    meeting: &Meeting,
    mail: Mail,
) -> Result<Seated, Error> {
    let deadline = Instant::now() + settings.join_timeout;
    let door = open_door(settings, place.rank, meeting)?;
    let mut newcomer = Newcomer::meet(place, meeting, &door, settings.arena, deadline)?;
    let leader = newcomer.locate(&door, settings.shared_ranks, deadline)?;
    let first = leader.as_ref().map_or(newcomer.me, |(rank, _)| *rank);
    let layout = Layout::new(newcomer.exchange_leaders(first, deadline)?, newcomer.me)?;
    let mut reception = Reception::default();
    newcomer.receive_guests(&layout, &door, &mut reception, deadline)?;
    let own = new_bells().map_err(|error| share::failed(&error))?;
    let estate = newcomer.share(&layout, leader, &own, &mut reception, deadline)?;
    let wire = newcomer.call_coordinator(&layout, deadline)?;
    let place = place.among(&newcomer.peers);
    let holdings = Holdings { door, own, estate, wire, reception };
    Ok((place, newcomer.settle(settings, &layout, holdings, mail)?))
}

fn open_door(settings: &Settings, rank: Rank, meeting: &Meeting) -> Result<Door, Error> {
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
    Door::open(at, unix, (rank, meeting.key.clone()))
        .map_err(|error| Error::Setup(format!("no listening socket could be opened: {error}")))
}

/// Where others reach a door; one that listens on all addresses, at the one by which this rank
/// reached the launcher.
fn reachable(launcher: &Wire, door: &Door) -> Vec<SocketAddr> {
    let own = launcher.socket().local_ip();
    let at = |address: &SocketAddr| match own {
        Some(ip) if address.ip().is_unspecified() => SocketAddr::new(ip, address.port()),
        _ => *address,
    };
    door.addresses().iter().map(at).collect()
}

/// Tries again for a while if somebody hung up: in a crowd the launcher sends away who hesitates.
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

fn random_name() -> Result<String, Error> {
    let mut bytes = [0u8; 12];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::Setup(format!("no random number could be had: {error}")))?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("ronde-{digits}"))
}

/// A rank on its way into the world.
struct Newcomer {
    me: Rank,
    epoch: Epoch,
    key: JobKey,
    peers: Vec<Peer>,
    local_size: usize,
    /// Bytes of the arena per rank, if this rank makes it.
    arena: usize,
    keeper: Keeper,
    launcher: Wire,
}

impl Newcomer {
    fn meet(
        place: &Place,
        meeting: &Meeting,
        door: &Door,
        arena: usize,
        deadline: Instant,
    ) -> Result<Newcomer, Error> {
        let greeting = Greeting::Rendezvous { version: VERSION.into(), rank: place.rank };
        let unreachable = |error: io::Error| {
            let whose = match meeting.keeper {
                Keeper::Launcher | Keeper::Elastic(_) => "the launcher's rendezvous",
                Keeper::FirstRank => "the rendezvous of rank 0",
            };
            Error::Setup(format!("{whose} could not be reached: {error}"))
        };
        let call = (&meeting.key, Callee::Launcher);
        let mut launcher = insist(deadline, || dial(&meeting.addresses, call, &greeting, deadline))
            .map_err(unreachable)?;
        let join = RankToDriver::Join {
            pid: std::process::id(),
            host: place.host.clone(),
            local_rank: place.local_rank,
            addresses: reachable(&launcher, door),
            unix: door.unix().map(str::to_owned),
        };
        launcher.send(&join).and_then(|()| launcher.flush_by(deadline)).map_err(unreachable)?;
        match hear(&mut launcher, meeting.keeper, deadline + LAST_WORD)? {
            DriverToRank::World { epoch, mut peers } if peers.len() == place.size as usize => {
                let (key, keeper) = (meeting.key.clone(), meeting.keeper);
                if keeper == Keeper::FirstRank {
                    seating::number(&mut peers);
                }
                let (me, local_size) = (place.rank, place.among(&peers).local_size as usize);
                Ok(Newcomer { me, epoch, key, peers, local_size, arena, keeper, launcher })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// The lowest rank whose unix socket can be reached from here, if it is not this rank itself.
    fn locate(
        &self,
        door: &Door,
        most: Option<u32>,
        deadline: Instant,
    ) -> Result<Option<(Rank, Wire)>, Error> {
        if door.unix().is_none() {
            return Ok(None);
        }
        let first = most.map_or(0, |most| (self.me.0 / most * most) as usize);
        let greeting = Greeting::Segment { epoch: self.epoch, rank: self.me };
        for (rank, peer) in self.peers[..self.me.index()].iter().enumerate().skip(first) {
            let Some(name) = &peer.unix else { continue };
            let reached = UnixAddr::from_abstract_name(name)
                .and_then(|address| UnixStream::connect_addr(&address))
                .and_then(Socket::unix)
                .and_then(|socket| {
                    let call = (&self.key, Callee::Rank(Rank(rank as u32)));
                    Wire::dial(socket, call, &greeting, deadline)
                });
            if let Ok(wire) = reached {
                return Ok(Some((Rank(rank as u32), wire)));
            }
        }
        Ok(None)
    }

    fn exchange_leaders(&mut self, leader: Rank, deadline: Instant) -> Result<Vec<Rank>, Error> {
        let keeper = self.keeper;
        let gone = |error: io::Error| gone(keeper, &error);
        self.launcher.send(&RankToDriver::Located { leader }).map_err(gone)?;
        self.launcher.flush_by(deadline).map_err(gone)?;
        match hear(&mut self.launcher, keeper, deadline)? {
            DriverToRank::Layout { leaders } if leaders.len() == self.peers.len() => Ok(leaders),
            other => Err(unexpected(&other)),
        }
    }

    /// Waits for somebody at the door, with an ear to the launcher.
    fn await_arrival(&mut self, door: &Door, deadline: Instant) -> Result<Arrival, Error> {
        loop {
            if let Some(arrival) = door.arrival() {
                return Ok(arrival);
            }
            match self.launcher.receive::<DriverToRank>() {
                // Somebody watches the job, and there is nothing to tell yet.
                Ok(None | Some(DriverToRank::Ask)) => {}
                Ok(Some(news)) => return Err(unexpected(&news)),
                Err(error) => return Err(gone(self.keeper, &error)),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Setup("not all ranks came in time".into()));
            }
            let fds = [door.bell().as_fd(), self.launcher.as_fd()];
            sleep(&fds.map(|fd| (fd, PollFlags::IN)), left);
        }
    }

    /// Puts the world together from what this rank has come by.
    fn settle(
        self,
        settings: &Settings,
        layout: &Layout,
        holdings: Holdings,
        mail: Mail,
    ) -> Result<Joined, Error> {
        let failed =
            |error: io::Error| Error::Setup(format!("the world could not be set up: {error}"));
        let Holdings { door, own, estate, wire, reception } = holdings;
        let (me, peers, island) = (self.me, self.peers.clone(), layout.island());
        let (epoch, key, encryption) = (self.epoch, self.key.clone(), settings.encryption);
        let callers: Vec<(Rank, Wire)> = reception.callers.into_iter().collect();
        let sockets = callers.iter().map(|(_, wire)| wire).chain(&wire).map(Wire::socket);
        let standby = match layout.is_linked() {
            true => Standby::over(sockets).map_err(failed)?,
            false => Standby::none(),
        };
        let (segment, arena, house, lifelines) = match estate {
            Some(Estate { segment, arena, bells, lifelines }) => {
                let segment = Arc::new(segment);
                let seat = island.iter().position(|rank| *rank == me).unwrap_or_default();
                let house = House { segment: segment.clone(), me: seat, bells };
                let arena = match settings.arena {
                    0 => None,
                    _ => Arena::open(&arena, island.len(), seat).map_err(failed)?,
                };
                (Some(segment), arena, Some(house), lifelines)
            }
            None => (None, None, None, Vec::new()),
        };
        let role = match (wire, &segment) {
            (Some(wire), _) => Role::Member { plane: FollowPlane::Linked { wire } },
            (None, Some(segment)) if me != Rank(0) => {
                let seat = house.as_ref().map_or(0, |house| house.me);
                Role::Member { plane: FollowPlane::shared(segment, seat) }
            }
            (None, segment) => {
                let here = segment.as_ref().map(|segment| (segment, &island[..]));
                coordinator(settings, &peers, layout, LeadPlane::new(here, callers))
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let hands = if cores >= 2 * self.local_size { Hands::Two } else { Hands::One };
        let patience = Patience::of(self.local_size, cores);
        let vigil = self.into_vigil(lifelines, own, house, patience).map_err(failed)?;
        let early = reception.early;
        let links = layout.is_linked().then(|| {
            Links::new(
                Opening { me, epoch, key, peers, encryption, door, patience: PATIENCE, early },
                vigil.clone(),
                hands,
            )
        });
        let stage = segment.map(|segment| Stage::new(segment, vigil.clone(), arena));
        let fabric = Fabric { stage, links, leaders: layout.leaders() };
        let progress = Progress::new(me, Groups::new(fabric, me), role, vigil.clone(), mail);
        Ok((progress, vigil, standby))
    }

    /// From here on the connection to the launcher belongs to the lookout.
    fn into_vigil(
        self,
        lifelines: Vec<(Rank, Socket)>,
        bells: Bells,
        house: Option<House>,
        patience: Patience,
    ) -> io::Result<Arc<Vigil>> {
        let sentinel = Sentinel::new((self.keeper, self.launcher), lifelines)?;
        Ok(Arc::new(Vigil::new(Fate::new(self.peers), sentinel, bells, house, patience)))
    }
}

/// What a rank has come by on its way into the world.
struct Holdings {
    door: Door,
    own: Bells,
    estate: Option<Estate>,
    wire: Option<Wire>,
    reception: Reception,
}

fn new_bells() -> io::Result<Bells> {
    Ok(Bells { driver: Bell::new()?, background: Bell::new()? })
}

fn coordinator(settings: &Settings, peers: &[Peer], layout: &Layout, plane: LeadPlane) -> Role {
    let Settings { fusion_threshold, cache_capacity, stall_warning, stall_shutdown, .. } = settings;
    let mut coordinator = Coordinator::new(peers.len(), *fusion_threshold, *cache_capacity);
    if settings.tuning != Tuning::default() {
        coordinator.tune(settings.tuning);
    }
    let tunable = if layout.is_linked() { Parameter::OVER_SOCKETS } else { Parameter::IN_MEMORY };
    let tuner = Tuner::start(settings, tunable);
    Role::Coordinator {
        coordinator,
        tuner,
        plane,
        own: VecDeque::new(),
        stalls: StallWatch::new(*stall_warning, *stall_shutdown, peers.to_vec()),
    }
}

/// The error when whoever lets the ranks meet is no longer there.
fn gone(keeper: Keeper, error: &io::Error) -> Error {
    match keeper {
        Keeper::Launcher | Keeper::Elastic(_) => Error::LauncherGone(error.to_string()),
        Keeper::FirstRank => {
            Error::Setup(format!("rank 0, at which the others meet, is gone: {error}"))
        }
    }
}

fn hear(launcher: &mut Wire, keeper: Keeper, deadline: Instant) -> Result<DriverToRank, Error> {
    loop {
        let heard = launcher.receive_by(deadline).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => Error::Setup(
                "the other ranks did not all call `hvd.init()` in time; \
                 `RONDE_JOIN_TIMEOUT_SECONDS` sets how long to wait"
                    .into(),
            ),
            _ => gone(keeper, &error),
        });
        match heard {
            // Somebody watches the job, and there is nothing to tell yet.
            Ok(DriverToRank::Ask) => {}
            heard => return heard,
        }
    }
}

fn unexpected(news: &DriverToRank) -> Error {
    Error::Setup(match news {
        DriverToRank::Refused { reason } => reason.clone(),
        DriverToRank::Lost { rank, host, cause } => format!("lost {rank} ({host}): {cause}"),
        other => format!("the launcher answered out of turn: {other:?}"),
    })
}
