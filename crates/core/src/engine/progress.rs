//! The one who drives: takes submissions in, negotiates, runs what is released, completes tickets.
//!
//! Whoever holds the lock on it drives: a thread that waits for a result, or the background thread.
//! A turn never blocks on the negotiation; it blocks only inside a collective that all ranks have
//! been released into, and every such wait ends when the world does.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ronde_control::cause::CauseKind;
use ronde_control::negotiate::{
    Bulletin, Coordinator, CoordinatorToMember, Member, MemberEvent, MemberToCoordinator, Notice,
    Work,
};
use ronde_control::wire::RankToDriver;
use ronde_control::{Rank, SetId};

use super::inbox::{Inbox, Submission};
use super::plane::{Broken, FollowPlane, LeadPlane, Way};
use super::stall::StallWatch;
use super::ticket::{Outcome, Pending, Ticket};
use super::tune::Tuner;
use super::{Sets, run};
use crate::error::Error;
use crate::group::Groups;
use crate::reduce::in_plain_environment;
use crate::transport::vigil::Vigil;
use crate::watch::{Leg, RecordId, Watch};

/// How long the news of a lost rank may take on their way to the launcher.
const LAST_WORD: Duration = Duration::from_millis(200);

pub(super) struct Progress {
    pub(super) groups: Groups,
    pub(super) role: Role,
    pub(super) vigil: Arc<Vigil>,
    pub(super) inbox: Arc<Inbox>,
    member: Member,
    me: Rank,
    flights: HashMap<String, Flight>,
    sets: Arc<Sets>,
    joining: Option<Arc<Ticket>>,
    leaving: Option<Arc<Ticket>>,
    is_over: bool,
    watch: Arc<Watch>,
    /// When the messages came that are being followed, and when the last bucket ended.
    heard: Duration,
    moment: Duration,
}

#[expect(clippy::large_enum_variant, reason = "there is one role per world")]
pub(super) enum Role {
    Coordinator {
        coordinator: Coordinator,
        plane: LeadPlane,
        /// The coordinator's messages to its own rank.
        own: VecDeque<CoordinatorToMember>,
        stalls: StallWatch,
        /// The search for a better fusion threshold, while there is one.
        tuner: Option<Tuner>,
    },
    Member {
        plane: FollowPlane,
    },
}

pub(super) struct Flight {
    pub(super) pending: Pending,
    pub(super) record: RecordId,
}

impl Progress {
    pub(super) fn new(
        me: Rank,
        groups: Groups,
        role: Role,
        vigil: Arc<Vigil>,
        (inbox, sets, watch): (Arc<Inbox>, Arc<Sets>, Arc<Watch>),
    ) -> Progress {
        Progress {
            groups,
            role,
            vigil,
            inbox,
            member: Member::new(me),
            me,
            flights: HashMap::new(),
            sets,
            joining: None,
            leaving: None,
            is_over: false,
            watch,
            heard: Duration::ZERO,
            moment: Duration::ZERO,
        }
    }

    /// Does what there is to do; gives whether there was anything.
    pub(super) fn turn(&mut self) -> Result<bool, Error> {
        if self.is_over {
            return Ok(false);
        }
        if let Role::Coordinator { coordinator, .. } = &mut self.role {
            // Reading the clock is not free, so it is read once; members read it when they hear.
            self.heard = self.watch.now();
            match self.watch.shows() {
                true => coordinator.journal.start(),
                false => coordinator.journal.stop(),
            }
        }
        let mut busy = self.take_submissions()?;
        busy |= self.coordinate()?;
        busy |= self.follow()?;
        Ok(busy)
    }

    /// Whether there is something to do that the last turn could not have seen.
    pub(super) fn has_input(&self) -> bool {
        let from_others = match &self.role {
            Role::Coordinator { coordinator, plane, own, .. } => {
                plane.has_input() || coordinator.has_ready() || !own.is_empty()
            }
            Role::Member { plane } => plane.has_input(),
        };
        !self.is_over && (from_others || !self.inbox.is_empty())
    }

    /// Whether this rank waits for something of the others.
    pub(super) fn is_outstanding(&self) -> bool {
        let backlog = match &self.role {
            Role::Coordinator { plane, .. } => plane.has_backlog(),
            Role::Member { plane } => plane.has_backlog(),
        };
        let waits = self.joining.is_some() || self.leaving.is_some();
        !self.is_over && (backlog || waits || !self.flights.is_empty())
    }

