//! Messages from workers: they connect, join, find their host's first rank, leave.

use super::member::{JobWorker, NextConnection, WorkerPhase};
use super::{DeathReports, JobAction, JobMachine, Recovery, TIME_LIMIT, WorldPhase, messages};
use crate::cause::{Cause, CauseKind, Raised, headline};
use crate::event::{JobEventKind, Seconds};
use crate::wire::{DriverToRank, Greeting, Milestone, Peer, RankToDriver};
use crate::{ConnectionId, Rank, Time, Worker};

impl JobMachine {
    pub(super) fn greeted(&mut self, connection: ConnectionId, greeting: &Greeting, now: Time) {
        let (worker, version) = match (greeting, self.job_spec.outlives_losses()) {
            (Greeting::Rendezvous { version, rank }, false) => (Worker(rank.0), version),
            (Greeting::Worker { version, worker }, true) => (*worker, version),
            _ => return self.refuse([connection], messages::WRONG_PEER.into()),
        };
        if *version != self.version {
            let who = self.number(worker);
            return self
                .refuse([connection], messages::other_version(&who, version, &self.version));
        }
        let Some(member) = self.members.get(&worker) else {
            return self.unknown(connection, worker);
        };
        if let Some(leaving) = &member.leaving {
            return self.turn_away(connection, leaving.reason.clone());
        }
        if self.finishing && self.job_spec.outlives_losses() {
            return self.turn_away(connection, messages::FINISHED.into());
        }
        let must_wait =
            member.connection.is_some() && (member.is_inside() || !self.job_spec.outlives_losses());
        self.connections.insert(connection, worker);
        let next = NextConnection { connection, said: None, until: now + TIME_LIMIT };
        if let Some(before) = self.member(worker).and_then(|member| member.next.replace(next)) {
            self.refuse_duplicate(worker, before.connection);
        }
        match must_wait {
            true => self.alarm(now + TIME_LIMIT),
            false => self.admit(worker, now),
        }
    }

    /// The number by which a worker knows itself.
    fn number(&self, worker: Worker) -> String {
        match self.job_spec.outlives_losses() {
            true => worker.to_string(),
            false => Rank(worker.0).to_string(),
        }
    }

    /// A worker greets that is not expected, or no longer.
    fn unknown(&mut self, connection: ConnectionId, worker: Worker) {
        if self.job_spec.outlives_losses() {
            return self.turn_away(connection, "its end was already reported".into());
        }
        let reason = match (&self.doomed, worker.0 < self.job_spec.start) {
            (Some(reason), true) => reason.clone(),
            _ => {
                messages::no_such_rank(Rank(worker.0), self.job_spec.start, self.source_of_ranks())
            }
        };
        self.refuse([connection], reason);
    }

    /// Two processes claim to be the same rank.
    fn refuse_duplicate(&mut self, worker: Worker, connection: ConnectionId) {
        self.connections.remove(&connection);
        let reason = messages::duplicate(Rank(worker.0), self.source_of_ranks());
        self.refuse([connection], reason);
    }

    /// The name of a process's rank, and who has set it.
    fn source_of_ranks(&self) -> (&'static str, &'static str) {
        match self.reports {
            DeathReports::Agents => ("HOROVOD_RANK", "`horovodrun`"),
            DeathReports::Nobody => ("rank", "the launcher"),
        }
    }

    /// Accepts a worker's new connection, if there is one: it is no longer in its old world.
    pub(super) fn admit(&mut self, worker: Worker, now: Time) {
        let Some(member) = self.member(worker).filter(|it| it.next.is_some()) else { return };
        let again = || Cause::plain(CauseKind::Left, "reconnected without leaving first");
        let cause = member.suspect.take().map_or_else(again, |(_, cause)| cause);
        self.lose(worker, &cause, now);
        self.detach(worker);
        let Some(member) = self.member(worker) else { return };
        let Some(NextConnection { connection, said, .. }) = member.next.take() else { return };
        if let Some(leaving) = &member.leaving {
            let reason = leaving.reason.clone();
            self.connections.remove(&connection);
            return self.turn_away(connection, reason);
        }
        member.connection = Some(connection);
        member.answers = true;
        member.phase = WorkerPhase::Greeted;
        if let Some(message) = said {
            self.said(connection, message, now);
        }
    }

