//! The engine's work: takes submissions, negotiates, runs released buckets, completes tickets.
//!
//! The thread that holds the lock on [`Progress`] drives: one that waits for a result, or the
//! background thread. A turn never blocks on the negotiation. It blocks only inside a collective
//! that all ranks have been released into, and every such wait ends when the world does.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ronde_control::cause::CauseKind;
use ronde_control::negotiate::{
    Announcement, Coordinator, CoordinatorToMember, JournalEntry, Member, MemberEvent,
    MemberToCoordinator, ReleasedTensor, Request,
};
use ronde_control::wire::RankToDriver;
use ronde_control::{DeviceKind, Rank, SetId};

use super::express::{Express, RoundEnd};
use super::gpu_buckets::{DoneBucket, GpuBuckets, LaunchedBucket};
use super::inbox::{Inbox, Submission};
use super::plane::{Broken, ControlPath, FollowPlane, LeadPlane};
use super::stall::StallWatch;
use super::ticket::{Outcome, PendingSubmission, Ticket};
use super::tune::Tuner;
use super::{ProcessSets, run};
use crate::error::Error;
use crate::group::Groups;
use crate::reduce::in_plain_environment;
use crate::transport::waiter::Waiter;
use crate::watch::{RecordId, Transfer, Watch};

/// How long sending a report about the end of the world to the launcher may take.
const REPORT_TIMEOUT: Duration = Duration::from_millis(200);

pub(super) struct Progress {
    pub(super) groups: Groups,
    pub(super) gpu: GpuBuckets,
    pub(super) role: Role,
    pub(super) waiter: Arc<Waiter>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) express: Option<Express>,
    member: Member,
    pub(super) me: Rank,
    flights: HashMap<String, InFlight>,
    sets: Arc<ProcessSets>,
    joining: Option<Arc<Ticket>>,
    leaving: Option<Arc<Ticket>>,
    is_over: bool,
    pub(super) watch: Arc<Watch>,
    /// When the messages that are being processed arrived.
    pub(super) received_at: Duration,
    /// When the last bucket ended; before the first bucket of a turn, `received_at`.
    pub(super) moment: Duration,
}

#[expect(clippy::large_enum_variant, reason = "there is one role per world")]
pub(super) enum Role {
    Coordinator {
        coordinator: Coordinator,
        plane: LeadPlane,
        /// The coordinator's messages to its own rank.
        own: VecDeque<CoordinatorToMember>,
        stalls: StallWatch,
        /// The search for better parameters, while it runs.
        tuner: Option<Tuner>,
    },
    Member {
        plane: FollowPlane,
    },
}

pub(super) struct InFlight {
    pub(super) pending: PendingSubmission,
    pub(super) record: RecordId,
}

impl Progress {
    pub(super) fn new(
        me: Rank,
        groups: Groups,
        role: Role,
        waiter: Arc<Waiter>,
        (inbox, sets, watch): (Arc<Inbox>, Arc<ProcessSets>, Arc<Watch>),
    ) -> Progress {
        Progress {
            express: groups.express_lane().map(Express::new),
            groups,
            gpu: GpuBuckets::default(),
            role,
            waiter,
            inbox,
            member: Member::new(me),
            me,
            flights: HashMap::new(),
            sets,
            joining: None,
            leaving: None,
            is_over: false,
            watch,
            received_at: Duration::ZERO,
            moment: Duration::ZERO,
        }
    }

    /// Does all pending work; returns whether there was any.
    pub(super) fn turn(&mut self) -> Result<bool, Error> {
        if self.is_over {
            return Ok(false);
        }
        if let Role::Coordinator { coordinator, .. } = &mut self.role {
            // Reading the clock is not free, so it is read once; members read it when messages
            // arrive.
            self.received_at = self.watch.now();
            match self.watch.shows() {
                true => coordinator.journal.start(),
                false => coordinator.journal.stop(),
            }
        }
        self.finish_on_gpu()?;
        let mut busy = self.take_submissions()?;
        match self.follow_round()? {
            // What others have sent meanwhile can wait until this rank does.
            Some(RoundEnd::Done) => return Ok(true),
            Some(RoundEnd::Announced) => busy = true,
            None => {}
        }
        busy |= self.coordinate()?;
        busy |= self.follow()?;
        Ok(busy)
    }

