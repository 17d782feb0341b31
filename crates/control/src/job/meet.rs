//! What workers say: they come, join, take their places, leave.

use super::member::{Member, Next, Phase};
use super::{Action, Machine, PATIENCE, Recovery, Reports, World, words};
use crate::cause::{Cause, CauseKind, Raised, headline};
use crate::event::{Happening, Seconds};
use crate::wire::{DriverToRank, Greeting, Milestone, Peer, RankToDriver};
use crate::{Connection, Rank, Time, Worker};

impl Machine {
    pub(super) fn greeted(&mut self, connection: Connection, greeting: &Greeting, now: Time) {
        let (worker, version) = match (greeting, self.terms.outlives_losses()) {
            (Greeting::Rendezvous { version, rank }, false) => (Worker(rank.0), version),
            (Greeting::Worker { version, worker }, true) => (*worker, version),
            _ => return self.refuse([connection], words::WRONG_GUEST.into()),
        };
        if *version != self.version {
            let who = self.number(worker);
            return self.refuse([connection], words::other_version(&who, version, &self.version));
        }
        let Some(member) = self.members.get(&worker) else {
            return self.unknown(connection, worker);
        };
        if let Some(going) = &member.going {
            return self.turn_away(connection, going.reason.clone());
        }
        if self.finishing && self.terms.outlives_losses() {
            return self.turn_away(connection, words::FINISHED.into());
        }
        let parks =
            member.connection.is_some() && (member.is_inside() || !self.terms.outlives_losses());
        self.connections.insert(connection, worker);
        let next = Next { connection, said: None, until: now + PATIENCE };
        if let Some(before) = self.member(worker).and_then(|member| member.next.replace(next)) {
            self.refuse_twin(worker, before.connection);
        }
        match parks {
            true => self.alarm(now + PATIENCE),
            false => self.admit(worker, now),
        }
    }

    /// The number that a worker knows itself by.
    fn number(&self, worker: Worker) -> String {
        match self.terms.outlives_losses() {
            true => worker.to_string(),
            false => Rank(worker.0).to_string(),
        }
    }

    /// Somebody greets who is not expected, or not any more.
    fn unknown(&mut self, connection: Connection, worker: Worker) {
        if self.terms.outlives_losses() {
            return self.turn_away(connection, "its end has been reported".into());
        }
        let reason = match (&self.doomed, worker.0 < self.terms.start) {
            (Some(reason), true) => reason.clone(),
            _ => words::no_such_rank(Rank(worker.0), self.terms.start, self.source_of_ranks()),
        };
        self.refuse([connection], reason);
    }

    /// Two processes say that they are the same one.
    fn refuse_twin(&mut self, worker: Worker, connection: Connection) {
        self.connections.remove(&connection);
        let reason = words::twin(Rank(worker.0), self.source_of_ranks());
        self.refuse([connection], reason);
    }

    /// By which name a process knows its rank, and who has told it.
    fn source_of_ranks(&self) -> (&'static str, &'static str) {
        match self.reports {
            Reports::Agents => ("HOROVOD_RANK", "`horovodrun`"),
            Reports::Nobody => ("rank", "the launcher"),
        }
    }

    /// Lets a worker in if it has come again: it is no longer where it was.
    pub(super) fn admit(&mut self, worker: Worker, now: Time) {
        let Some(member) = self.member(worker).filter(|it| it.next.is_some()) else { return };
        let again = || Cause::plain(CauseKind::Left, "came again without a word");
        let cause = member.suspect.take().map_or_else(again, |(_, cause)| cause);
        self.lose(worker, &cause, now);
        self.detach(worker);
        let Some(member) = self.member(worker) else { return };
        let Some(Next { connection, said, .. }) = member.next.take() else { return };
        if let Some(going) = &member.going {
            let reason = going.reason.clone();
            self.connections.remove(&connection);
            return self.turn_away(connection, reason);
        }
        member.connection = Some(connection);
        member.answers = true;
        member.phase = Phase::Greeted;
        if let Some(message) = said {
            self.said(connection, message, now);
        }
    }

    /// A second connection has waited in vain for the end of the first.
    pub(super) fn overstayed(&mut self, worker: Worker, now: Time) {
        if self.terms.outlives_losses() {
            return self.admit(worker, now);
        }
        if let Some(next) = self.member(worker).and_then(|member| member.next.take()) {
            self.refuse_twin(worker, next.connection);
        }
    }

