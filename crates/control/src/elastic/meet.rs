//! What workers say: they come, join, take their places, leave.

use super::member::{Member, Next, Phase};
use super::{Action, Elastic, Recovery, World, words};
use crate::cause::{Farewell, headline};
use crate::event::Happening;
use crate::rendezvous::{Connection, PATIENCE, Time};
use crate::wire::{DriverToRank, Greeting, Milestone, Peer, RankToDriver};
use crate::{Rank, Worker};

impl Elastic {
    pub(super) fn greeted(&mut self, connection: Connection, greeting: &Greeting, now: Time) {
        let Greeting::Worker { version, worker } = greeting else {
            let reason = "this is the rendezvous of an elastic job, where its workers join and \
                          nobody else";
            return self.refuse(connection, reason.into());
        };
        if *version != self.version {
            let reason = format!(
                "{worker} runs Ronde {version} and its launcher runs Ronde {}: install the same \
                 version on every host and start the job again",
                self.version
            );
            return self.refuse(connection, reason);
        }
        let reason = match self.members.get(worker) {
            None => Some("its end has been reported".to_owned()),
            Some(Member { going: Some(going), .. }) => Some(going.reason.clone()),
            Some(_) if self.finishing => Some(words::FINISHED.into()),
            Some(_) => None,
        };
        if let Some(reason) = reason {
            return self.turn_away(connection, reason);
        }
        self.connections.insert(connection, *worker);
        let Some(member) = self.members.get_mut(worker) else { return };
        let next = Next { connection, said: None, until: now + PATIENCE };
        let before = member.next.replace(next);
        self.connections
            .retain(|known, _| before.as_ref().is_none_or(|it| it.connection != *known));
        let (waits, inside) = (member.connection.is_some(), member.is_inside());
        if !waits || !inside {
            self.admit(*worker, now);
        }
    }

    /// Lets a worker in that has come again: it is no longer where it was.
    pub(super) fn admit(&mut self, worker: Worker, now: Time) {
        self.lose(worker, "came again without a word", now);
        self.detach(worker);
        let Some(member) = self.members.get_mut(&worker) else { return };
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

    pub(super) fn said(&mut self, connection: Connection, message: RankToDriver, now: Time) {
        let Some(&worker) = self.connections.get(&connection) else { return };
        // Even if its end was reported before its last words came: there was a state to lose.
        self.progress |= matches!(message, RankToDriver::Reached(_));
        if let RankToDriver::Pong { waits } = message {
            return self.actions.push(Action::Answered(worker, waits));
        }
        let Some(member) = self.members.get_mut(&worker) else {
            if let RankToDriver::Leaving { error: Some(error), .. } = message {
                self.explain(worker, error);
            }
            return;
        };
        if let Some(next) = member.next.as_mut().filter(|next| next.connection == connection) {
            next.said.get_or_insert(message);
            return;
        }
        match (message, &mut member.phase) {
            (RankToDriver::Join { pid, addresses, unix, .. }, phase @ Phase::Greeted) => {
                let host = self.hosts.all[member.host].name.clone();
                let peer = Peer { host, local_rank: member.slot, pid, addresses, unix };
                *phase = Phase::Waiting(peer);
                member.since = now;
                if let Some(member) = self.member(worker) {
                    self.happened(Happening::WorkerJoined { member });
                }
            }
            (RankToDriver::Located { leader: found }, Phase::Inside { leader: leader @ None })
                if found <= member.rank =>
            {
                *leader = Some(found);
                self.lay_out(now);
            }
            (RankToDriver::Leaving { error, blames }, _) => {
                self.left(worker, error, blames, now);
            }
            (RankToDriver::Report(report), _) => {
                self.actions.push(Action::Reported(worker, report));
            }
            (RankToDriver::Stalled { tensor, during, waiting, late }, _) => {
                self.happened(Happening::Stalled { tensor, seconds: during, waiting, late });
            }
            (RankToDriver::WorldEnded, _) => member.answers = false,
            (RankToDriver::GivenUp { rank, cause }, _) => {
                member.answers = false;
                self.given_up(worker, rank, &cause, now);
            }
            (RankToDriver::Reached(milestone), _) => self.reached(worker, milestone, now),
            (RankToDriver::Departing { reason }, _) => self.dismiss_one(worker, reason, now),
            (message, _) => {
                self.refuse(connection, format!("{worker} spoke out of turn: {message:?}"));
            }
        }
    }

    /// A worker has left its world by itself: in order, or because of an exception.
    fn left(&mut self, worker: Worker, error: Option<String>, blames: Option<Rank>, now: Time) {
        match (&error, blames) {
            (Some(error), None) => {
                self.lose(worker, &format!("raised {}", headline(error)), now);
            }
            _ => self.leave(worker, now),
        }
        if let Some(member) = self.members.get_mut(&worker) {
            member.farewell = Farewell::of(error);
            if member.exit.is_some() {
                self.members.remove(&worker);
            }
        }
        self.admit(worker, now);
    }

    /// The last words of a worker whose end is known already.
    fn explain(&mut self, worker: Worker, error: String) {
        if let Some(failure) = self.failures.iter_mut().find(|it| it.member.worker == worker) {
            failure.farewell = Farewell::Exception(error);
        }
    }

    pub(super) fn closed(&mut self, connection: Connection, now: Time) {
        let Some(worker) = self.connections.remove(&connection) else { return };
        let Some(member) = self.members.get_mut(&worker) else { return };
        if member.connection != Some(connection) {
            member.next = None;
            return;
        }
        member.connection = None;
        if member.next.is_some() {
            return self.admit(worker, now);
        }
        match (&member.phase, &member.exit) {
            (Phase::Inside { .. }, Some(exit)) => {
                let cause = format!("{exit} without leaving");
                self.lose(worker, &cause, now);
                self.members.remove(&worker);
            }
            (Phase::Inside { .. }, None) => {
                let cause = "its connection to the launcher closed".to_owned();
                member.suspect.get_or_insert((now + PATIENCE, cause));
            }
            _ => member.phase = Phase::Away,
        }
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
            let ranks = self.members.values().filter(|member| member.is_inside()).count() as u32;
            let (met_seconds, state_seconds) = (*met - *since, had - *since);
            let commit_seconds = now - *since;
            self.recovery = None;
            self.happened(Happening::Recovered {
                ranks,
                met_seconds,
                state_seconds,
                commit_seconds,
            });
        }
    }

    /// Ends a connection with an error for its owner.
    fn refuse(&mut self, connection: Connection, reason: String) {
        self.actions.push(Action::Tell(vec![connection], DriverToRank::Refused { reason }));
        self.actions.push(Action::Close(connection));
    }

    /// Ends a connection whose owner is not wanted any more.
    pub(super) fn turn_away(&mut self, connection: Connection, reason: String) {
        self.actions.push(Action::Tell(vec![connection], DriverToRank::Removed { reason }));
        self.actions.push(Action::Close(connection));
    }

    /// Takes a worker's connection from it.
    pub(super) fn detach(&mut self, worker: Worker) -> Option<Connection> {
        let connection = self.members.get_mut(&worker)?.connection.take()?;
        self.connections.remove(&connection);
        Some(connection)
    }
}