    /// Whether there is work that the last turn could not have seen.
    pub(super) fn has_input(&self) -> bool {
        let from_others = match &self.role {
            Role::Coordinator { coordinator, plane, own, .. } => {
                let is_gathering = coordinator.is_gathering();
                plane.has_input()
                    || coordinator.has_ready(|request| self.gpu.takes(request, is_gathering))
                    || !own.is_empty()
            }
            Role::Member { plane } => plane.has_input(),
        };
        let is_busy = self.is_outstanding();
        let in_round = self.express.as_ref().is_some_and(|express| express.has_input(is_busy));
        !self.is_over && (from_others || in_round || !self.inbox.is_empty())
    }

    /// Whether this rank waits for the other ranks.
    pub(super) fn is_outstanding(&self) -> bool {
        let backlog = match &self.role {
            Role::Coordinator { plane, .. } => plane.has_backlog(),
            Role::Member { plane } => plane.has_backlog(),
        };
        let is_offered = self.express.as_ref().is_some_and(Express::is_waiting);
        let waits = self.joining.is_some() || self.leaving.is_some() || is_offered;
        !self.is_over && (backlog || waits || !self.flights.is_empty())
    }

    /// Whether the world has ended for this rank.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Ends the world for this rank: everything in flight, and every later call, gets this error.
    pub(super) fn end(&mut self, error: &Error) {
        if self.is_over {
            return;
        }
        if matches!(error, Error::Left { .. } | Error::Lost { .. }) {
            // Whoever is gone may have taken part in it.
            self.finish_agreed_round();
        }
        self.is_over = true;
        match error {
            Error::Lost { rank, cause, .. } => {
                self.waiter.spread_death(*rank);
                let given_up = RankToDriver::GivenUp { rank: *rank, cause: cause.clone() };
                let soon = Instant::now() + REPORT_TIMEOUT;
                self.waiter.failure_detector.tell_launcher(&given_up, soon);
            }
            // The negotiation has told the other ranks about these already.
            Error::Left { .. } | Error::Shutdown => self.waiter.failure_detector.say_farewell(),
            Error::Stalled { .. } | Error::LauncherGone { .. } => {}
            Error::Overwritten { .. } => self.waiter.spread_mistrust(),
            _ => self.waiter.spread_death(self.me),
        }
        if !matches!(error, Error::Lost { .. } | Error::Shutdown | Error::LauncherGone { .. }) {
            let soon = Instant::now() + REPORT_TIMEOUT;
            self.waiter.failure_detector.tell_launcher(&RankToDriver::WorldEnded, soon);
        }
        self.member.abandon();
        // Before anybody gets its memory back.
        self.gpu.end(matches!(error, Error::Shutdown | Error::Left { .. }));
        let now = self.watch.now();
        for LaunchedBucket { bucket, records, trace, .. } in self.gpu.abandon() {
            let error = error.during(&bucket[0].request.name);
            self.watch.launched_ends((&bucket, &records), &trace, Some(&error), now);
        }
        let offer = self.express.as_mut().and_then(Express::take_offer);
        let offer = offer.map(|offer| (offer.request.name, offer.flight));
        for (name, flight) in self.flights.drain().chain(offer) {
            let error = error.during(&name);
            self.watch.watch_state().fail(flight.record, &error, now);
            flight.pending.complete(Err(error));
        }
        self.watch.world_ends(error);
        for submission in self.inbox.close(error.clone()) {
            match submission {
                Submission::Tensor { request, pending, .. } => {
                    pending.complete(Err(error.during(&request.name)));
                }
                Submission::Join { ticket } => ticket.complete(Err(error.during("join"))),
                Submission::Leave { ticket, .. } => ticket.complete(Ok(Outcome::Done)),
            }
        }
        if let Some(ticket) = self.joining.take() {
            ticket.complete(Err(error.during("join")));
        }
        if let Some(ticket) = self.leaving.take() {
            ticket.complete(Ok(Outcome::Done));
        }
        match &mut self.role {
            Role::Coordinator { plane, .. } => plane.finish(),
            Role::Member { plane } => plane.finish(),
        }
    }

