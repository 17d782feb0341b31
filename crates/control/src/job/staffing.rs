//! Which workers run: starts them on free slots, and removes those that may not stay.

use std::collections::BTreeSet;
use std::time::Duration;

use super::ending::{KILL, TERMINATE};
use super::hosts::{AgentOnHost, KnownHost};
use super::member::{JobWorker, Leaving, WorkerPhase};
use super::{JobAction, JobMachine, Start, WorldPhase, messages};
use crate::event::JobEventKind;
use crate::{Rank, Time, Worker};

/// How long a worker that was told to leave may take.
pub(super) const GRACE: Duration = Duration::from_secs(10);

impl JobMachine {
    /// Tells workers to leave that may not stay, and kills those whose time is up.
    pub(super) fn dismiss(&mut self, now: Time) {
        if !self.job_spec.outlives_losses() || self.is_ending() {
            return;
        }
        for worker in self.members.keys().copied().collect::<Vec<_>>() {
            if let Some(reason) = self.unwanted(worker) {
                self.dismiss_one(worker, reason, now);
            }
        }
        let whole = self.world == WorldPhase::Whole;
        for (worker, member) in &mut self.members {
            let inside = member.is_inside() && whole;
            let Some(leaving) = &mut member.leaving else { continue };
            // A worker in a complete world stays until the others rejoin.
            if let (false, Some(kill_at)) = (inside, &mut leaving.kill_at) {
                *kill_at = (*kill_at).min(now + GRACE);
            }
            if leaving.kill_at.take_if(|time| *time <= now).is_some() {
                self.actions.push(JobAction::Signal(member.agent, *worker, KILL));
            }
        }
    }

    /// Why a worker may not stay, if so.
    fn unwanted(&self, worker: Worker) -> Option<String> {
        let member = &self.members[&worker];
        if !member.stays() {
            return None;
        }
        if self.finishing {
            // Before the first world, the others may be programs that never join and finish too.
            let late = !member.has_been_inside && self.worlds > 0;
            let idle = member.is_waiting() || late;
            return idle.then(|| messages::FINISHED.into());
        }
        let host = &self.hosts.all[member.host];
        if host.keeps(member.slot) || self.is_last_with_state(worker) {
            return None;
        }
        Some(match (host.slots, member.slot < host.slots) {
            (0, _) => messages::UNLISTED.into(),
            (_, false) => messages::FEWER_SLOTS.into(),
            _ => messages::ON_COOLDOWN.into(),
        })
    }

    /// Whether the training state would be lost with this worker: then it stays until another has
    /// it.
    fn is_last_with_state(&self, worker: Worker) -> bool {
        let has = |member: &JobWorker| member.has_state && member.stays();
        let mut others = self.members.iter().filter(|(other, _)| **other != worker);
        has(&self.members[&worker]) && !others.any(|(_, member)| has(member))
    }

    /// Tells one worker to leave.
    pub(super) fn dismiss_one(&mut self, worker: Worker, reason: String, now: Time) {
        let who = self.who(worker);
        let Some(member) = self.members.get_mut(&worker) else { return };
        if member.leaving.is_some() {
            return;
        }
        let (kill_at, ask) = match (&member.phase, self.world) {
            (WorkerPhase::Inside { .. }, WorldPhase::Whole) => (now + self.job_spec.timeout, false),
            (WorkerPhase::Inside { .. } | WorkerPhase::Waiting(_) | WorkerPhase::Greeted, _) => {
                (now + GRACE, false)
            }
            (WorkerPhase::Away, _) => (now + GRACE, !member.has_been_inside),
        };
        let waits = matches!(member.phase, WorkerPhase::Waiting(_) | WorkerPhase::Greeted);
        member.leaving = Some(Leaving { reason: reason.clone(), kill_at: Some(kill_at) });
        if ask {
            self.actions.push(JobAction::Signal(member.agent, worker, TERMINATE));
        }
        if waits && let Some(connection) = self.detach(worker) {
            self.turn_away(connection, reason.clone());
        }
        self.happened(JobEventKind::WorkerRemoved { member: who, reason });
    }

