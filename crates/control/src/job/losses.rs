//! Losses: workers that die, fail or do not join; hosts that are gone.

use super::ending::KILL;
use super::hosts::AgentOnHost;
use super::member::{JobWorker, Leaving, WorkerPhase};
use super::messages::EndCause;
use super::{
    AgentId, CooldownScope, JobAction, JobMachine, Recovery, TIME_LIMIT, WorldPhase, messages,
};
use crate::cause::{Cause, CauseKind};
use crate::event::{self, HostSourceKind, JobEventKind, Seconds};
use crate::wire::DriverToRank;
use crate::wire::agent::Exit;
use crate::{ConnectionId, Rank, Time, Worker};

impl JobMachine {
    /// A worker's process has ended.
    pub(super) fn exited(&mut self, worker: Worker, exit: Exit, now: Time) {
        self.liveness.ended(worker);
        self.status_query.missing.remove(&worker);
        let Some(member) = self.members.get(&worker) else {
            return self.verdict.exited(worker, exit);
        };
        if member.leaving.is_some() {
            if self.job_spec.outlives_losses() {
                self.verdict.excuse(worker);
            }
            self.verdict.exited(worker, exit.clone());
            self.happened(JobEventKind::stopped(self.who(worker), &exit));
            self.lose(worker, &messages::exit(&exit), now);
            self.members.remove(&worker);
            return;
        }
        self.blame_stopped_worker(&exit, now);
        self.verdict.exited(worker, exit.clone());
        match exit.is_success() {
            true => self.finished(worker, &exit, now),
            false => {
                let cause = match self.job_spec.outlives_losses() {
                    true => self.verdict.cause(worker),
                    false => messages::exit(&exit),
                };
                self.fail(worker, &cause, now);
                self.members.remove(&worker);
            }
        }
        if !self.job_spec.outlives_losses() {
            self.doom(&format!("{} {exit}", self.name(worker)));
        }
    }

    /// A worker has exited successfully.
    fn finished(&mut self, worker: Worker, exit: &Exit, now: Time) {
        let first = !std::mem::replace(&mut self.finishing, true);
        self.happened(JobEventKind::WorkerFinished { member: self.who(worker), first });
        let cause = messages::without_leaving(exit);
        // Its last messages may still be in flight.
        match self.member(worker) {
            Some(member) if member.is_inside() && member.connection.is_some() => {
                member.suspect = Some((now + TIME_LIMIT, cause));
                member.exit = Some(exit.clone());
                self.alarm(now + TIME_LIMIT);
            }
            _ => {
                self.lose(worker, &cause, now);
                self.members.remove(&worker);
            }
        }
    }

    /// A job that needs all its workers can form no more worlds.
    fn doom(&mut self, what: &str) {
        let size = self.job_spec.start;
        let reason = self.doomed.get_or_insert_with(|| {
            format!("{what} and cannot be part of the next world, which needs all {size} ranks")
        });
        let reason = reason.clone();
        self.refuse_all(JobWorker::is_waiting, &reason);
    }

