//! The one who drives: takes submissions in, negotiates, runs what is released, completes tickets.
//!
//! Whoever holds the lock on it drives: a thread that waits for a result, or the background thread.
//! A turn never blocks on the negotiation; it blocks only inside a collective that all ranks have
//! been released into, and every such wait ends when the world does.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use ronde_control::Rank;
use ronde_control::negotiate::{
    Coordinator, CoordinatorToMember, Kind, Member, MemberEvent, MemberToCoordinator, Request, Work,
};

use super::inbox::{Inbox, Submission};
use super::plane::{Broken, FollowPlane, LeadPlane};
use super::stall::StallWatch;
use super::ticket::{Outcome, Ticket};
use crate::buffer::{Buffer, Region, Segments};
use crate::collective::{self, Operands};
use crate::error::Error;
use crate::group::Group;
use crate::reduce::Reduction;
use crate::transport::vigil::Vigil;

pub(super) struct Progress {
    pub(super) group: Group,
    pub(super) role: Role,
    pub(super) vigil: Arc<Vigil>,
    pub(super) inbox: Arc<Inbox>,
    member: Member,
    me: Rank,
    flights: HashMap<String, Flight>,
    leaving: Option<Arc<Ticket>>,
    is_over: bool,
    start: Instant,
}

#[expect(clippy::large_enum_variant, reason = "there is one role per world")]
pub(super) enum Role {
    Coordinator {
        coordinator: Coordinator,
        plane: LeadPlane,
        /// The coordinator's messages to its own rank.
        own: VecDeque<CoordinatorToMember>,
        stalls: StallWatch,
    },
    Member {
        plane: FollowPlane,
    },
}

struct Flight {
    ticket: Arc<Ticket>,
    sources: Vec<Region>,
    targets: Vec<Region>,
}

impl Progress {
    pub(super) fn new(
        me: Rank,
        group: Group,
        role: Role,
        vigil: Arc<Vigil>,
        inbox: Arc<Inbox>,
    ) -> Progress {
        Progress {
            group,
            role,
            vigil,
            inbox,
            member: Member::default(),
            me,
            flights: HashMap::new(),
            leaving: None,
            is_over: false,
            start: Instant::now(),
        }
    }

    /// Does what there is to do; gives whether there was anything.
    pub(super) fn turn(&mut self) -> Result<bool, Error> {
        if self.is_over {
            return Ok(false);
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
        !self.is_over && (backlog || !self.flights.is_empty() || self.leaving.is_some())
    }

    /// Ends everything with this error, for ever.
    pub(super) fn end(&mut self, error: &Error) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        if let Error::Lost { rank, .. } = error {
            self.vigil.spread_death(*rank);
        }
        self.member.abandon();
        for (name, flight) in self.flights.drain() {
            flight.ticket.complete(Err(during(error, &name)));
        }
        for submission in self.inbox.close(error.clone()) {
            if let Submission::Tensor { request, ticket, .. } = submission {
                ticket.complete(Err(during(error, &request.name)));
            } else if let Submission::Leave { ticket, .. } = submission {
                ticket.complete(Ok(Outcome::Done));
            }
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
        for submission in self.inbox.take() {
            match submission {
                Submission::Tensor { request, sources, targets, ticket } => {
                    let name = request.name.clone();
                    match self.member.submit(request) {
                        Ok(message) => {
                            messages.push(message);
                            self.flights.insert(name, Flight { ticket, sources, targets });
                        }
                        Err(error) => ticket.complete(Err(Error::Invalid(error.to_string()))),
                    }
                }
                Submission::Leave { reason, ticket } => {
                    messages.push(MemberToCoordinator::Leave { reason });
                    self.leaving = Some(ticket);
                }
            }
        }
        self.announce(messages)?;
        Ok(true)
    }

    fn announce(&mut self, messages: Vec<MemberToCoordinator>) -> Result<(), Error> {
        let now = self.start.elapsed();
        let leaving = self.leaving.is_some();
        let sent = match &mut self.role {
            Role::Coordinator { coordinator, .. } => {
                messages.into_iter().for_each(|message| coordinator.on(self.me, message, now));
                return Ok(());
            }
            Role::Member { plane } => plane.send(&messages).map(|()| plane.is_pressing()),
        };
        match sent {
            Ok(pressing) if pressing || leaving => self.vigil.ring_rank(0),
            Ok(_) => self.vigil.ring_others(),
            Err(broken) => return self.broken(broken),
        }
        Ok(())
    }

    fn coordinate(&mut self) -> Result<bool, Error> {
        let now = self.start.elapsed();
        let Role::Coordinator { coordinator, plane, own, stalls } = &mut self.role else {
            return Ok(false);
        };
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
        stalls.look(coordinator, now);
        // One bucket at a time: what becomes ready while it is on the wire makes the next one.
        if own.is_empty() {
            coordinator.release();
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
        if busy {
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
                    self.vigil.hurry(plane.has_backlog());
                }
                match plane.receive() {
                    Ok(messages) => messages.unwrap_or_default(),
                    Err(broken) => return self.broken(broken).map(|()| false),
                }
            }
        };
        let busy = !messages.is_empty();
        if busy && matches!(self.role, Role::Member { .. }) {
            self.vigil.ring_others();
        }
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
            MemberEvent::Fail { name, error } => {
                self.complete(&name, Err(Error::Mismatch(error)));
                Ok(())
            }
            MemberEvent::Send(message) => self.announce(vec![message]),
            MemberEvent::Left { rank, reason } => {
                if rank == self.me {
                    self.vigil.fate.end_in_order();
                    self.end(&Error::Shutdown);
                    return Ok(());
                }
                self.vigil.fate.part(rank, reason);
                self.vigil.fate.check()
            }
            MemberEvent::Stalled { error } => {
                self.vigil.fate.seal(Error::Stalled(error));
                self.vigil.fate.check()
            }
            MemberEvent::Nonsense(what) => {
                self.vigil.fate.seal(Error::Nonsense { rank: Rank(0), what });
                self.vigil.fate.check()
            }
        }
    }

    /// Runs a released bucket. All its tensors are of one kind; only those that fuse come together.
    fn run(&mut self, bucket: &[Work]) -> Result<(), Error> {
        let mut flights = Vec::with_capacity(bucket.len());
        for work in bucket {
            let flight = self.flights.remove(&work.request.name);
            flights.push(flight.expect("what this rank announced is in flight"));
        }
        let outcome = run_bucket(&mut self.group, bucket, &flights);
        self.inbox.release_names(bucket.iter().map(|work| work.request.name.as_str()));
        match outcome {
            Ok(mut gathered) => {
                for flight in &flights {
                    let outcome = gathered.take().unwrap_or(Outcome::Done);
                    flight.ticket.complete(Ok(outcome));
                }
                Ok(())
            }
            Err(error) => {
                for (flight, work) in flights.iter().zip(bucket) {
                    flight.ticket.complete(Err(during(&error, &work.request.name)));
                }
                self.vigil.fate.seal(error.clone());
                Err(error)
            }
        }
    }

    fn complete(&mut self, name: &str, outcome: Result<Outcome, Error>) {
        self.inbox.release_names([name]);
        if let Some(flight) = self.flights.remove(name) {
            flight.ticket.complete(outcome);
        }
    }

    fn broken(&mut self, broken: Broken) -> Result<(), Error> {
        if self.leaving.is_some() {
            self.vigil.fate.end_in_order();
            self.end(&Error::Shutdown);
            return Ok(());
        }
        tracing::debug!(rank = broken.rank.0, cause = broken.cause, "a control connection broke");
        self.vigil.fate.suspect(broken.rank, broken.cause, Instant::now());
        self.vigil.check()
    }
}

