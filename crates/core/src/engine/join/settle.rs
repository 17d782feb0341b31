//! The last step into a world: what a rank has come by on its way becomes what drives it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use ronde_control::autotune::Parameter;
use ronde_control::negotiate::{Bulletin, Coordinator};
use ronde_control::settings::{Place, Settings};
use ronde_control::wire::Peer;
use ronde_control::{Rank, Tuning};

use super::super::background::Standby;
use super::super::inbox::Inbox;
use super::super::plane::{FollowPlane, LeadPlane};
use super::super::progress::{Progress, Role};
use super::super::sets::Sets;
use super::super::stall::StallWatch;
use super::super::tune::Tuner;
use super::Newcomer;
use super::layout::Layout;
use super::link::Reception;
use super::share::Estate;
use crate::error::Error;
use crate::group::{Arena, Fabric, Groups, Hands, Links, Opening, Stage};
use crate::transport::door::Door;
use crate::transport::fate::Fate;
use crate::transport::link::PATIENCE;
use crate::transport::patience::Patience;
use crate::transport::sentinel::Sentinel;
use crate::transport::socket::Socket;
use crate::transport::vigil::{Bells, House, Vigil};
use crate::transport::wire::Wire;
use crate::watch::Watch;

/// What a joined world consists of.
type Joined = (Progress, Arc<Vigil>, Standby);

/// What the engine's callers put in: submissions, and what is known of sets; and who watches.
type Mail = (Arc<Inbox>, Arc<Sets>, Arc<Watch>);

/// A rank that has met all others and is connected to whom it must be.
pub(in super::super) struct Entered {
    /// Where it turned out to be.
    pub(in super::super) place: Place,
    pub(super) newcomer: Newcomer,
    pub(super) layout: Layout,
    pub(super) holdings: Holdings,
}

/// What a rank has come by on its way into the world.
pub(super) struct Holdings {
    pub(super) door: Door,
    pub(super) own: Bells,
    pub(super) estate: Option<Estate>,
    pub(super) wire: Option<Wire>,
    pub(super) reception: Reception,
}

impl Entered {
    /// Puts the world together.
    pub(in super::super) fn settle(self, settings: &Settings, mail: Mail) -> Result<Joined, Error> {
        let Entered { newcomer, layout, holdings, .. } = self;
        newcomer.settle(settings, &layout, holdings, mail)
    }
}

impl Newcomer {
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
                let host = peers[me.index()].host.clone();
                let seat = island.iter().position(|rank| *rank == me).unwrap_or_default();
                let house = House { segment: segment.clone(), me: seat, host, bells };
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
        let seated = island.iter().map(|rank| rank.index()).collect();
        let stage = segment.map(|segment| Stage::new(segment, vigil.clone(), arena, seated));
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
        let (launcher, updates) = self.ear.into_launcher(self.epoch);
        let sentinel = Sentinel::new(launcher, lifelines, updates)?;
        Ok(Arc::new(Vigil::new(Fate::new(self.peers), sentinel, bells, house, patience)))
    }
}

fn coordinator(settings: &Settings, peers: &[Peer], layout: &Layout, plane: LeadPlane) -> Role {
    let Settings { fusion_threshold, cache_capacity, stall_warning, stall_shutdown, .. } = settings;
    let mut coordinator = Coordinator::new(peers.len(), *fusion_threshold, *cache_capacity);
    if settings.tuning != Tuning::default() {
        coordinator.tell(Bulletin::Tune(settings.tuning));
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