    /// A second connection has waited too long for the first to close.
    pub(super) fn old_connection_is_late(&mut self, worker: Worker, now: Time) {
        if self.job_spec.outlives_losses() {
            return self.admit(worker, now);
        }
        if let Some(next) = self.member(worker).and_then(|member| member.next.take()) {
            self.refuse_duplicate(worker, next.connection);
        }
    }

    pub(super) fn said(&mut self, connection: ConnectionId, message: RankToDriver, now: Time) {
        let Some(&worker) = self.connections.get(&connection) else { return };
        // Counts even if its end was reported before this message arrived: there was a state to
        // lose.
        let outlives = self.job_spec.outlives_losses();
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
            (RankToDriver::Join(peer), WorkerPhase::Greeted) => self.joined(worker, peer, now),
            (
                RankToDriver::Located { leader: found },
                WorkerPhase::Inside { leader: leader @ None },
            ) if found <= member.rank => {
                *leader = Some(found);
                self.lay_out(now);
            }
            (RankToDriver::Leaving { error, blames }, _) => self.left(worker, error, blames, now),
            (RankToDriver::WorldEnded, _) => member.answers = false,
            (RankToDriver::Stalled { tensor, during, waiting, late }, _) => {
                self.happened(JobEventKind::Stalled {
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
                self.refuse([connection], format!("unexpected message from {who}: {message:?}"));
            }
        }
    }

    fn joined(&mut self, worker: Worker, peer: Peer, now: Time) {
        if let Some(reason) = self.doomed.clone() {
            let connection = self.detach(worker);
            if let Some(member) = self.member(worker) {
                member.phase = WorkerPhase::Away;
            }
            return self.refuse(connection, reason);
        }
        let Some(member) = self.members.get_mut(&worker) else { return };
        if self.reports == DeathReports::Nobody {
            // The rank itself reports where it is.
            let host = self.hosts.place_reported(&peer.host, &peer.machine);
            (member.host, member.slot) = (host, peer.local_rank);
        }
        let host = self.hosts.all[member.host].name.clone();
        member.phase = WorkerPhase::Waiting(Peer { host, local_rank: member.slot, ..peer });
        member.since = now;
        self.alarm(now + self.job_spec.joining);
        self.happened(JobEventKind::WorkerJoined { member: self.who(worker) });
    }

    /// A worker has left its world by itself: in an orderly way, or because of an exception.
    fn left(&mut self, worker: Worker, error: Option<Raised>, blames: Option<Rank>, now: Time) {
        let blamed = blames.and_then(|rank| self.with_rank(rank));
        let raised = error
            .as_ref()
            .map(|error| Cause::plain(error.kind, format!("raised {}", headline(&error.text))));
        self.verdict.left(worker, error, blamed);
        self.detach(worker);
        let forming = matches!(self.world, WorldPhase::Forming(_));
        let Some(member) = self.members.get_mut(&worker) else { return };
        let has_ended = member.exit.is_some();
        match (raised, blames) {
            (Some(raised), None) => self.lose(worker, &raised, now),
            // The others are about to learn of the rank it blames, and should name that one.
            (Some(raised), Some(_)) if member.is_inside() && !self.job_spec.outlives_losses() => {
                member.suspect = Some((now + TIME_LIMIT, raised));
                self.alarm(now + TIME_LIMIT);
            }
            (None, _) if forming && member.is_inside() && !self.job_spec.outlives_losses() => {
                let left = Cause::plain(CauseKind::Left, "left before the world was complete");
                self.lose(worker, &left, now);
            }
            _ => {
                let reason = format!("{} left before the world was complete", self.name(worker));
                self.take_out(worker, &reason, now);
            }
        }
        if let Some(member) = self.members.get_mut(&worker).filter(|it| it.suspect.is_none()) {
            member.phase = WorkerPhase::Away;
        }
        if has_ended {
            self.members.remove(&worker);
        }
        self.admit(worker, now);
    }

    pub(super) fn closed(&mut self, connection: ConnectionId, now: Time) {
        let Some(worker) = self.connections.remove(&connection) else { return };
        let Some(member) = self.members.get_mut(&worker) else { return };
        if member.connection != Some(connection) {
            member.next = None;
            return;
        }
        member.connection = None;
        match (&member.phase, &member.exit, self.reports) {
            (WorkerPhase::Inside { .. }, Some(exit), _) => {
                let cause = messages::without_leaving(exit);
                self.lose(worker, &cause, now);
                self.members.remove(&worker);
            }
            (WorkerPhase::Inside { .. }, None, DeathReports::Agents) => {
                let cause = || (now + TIME_LIMIT, messages::closed());
                member.suspect.get_or_insert_with(cause);
                self.alarm(now + TIME_LIMIT);
            }
            (WorkerPhase::Inside { .. }, None, DeathReports::Nobody) => {
                self.lose(worker, &messages::ended_or_gone(), now);
            }
            (WorkerPhase::Waiting(_), None, DeathReports::Nobody) => {
                member.phase = WorkerPhase::Away;
                let reason = format!("{} ended before all ranks had joined", self.name(worker));
                self.refuse_all(JobWorker::is_waiting, &reason);
            }
            _ => member.phase = WorkerPhase::Away,
        }
        self.admit(worker, now);
    }

    /// A worker has reached a milestone in its world.
    fn reached(&mut self, worker: Worker, milestone: Milestone, now: Time) {
        let Some(member) = self.members.get_mut(&worker) else { return };
        if milestone == Milestone::State {
            member.has_state = true;
        } else {
            member.complaints = 0;
            self.committed = true;
        }
        if self.world != WorldPhase::Whole {
            return;
        }
        let Some(Recovery { since, met: Some(met), state }) = &mut self.recovery else { return };
        let had = *state.get_or_insert(now);
        if milestone == Milestone::Commit {
            let size = self.members.values().filter(|member| member.is_inside()).count() as u32;
            let [met_seconds, state_seconds, commit_seconds] =
                [*met, had, now].map(|time| Seconds(time - *since));
            self.recovery = None;
            self.happened(JobEventKind::Recovered {
                ranks: size,
                met_seconds,
                state_seconds,
                commit_seconds,
            });
        }
    }

    /// Closes connections with an error for their owners.
    pub(super) fn refuse(
        &mut self,
        connections: impl IntoIterator<Item = ConnectionId>,
        reason: String,
    ) {
        self.close_with(connections, DriverToRank::Refused { reason });
    }

    /// Closes a connection whose owner is no longer part of the job.
    pub(super) fn turn_away(&mut self, connection: ConnectionId, reason: String) {
        self.close_with([connection], DriverToRank::Removed { reason });
    }

    /// Closes connections after a last message.
    pub(super) fn close_with(
        &mut self,
        connections: impl IntoIterator<Item = ConnectionId>,
        message: DriverToRank,
    ) {
        let connections: Vec<ConnectionId> = connections.into_iter().collect();
        self.tell(connections.clone(), message);
        self.actions.extend(connections.into_iter().map(JobAction::Close));
    }

    /// Sends a message to these connections, if there are any.
    pub(super) fn tell(&mut self, connections: Vec<ConnectionId>, message: DriverToRank) {
        if !connections.is_empty() {
            self.actions.push(JobAction::Tell(connections, message));
        }
    }

    /// Refuses all workers that satisfy a condition: they will form no world.
    pub(super) fn refuse_all(&mut self, are: fn(&JobWorker) -> bool, reason: &str) {
        let those = self.members.iter().filter(|(_, member)| are(member));
        let mut connections = Vec::new();
        for worker in those.map(|(worker, _)| *worker).collect::<Vec<_>>() {
            connections.extend(self.detach(worker));
            if let Some(member) = self.member(worker) {
                (member.phase, member.suspect) = (WorkerPhase::Away, None);
            }
        }
        self.refuse(connections, reason.to_owned());
    }

    /// Removes a worker's connection and returns it.
    pub(super) fn detach(&mut self, worker: Worker) -> Option<ConnectionId> {
        let connection = self.members.get_mut(&worker)?.connection.take()?;
        self.connections.remove(&connection);
        Some(connection)
    }
}