    fn take_submissions(&mut self) -> Result<bool, Error> {
        if self.inbox.is_empty() {
            return Ok(false);
        }
        let mut messages = Vec::new();
        let mut urgent = false;
        let now = match self.role {
            Role::Coordinator { .. } => self.received_at,
            Role::Member { .. } => self.watch.now(),
        };
        let mut submissions = self.inbox.take();
        if submissions.len() == 1 {
            submissions =
                submissions.into_iter().filter_map(|only| self.offer(only, now)).collect();
        }
        for submission in submissions {
            match submission {
                Submission::Tensor { request, pending, .. } => {
                    let name = request.name.clone();
                    let record = self.watch.watch_state().queue(&request, now);
                    // Rank 0 may not be a member of the set; then it waits for nothing, and may be
                    // asleep.
                    urgent |= request.set != SetId::WORLD;
                    messages.push(self.member.submit(request));
                    self.flights.insert(name, InFlight { pending, record });
                }
                Submission::Join { ticket } if self.joining.is_some() => {
                    let error = "this rank has already joined; wait until all ranks have joined";
                    ticket.complete(Err(Error::Invalid(error.into())));
                }
                Submission::Join { ticket } => {
                    messages.push(self.member.join());
                    self.joining = Some(ticket);
                    urgent = true;
                }
                Submission::Leave { reason, ticket } => {
                    urgent = true;
                    messages.push(MemberToCoordinator::Leave { reason });
                    self.leaving = Some(ticket);
                }
            }
        }
        self.announce(messages, urgent, now)?;
        Ok(true)
    }

    /// Announces a tensor that was recorded as submitted.
    pub(super) fn announce_tensor(
        &mut self,
        request: Request,
        flight: InFlight,
    ) -> Result<(), Error> {
        let name = request.name.clone();
        let message = self.member.submit(request);
        self.flights.insert(name, flight);
        self.announce(vec![message], false, self.watch.now())
    }

    /// Sends messages to the coordinator. An urgent message wakes it even if it has no work.
    pub(super) fn announce(
        &mut self,
        messages: Vec<MemberToCoordinator>,
        urgent: bool,
        now: Duration,
    ) -> Result<(), Error> {
        let sent = match &mut self.role {
            Role::Coordinator { coordinator, .. } => {
                messages.into_iter().for_each(|message| coordinator.on(self.me, message, now));
                return Ok(());
            }
            Role::Member { plane } => {
                plane.send(&messages).map(|()| (plane.is_shared(), plane.is_pressing() || urgent))
            }
        };
        match sent {
            Ok((true, true)) => self.waiter.ring_rank(0),
            Ok((true, false)) => self.waiter.ring_others(),
            // A socket wakes the thread that waits for it.
            Ok((false, _)) => {}
            Err(broken) => return self.broken(broken),
        }
        Ok(())
    }

    fn coordinate(&mut self) -> Result<bool, Error> {
        let Role::Coordinator { coordinator, plane, own, stalls, .. } = &mut self.role else {
            return Ok(false);
        };
        let now = self.received_at;
        let mut busy = false;
        let mut result = Ok(());
        loop {
            match plane.receive() {
                Ok(Some((rank, messages))) => {
                    messages.into_iter().for_each(|message| coordinator.on(rank, message, now));
                    busy = true;
                }
                Ok(None) => break,
                Err(broken) => {
                    result = Err(broken);
                    break;
                }
            }
        }
        if let Some(reports) = stalls.check(coordinator, now) {
            self.watch.watch_state().count_stall();
            // Do not wait for a report that does not fit into the socket now.
            let at_once = Instant::now();
            reports.iter().for_each(|report| {
                self.waiter.failure_detector.tell_launcher(report, at_once);
            });
        }
        // One bucket at a time: tensors that become ready while it is in flight form the next one.
        if own.is_empty() {
            let is_gathering = coordinator.is_gathering();
            coordinator.release(|request| self.gpu.takes(request, is_gathering));
        }
        if self.watch.shows() {
            let concerns_this_rank = |entry: &JournalEntry| match entry {
                JournalEntry::Ready { set, .. } => self.groups.process_set(*set).is_some(),
                JournalEntry::Announced { .. } => true,
            };
            self.watch.noticed(coordinator.journal.take(), concerns_this_rank);
        }
        let messages = coordinator.take_messages();
        if !messages.is_empty() {
            result = result.and(plane.send(&messages));
            own.extend(messages);
            busy = true;
        } else if plane.has_backlog() {
            result = result.and(plane.flush().map(|_| ()));
        }
        // Nothing announces that the GPU is done with a bucket.
        let is_gathering = coordinator.is_gathering();
        let is_held_back = coordinator.has_ready(|request| !self.gpu.takes(request, is_gathering));
        self.waiter.hurry(plane.has_backlog() || is_held_back);
        if plane.has_backlog() {
            // A rank that sleeps because it has no work must be woken to read, so that the log gets
            // space.
            self.waiter.ring_everybody();
        } else if busy {
            self.waiter.ring_others();
        }
        match result {
            Ok(()) => Ok(busy),
            Err(broken) => self.broken(broken).map(|()| false),
        }
    }