    /// If there is a limit on waiting and a worker is known to be stopped, it causes the failures.
    fn blame_stopped_worker(&mut self, exit: &Exit, now: Time) {
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
        let was_ready = matches!(self.hosts.all[index].agent, AgentOnHost::Ready(_));
        self.hosts.all[index].agent = AgentOnHost::None;
        // Before the job has begun, it or another agent may still dial in.
        let awaited = !self.begun && self.job_spec.source == HostSourceKind::DialedIn;
        let goes_on = self.job_spec.outlives_losses() && !self.is_ending();
        if goes_on && !awaited && !was_ready {
            let retry_seconds = Some(Seconds(self.hosts.unreached(index, now)));
            return self.happened(JobEventKind::HostUnreachable {
                host,
                reason,
                hint,
                retry_seconds,
            });
        }
        let (name, why, what_to_do) = (host.clone(), reason.clone(), hint.clone());
        self.happened(JobEventKind::HostLost { host: name, reason: why, hint: what_to_do });
        if awaited {
            return;
        }
        let there = self.members.iter().filter(|(_, member)| member.agent == agent);
        let there: Vec<Worker> = there.map(|(worker, _)| *worker).collect();
        if !goes_on {
            let exit = Exit::Unknown { reason: format!("was lost with its host: {reason}") };
            if !self.is_over {
                let reason = format!("lost host `{host}`: {reason}");
                self.verdict.end_unless_failed(EndCause::HostLost { reason, hint });
            }
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
        self.start_cooldown(index, now);
    }

    /// A worker has failed: its world is over, and its host goes on cooldown.
    fn fail(&mut self, worker: Worker, cause: &Cause, now: Time) {
        let Some(host) = self.members.get(&worker).map(|member| member.host) else { return };
        let who = self.who(worker);
        self.happened(match self.verdict.exit(worker) {
            Some(exit) if self.verdict.was_stopped(worker) => JobEventKind::stopped(who, exit),
            exit => JobEventKind::lost(who, cause.clone(), exit),
        });
        self.lose(worker, cause, now);
        match self.job_spec.outlives_losses() {
            true if self.is_ending() => {}
            true => self.start_cooldown(host, now),
            false => self.ending.failed(now),
        }
    }

    /// Puts a host on cooldown. Its workers leave too if there are enough elsewhere.
    fn start_cooldown(&mut self, index: usize, now: Time) {
        if self.hosts.all[index].cooldown.is_some() {
            return;
        }
        let elsewhere = self.members.values().filter(|member| {
            member.host != index && member.stays() && (member.has_state || !self.progress)
        });
        let enough = elsewhere.count() >= self.job_spec.min as usize;
        let keeps_workers = self.job_spec.cooldown_scope == CooldownScope::Slot || !enough;
        let fraction = self.random();
        let length =
            self.hosts.cool_down(index, self.job_spec.cooldown, fraction, (keeps_workers, now));
        let (host, seconds) = (self.hosts.name(index), length.map(Seconds));
        self.happened(JobEventKind::HostRests { host, seconds, keeps_workers });
    }

    /// Treats a live worker as dead and kills it.
    fn condemn(&mut self, worker: Worker, cause: Cause, now: Time) {
        self.verdict.condemn(worker, cause.clone());
        self.fail(worker, &cause, now);
        let Some(member) = self.members.get_mut(&worker) else { return };
        member.leaving = Some(Leaving { reason: cause.what.clone(), kill_at: None });
        self.actions.push(JobAction::Signal(member.agent, worker, KILL));
        if let Some(connection) = self.detach(worker)
            && self.job_spec.outlives_losses()
        {
            self.turn_away(connection, cause.what);
        }
    }

    /// Takes a worker out of its world and notifies the others.
    pub(super) fn lose(&mut self, worker: Worker, cause: &Cause, now: Time) {
        let reason = format!("lost {}: {}", self.name(worker), cause.what);
        if self.take_out(worker, &reason, now) {
            self.recovery.get_or_insert(Recovery { since: now, met: None, state: None });
            self.tell_of_loss(self.insiders(), worker, cause);
        }
    }

    /// Takes a worker out of its world, if it is inside. If that world was not complete and another
    /// one can be formed without the worker, all must join again for this reason.
    pub(super) fn take_out(&mut self, worker: Worker, reason: &str, now: Time) -> bool {
        let Some(member) = self.members.get_mut(&worker) else { return false };
        member.suspect = None;
        if !member.is_inside() {
            return false;
        }
        (member.phase, member.since) = (WorkerPhase::Away, now);
        match self.world {
            WorldPhase::Forming(_) if self.job_spec.outlives_losses() => {
                self.join_again(reason, now);
            }
            _ => self.break_up(now),
        }
        true
    }

    /// Notifies these connections of the loss of a worker.
    fn tell_of_loss(&mut self, to: Vec<ConnectionId>, worker: Worker, cause: &Cause) {
        let event::WorkerInfo { rank, host, .. } = self.who(worker);
        let (kind, cause) = (cause.kind, cause.what.clone());
        self.tell(to, DriverToRank::Lost { rank, host, kind, cause });
    }

    fn break_up(&mut self, now: Time) {
        if matches!(self.world, WorldPhase::Whole | WorldPhase::Forming(_)) {
            self.world = WorldPhase::Broken(now);
        }
    }

    /// A worker has given up on another one that is alive: notifies the others, and the other one
    /// as if it had lost the first. Only the first report in a world counts; the rest follow from
    /// it.
    pub(super) fn given_up(&mut self, by: Worker, lost: Rank, cause: &str, now: Time) {
        let Some(blamed) = self.with_rank(lost).filter(|blamed| *blamed != by) else { return };
        let is_inside = |worker| self.members.get(&worker).is_some_and(JobWorker::is_inside);
        let is_over = self.job_spec.outlives_losses() && self.world != WorldPhase::Whole;
        if !is_inside(blamed) || !is_inside(by) || is_over || self.given_up == Some(self.epoch) {
            return;
        }
        self.given_up = Some(self.epoch);
        let Some(member) = self.members.get_mut(&blamed) else { return };
        member.complaints += 1;
        let (complaints, itself) = (member.complaints, member.connection);
        self.recovery.get_or_insert(Recovery { since: now, met: None, state: None });
        self.break_up(now);
        let mut others = self.insiders();
        others.retain(|other| Some(*other) != itself);
        let lost = |what| Cause::plain(CauseKind::ConnectionLost, what);
        let seen = lost(format!("{cause} (seen by {})", self.name(by)));
        self.tell_of_loss(others, blamed, &seen);
        let itself = itself.into_iter().collect();
        self.tell_of_loss(itself, by, &lost(format!("it gave up on this rank: {cause}")));
        if complaints >= 2 && self.job_spec.outlives_losses() {
            self.condemn(blamed, messages::unreachable(), now);
        }
    }

    /// Gives up on workers whose time is up.
    pub(super) fn give_up_on_the_late(&mut self, now: Time) {
        if self.alarm.is_none_or(|at| at > now) && !self.job_spec.outlives_losses() {
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
            self.old_connection_is_late(worker, now);
        }
        if !self.job_spec.outlives_losses() {
            return;
        }
        // One by one: ending one may excuse the next.
        for worker in self.members.keys().copied().collect::<Vec<_>>() {
            if let Some(cause) = self.lateness(worker, now) {
                self.condemn(worker, cause, now);
            }
        }
    }

    /// Computes when something is due next, once everything that was due is done.
    pub(super) fn set_alarm(&mut self, now: Time) {
        if self.alarm.is_some_and(|at| at <= now) {
            self.alarm = self.due();
        }
    }

    /// When something is due for the workers.
    pub(super) fn due(&self) -> Option<Time> {
        let members = self.members.iter();
        let members = members.filter_map(|(worker, member)| self.due_of(*worker, member));
        members.chain(self.gathering_due()).min()
    }

    fn lateness(&self, worker: Worker, now: Time) -> Option<Cause> {
        let member = self.members.get(&worker)?;
        let is_over = |due: Option<Time>| due.is_some_and(|time| time <= now);
        match self.job_spec.stopped {
            Some(limit) if is_over(self.due_if_stopped(worker, member)) => {
                Some(messages::stopped(limit))
            }
            _ if !is_over(self.due_in_world(member)) => None,
            _ if member.is_inside() && matches!(self.world, WorldPhase::Forming(_)) => {
                Some(messages::without_rank())
            }
            _ if member.has_been_inside => Some(messages::not_coming(self.job_spec.timeout)),
            _ => Some(messages::not_starting(self.job_spec.joining)),
        }
    }

    /// When a stopped worker must have continued.
    fn due_if_stopped(&self, worker: Worker, member: &JobWorker) -> Option<Time> {
        let limit =
            self.job_spec.stopped.filter(|_| member.stays() && self.job_spec.outlives_losses())?;
        Some(self.liveness.halted_since(worker)? + limit)
    }

    /// When a worker must have done what is expected of it.
    fn due_in_world(&self, member: &JobWorker) -> Option<Time> {
        if !member.stays() || member.is_waiting() || !self.job_spec.outlives_losses() {
            return None;
        }
        match (&member.phase, self.world) {
            (WorkerPhase::Inside { leader: None }, WorldPhase::Forming(until)) => Some(until),
            (WorkerPhase::Inside { .. }, WorldPhase::Broken(since)) if self.is_awaited() => {
                Some(since + self.job_spec.timeout)
            }
            (WorkerPhase::Inside { .. }, _) => None,
            // A worker that has left may have other work to do, unless the others wait for it.
            _ if member.has_been_inside => {
                self.is_awaited().then_some(member.since + self.job_spec.timeout)
            }
            _ => Some(member.since + self.job_spec.joining),
        }
    }

    /// Whether some worker waits for the next world.
    fn is_awaited(&self) -> bool {
        self.world != WorldPhase::Whole
            && self.members.values().any(|member| member.is_waiting() && member.stays())
    }

    /// When something is due for a worker.
    fn due_of(&self, worker: Worker, member: &JobWorker) -> Option<Time> {
        let stopped = self.due_if_stopped(worker, member);
        let killed = member.leaving.as_ref().and_then(|leaving| leaving.kill_at);
        let suspect = member.suspect.as_ref().map(|(until, _)| *until);
        let parked = member.next.as_ref().map(|next| next.until);
        let all = [stopped, killed, suspect, parked, self.due_in_world(member)];
        all.into_iter().flatten().min()
    }
}