    /// Whether the world has ended for this rank.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Ends everything with this error, for ever.
    pub(super) fn end(&mut self, error: &Error) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        match error {
            Error::Lost { rank, cause, .. } => {
                self.vigil.spread_death(*rank);
                let given_up = RankToDriver::GivenUp { rank: *rank, cause: cause.clone() };
                let soon = Instant::now() + LAST_WORD;
                self.vigil.sentinel.tell_launcher(&given_up, soon);
            }
            // The others learn of these by themselves, in order.
            Error::Left { .. } | Error::Shutdown => self.vigil.sentinel.say_farewell(),
            Error::Stalled { .. } | Error::LauncherGone { .. } => {}
            Error::Overwritten { .. } => self.vigil.spread_mistrust(),
            _ => self.vigil.spread_death(self.me),
        }
        if !matches!(error, Error::Lost { .. } | Error::Shutdown | Error::LauncherGone { .. }) {
            let soon = Instant::now() + LAST_WORD;
            self.vigil.sentinel.tell_launcher(&RankToDriver::WorldEnded, soon);
        }
        self.member.abandon();
        let now = self.watch.now();
        for (name, flight) in self.flights.drain() {
            let error = error.during(&name);
            self.watch.ledger().fail(flight.record, &error, now);
            flight.pending.complete(Err(error));
        }
        self.watch.world_ends(error);
        for submission in self.inbox.close(error.clone()) {
            match submission {
                Submission::Tensor { request, pending } => {
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
            Role::Coordinator { .. } => self.heard,
            Role::Member { .. } => self.watch.now(),
        };
        for submission in self.inbox.take() {
            match submission {
                Submission::Tensor { request, pending } => {
                    let name = request.name.clone();
                    let record = self.watch.ledger().queue(&request, now);
                    // Rank 0 may be no member, and then it waits for nothing and sleeps.
                    urgent |= request.set != SetId::WORLD;
                    messages.push(self.member.submit(request));
                    self.flights.insert(name, Flight { pending, record });
                }
                Submission::Join { ticket } if self.joining.is_some() => {
                    let error = "this rank has joined already; wait for that until all have";
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

    /// Tells the coordinator; an urgent message wakes it even if it has nothing to do.
    fn announce(
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
            Ok((true, true)) => self.vigil.ring_rank(0),
            Ok((true, false)) => self.vigil.ring_others(),
            // A socket wakes whoever waits for it.
            Ok((false, _)) => {}
            Err(broken) => return self.broken(broken),
        }
        Ok(())
    }

    fn coordinate(&mut self) -> Result<bool, Error> {
        let Role::Coordinator { coordinator, plane, own, stalls, .. } = &mut self.role else {
            return Ok(false);
        };
        let now = self.heard;
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
        if let Some(news) = stalls.look(coordinator, now) {
            self.watch.ledger().count_stall();
            // A word that does not fit into the socket is not worth a wait.
            let at_once = Instant::now();
            news.iter().for_each(|word| self.vigil.sentinel.tell_launcher(word, at_once));
        }
        // One bucket at a time: what becomes ready while it is on the wire makes the next one.
        if own.is_empty() {
            coordinator.release();
        }
        if self.watch.shows() {
            let is_mine = |notice: &Notice| match notice {
                Notice::Ready { set, .. } => self.groups.circle(*set).is_some(),
                Notice::Announced { .. } => true,
            };
            self.watch.noticed(coordinator.journal.take(), is_mine);
        }
        let messages = coordinator.take_messages();
        if !messages.is_empty() {
            result = result.and(plane.send(&messages));
            own.extend(messages);
            busy = true;
        } else if plane.has_backlog() {
            result = result.and(plane.flush().map(|_| ()));
        }
        self.vigil.hurry(plane.has_backlog());
        if plane.has_backlog() {
            // Somebody who sleeps because nothing is its business must read, to make room.
            self.vigil.ring_everybody();
        } else if busy {
            self.vigil.ring_others();
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
                self.vigil.hurry(plane.has_backlog());
                match plane.receive() {
                    Ok(messages) => messages.unwrap_or_default(),
                    Err(broken) => return self.broken(broken).map(|()| false),
                }
            }
        };
        let busy = !messages.is_empty();
        if busy && matches!(self.role, Role::Member { .. }) {
            self.vigil.ring_others();
            self.heard = self.watch.now();
        }
        self.moment = self.heard;
        for message in messages {
            if let Some(event) = self.member.on(message) {
                self.event(event)?;
            }
        }
        Ok(busy)
    }

    fn event(&mut self, event: MemberEvent) -> Result<(), Error> {
        match event {
            MemberEvent::Run(bucket) => self.run(&bucket),
            MemberEvent::Send(message) => self.announce(vec![message], true, self.heard),
            MemberEvent::SetAdded { name, id, ranks, generation } => {
                self.groups.add(id, &ranks, generation);
                self.sets.add(id, ranks);
                self.complete(&name, Ok(Outcome::SetAdded { id }));
                Ok(())
            }
            MemberEvent::Bulletin(bulletin) => self.hear(bulletin),
            MemberEvent::Nonsense(what) => {
                self.vigil.fate.seal(Error::nonsense(Rank(0), what));
                self.vigil.fate.check()
            }
        }
    }

    fn hear(&mut self, bulletin: Bulletin) -> Result<(), Error> {
        match bulletin {
            Bulletin::Fail { name, error } => self.complete(&name, Err(Error::Mismatch(error))),
            Bulletin::Joined { last } => {
                if let Some(ticket) = self.joining.take() {
                    ticket.complete(Ok(Outcome::Joined { last }));
                }
            }
            Bulletin::SetRemoved { name, id } => {
                self.groups.remove(id);
                self.sets.remove(id);
                self.complete(&name, Ok(Outcome::Done));
            }
            Bulletin::Tune(tuning) => self.groups.tune(tuning),
            Bulletin::Left { rank, .. } if rank == self.me => {
                self.vigil.fate.end_in_order();
                self.end(&Error::Shutdown);
            }
            Bulletin::Left { rank, reason } => {
                self.vigil.fate.part(rank, reason);
                return self.vigil.fate.check();
            }
            Bulletin::Stalled { missing, error } => {
                self.vigil.fate.stall(&missing, error);
                return self.vigil.fate.check();
            }
            Bulletin::WriteDown => self.watch.order("somebody is late".into()),
        }
        Ok(())
    }

    /// Runs a released bucket; only tensors that fuse come together.
    fn run(&mut self, bucket: &[Work]) -> Result<(), Error> {
        let flight = |work: &Work| self.flights.remove(&work.request.name);
        let mut flights: Vec<Option<Flight>> = bucket.iter().map(flight).collect();
        let leg = self.leg(bucket);
        let records = flights.iter().map(|flight| flight.as_ref().map(|flight| flight.record));
        let mut passage = self.watch.bucket_starts(bucket, records, &leg);
        let ran = in_plain_environment(|| run::run(&mut self.groups, bucket, &mut flights));
        self.moment = self.watch.now();
        passage.algorithm = ran.as_ref().ok().and_then(|ran| ran.algorithm).unwrap_or_default();
        let records = flights.iter().map(|flight| flight.as_ref().map(|flight| flight.record));
        self.watch.bucket_ends((bucket, records), &passage, ran.as_ref().err(), self.moment);
        self.inbox.release_names(bucket.iter().map(|work| work.request.name.as_str()));
        match ran {
            Ok(run::Ran { outcome, .. }) => {
                self.tune(bucket);
                // What makes something comes alone.
                let mut made = Some(outcome);
                for flight in flights.into_iter().flatten() {
                    flight.pending.complete(made.take().unwrap_or(Ok(Outcome::Done)));
                }
                Ok(())
            }
            Err(error) => {
                for (flight, work) in flights.into_iter().zip(bucket) {
                    if let Some(flight) = flight {
                        flight.pending.complete(Err(error.during(&work.request.name)));
                    }
                }
                self.vigil.fate.seal(error.clone());
                Err(error)
            }
        }
    }

    /// How a bucket travels, and since when.
    fn leg(&self, bucket: &[Work]) -> Leg {
        let circle = self.groups.circle(bucket[0].request.set);
        let (ranks, hosts) = circle.map_or((0, 0), |circle| (circle.size(), circle.hosts()));
        let way = match hosts {
            0 => "NONE",
            1 => "SHM",
            several if several == ranks => "TCP",
            _ => "SHM_TCP",
        };
        Leg { ranks, way, released: self.heard, started: self.moment }
    }

    fn tune(&mut self, bucket: &[Work]) {
        if let Role::Coordinator { coordinator, tuner, .. } = &mut self.role
            && let Some(search) = tuner
            && !search.goes_on(bucket, coordinator, self.moment)
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
            self.vigil.fate.end_in_order();
            self.end(&Error::Shutdown);
            return Ok(());
        }
        tracing::debug!(rank = broken.rank.0, cause = broken.cause, "a control connection broke");
        if broken.way == Way::Memory {
            let who = self.vigil.fate.name(broken.rank);
            let what = format!("what {who} has written is not there any more ({})", broken.cause);
            self.vigil.fate.seal(self.vigil.overwritten(&what));
        }
        let kind = CauseKind::ConnectionLost;
        self.vigil.fate.suspect(broken.rank, (kind, broken.cause), Instant::now());
        self.vigil.check()
    }
}