    pub(super) fn said(&mut self, connection: Connection, message: RankToDriver, now: Time) {
        let Some(&worker) = self.connections.get(&connection) else { return };
        // Even if its end was reported before its last words came: there was a state to lose.
        let outlives = self.terms.outlives_losses();
        self.progress |= outlives && matches!(message, RankToDriver::Reached(_));
        let Some(member) = self.members.get_mut(&worker) else {
            if let RankToDriver::Leaving { error: error @ Some(_), blames } = message {
                self.verdict.left(worker, error, blames.and_then(|rank| self.with_rank(rank)));
            }
            return;
        };
        if let Some(next) = member.next.as_mut().filter(|next| next.connection == connection) {
            next.said.get_or_insert(message);
            return;
        }
        match (message, &mut member.phase) {
            (RankToDriver::Pong { waits }, _) => self.liveness.heard(worker, waits, now),
            (RankToDriver::Report(report), _) => self.reported(worker, report),
            (RankToDriver::Join(peer), Phase::Greeted) => self.joined(worker, peer, now),
            (RankToDriver::Located { leader: found }, Phase::Inside { leader: leader @ None })
                if found <= member.rank =>
            {
                *leader = Some(found);
                self.lay_out(now);
            }
            (RankToDriver::Leaving { error, blames }, _) => self.left(worker, error, blames, now),
            (RankToDriver::WorldEnded, _) => member.answers = false,
            (RankToDriver::Stalled { tensor, during, waiting, late }, _) => {
                self.happened(Happening::Stalled {
                    tensor,
                    seconds: Seconds(during),
                    waiting,
                    late,
                });
            }
            (RankToDriver::GivenUp { rank, cause }, _) => {
                member.answers = false;
                self.given_up(worker, rank, &cause, now);
            }
            (RankToDriver::Reached(milestone), _) if outlives => {
                self.reached(worker, milestone, now);
            }
            (RankToDriver::Departing { reason }, _) if outlives => {
                self.dismiss_one(worker, reason, now);
            }
            (message, _) => {
                let who = self.number(worker);
                self.refuse([connection], format!("{who} spoke out of turn: {message:?}"));
            }
        }
    }

    fn joined(&mut self, worker: Worker, peer: Peer, now: Time) {
        if let Some(reason) = self.doomed.clone() {
            let connection = self.detach(worker);
            if let Some(member) = self.member(worker) {
                member.phase = Phase::Away;
            }
            return self.refuse(connection, reason);
        }
        let Some(member) = self.members.get_mut(&worker) else { return };
        if self.reports == Reports::Nobody {
            // Where it is it says itself.
            (member.host, member.slot) = (self.hosts.place(&peer.host), peer.local_rank);
        }
        let host = self.hosts.all[member.host].name.clone();
        member.phase = Phase::Waiting(Peer { host, local_rank: member.slot, ..peer });
        member.since = now;
        self.alarm(now + self.terms.joining);
        self.happened(Happening::WorkerJoined { member: self.who(worker) });
    }

    /// A worker has left its world by itself: in order, or because of an exception.
    fn left(&mut self, worker: Worker, error: Option<Raised>, blames: Option<Rank>, now: Time) {
        let blamed = blames.and_then(|rank| self.with_rank(rank));
        let raised = error
            .as_ref()
            .map(|error| Cause::plain(error.kind, format!("raised {}", headline(&error.text))));
        self.verdict.left(worker, error, blamed);
        self.detach(worker);
        let forming = matches!(self.world, World::Forming(_));
        let Some(member) = self.members.get_mut(&worker) else { return };
        let has_ended = member.exit.is_some();
        match (raised, blames) {
            (Some(raised), None) => self.lose(worker, &raised, now),
            // The others are about to hear of the rank it blames, which is what they should name.
            (Some(raised), Some(_)) if member.is_inside() && !self.terms.outlives_losses() => {
                member.suspect = Some((now + PATIENCE, raised));
                self.alarm(now + PATIENCE);
            }
            (None, _) if forming && member.is_inside() && !self.terms.outlives_losses() => {
                let left = Cause::plain(CauseKind::Left, "left before the world was complete");
                self.lose(worker, &left, now);
            }
            _ => {
                let reason = format!("{} left before the world was complete", self.name(worker));
                self.take_out(worker, &reason, now);
            }
        }
        if let Some(member) = self.members.get_mut(&worker).filter(|it| it.suspect.is_none()) {
            member.phase = Phase::Away;
        }
        if has_ended {
            self.members.remove(&worker);
        }
        self.admit(worker, now);
    }