    fn follow(&mut self) -> Result<bool, Error> {
        let messages = match &mut self.role {
            Role::Coordinator { own, .. } => own.drain(..).collect(),
            Role::Member { plane } => {
                if plane.has_backlog() {
                    let _ = plane.flush();
                }
                self.waiter.hurry(plane.has_backlog());
                match plane.receive() {
                    Ok(messages) => messages.unwrap_or_default(),
                    Err(broken) => return self.broken(broken).map(|()| false),
                }
            }
        };
        let busy = !messages.is_empty();
        if busy && matches!(self.role, Role::Member { .. }) {
            self.waiter.ring_others();
            self.received_at = self.watch.now();
        }
        self.moment = self.received_at;
        for message in messages {
            if let Some(event) = self.member.on(message) {
                self.event(event)?;
            }
        }
        Ok(busy)
    }

    fn event(&mut self, event: MemberEvent) -> Result<(), Error> {
        match event {
            MemberEvent::Run(bucket) => self.run(bucket),
            MemberEvent::Send(message) => self.announce(vec![message], true, self.received_at),
            MemberEvent::SetAdded { name, id, ranks, generation } => {
                self.groups.add(id, &ranks, generation);
                self.sets.add(id, ranks);
                self.complete(&name, Ok(Outcome::SetAdded { id }));
                Ok(())
            }
            MemberEvent::Bulletin(announcement) => self.on_announcement(announcement),
            MemberEvent::Malformed(what) => {
                self.waiter.world_state.end(Error::malformed(Rank(0), what));
                self.waiter.world_state.check()
            }
        }
    }

    fn on_announcement(&mut self, announcement: Announcement) -> Result<(), Error> {
        match announcement {
            Announcement::Fail { name, error } => self.complete(&name, Err(Error::Mismatch(error))),
            Announcement::Joined { last } => {
                if let Some(ticket) = self.joining.take() {
                    ticket.complete(Ok(Outcome::Joined { last }));
                }
            }
            Announcement::SetRemoved { name, id } => {
                self.groups.remove(id);
                self.gpu.remove(id);
                self.sets.remove(id);
                self.complete(&name, Ok(Outcome::Done));
            }
            Announcement::Tune(tuning) => self.groups.tune(tuning),
            Announcement::Left { rank, .. } if rank == self.me => {
                self.waiter.world_state.end_in_order();
                self.end(&Error::Shutdown);
            }
            Announcement::Left { rank, reason } => {
                self.waiter.world_state.part(rank, reason);
                return self.waiter.world_state.check();
            }
            Announcement::Stalled { missing, error } => {
                self.waiter.world_state.stall(&missing, error);
                return self.waiter.world_state.check();
            }
            Announcement::WriteDown => self.watch.order("a rank is late".into()),
        }
        Ok(())
    }

