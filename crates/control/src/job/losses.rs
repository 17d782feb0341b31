//! What is lost: workers that die, fail or do not come; hosts that go away.

use super::ending::KILL;
use super::hosts::Agent;
use super::member::{Going, Member, Phase};
use super::words::End;
use super::{Action, AgentId, Machine, PATIENCE, Recovery, Resting, World, words};
use crate::cause::{Cause, CauseKind};
use crate::event::{self, Happening, Seconds, Source};
use crate::wire::DriverToRank;
use crate::wire::agent::Exit;
use crate::{Connection, Rank, Time, Worker};

impl Machine {
    /// A worker's process has ended.
    pub(super) fn exited(&mut self, worker: Worker, exit: Exit, now: Time) {
        self.liveness.ended(worker);
        self.census.missing.remove(&worker);
        let Some(member) = self.members.get(&worker) else {
            return self.verdict.exited(worker, exit);
        };
        if member.going.is_some() {
            if self.terms.outlives_losses() {
                self.verdict.excuse(worker);
            }
            self.verdict.exited(worker, exit.clone());
            self.happened(Happening::stopped(self.who(worker), &exit));
            self.lose(worker, &words::exit(&exit), now);
            self.members.remove(&worker);
            return;
        }
        self.blame_whoever_was_awaited(&exit, now);
        self.verdict.exited(worker, exit.clone());
        match exit.is_success() {
            true => self.finished(worker, &exit, now),
            false => {
                let cause = match self.terms.outlives_losses() {
                    true => self.verdict.cause(worker),
                    false => words::exit(&exit),
                };
                self.fail(worker, &cause, now);
                self.members.remove(&worker);
            }
        }
        if !self.terms.outlives_losses() {
            self.doom(&format!("{} {exit}", self.name(worker)));
        }
    }

    /// A worker has ended well.
    fn finished(&mut self, worker: Worker, exit: &Exit, now: Time) {
        let first = !std::mem::replace(&mut self.finishing, true);
        self.happened(Happening::WorkerFinished { member: self.who(worker), first });
        let cause = words::without_leaving(exit);
        // Its last words may still be on their way.
        match self.member(worker) {
            Some(member) if member.is_inside() && member.connection.is_some() => {
                member.suspect = Some((now + PATIENCE, cause));
                member.exit = Some(exit.clone());
                self.alarm(now + PATIENCE);
            }
            _ => {
                self.lose(worker, &cause, now);
                self.members.remove(&worker);
            }
        }
    }

    /// No world can be formed any more of a job that needs all its workers.
    fn doom(&mut self, what: &str) {
        let size = self.terms.start;
        let reason = self.doomed.get_or_insert_with(|| {
            format!("{what} and cannot be part of the next world, which needs all {size} ranks")
        });
        let reason = reason.clone();
        self.turn_away_those(Member::is_waiting, &reason);
    }

    /// If others may wait only so long and one is known to be stopped, what they suffer is its doing.
    fn blame_whoever_was_awaited(&mut self, exit: &Exit, now: Time) {
        if !exit.is_success()
            && !self.verdict.failed()
            && let Some((culprit, cause)) = self.liveness.culprit()
        {
            self.overdue(culprit, cause, now);
        }
    }

    /// Ends a worker that the others have waited for too long.
    pub(super) fn overdue(&mut self, worker: Worker, cause: String, now: Time) {
        let cause = Cause::plain(CauseKind::Halted, cause);
        self.verdict.condemn_first(worker, cause.clone());
        let name = self.name(worker);
        self.condemn(worker, cause.clone(), now);
        self.doom(&format!("{name} {}", cause.what));
    }

    /// A host could not be reached, or was lost with its workers.
    pub(super) fn gone(&mut self, agent: AgentId, reason: String, hint: String, now: Time) {
        self.liveness.host_gone(agent.0);
        let Some(index) = self.hosts.of(agent) else { return };
        let host = self.hosts.all[index].name.clone();
        let was_ready = matches!(self.hosts.all[index].agent, Agent::Ready(_));
        self.hosts.all[index].agent = Agent::None;
        // Before the job has begun it may come again, or another one.
        let awaited = !self.begun && self.terms.source == Source::DialledIn;
        let goes_on = self.terms.outlives_losses() && !self.is_ending();
        if goes_on && !awaited && !was_ready {
            let retry_seconds = Some(Seconds(self.hosts.unreached(index, now)));
            return self.happened(Happening::HostUnreachable { host, reason, hint, retry_seconds });
        }
        let (name, why, what_to_do) = (host.clone(), reason.clone(), hint.clone());
        self.happened(Happening::HostLost { host: name, reason: why, hint: what_to_do });
        if awaited {
            return;
        }
        let there = self.members.iter().filter(|(_, member)| member.agent == agent);
        let there: Vec<Worker> = there.map(|(worker, _)| *worker).collect();
        if !goes_on {
            let reason = format!("lost host `{host}`: {reason}");
            if !self.is_over {
                self.verdict.end_unless_failed(End::HostLost { reason: reason.clone(), hint });
            }
            let exit = Exit::Unknown { reason };
            return there.into_iter().for_each(|worker| self.exited(worker, exit.clone(), now));
        }
        let cause = Cause::plain(CauseKind::HostLost, format!("was lost with its host: {reason}"));
        for worker in there {
            match self.members[&worker].stays() {
                false => self.lose(worker, &cause, now),
                true => {
                    self.verdict.condemn(worker, cause.clone());
                    self.fail(worker, &cause, now);
                }
            }
            self.members.remove(&worker);
        }
        self.let_rest(index, now);
    }

