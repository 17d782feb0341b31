//! What is lost: workers that die, fail or do not come; hosts that go away.

use super::hosts::Agent;
use super::member::{Going, Member, Phase};
use super::{Action, AgentId, Elastic, Failure, Recovery, Resting, World, words};
use crate::cause::{Cause, CauseKind, Farewell, Tail};
use crate::event::{self, Happening};
use crate::rendezvous::{PATIENCE, Time};
use crate::wire::DriverToRank;
use crate::wire::agent::Exit;
use crate::{Rank, Worker};

const KILL: i32 = 9;

impl Elastic {
    /// A worker's process has ended.
    pub(super) fn exited(&mut self, worker: Worker, exit: Exit, now: Time) {
        let Some(who) = self.member(worker) else { return };
        let Some(member) = self.members.get_mut(&worker) else { return };
        if member.going.is_some() {
            self.happened(Happening::stopped(who, &exit));
            self.lose(worker, &exit.to_string(), now);
            self.members.remove(&worker);
            return;
        }
        if !exit.is_success() {
            let code = exit.code();
            let (farewell, tail) = (member.farewell.clone(), std::mem::take(&mut member.tail));
            let told = Cause::default();
            let failure = Failure { member: who, code, exit: Some(exit), farewell, tail, told };
            self.fail(failure, now);
            self.members.remove(&worker);
            return;
        }
        let first = !std::mem::replace(&mut self.finishing, true);
        self.happened(Happening::WorkerFinished { member: who, first });
        // Its last words may still be on their way.
        match self.members.get_mut(&worker) {
            Some(member) if member.is_inside() && member.connection.is_some() => {
                member.suspect = Some((now + PATIENCE, format!("{exit} without leaving")));
                member.exit = Some(exit);
            }
            _ => {
                self.lose(worker, &format!("{exit} without leaving"), now);
                self.members.remove(&worker);
            }
        }
    }

    /// A host could not be reached, or was lost with its workers.
    pub(super) fn gone(&mut self, agent: AgentId, reason: String, hint: String, now: Time) {
        let Some(index) = self.hosts.of(agent) else { return };
        let host = self.hosts.all[index].name.clone();
        let was_ready = matches!(self.hosts.all[index].agent, Agent::Ready(_));
        self.hosts.all[index].agent = Agent::None;
        if !was_ready {
            let retry_seconds = Some(self.hosts.unreached(index, now));
            return self.happened(Happening::HostUnreachable { host, reason, hint, retry_seconds });
        }
        self.happened(Happening::HostLost { host, reason: reason.clone(), hint });
        let there = self.members.iter().filter(|(_, member)| member.agent == agent);
        for worker in there.map(|(worker, _)| *worker).collect::<Vec<_>>() {
            let Some(who) = self.member(worker) else { continue };
            let known = self.members.get(&worker).is_some_and(|member| member.going.is_some());
            let cause = format!("was lost with its host: {reason}");
            match known {
                true => self.lose(worker, &cause, now),
                false => self.fail(presumed(who, CauseKind::HostLost, cause), now),
            }
            self.members.remove(&worker);
        }
        self.let_rest(index, now);
    }

    /// A worker has failed: its world is over, and its host rests.
    fn fail(&mut self, failure: Failure, now: Time) {
        let worker = failure.member.worker;
        let Some(host) = self.members.get(&worker).map(|member| member.host) else { return };
        let cause = failure.cause();
        let (member, what) = (failure.member.clone(), cause.what.clone());
        self.happened(Happening::lost(member, cause, failure.exit.as_ref()));
        self.lose(worker, &what, now);
        self.failures.push(failure);
        self.let_rest(host, now);
    }

