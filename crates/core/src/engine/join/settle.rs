//! The last step of joining: turns what a rank has collected into what drives it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use ronde_control::autotune::Parameter;
use ronde_control::negotiate::{Announcement, Coordinator};
use ronde_control::settings::{Bits, RankInfo, Settings};
use ronde_control::wire::Peer;
use ronde_control::{DeviceKind, Rank, Tuning};

use super::super::background::SocketSets;
use super::super::inbox::Inbox;
use super::super::plane::{FollowPlane, LeadPlane};
use super::super::progress::{Progress, Role};
use super::super::sets::ProcessSets;
use super::super::stall::StallWatch;
use super::super::tune::Tuner;
use super::JoiningRank;
use super::layout::IslandLayout;
use super::link::IncomingPeers;
use super::share::IslandResources;
use crate::error::Error;
use crate::group::{Arena, Fabric, Groups, LinkThreads, Links, Opening, SegmentView};
use crate::transport::failure_detector::FailureDetector;
use crate::transport::link::TIME_LIMIT;
use crate::transport::rank_listener::RankListener;
use crate::transport::socket::Socket;
use crate::transport::spin_limit::SpinLimit;
use crate::transport::waiter::{Doorbells, HostShared, Waiter};
use crate::transport::wire::SealedWire;
use crate::transport::world_state::WorldState;
use crate::watch::Watch;

/// What a joined world consists of.
type Joined = (Progress, Arc<Waiter>, SocketSets);

/// What the engine shares with its callers: the inbox, the known process sets, and the watch.
type EngineInputs = (Arc<Inbox>, Arc<ProcessSets>, Arc<Watch>);

/// A rank that is connected to all ranks that it needs.
pub(in super::super) struct ConnectedRank {
    /// Its final rank and slot.
    pub(in super::super) place: RankInfo,
    pub(super) joining_rank: JoiningRank,
    pub(super) layout: IslandLayout,
    pub(super) join_resources: JoinResources,
}

/// What a rank has collected while joining.
pub(super) struct JoinResources {
    pub(super) rank_listener: RankListener,
    pub(super) own: Doorbells,
    pub(super) resources: Option<IslandResources>,
    pub(super) wire: Option<SealedWire>,
    pub(super) incoming_peers: IncomingPeers,
}

impl ConnectedRank {
    /// Assembles the world.
    pub(in super::super) fn settle(
        self,
        settings: &Settings,
        inputs: EngineInputs,
    ) -> Result<Joined, Error> {
        let ConnectedRank { joining_rank, layout, join_resources, .. } = self;
        joining_rank.settle(settings, &layout, join_resources, inputs)
    }
}

impl JoiningRank {
    fn settle(
        self,
        settings: &Settings,
        layout: &IslandLayout,
        join_resources: JoinResources,
        inputs: EngineInputs,
    ) -> Result<Joined, Error> {
        let failed =
            |error: io::Error| Error::Setup(format!("the world could not be set up: {error}"));
        let JoinResources { rank_listener, own, resources, wire, incoming_peers } = join_resources;
        let (me, peers, island) = (self.me, self.peers.clone(), layout.island());
        let (epoch, key, encryption) = (self.epoch, self.key.clone(), settings.encryption);
        let callers: Vec<(Rank, SealedWire)> = incoming_peers.callers.into_iter().collect();
        let sockets = callers.iter().map(|(_, wire)| wire).chain(&wire).map(SealedWire::socket);
        let socket_sets = match layout.is_linked() {
            true => SocketSets::over(sockets).map_err(failed)?,
            false => SocketSets::none(),
        };
        let (segment, arena, host_shared, lifelines) = match resources {
            Some(IslandResources { segment, arena, bells, lifelines }) => {
                let segment = Arc::new(segment);
                let host = peers[me.index()].host.clone();
                let local_index = island.iter().position(|rank| *rank == me).unwrap_or_default();
                let host_shared =
                    HostShared { segment: segment.clone(), me: local_index, host, bells };
                let arena = match settings.arena {
                    0 => None,
                    _ => Arena::open(&arena, island.len(), local_index).map_err(failed)?,
                };
                (Some(segment), arena, Some(host_shared), lifelines)
            }
            None => (None, None, None, Vec::new()),
        };
        let role = match (wire, &segment) {
            (Some(wire), _) => Role::Member { plane: FollowPlane::Linked { wire } },
            (None, Some(segment)) if me != Rank(0) => {
                let local_index = host_shared.as_ref().map_or(0, |host_shared| host_shared.me);
                Role::Member { plane: FollowPlane::shared(segment, local_index) }
            }
            (None, segment) => {
                let here = segment.as_ref().map(|segment| (segment, &island[..]));
                coordinator(settings, &peers, layout, LeadPlane::new(here, callers))
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads =
            if cores >= 2 * self.local_size { LinkThreads::Two } else { LinkThreads::One };
        let spin_limit = SpinLimit::of(self.local_size, cores);
        let waiter = self.into_waiter(lifelines, own, host_shared, spin_limit).map_err(failed)?;
        let early = incoming_peers.early;
        let links = layout.is_linked().then(|| {
            Links::new(
                Opening {
                    me,
                    epoch,
                    key,
                    peers,
                    encryption,
                    rank_listener,
                    time_limit: TIME_LIMIT,
                    early,
                },
                waiter.clone(),
                threads,
            )
        });
        let island_ranks = island.iter().map(|rank| rank.index()).collect();
        let segment_view =
            segment.map(|segment| SegmentView::new(segment, waiter.clone(), arena, island_ranks));
        let fabric = Fabric { segment_view, links, leaders: layout.leaders() };
        let progress = Progress::new(me, Groups::new(fabric, me), role, waiter.clone(), inputs);
        Ok((progress, waiter, socket_sets))
    }

    /// From here on the connection to the launcher belongs to the failure detector.
    fn into_waiter(
        self,
        lifelines: Vec<(Rank, Socket)>,
        bells: Doorbells,
        host_shared: Option<HostShared>,
        spin_limit: SpinLimit,
    ) -> io::Result<Arc<Waiter>> {
        let (launcher, updates) = self.session.into_launcher(self.epoch);
        let failure_detector = FailureDetector::new(launcher, lifelines, updates)?;
        Ok(Arc::new(Waiter::new(
            WorldState::new(self.peers),
            failure_detector,
            bells,
            host_shared,
            spin_limit,
        )))
    }
}

fn coordinator(
    settings: &Settings,
    peers: &[Peer],
    layout: &IslandLayout,
    plane: LeadPlane,
) -> Role {
    let Settings { fusion_threshold, cache_capacity, stall_warning, stall_shutdown, .. } = settings;
    let mut coordinator = Coordinator::new(peers.len(), *fusion_threshold, *cache_capacity);
    if settings.bits == Bits::Reproducible {
        // NCCL orders additions by an element's position in its bucket.
        coordinator.keep_apart(DeviceKind::Gpu);
    }
    if settings.tuning != Tuning::default() {
        coordinator.tell(Announcement::Tune(settings.tuning));
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
