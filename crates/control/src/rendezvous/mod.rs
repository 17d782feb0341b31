//! The rendezvous as a decision: who has come, who is missing, who must hear what.
//!
//! The same ranks meet again and again: each `init` is a gathering of all of them, which becomes a
//! world with the next epoch once the last one has joined; each `shutdown` lets a rank leave in
//! order. What goes wrong ends a wait with words: a rank that dies is `Lost` for those who share a
//! world with it, and a gathering that can never be complete is `Refused`.
//!
//! Two sources tell of a death and they race: the connection that breaks and the agent's report,
//! which knows better why. Whatever comes first is held for [`PATIENCE`] where the other one may
//! still change the meaning. Nothing here waits, reads a clock or owns a socket.

mod member;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

pub use member::Seat;

use crate::cause::headline;
use crate::event::{self, Happening};
use crate::liveness::Roll;
use crate::status::Report;
use crate::wire::agent::Exit;
use crate::wire::{DriverToRank, Greeting, Peer, RankToDriver};
use crate::{Epoch, Rank};
use member::{Member, Phase};

/// A moment, counted from when the driver started.
pub type Time = Duration;

/// How long a broken connection waits for the agent's report, and the other way round.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// One authenticated connection, in the order they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection(pub u64);

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// Somebody with the job's key has greeted.
    Greeted(Connection, Greeting),
    /// Somebody said something.
    Said(Connection, RankToDriver),
    /// A connection has ended, whoever ended it.
    Closed(Connection),
    /// The agent of a rank says that the rank's process has ended.
    Exited(Rank, Exit),
    /// A rank's process is there but counts as lost, for this cause.
    Condemned(Rank, String),
    /// Time has passed.
    Tick,
}

/// What to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Tell these the same thing.
    Tell(Vec<Connection>, DriverToRank),
    /// End this connection once everything has been told.
    Close(Connection),
    /// A world has been formed.
    Formed(Epoch),
    /// A rank left.
    Left {
        /// Who.
        rank: Rank,
        /// The exception that ends it, if one does.
        error: Option<String>,
        /// The rank whose loss caused that exception, if one did.
        blames: Option<Rank>,
    },
    /// Something happened that belongs into the job's stream of events.
    Happened(Happening),
    /// A rank has said what it has done so far.
    Reported(Rank, Report),
    /// A rank has answered a `Ping`, and for how long it has waited for others.
    Answered(Rank, Option<Duration>),
    /// A rank was lost and everybody in its world has been told.
    Lost {
        /// Who.
        rank: Rank,
        /// How, in words.
        cause: String,
    },
}

/// Who else tells of a rank's death than the connection that breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reports {
    /// The agents of the launcher.
    Agents,
    /// Nobody: rank 0 lets the others meet, and somebody else's launcher has started them.
    Nobody,
}

/// The rendezvous of one job.
pub struct Rendezvous {
    version: String,
    limit: Duration,
    reports: Reports,
    members: Vec<Member>,
    connections: BTreeMap<Connection, Rank>,
    parked: Vec<Parked>,
    epoch: Epoch,
    /// How many worlds were complete.
    worlds: u64,
    /// Until when a gathering that has begun, or a world whose layout is open, must be complete.
    deadline: Option<Time>,
    /// Why no world can be formed any more, once a process has ended.
    doomed: Option<String>,
    /// The last world in which a rank has given up on another.
    given_up: Option<Epoch>,
}

/// A newcomer whose seat is still taken. When a rank joins again at once, its new connection may be
/// heard before its old one says that it leaves.
struct Parked {
    connection: Connection,
    rank: Rank,
    until: Time,
    said: Option<RankToDriver>,
}

impl Rendezvous {
    /// Nobody is there yet. `limit` bounds a gathering from its first rank to its last.
    pub fn new(version: &str, seats: Vec<Seat>, limit: Duration) -> Rendezvous {
        Rendezvous {
            version: version.to_owned(),
            limit,
            reports: Reports::Agents,
            members: seats.into_iter().map(Member::new).collect(),
            connections: BTreeMap::new(),
            parked: Vec::new(),
            epoch: Epoch(0),
            worlds: 0,
            deadline: None,
            doomed: None,
            given_up: None,
        }
    }

    /// The same without a launcher of ours: rank 0 lets `size` ranks meet. Where they are they say
    /// themselves, and a connection that closes is all that will ever be heard of a death.
    pub fn kept_by_a_rank(version: &str, size: u32, limit: Duration) -> Rendezvous {
        let seats = (0..size).map(|_| Seat { host: String::new(), slot: 0 }).collect();
        Rendezvous { reports: Reports::Nobody, ..Rendezvous::new(version, seats, limit) }
    }