    /// Starts no worker on a host for a while. Its workers go, too, if there are enough elsewhere.
    fn let_rest(&mut self, index: usize, now: Time) {
        if self.hosts.all[index].rest.is_some() {
            return;
        }
        let elsewhere = self.members.values().filter(|member| {
            member.host != index && member.stays() && (member.has_state || !self.progress)
        });
        let enough = elsewhere.count() >= self.limits.min as usize;
        let spares = self.limits.resting == Resting::Slot || !enough;
        let fraction = self.chance();
        let length = self.hosts.rest(index, self.limits.cooldown, fraction, (spares, now));
        let host = self.hosts.all[index].name.clone();
        let (seconds, keeps_workers) = (length, spares);
        self.happened(Happening::HostRests { host, seconds, keeps_workers });
    }

    /// A worker that lives counts as dead: it is killed.
    fn condemn(&mut self, worker: Worker, (kind, cause): (CauseKind, String), now: Time) {
        let Some(who) = self.member(worker) else { return };
        self.fail(presumed(who, kind, cause.clone()), now);
        self.actions.push(Action::Signal(worker, KILL));
        if let Some(connection) = self.detach(worker) {
            self.turn_away(connection, cause.clone());
        }
        if let Some(member) = self.members.get_mut(&worker) {
            member.going = Some(Going { reason: cause, kill_at: None });
        }
    }

    /// Takes a worker out of its world and tells the others.
    pub(super) fn lose(&mut self, worker: Worker, cause: &str, now: Time) {
        let name = self.name(worker);
        let Some(member) = self.members.get_mut(&worker) else { return };
        member.suspect = None;
        if !member.is_inside() {
            return;
        }
        (member.phase, member.since) = (Phase::Away, now);
        let (rank, host) = (member.rank, self.hosts.all[member.host].name.clone());
        self.recovery.get_or_insert(Recovery { since: now, met: None, state: None });
        if let World::Forming(_) = self.world {
            return self.meet_again(&format!("lost {name}: {cause}"), now);
        }
        self.break_up(now);
        let others = self.insiders();
        if !others.is_empty() {
            let lost = DriverToRank::Lost { rank, host, cause: cause.to_owned() };
            self.actions.push(Action::Tell(others, lost));
        }
    }

    /// Takes a worker out of its world in order.
    pub(super) fn leave(&mut self, worker: Worker, now: Time) {
        self.detach(worker);
        let name = self.name(worker);
        let Some(member) = self.members.get_mut(&worker) else { return };
        member.suspect = None;
        if !member.is_inside() {
            member.phase = Phase::Away;
            return;
        }
        (member.phase, member.since) = (Phase::Away, now);
        match self.world {
            World::Forming(_) => {
                self.meet_again(&format!("{name} left before the world was complete"), now);
            }
            _ => self.break_up(now),
        }
    }

    fn break_up(&mut self, now: Time) {
        if self.world == World::Whole {
            self.world = World::Broken(now);
        }
    }

    /// Passes on that a worker has given up on another which lives: to that one as its own loss. Only
    /// the first word about a world counts; the rest follow from it.
    pub(super) fn given_up(&mut self, by: Worker, lost: Rank, cause: &str, now: Time) {
        let with_rank =
            |(_, member): &(&Worker, &mut Member)| member.is_inside() && member.rank == lost;
        let Some((&blamed, member)) = self.members.iter_mut().find(with_rank) else { return };
        if blamed == by || self.world != World::Whole {
            return;
        }
        member.quarrels += 1;
        let quarrels = member.quarrels;
        let itself = member.connection;
        let host = self.hosts.all[member.host].name.clone();
        self.recovery.get_or_insert(Recovery { since: now, met: None, state: None });
        self.break_up(now);
        let mut others = self.insiders();
        others.retain(|other| Some(*other) != itself);
        let seen = format!("{cause} (seen by {})", self.name(by));
        let told = DriverToRank::Lost { rank: lost, host, cause: seen };
        self.actions.push(Action::Tell(others, told));
        if let (Some(itself), Some(member)) = (itself, self.members.get(&by)) {
            let host = self.hosts.all[member.host].name.clone();
            let cause = format!("it has given up on this rank: {cause}");
            let told = DriverToRank::Lost { rank: member.rank, host, cause };
            self.actions.push(Action::Tell(vec![itself], told));
        }
        if quarrels >= 2 {
            self.condemn(blamed, (CauseKind::ConnectionLost, words::QUARREL.into()), now);
        }
    }