    /// A worker has failed: its world is over, and its host rests.
    fn fail(&mut self, worker: Worker, cause: &Cause, now: Time) {
        let Some(host) = self.members.get(&worker).map(|member| member.host) else { return };
        let who = self.who(worker);
        self.happened(match self.verdict.exit(worker) {
            Some(exit) if self.verdict.was_stopped(worker) => Happening::stopped(who, exit),
            exit => Happening::lost(who, cause.clone(), exit),
        });
        self.lose(worker, cause, now);
        match self.terms.outlives_losses() {
            true if self.is_ending() => {}
            true => self.let_rest(host, now),
            false => self.ending.failed(now),
        }
    }

    /// Starts no worker on a host for a while. Its workers go, too, if there are enough elsewhere.
    fn let_rest(&mut self, index: usize, now: Time) {
        if self.hosts.all[index].rest.is_some() {
            return;
        }
        let elsewhere = self.members.values().filter(|member| {
            member.host != index && member.stays() && (member.has_state || !self.progress)
        });
        let enough = elsewhere.count() >= self.terms.min as usize;
        let spares = self.terms.resting == Resting::Slot || !enough;
        let fraction = self.chance();
        let length = self.hosts.rest(index, self.terms.cooldown, fraction, (spares, now));
        let (host, seconds) = (self.hosts.name(index), length.map(Seconds));
        self.happened(Happening::HostRests { host, seconds, keeps_workers: spares });
    }

    /// A worker that lives counts as dead: it is killed.
    fn condemn(&mut self, worker: Worker, cause: Cause, now: Time) {
        self.verdict.condemn(worker, cause.clone());
        self.fail(worker, &cause, now);
        let Some(member) = self.members.get_mut(&worker) else { return };
        member.going = Some(Going { reason: cause.what.clone(), kill_at: None });
        self.actions.push(Action::Signal(member.agent, worker, KILL));
        if let Some(connection) = self.detach(worker)
            && self.terms.outlives_losses()
        {
            self.turn_away(connection, cause.what);
        }
    }

    /// Takes a worker out of its world and tells the others.
    pub(super) fn lose(&mut self, worker: Worker, cause: &Cause, now: Time) {
        let reason = format!("lost {}: {}", self.name(worker), cause.what);
        if self.take_out(worker, &reason, now) {
            self.recovery.get_or_insert(Recovery { since: now, met: None, state: None });
            self.tell_of_loss(self.insiders(), worker, cause);
        }
    }

    /// Takes a worker out of its world, if it is inside. All must meet again, for this reason, if that
    /// was not complete and another one can be formed without it.
    pub(super) fn take_out(&mut self, worker: Worker, reason: &str, now: Time) -> bool {
        let Some(member) = self.members.get_mut(&worker) else { return false };
        member.suspect = None;
        if !member.is_inside() {
            return false;
        }
        (member.phase, member.since) = (Phase::Away, now);
        match self.world {
            World::Forming(_) if self.terms.outlives_losses() => self.meet_again(reason, now),
            _ => self.break_up(now),
        }
        true
    }

    /// Tells these that a worker is lost.
    fn tell_of_loss(&mut self, to: Vec<Connection>, worker: Worker, cause: &Cause) {
        let event::Member { rank, host, .. } = self.who(worker);
        let (kind, cause) = (cause.kind, cause.what.clone());
        self.tell(to, DriverToRank::Lost { rank, host, kind, cause });
    }

    fn break_up(&mut self, now: Time) {
        if matches!(self.world, World::Whole | World::Forming(_)) {
            self.world = World::Broken(now);
        }
    }