/// Runs one bucket; gives the outcome if it is more than "done".
fn run_bucket(
    group: &mut Group,
    bucket: &[Work],
    flights: &[Flight],
) -> Result<Option<Outcome>, Error> {
    let Request { kind, dtype, .. } = &bucket[0].request;
    tracing::trace!(kind = kind.name(), tensors = bucket.len(), "running a bucket");
    let row = |regions: fn(&Flight) -> &[Region]| {
        Segments::new(flights.iter().flat_map(regions).copied().collect())
    };
    let operands =
        Operands { source: row(|flight| &flight.sources), target: row(|flight| &flight.targets) };
    match kind {
        Kind::Allreduce { op, prescale, postscale } => {
            let reduction =
                Reduction { dtype: *dtype, op: *op, prescale: *prescale, postscale: *postscale };
            collective::allreduce(group, &operands, &reduction).map(|()| None)
        }
        Kind::Broadcast { root } => {
            collective::broadcast(group, &operands, root.index()).map(|()| None)
        }
        Kind::Barrier => collective::barrier(group).map(|()| None),
        Kind::Allgather => {
            let (buffer, cuts) = gathering(&bucket[0]);
            let target = Segments::new(vec![buffer.region()]);
            let operands = Operands { source: operands.source, target };
            collective::allgather(group, &operands, &cuts)?;
            Ok(Some(Outcome::Gathered { buffer, rows: bucket[0].rows.clone() }))
        }
    }
}

/// The memory that a gathering ends in, and which part of it is whose.
fn gathering(work: &Work) -> (Buffer, Vec<Range<usize>>) {
    let shape = &work.request.shapes[0];
    let row: u64 = shape[1..].iter().product::<u64>() * work.request.dtype.size() as u64;
    let mut end = 0;
    let cuts: Vec<Range<usize>> = work
        .rows
        .iter()
        .map(|rows| {
            let start = end;
            end += (rows * row) as usize;
            start..end
        })
        .collect();
    (Buffer::new(end), cuts)
}

/// The error as the waiter for one tensor should read it.
fn during(error: &Error, name: &str) -> Error {
    match error.clone() {
        Error::Lost { rank, host, slot, cause } => {
            let cause = format!("{cause} (while this rank waited for `{name}`)");
            Error::Lost { rank, host, slot, cause }
        }
        Error::Left { rank, host, slot, reason } => {
            let reason = format!("{reason} (while this rank waited for `{name}`)");
            Error::Left { rank, host, slot, reason }
        }
        other => other,
    }
}