    /// Takes in what happened at `now`.
    pub fn on(&mut self, event: Event, now: Time) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Greeted(connection, greeting) => {
                self.greeted(connection, &greeting, now, &mut actions);
            }
            Event::Said(connection, message) => self.said(connection, message, now, &mut actions),
            Event::Closed(connection) => self.closed(connection, now, &mut actions),
            Event::Exited(rank, exit) => self.exited(rank, &exit, now, &mut actions),
            Event::Condemned(rank, cause) => self.condemned(rank, cause, &mut actions),
            Event::Tick => {}
        }
        self.overdue(now, &mut actions);
        actions
    }

    /// When something must happen even if nothing else does.
    pub fn next_wakeup(&self) -> Option<Time> {
        let suspects = self.members.iter().filter_map(|member| member.suspect.as_ref());
        let times = suspects.map(|(until, _)| *until).chain(self.parked.iter().map(|p| p.until));
        times.chain(self.deadline).min()
    }

    /// The ranks whose world is complete, and the ways to them.
    pub fn inside(&self) -> impl Iterator<Item = (Rank, Connection)> {
        let all = (0..).map(Rank).zip(&self.members);
        all.filter_map(|(rank, member)| match member.phase {
            Phase::Inside { leader: Some(_) } => Some((rank, member.connection?)),
            _ => None,
        })
    }

    /// Who can be asked whether its process runs, and whom the others wait for.
    pub fn roll(&self) -> Roll {
        let all = || (0..).map(Rank).zip(&self.members);
        let is_gathering = all().any(|(_, member)| matches!(member.phase, Phase::Waiting(_)));
        let is_there = |member: &Member| member.connection.is_some() && member.answers;
        let is_missing = |member: &Member| is_gathering && member.connection.is_none();
        Roll {
            connected: all().filter(|(_, member)| is_there(member)).map(|(rank, _)| rank).collect(),
            missing: all().filter(|(_, m)| is_missing(m)).map(|(rank, _)| rank).collect(),
        }
    }

    /// A rank and where it sits.
    pub fn member(&self, rank: Rank) -> Option<event::Member> {
        self.members.get(rank.index()).map(|member| member.seat.member(rank))
    }

    /// The way to a rank, if it is connected.
    pub fn connection(&self, rank: Rank) -> Option<Connection> {
        self.members.get(rank.index())?.connection
    }

    fn greeted(
        &mut self,
        connection: Connection,
        greeting: &Greeting,
        now: Time,
        actions: &mut Vec<Action>,
    ) {
        let Greeting::Rendezvous { version, rank } = greeting else {
            let reason = "this is the launcher's rendezvous, where ranks join and nothing else";
            return refuse([connection], reason.into(), actions);
        };
        let (size, rank) = (self.members.len(), *rank);
        if *version != self.version {
            let reason = format!(
                "{rank} runs Ronde {version} and its launcher runs Ronde {}: install the same \
                 version on every host and start the job again",
                self.version
            );
            return refuse([connection], reason, actions);
        }
        if rank.index() >= size {
            let (name, source) = self.source_of_ranks();
            let reason = format!(
                "there is no {rank} in a world of {size}: {name} is set by {source} and must not be \
                 changed"
            );
            return refuse([connection], reason, actions);
        }
        if self.members[rank.index()].connection.is_some() {
            self.parked.push(Parked { connection, rank, until: now + PATIENCE, said: None });
            return;
        }
        self.admit(connection, rank, actions);
    }

    /// Gives a rank's free seat to a connection.
    fn admit(&mut self, connection: Connection, rank: Rank, actions: &mut Vec<Action>) {
        let member = &mut self.members[rank.index()];
        // Whoever comes again is no longer where it was, whatever its old connection failed to say.
        let suspicion = member.suspect.take();
        if let (Phase::Inside { .. }, Some((_, cause))) = (&member.phase, suspicion) {
            self.announce(rank, cause, actions);
        }
        let member = &mut self.members[rank.index()];
        member.connection = Some(connection);
        member.phase = Phase::Greeted;
        member.answers = true;
        self.connections.insert(connection, rank);
    }

    fn said(
        &mut self,
        connection: Connection,
        message: RankToDriver,
        now: Time,
        actions: &mut Vec<Action>,
    ) {
        if let Some(parked) = self.parked.iter_mut().find(|p| p.connection == connection) {
            parked.said.get_or_insert(message);
            return;
        }
        let Some(&rank) = self.connections.get(&connection) else { return };
        if let RankToDriver::Pong { waits } = message {
            return actions.push(Action::Answered(rank, waits));
        }
        match (message, &mut self.members[rank.index()].phase) {
            (RankToDriver::Join { pid, host, local_rank, addresses, unix }, Phase::Greeted) => {
                let peer = Peer { host, local_rank, pid, addresses, unix };
                self.joined(rank, peer, now, actions);
            }
            (RankToDriver::Located { leader: found }, Phase::Inside { leader: leader @ None })
                if found <= rank =>
            {
                *leader = Some(found);
                self.lay_out(actions);
            }
            (RankToDriver::Leaving { error, blames }, _) => {
                actions.push(Action::Left { rank, error: error.clone(), blames });
                self.leaving(rank, error, blames, now, actions);
                self.seat_parked(rank, now, actions);
            }
            (RankToDriver::Report(report), _) => actions.push(Action::Reported(rank, report)),
            (RankToDriver::Stalled { tensor, during, waiting, late }, _) => {
                let stalled = Happening::Stalled { tensor, seconds: during, waiting, late };
                actions.push(Action::Happened(stalled));
            }
            (RankToDriver::WorldEnded, _) => self.members[rank.index()].answers = false,
            (RankToDriver::GivenUp { rank: lost, cause }, _) => {
                self.members[rank.index()].answers = false;
                self.given_up(rank, lost, &cause, actions);
            }
            (message, _) => {
                let reason = format!("{rank} spoke out of turn: {message:?}");
                refuse([connection], reason, actions);
            }
        }
    }

    fn joined(&mut self, rank: Rank, peer: Peer, now: Time, actions: &mut Vec<Action>) {
        if let Some(reason) = &self.doomed {
            let reason = reason.clone();
            refuse(self.detach(rank), reason, actions);
            return;
        }
        if self.reports == Reports::Nobody {
            let seat = Seat { host: peer.host.clone(), slot: peer.local_rank };
            self.members[rank.index()].seat = seat;
        }
        self.members[rank.index()].phase = Phase::Waiting(peer);
        let member = self.members[rank.index()].seat.member(rank);
        actions.push(Action::Happened(Happening::WorkerJoined { member }));
        if self.members.iter().all(|member| matches!(member.phase, Phase::Waiting(_))) {
            self.form(now, actions);
        } else if self.deadline.is_none() {
            self.deadline = Some(now + self.limit);
        }
    }

    fn form(&mut self, now: Time, actions: &mut Vec<Action>) {
        self.epoch.0 += 1;
        let mut peers = Vec::with_capacity(self.members.len());
        for member in &mut self.members {
            let inside = Phase::Inside { leader: None };
            if let Phase::Waiting(peer) = std::mem::replace(&mut member.phase, inside) {
                peers.push(peer);
            }
        }
        self.deadline = Some(now + self.limit);
        actions.push(Action::Formed(self.epoch));
        let everybody = self.members.iter().filter_map(|member| member.connection).collect();
        actions.push(Action::Tell(everybody, DriverToRank::World { epoch: self.epoch, peers }));
    }

    fn lay_out(&mut self, actions: &mut Vec<Action>) {
        let found = self.members.iter().map(|member| match member.phase {
            Phase::Inside { leader } => leader,
            _ => None,
        });
        if let Some(leaders) = found.collect() {
            self.deadline = None;
            actions.push(Action::Tell(self.insiders(), DriverToRank::Layout { leaders }));
            self.worlds += 1;
            let (world, epoch) = (self.worlds, self.epoch);
            let members: Vec<event::Member> =
                (0..).map(Rank).map_while(|r| self.member(r)).collect();
            let newcomers = if world == 1 { members.len() as u32 } else { 0 };
            let formed = Happening::WorldFormed { world, epoch, members, newcomers };
            actions.push(Action::Happened(formed));
        }
    }

    fn leaving(
        &mut self,
        rank: Rank,
        error: Option<String>,
        blames: Option<Rank>,
        now: Time,
        actions: &mut Vec<Action>,
    ) {
        self.detach(rank);
        let member = &mut self.members[rank.index()];
        member.suspect = None;
        let Phase::Inside { leader } = member.phase else {
            member.phase = Phase::Away;
            return self.gathering_may_be_over();
        };
        match (error, blames) {
            (None, _) if leader.is_some() => member.phase = Phase::Away,
            (None, _) => self.announce(rank, "left before the world was complete".into(), actions),
            (Some(error), None) => {
                self.announce(rank, format!("raised {}", headline(&error)), actions);
            }
            // The others are about to hear of the rank it blames, which is what they should name.
            (Some(error), Some(_)) => {
                member.suspect = Some((now + PATIENCE, format!("raised {}", headline(&error))));
            }
        }
    }

    /// Passes on that a rank has given up on another which lives: to that one as its own loss. Only
    /// the first word about a world counts; the rest follow from it.
    fn given_up(&mut self, by: Rank, lost: Rank, cause: &str, actions: &mut Vec<Action>) {
        let inside = |rank: Rank| {
            let member = self.members.get(rank.index());
            member.filter(|member| matches!(member.phase, Phase::Inside { .. }))
        };
        let (Some(_), Some(theirs)) = (inside(by), inside(lost)) else { return };
        if by == lost || self.given_up == Some(self.epoch) {
            return;
        }
        let (itself, host) = (theirs.connection, theirs.seat.host.clone());
        let others = self.insiders().into_iter().filter(|other| Some(*other) != itself).collect();
        let what = format!("{cause} (seen by {})", self.members[by.index()].seat.name(by));
        actions.push(Action::Tell(others, DriverToRank::Lost { rank: lost, host, cause: what }));
        if let Some(itself) = itself {
            let host = self.members[by.index()].seat.host.clone();
            let cause = format!("it has given up on this rank: {cause}");
            actions.push(Action::Tell(vec![itself], DriverToRank::Lost { rank: by, host, cause }));
        }
        self.given_up = Some(self.epoch);
    }

    fn closed(&mut self, connection: Connection, now: Time, actions: &mut Vec<Action>) {
        self.parked.retain(|parked| parked.connection != connection);
        let Some(&rank) = self.connections.get(&connection) else { return };
        self.detach(rank);
        let member = &mut self.members[rank.index()];
        match (&member.phase, member.suspect.take(), self.reports) {
            (Phase::Inside { .. }, Some((_, cause)), _) => self.announce(rank, cause, actions),
            (Phase::Inside { .. }, None, Reports::Agents) => {
                let cause = "its connection to the launcher closed".into();
                member.suspect = Some((now + PATIENCE, cause));
            }
            (Phase::Inside { .. }, None, Reports::Nobody) => {
                self.announce(rank, "its process has ended, or its host is gone".into(), actions);
            }
            (Phase::Waiting(_), _, Reports::Nobody) => {
                let name = member.seat.name(rank);
                member.phase = Phase::Away;
                let reason = format!("{name} ended while the others were still to come");
                self.turn_away(|phase| matches!(phase, Phase::Waiting(_)), &reason, actions);
            }
            _ => {
                member.phase = Phase::Away;
                self.gathering_may_be_over();
            }
        }
        self.seat_parked(rank, now, actions);
    }

    fn exited(&mut self, rank: Rank, exit: &Exit, now: Time, actions: &mut Vec<Action>) {
        let Some(member) = self.members.get_mut(rank.index()) else { return };
        let name = member.seat.name(rank);
        match member.phase {
            // Its last words may still be on their way: a clean exit usually follows a clean leave.
            Phase::Inside { .. } if exit.is_success() && member.connection.is_some() => {
                member.suspect = Some((now + PATIENCE, format!("{exit} without leaving")));
            }
            Phase::Inside { .. } if exit.is_success() => {
                self.announce(rank, format!("{exit} without leaving"), actions);
            }
            Phase::Inside { .. } => self.announce(rank, exit.to_string(), actions),
            _ => {}
        }
        self.doom(&format!("{name} {exit}"), actions);
    }

    fn condemned(&mut self, rank: Rank, cause: String, actions: &mut Vec<Action>) {
        let Some(member) = self.members.get(rank.index()) else { return };
        let what = format!("{} {cause}", member.seat.name(rank));
        if matches!(member.phase, Phase::Inside { .. }) {
            self.announce(rank, cause, actions);
        }
        self.doom(&what, actions);
    }

    /// No world can be formed any more.
    fn doom(&mut self, what: &str, actions: &mut Vec<Action>) {
        let size = self.members.len();
        let reason = self.doomed.get_or_insert_with(|| {
            format!("{what} and cannot be part of the next world, which needs all {size} ranks")
        });
        let reason = reason.clone();
        self.turn_away(|phase| matches!(phase, Phase::Waiting(_)), &reason, actions);
    }

    /// Does what its time has come for.
    fn overdue(&mut self, now: Time, actions: &mut Vec<Action>) {
        for index in 0..self.members.len() {
            let due = self.members[index].suspect.take_if(|(until, _)| *until <= now);
            if let Some((_, cause)) = due {
                self.announce(Rank(index as u32), cause, actions);
            }
        }
        for index in (0..self.parked.len()).rev() {
            if self.parked[index].until <= now {
                let Parked { connection, rank, .. } = self.parked.remove(index);
                let (name, source) = self.source_of_ranks();
                let reason = format!(
                    "{rank} is already there: two processes have the same {name}, which is set by \
                     {source} and must not be changed"
                );
                refuse([connection], reason, actions);
            }
        }
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.time_is_up(actions);
        }
    }

    fn time_is_up(&mut self, actions: &mut Vec<Action>) {
        self.deadline = None;
        let open = |member: &Member| matches!(member.phase, Phase::Inside { leader: None });
        let laying_out = self.members.iter().any(open);
        let missing = self.members.iter().enumerate().filter(|(_, member)| match member.phase {
            Phase::Waiting(_) => false,
            Phase::Inside { leader: Some(_) } => !laying_out,
            _ => true,
        });
        let mut names: Vec<_> =
            missing.map(|(index, member)| member.seat.name(Rank(index as u32))).collect();
        let count = names.len();
        if count > 8 {
            names.truncate(8);
            names.push(format!("and {} more", count - 8));
        }
        let seconds = self.limit.as_secs();
        let reason = format!(
            "after {seconds} s {count} of {} ranks are still missing: {}; does every rank call \
             `hvd.init()`? RONDE_JOIN_TIMEOUT_SECONDS sets how long to wait",
            self.members.len(),
            names.join(", ")
        );
        if laying_out {
            self.turn_away(|phase| matches!(phase, Phase::Inside { .. }), &reason, actions);
        }
        self.turn_away(|phase| matches!(phase, Phase::Waiting(_)), &reason, actions);
    }

    /// Tells the world that a rank is lost to it.
    fn announce(&mut self, rank: Rank, cause: String, actions: &mut Vec<Action>) {
        let member = &mut self.members[rank.index()];
        member.phase = Phase::Away;
        member.suspect = None;
        let host = member.seat.host.clone();
        self.detach(rank);
        self.gathering_may_be_over();
        actions.push(Action::Lost { rank, cause: cause.clone() });
        let others = self.insiders();
        if !others.is_empty() {
            actions.push(Action::Tell(others, DriverToRank::Lost { rank, host, cause }));
        }
    }

    fn turn_away(&mut self, whom: fn(&Phase) -> bool, reason: &str, actions: &mut Vec<Action>) {
        let mut connections = Vec::new();
        for index in 0..self.members.len() {
            if whom(&self.members[index].phase) {
                self.members[index].phase = Phase::Away;
                self.members[index].suspect = None;
                connections.extend(self.detach(Rank(index as u32)));
            }
        }
        self.gathering_may_be_over();
        refuse(connections, reason.to_owned(), actions);
    }

    fn gathering_may_be_over(&mut self) {
        let open = |member: &Member| {
            matches!(member.phase, Phase::Waiting(_) | Phase::Inside { leader: None })
        };
        if !self.members.iter().any(open) {
            self.deadline = None;
        }
    }

    /// Lets the first one who waits for a rank's seat have it, now that it is free.
    fn seat_parked(&mut self, rank: Rank, now: Time, actions: &mut Vec<Action>) {
        if let Some(index) = self.parked.iter().position(|parked| parked.rank == rank) {
            let parked = self.parked.remove(index);
            self.admit(parked.connection, rank, actions);
            if let Some(message) = parked.said {
                self.said(parked.connection, message, now, actions);
            }
        }
    }

    /// By which name a process knows its rank, and who has told it.
    fn source_of_ranks(&self) -> (&'static str, &'static str) {
        match self.reports {
            Reports::Agents => ("HOROVOD_RANK", "`horovodrun`"),
            Reports::Nobody => ("rank", "the launcher"),
        }
    }

    fn detach(&mut self, rank: Rank) -> Option<Connection> {
        let connection = self.members[rank.index()].connection.take()?;
        self.connections.remove(&connection);
        Some(connection)
    }

    fn insiders(&self) -> Vec<Connection> {
        let inside = self.members.iter().filter(|m| matches!(m.phase, Phase::Inside { .. }));
        inside.filter_map(|member| member.connection).collect()
    }
}

fn refuse(
    connections: impl IntoIterator<Item = Connection>,
    reason: String,
    actions: &mut Vec<Action>,
) {
    let connections: Vec<_> = connections.into_iter().collect();
    if !connections.is_empty() {
        let closes = connections.iter().copied().map(Action::Close).collect::<Vec<_>>();
        actions.push(Action::Tell(connections, DriverToRank::Refused { reason }));
        actions.extend(closes);
    }
}