    /// Passes on that a worker has given up on another which lives: to that one as its own loss. Only
    /// the first word about a world counts; the rest follow from it.
    pub(super) fn given_up(&mut self, by: Worker, lost: Rank, cause: &str, now: Time) {
        let Some(blamed) = self.with_rank(lost).filter(|blamed| *blamed != by) else { return };
        let is_inside = |worker| self.members.get(&worker).is_some_and(Member::is_inside);
        let is_over = self.terms.outlives_losses() && self.world != World::Whole;
        if !is_inside(blamed) || !is_inside(by) || is_over || self.given_up == Some(self.epoch) {
            return;
        }
        self.given_up = Some(self.epoch);
        let Some(member) = self.members.get_mut(&blamed) else { return };
        member.quarrels += 1;
        let (quarrels, itself) = (member.quarrels, member.connection);
        self.recovery.get_or_insert(Recovery { since: now, met: None, state: None });
        self.break_up(now);
        let mut others = self.insiders();
        others.retain(|other| Some(*other) != itself);
        let lost = |what| Cause::plain(CauseKind::ConnectionLost, what);
        let seen = lost(format!("{cause} (seen by {})", self.name(by)));
        self.tell_of_loss(others, blamed, &seen);
        let itself = itself.into_iter().collect();
        self.tell_of_loss(itself, by, &lost(format!("it has given up on this rank: {cause}")));
        if quarrels >= 2 && self.terms.outlives_losses() {
            self.condemn(blamed, words::quarrel(), now);
        }
    }

    /// Gives up on workers whose time is over.
    pub(super) fn give_up_on_the_late(&mut self, now: Time) {
        if self.alarm.is_none_or(|at| at > now) && !self.terms.outlives_losses() {
            return;
        }
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
            self.overstayed(worker, now);
        }
        if !self.terms.outlives_losses() {
            return;
        }
        // One by one: the end of one may excuse the next.
        for worker in self.members.keys().copied().collect::<Vec<_>>() {
            if let Some(cause) = self.lateness(worker, now) {
                self.condemn(worker, cause, now);
            }
        }
    }

    /// Finds out when something is due next, once what was due has been done.
    pub(super) fn set_alarm(&mut self, now: Time) {
        if self.alarm.is_some_and(|at| at <= now) {
            self.alarm = self.due();
        }
    }

    /// When something is due about the workers.
    pub(super) fn due(&self) -> Option<Time> {
        let members = self.members.iter();
        let members = members.filter_map(|(worker, member)| self.due_of(*worker, member));
        members.chain(self.gathering_due()).min()
    }

    fn lateness(&self, worker: Worker, now: Time) -> Option<Cause> {
        let member = self.members.get(&worker)?;
        let is_over = |due: Option<Time>| due.is_some_and(|time| time <= now);
        match self.terms.stopped {
            Some(limit) if is_over(self.due_if_stopped(worker, member)) => {
                Some(words::stopped(limit))
            }
            _ if !is_over(self.due_in_world(member)) => None,
            _ if member.is_inside() && matches!(self.world, World::Forming(_)) => {
                Some(words::unseated())
            }
            _ if member.has_been_inside => Some(words::not_coming(self.terms.timeout)),
            _ => Some(words::not_starting(self.terms.joining)),
        }
    }

    /// By when a worker that is stopped must go on.
    fn due_if_stopped(&self, worker: Worker, member: &Member) -> Option<Time> {
        let limit =
            self.terms.stopped.filter(|_| member.stays() && self.terms.outlives_losses())?;
        Some(self.liveness.halted_since(worker)? + limit)
    }

    /// By when a worker must have done what is expected of it.
    fn due_in_world(&self, member: &Member) -> Option<Time> {
        if !member.stays() || member.is_waiting() || !self.terms.outlives_losses() {
            return None;
        }
        match (&member.phase, self.world) {
            (Phase::Inside { leader: None }, World::Forming(until)) => Some(until),
            (Phase::Inside { .. }, World::Broken(since)) if self.is_awaited() => {
                Some(since + self.terms.timeout)
            }
            (Phase::Inside { .. }, _) => None,
            // Whoever has left may have something else to do, unless the others wait for it.
            _ if member.has_been_inside => {
                self.is_awaited().then_some(member.since + self.terms.timeout)
            }
            _ => Some(member.since + self.terms.joining),
        }
    }

    /// Whether a worker waits for the next world.
    fn is_awaited(&self) -> bool {
        self.world != World::Whole
            && self.members.values().any(|member| member.is_waiting() && member.stays())
    }

    /// When something is due about a worker.
    fn due_of(&self, worker: Worker, member: &Member) -> Option<Time> {
        let stopped = self.due_if_stopped(worker, member);
        let killed = member.going.as_ref().and_then(|going| going.kill_at);
        let suspect = member.suspect.as_ref().map(|(until, _)| *until);
        let parked = member.next.as_ref().map(|next| next.until);
        let all = [stopped, killed, suspect, parked, self.due_in_world(member)];
        all.into_iter().flatten().min()
    }
}