    pub(super) fn closed(&mut self, connection: Connection, now: Time) {
        let Some(worker) = self.connections.remove(&connection) else { return };
        let Some(member) = self.members.get_mut(&worker) else { return };
        if member.connection != Some(connection) {
            member.next = None;
            return;
        }
        member.connection = None;
        match (&member.phase, &member.exit, self.reports) {
            (Phase::Inside { .. }, Some(exit), _) => {
                let cause = words::without_leaving(exit);
                self.lose(worker, &cause, now);
                self.members.remove(&worker);
            }
            (Phase::Inside { .. }, None, Reports::Agents) => {
                let cause = || (now + PATIENCE, words::closed());
                member.suspect.get_or_insert_with(cause);
                self.alarm(now + PATIENCE);
            }
            (Phase::Inside { .. }, None, Reports::Nobody) => {
                self.lose(worker, &words::ended_or_gone(), now);
            }
            (Phase::Waiting(_), None, Reports::Nobody) => {
                member.phase = Phase::Away;
                let reason =
                    format!("{} ended while the others were still to come", self.name(worker));
                self.turn_away_those(Member::is_waiting, &reason);
            }
            _ => member.phase = Phase::Away,
        }
        self.admit(worker, now);
    }

    /// A worker has come so far in its world.
    fn reached(&mut self, worker: Worker, milestone: Milestone, now: Time) {
        let Some(member) = self.members.get_mut(&worker) else { return };
        if milestone == Milestone::State {
            member.has_state = true;
        } else {
            member.quarrels = 0;
            self.committed = true;
        }
        if self.world != World::Whole {
            return;
        }
        let Some(Recovery { since, met: Some(met), state }) = &mut self.recovery else { return };
        let had = *state.get_or_insert(now);
        if milestone == Milestone::Commit {
            let size = self.members.values().filter(|member| member.is_inside()).count() as u32;
            let [met_seconds, state_seconds, commit_seconds] =
                [*met, had, now].map(|time| Seconds(time - *since));
            self.recovery = None;
            self.happened(Happening::Recovered {
                ranks: size,
                met_seconds,
                state_seconds,
                commit_seconds,
            });
        }
    }

    /// Ends connections with an error for their owners.
    pub(super) fn refuse(
        &mut self,
        connections: impl IntoIterator<Item = Connection>,
        reason: String,
    ) {
        self.part_with(connections, DriverToRank::Refused { reason });
    }

    /// Ends a connection whose owner is not wanted any more.
    pub(super) fn turn_away(&mut self, connection: Connection, reason: String) {
        self.part_with([connection], DriverToRank::Removed { reason });
    }

    /// Ends connections with these last words.
    pub(super) fn part_with(
        &mut self,
        connections: impl IntoIterator<Item = Connection>,
        words: DriverToRank,
    ) {
        let connections: Vec<Connection> = connections.into_iter().collect();
        self.tell(connections.clone(), words);
        self.actions.extend(connections.into_iter().map(Action::Close));
    }

    /// Tells these something, if there are any.
    pub(super) fn tell(&mut self, connections: Vec<Connection>, words: DriverToRank) {
        if !connections.is_empty() {
            self.actions.push(Action::Tell(connections, words));
        }
    }

    /// Refuses all who are like that: no world will be formed of them.
    pub(super) fn turn_away_those(&mut self, are: fn(&Member) -> bool, reason: &str) {
        let those = self.members.iter().filter(|(_, member)| are(member));
        let mut connections = Vec::new();
        for worker in those.map(|(worker, _)| *worker).collect::<Vec<_>>() {
            connections.extend(self.detach(worker));
            if let Some(member) = self.member(worker) {
                (member.phase, member.suspect) = (Phase::Away, None);
            }
        }
        self.refuse(connections, reason.to_owned());
    }

    /// Takes a worker's connection from it.
    pub(super) fn detach(&mut self, worker: Worker) -> Option<Connection> {
        let connection = self.members.get_mut(&worker)?.connection.take()?;
        self.connections.remove(&connection);
        Some(connection)
    }
}