    /// Reaches hosts and starts workers on free slots. A fixed job starts each worker once.
    pub(super) fn staff(&mut self, now: Time) {
        if !self.takes_hosts() {
            return;
        }
        let staying = self.members.values().filter(|member| member.stays()).count() as u32;
        let mut room = self.job_spec.max.unwrap_or(u32::MAX).saturating_sub(staying);
        let taken: BTreeSet<(usize, u32)> =
            self.members.values().map(|member| (member.host, member.slot)).collect();
        self.reach(room, &taken);
        self.begun |= self.can_begin();
        if !self.begun {
            return;
        }
        let mut planned = Vec::new();
        for (index, host) in self.hosts.in_order() {
            let AgentOnHost::Ready(agent) = host.agent else { continue };
            if !host.is_open() {
                continue;
            }
            for slot in (0..host.slots).filter(|slot| !taken.contains(&(index, *slot))) {
                if room > 0 {
                    room -= 1;
                    planned.push((index, agent, slot));
                }
            }
        }
        let size = staying + planned.len() as u32;
        let mut ranks = self.free_ranks();
        for (host, agent, slot) in planned {
            let worker = Worker(self.workers);
            self.workers += 1;
            let rank = ranks.next().unwrap_or(Rank(worker.0));
            let member = JobWorker { host, slot, agent, rank, since: now, ..JobWorker::default() };
            self.members.insert(worker, member);
            self.verdict.enter(self.who(worker));
            let (host, late) = (self.hosts.name(host), self.worlds > 0);
            self.actions.push(JobAction::Start(Start {
                worker,
                agent,
                host,
                slot,
                rank,
                size,
                late,
            }));
        }
    }

    /// Starts agents on the hosts that are needed.
    fn reach(&mut self, room: u32, taken: &BTreeSet<(usize, u32)>) {
        let mut sought = room;
        let mut wanted = Vec::new();
        let listed: Vec<usize> = self.hosts.in_order().map(|(index, _)| index).collect();
        for index in listed {
            let host = &self.hosts.all[index];
            if sought == 0 {
                break;
            }
            if host.is_open() && host.agent == AgentOnHost::None {
                let name = host.name.clone();
                wanted.push((self.hosts.reach(index), name));
            }
            let host = &self.hosts.all[index];
            if host.is_open() {
                let free = (0..host.slots).filter(|slot| !taken.contains(&(index, *slot))).count();
                sought = sought.saturating_sub(free as u32);
            }
        }
        if !wanted.is_empty() {
            self.actions.push(JobAction::Reach(wanted));
        }
    }

    /// Whether there are enough slots to start with, and no host is still being reached.
    fn can_begin(&self) -> bool {
        let (hosts, slots) = self.hosts.count(KnownHost::is_ready);
        slots >= self.job_spec.start
            && hosts >= self.job_spec.least_hosts
            && !self.hosts.all.iter().any(KnownHost::is_coming)
    }

    /// The ranks that no worker has, lowest first.
    fn free_ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        let staying = self.members.values().filter(|member| member.stays());
        let taken: BTreeSet<Rank> = staying.map(|member| member.rank).collect();
        (0..).map(Rank).filter(move |rank| !taken.contains(rank))
    }

    /// Ends the agents of hosts that are no longer listed and have no workers left.
    pub(super) fn release_agents(&mut self) {
        if self.is_ending() {
            return;
        }
        for index in 0..self.hosts.all.len() {
            let host = &self.hosts.all[index];
            let empty = !self.members.values().any(|member| member.host == index);
            if let (0, true, Some(agent)) = (host.slots, empty, host.agent.id()) {
                self.hosts.all[index].agent = AgentOnHost::None;
                self.liveness.host_gone(agent.0);
                self.actions.push(JobAction::Release(agent));
            }
        }
    }
}