    /// Runs a released bucket. It holds more than one tensor only if they can be fused.
    fn run(&mut self, bucket: Vec<ReleasedTensor>) -> Result<(), Error> {
        let flight = |work: &ReleasedTensor| self.flights.remove(&work.request.name);
        let mut flights: Vec<Option<InFlight>> = bucket.iter().map(flight).collect();
        let is_on_gpu = bucket[0].request.device == DeviceKind::Gpu;
        let uses_nccl = match is_on_gpu {
            true => self.gpu.prepare(&mut self.groups, &self.waiter, (&bucket, &flights)),
            false => Ok(false),
        };
        let transfer = self.transfer(&bucket, uses_nccl == Ok(true));
        let records: Vec<Option<RecordId>> =
            flights.iter().map(|flight| flight.as_ref().map(|flight| flight.record)).collect();
        let mut trace = self.watch.bucket_starts(&bucket, &records, &transfer);
        let ran = uses_nccl.and_then(|_| {
            in_plain_environment(|| match is_on_gpu {
                true => self.gpu.run(&mut self.groups, &self.waiter, &bucket, &flights),
                false => run::run(&mut self.groups, &bucket, &mut flights),
            })
        });
        self.moment = self.watch.now();
        trace.algorithm = ran.as_ref().ok().and_then(|ran| ran.algorithm).unwrap_or_default();
        self.inbox.release_names(bucket.iter().map(|work| work.request.name.as_str()));
        match ran {
            Ok(run::BucketOutcome { outcome, .. }) => {
                self.tune(&bucket);
                if let (Some(express), SetId::WORLD) = (&mut self.express, bucket[0].request.set) {
                    express.bucket_ran();
                }
                match &outcome {
                    Ok(Outcome::Launched { done, .. }) => {
                        self.watch.bucket_launched(&bucket, self.moment);
                        self.gpu.follow(bucket, records, (trace, done.clone()));
                    }
                    _ => self.watch.bucket_ends((&bucket, &records), &trace, None, self.moment),
                }
                // A collective that allocates its results is never fused: its bucket holds one
                // submission.
                let others = outcome.as_ref().map_or(Outcome::Done, Outcome::of_others);
                let mut made = Some(outcome);
                for flight in flights.into_iter().flatten() {
                    flight.pending.complete(made.take().unwrap_or_else(|| Ok(others.of_others())));
                }
                Ok(())
            }
            Err(error) => {
                self.watch.bucket_ends((&bucket, &records), &trace, Some(&error), self.moment);
                for (flight, work) in flights.into_iter().zip(&bucket) {
                    if let Some(flight) = flight {
                        flight.pending.complete(Err(error.during(&work.request.name)));
                    }
                }
                self.waiter.world_state.end(error.clone());
                Err(error)
            }
        }
    }

    /// Reports the buckets that the GPU is done with.
    fn finish_on_gpu(&mut self) -> Result<(), Error> {
        let watch = &self.watch;
        let done = self.gpu.take_done(|| watch.now());
        let done = done.inspect_err(|error| self.waiter.world_state.end(error.clone()))?;
        for DoneBucket { launched, times: (started, ended) } in done {
            let LaunchedBucket { bucket, records, mut trace, .. } = launched;
            trace.starts_on_gpu(started);
            watch.launched_ends((&bucket, &records), &trace, None, ended);
        }
        Ok(())
    }

    /// How a bucket is transferred, and since when.
    fn transfer(&self, bucket: &[ReleasedTensor], uses_nccl: bool) -> Transfer {
        let process_set = self.groups.process_set(bucket[0].request.set);
        let (ranks, hosts) =
            process_set.map_or((0, 0), |process_set| (process_set.size(), process_set.hosts()));
        let transport = match hosts {
            _ if uses_nccl => "NCCL",
            0 => "NONE",
            1 => "SHM",
            several if several == ranks => "TCP",
            _ => "SHM_TCP",
        };
        Transfer { ranks, transport, released: self.received_at, started: self.moment }
    }

    fn tune(&mut self, bucket: &[ReleasedTensor]) {
        if let Role::Coordinator { coordinator, tuner, .. } = &mut self.role
            && let Some(search) = tuner
            && !search.on_bucket(bucket, coordinator, self.moment)
        {
            *tuner = None;
        }
    }

    fn complete(&mut self, name: &str, outcome: Result<Outcome, Error>) {
        self.inbox.release_names([name]);
        if let Some(flight) = self.flights.remove(name) {
            self.watch.settled(flight.record, name, outcome.as_ref().err());
            flight.pending.complete(outcome);
        }
    }

    fn broken(&mut self, broken: Broken) -> Result<(), Error> {
        if self.leaving.is_some() {
            self.waiter.world_state.end_in_order();
            self.end(&Error::Shutdown);
            return Ok(());
        }
        tracing::debug!(rank = broken.rank.0, cause = broken.cause, "control connection broken");
        if broken.transport == ControlPath::Memory {
            let who = self.waiter.world_state.name(broken.rank);
            let what = format!("data that {who} wrote is gone ({})", broken.cause);
            self.waiter.world_state.end(self.waiter.overwritten(&what));
        }
        let kind = CauseKind::ConnectionLost;
        self.waiter.world_state.suspect(broken.rank, (kind, broken.cause), Instant::now());
        self.waiter.check()
    }
}