    /// Gives up on workers whose time is over.
    pub(super) fn give_up_on_the_late(&mut self, now: Time) {
        let suspects = self.members.iter().filter_map(|(worker, member)| {
            let (until, cause) = member.suspect.as_ref()?;
            (*until <= now).then(|| (*worker, cause.clone(), member.exit.is_some()))
        });
        for (worker, cause, ended) in suspects.collect::<Vec<_>>() {
            self.lose(worker, &cause, now);
            self.detach(worker);
            if ended {
                self.members.remove(&worker);
            }
        }
        let parked = self
            .members
            .iter()
            .filter(|(_, member)| member.next.as_ref().is_some_and(|next| next.until <= now));
        for worker in parked.map(|(worker, _)| *worker).collect::<Vec<_>>() {
            self.admit(worker, now);
        }
        for worker in self.members.keys().copied().collect::<Vec<_>>() {
            let late = self.members.get(&worker).and_then(|member| self.lateness(member, now));
            if let Some(cause) = late {
                self.condemn(worker, cause, now);
            }
        }
    }

    fn lateness(&self, member: &Member, now: Time) -> Option<(CauseKind, String)> {
        let due = self.due_in_world(member).is_some_and(|time| time <= now);
        match (member.stopped, self.limits.stopped) {
            (Some(since), Some(limit)) if member.stays() && since + limit <= now => {
                Some((CauseKind::Halted, words::stopped(limit)))
            }
            _ if !due => None,
            _ if member.is_inside() && matches!(self.world, World::Forming(_)) => {
                Some((CauseKind::Late, words::UNSEATED.into()))
            }
            _ if member.has_been_inside => {
                Some((CauseKind::Late, words::not_coming(self.limits.timeout)))
            }
            _ => Some((CauseKind::Late, words::not_starting(self.limits.joining))),
        }
    }

    /// By when a worker must have done what is expected of it.
    fn due_in_world(&self, member: &Member) -> Option<Time> {
        if !member.stays() || member.is_waiting() {
            return None;
        }
        match (&member.phase, self.world) {
            (Phase::Inside { leader: None }, World::Forming(until)) => Some(until),
            (Phase::Inside { .. }, World::Broken(since)) if self.is_awaited() => {
                Some(since + self.limits.timeout)
            }
            (Phase::Inside { .. }, _) => None,
            // Whoever has left may have something else to do, unless the others wait for it.
            _ if member.has_been_inside => {
                self.is_awaited().then_some(member.since + self.limits.timeout)
            }
            _ => Some(member.since + self.limits.joining),
        }
    }

    /// Whether a worker waits for the next world.
    fn is_awaited(&self) -> bool {
        self.world != World::Whole
            && self.members.values().any(|member| member.is_waiting() && member.stays())
    }

    /// When something is due about a worker.
    pub(super) fn due(&self, member: &Member) -> Option<Time> {
        let stopped = member.stopped.zip(self.limits.stopped).map(|(since, limit)| since + limit);
        let stopped = stopped.filter(|_| member.stays());
        let killed = member.going.as_ref().and_then(|going| going.kill_at);
        let suspect = member.suspect.as_ref().map(|(until, _)| *until);
        let parked = member.next.as_ref().map(|next| next.until);
        let all = [stopped, killed, suspect, parked, self.due_in_world(member)];
        all.into_iter().flatten().min()
    }
}

/// The failure of a worker whose end nobody has seen.
fn presumed(member: event::Member, kind: CauseKind, cause: String) -> Failure {
    Failure {
        member,
        code: 1,
        exit: None,
        farewell: Farewell::None,
        tail: Tail::default(),
        told: Cause::plain(kind, cause),
    }
}
