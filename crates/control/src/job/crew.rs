//! Which workers run: they are started on free slots, and told to go where they may not stay.

use std::collections::BTreeSet;
use std::time::Duration;

use super::ending::{KILL, TERMINATE};
use super::hosts::{Agent, Host};
use super::member::{Going, Member, Phase};
use super::{Action, Machine, Start, World, words};
use crate::event::Happening;
use crate::{Rank, Time, Worker};

/// How long a worker that was told to go may take.
pub(super) const GRACE: Duration = Duration::from_secs(10);

impl Machine {
    /// Tells workers to go that may not stay, and makes those whose time is over.
    pub(super) fn dismiss(&mut self, now: Time) {
        if !self.terms.outlives_losses() || self.is_ending() {
            return;
        }
        for worker in self.members.keys().copied().collect::<Vec<_>>() {
            if let Some(reason) = self.unwanted(worker) {
                self.dismiss_one(worker, reason, now);
            }
        }
        let whole = self.world == World::Whole;
        for (worker, member) in &mut self.members {
            let inside = member.is_inside() && whole;
            let Some(going) = &mut member.going else { continue };
            // Whoever is inside stays until the others meet again.
            if let (false, Some(kill_at)) = (inside, &mut going.kill_at) {
                *kill_at = (*kill_at).min(now + GRACE);
            }
            if going.kill_at.take_if(|time| *time <= now).is_some() {
                self.actions.push(Action::Signal(member.agent, *worker, KILL));
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
            // Where nobody has met, the others may be programs that never do, and they may finish, too.
            let late = !member.has_been_inside && self.worlds > 0;
            let idle = member.is_waiting() || late;
            return idle.then(|| words::FINISHED.into());
        }
        let host = &self.hosts.all[member.host];
        if host.keeps(member.slot) || self.is_last_with_state(worker) {
            return None;
        }
        Some(match (host.slots, member.slot < host.slots) {
            (0, _) => words::UNLISTED.into(),
            (_, false) => words::FEWER_SLOTS.into(),
            _ => words::RESTING.into(),
        })
    }

    /// Whether the training would be lost with this worker: then it stays until another has the state.
    fn is_last_with_state(&self, worker: Worker) -> bool {
        let has = |member: &Member| member.has_state && member.stays();
        let mut others = self.members.iter().filter(|(other, _)| **other != worker);
        has(&self.members[&worker]) && !others.any(|(_, member)| has(member))
    }

    /// Tells one worker to go.
    pub(super) fn dismiss_one(&mut self, worker: Worker, reason: String, now: Time) {
        let who = self.who(worker);
        let Some(member) = self.members.get_mut(&worker) else { return };
        if member.going.is_some() {
            return;
        }
        let (kill_at, ask) = match (&member.phase, self.world) {
            (Phase::Inside { .. }, World::Whole) => (now + self.terms.timeout, false),
            (Phase::Inside { .. } | Phase::Waiting(_) | Phase::Greeted, _) => (now + GRACE, false),
            (Phase::Away, _) => (now + GRACE, !member.has_been_inside),
        };
        let waits = matches!(member.phase, Phase::Waiting(_) | Phase::Greeted);
        member.going = Some(Going { reason: reason.clone(), kill_at: Some(kill_at) });
        if ask {
            self.actions.push(Action::Signal(member.agent, worker, TERMINATE));
        }
        if waits && let Some(connection) = self.detach(worker) {
            self.turn_away(connection, reason.clone());
        }
        self.happened(Happening::WorkerRemoved { member: who, reason });
    }

    /// Reaches hosts, and starts workers on free slots. A fixed job starts each worker once.
    pub(super) fn staff(&mut self, now: Time) {
        if !self.takes_hosts() {
            return;
        }
        let staying = self.members.values().filter(|member| member.stays()).count() as u32;
        let mut room = self.terms.max.unwrap_or(u32::MAX).saturating_sub(staying);
        let taken: BTreeSet<(usize, u32)> =
            self.members.values().map(|member| (member.host, member.slot)).collect();
        self.reach(room, &taken);
        self.begun |= self.can_begin();
        if !self.begun {
            return;
        }
        let mut planned = Vec::new();
        for (index, host) in self.hosts.all.iter().enumerate() {
            let Agent::Ready(agent) = host.agent else { continue };
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
            let member = Member { host, slot, agent, rank, since: now, ..Member::default() };
            self.members.insert(worker, member);
            self.verdict.enter(self.who(worker));
            let (host, late) = (self.hosts.name(host), self.worlds > 0);
            self.actions.push(Action::Start(Start { worker, agent, host, slot, rank, size, late }));
        }
    }

    /// Sends for the agents of hosts that are needed.
    fn reach(&mut self, room: u32, taken: &BTreeSet<(usize, u32)>) {
        let mut sought = room;
        let mut wanted = Vec::new();
        for index in 0..self.hosts.all.len() {
            let host = &self.hosts.all[index];
            if sought == 0 {
                break;
            }
            if host.is_open() && host.agent == Agent::None {
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
            self.actions.push(Action::Reach(wanted));
        }
    }

    /// Whether there are enough slots to start with, and no host is still on its way.
    fn can_begin(&self) -> bool {
        let (hosts, slots) = self.hosts.count(Host::is_ready);
        slots >= self.terms.start
            && hosts >= self.terms.least_hosts
            && !self.hosts.all.iter().any(Host::is_coming)
    }

    /// The ranks that nobody has, from the lowest on.
    fn free_ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        let staying = self.members.values().filter(|member| member.stays());
        let taken: BTreeSet<Rank> = staying.map(|member| member.rank).collect();
        (0..).map(Rank).filter(move |rank| !taken.contains(rank))
    }

    /// Ends agents of hosts that are not listed any more and have nobody left.
    pub(super) fn release_agents(&mut self) {
        if self.is_ending() {
            return;
        }
        for index in 0..self.hosts.all.len() {
            let host = &self.hosts.all[index];
            let empty = !self.members.values().any(|member| member.host == index);
            if let (0, true, Some(agent)) = (host.slots, empty, host.agent.id()) {
                self.hosts.all[index].agent = Agent::None;
                self.liveness.host_gone(agent.0);
                self.actions.push(Action::Release(agent));
            }
        }
    }
}
