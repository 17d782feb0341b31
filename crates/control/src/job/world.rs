//! The next world: when it can be formed, of which workers, and with which ranks.

use std::time::Duration;

use super::hosts::KnownHost;
use super::member::{JobWorker, WorkerPhase};
use super::messages::EndCause;
use super::{JobAction, JobMachine, WorldPhase, messages, rank_assignment};
use crate::event::JobEventKind;
use crate::wire::{Change, DriverToRank, Peer};
use crate::{ConnectionId, Rank, Time, Worker};

/// How long workers may take to connect in a new world.
pub(super) const CONNECTING: Duration = Duration::from_secs(30);

/// How long a new worker waits for others that are being started, before the world is notified.
pub(super) const TOGETHER: Duration = Duration::from_secs(2);

/// How long workers that have rejoined early wait for the new workers that were announced.
pub(super) const NEW_WORKERS: Duration = Duration::from_secs(30);

/// How many worlds may break up by themselves before a commit.
const FRUITLESS: u32 = 3;

impl JobMachine {
    /// Forms the next world, if all workers that it needs have joined.
    pub(super) fn gather(&mut self, now: Time) {
        self.lingering = None;
        if self.finishing
            || self.is_ending()
            || matches!(self.world, WorldPhase::Forming(_) | WorldPhase::Whole)
        {
            return;
        }
        let first = self.worlds == 0;
        let staying = || self.members.values().filter(|member| member.stays());
        if staying().any(|member| (first || member.has_been_inside) && !member.is_waiting()) {
            return;
        }
        let needed = match first && self.hosts.all.iter().any(KnownHost::is_coming) {
            true => self.job_spec.start,
            false => self.job_spec.min,
        };
        let chosen = self.choose();
        let has_state = chosen.iter().any(|worker| self.members[worker].has_state);
        if (chosen.len() as u32) < needed.max(1) || (self.progress && !has_state) {
            return;
        }
        if let Some(until) = self.new_workers_due().filter(|until| *until > now) {
            self.lingering = Some(until);
            return;
        }
        if self.job_spec.outlives_losses() && self.is_fruitless() {
            return self.end(EndCause::NoProgress { worlds: self.fruitless }, now);
        }
        if let Some(limit) = self.job_spec.resets.filter(|limit| self.worlds > *limit) {
            return self.end(EndCause::ResetLimit { limit }, now);
        }
        self.form(&chosen, now);
    }

    /// When all workers must have joined, once one has, or must have connected.
    pub(super) fn gathering_due(&self) -> Option<Time> {
        match self.world {
            WorldPhase::Forming(until) => Some(until),
            _ if self.job_spec.outlives_losses() => None,
            _ => self.waiting().map(|(_, member)| member.since + self.job_spec.joining).min(),
        }
    }

    /// In a job that needs all its workers, ends a wait that has taken too long.
    pub(super) fn stop_waiting(&mut self, now: Time) {
        let is_due = |time: Option<Time>| time.is_some_and(|time| time <= now);
        if self.job_spec.outlives_losses() || !is_due(self.alarm) || !is_due(self.gathering_due()) {
            return;
        }
        let forming = matches!(self.world, WorldPhase::Forming(_));
        let is_missing = |member: &JobWorker| match forming {
            true => !member.has_rank() && !member.is_waiting(),
            false => !member.is_inside() && !member.is_waiting(),
        };
        let missing = self.members.iter().filter(|(_, member)| is_missing(member));
        let missing: Vec<String> = missing.map(|(worker, _)| self.name(*worker)).collect();
        let reason = messages::missing(&missing, self.job_spec.start, self.job_spec.joining);
        if forming {
            self.world = WorldPhase::None;
            self.refuse_all(JobWorker::is_inside, &reason);
        }
        self.refuse_all(JobWorker::is_waiting, &reason);
    }

    /// Workers that have joined and may be part of the next world.
    fn waiting(&self) -> impl Iterator<Item = (&Worker, &JobWorker)> {
        self.members.iter().filter(|(_, member)| member.is_waiting() && member.stays())
    }

    /// Whether worlds keep breaking up although no worker dies: training makes no progress.
    fn is_fruitless(&mut self) -> bool {
        let by_itself = !self.verdict.failed() && !self.announced.removed && !self.announced.added;
        match self.world {
            WorldPhase::Broken(_) if by_itself && !self.committed => self.fruitless += 1,
            _ => self.fruitless = 0,
        }
        self.fruitless >= FRUITLESS
    }

    /// How long to wait for new workers, if the others have rejoined only because of them.
    fn new_workers_due(&self) -> Option<Time> {
        let WorldPhase::Broken(since) = self.world else { return None };
        let early = self.announced.coming && !self.announced.added && !self.announced.removed;
        (early && !self.verdict.failed() && self.is_growing()).then_some(since + NEW_WORKERS)
    }

    /// Whether workers are being started that are not ready yet.
    fn is_growing(&self) -> bool {
        let coming = |member: &JobWorker| {
            member.stays() && !member.has_been_inside && !member.is_inside() && !member.is_waiting()
        };
        let reached = |host: &KnownHost| host.is_coming() && host.unreached == 0;
        self.members.values().any(coming) || self.hosts.all.iter().any(reached)
    }

    /// The workers for the next world: those with the training state first, then those of earlier
    /// worlds, then in start order; no more than the maximum.
    fn choose(&self) -> Vec<Worker> {
        let mut chosen: Vec<_> = self
            .waiting()
            .map(|(worker, member)| (!member.has_state, !member.has_been_inside, *worker))
            .collect();
        chosen.sort_unstable();
        chosen.truncate(self.job_spec.max.map_or(usize::MAX, |max| max as usize));
        let mut chosen: Vec<Worker> = chosen.into_iter().map(|(.., worker)| worker).collect();
        chosen.sort_unstable();
        chosen
    }

    fn form(&mut self, chosen: &[Worker], now: Time) {
        let outlives = self.job_spec.outlives_losses();
        let (ranks, locals) = (self.ranks(chosen), self.locals(chosen));
        let mut assignment: Vec<(u32, Worker, u32)> = ranks
            .iter()
            .zip(chosen)
            .zip(locals)
            .map(|((rank, worker), local)| (*rank, *worker, local))
            .collect();
        assignment.sort_unstable();
        // A worker that was told to leave and has not noticed yet is no longer inside.
        for member in self.members.values_mut().filter(|member| member.is_inside()) {
            (member.phase, member.since, member.suspect) = (WorkerPhase::Away, now, None);
        }
        let mut peers: Vec<Peer> = Vec::with_capacity(assignment.len());
        for (rank, worker, local_rank) in &assignment {
            let Some(member) = self.members.get_mut(worker) else { continue };
            let inside = WorkerPhase::Inside { leader: None };
            if let WorkerPhase::Waiting(peer) = std::mem::replace(&mut member.phase, inside) {
                peers.push(Peer { local_rank: *local_rank, ..peer });
            }
            member.rank = Rank(*rank);
            if outlives {
                let assign = DriverToRank::Assign { rank: member.rank };
                self.actions.push(JobAction::Tell(member.connection.into_iter().collect(), assign));
            }
            self.verdict.enter(self.who(*worker));
        }
        self.epoch.0 += 1;
        self.alarm(now + self.job_spec.joining);
        self.world =
            WorldPhase::Forming(now + if outlives { CONNECTING } else { self.job_spec.joining });
        self.order = assignment.iter().map(|(_, worker, _)| *worker).collect();
        self.actions.push(JobAction::Formed(self.epoch, self.order.clone()));
        let world = DriverToRank::World { epoch: self.epoch, peers };
        self.actions.push(JobAction::Tell(self.insiders(), world));
    }

    /// Ranks for these workers: kept where possible, and rank 0 for one with the training state.
    fn ranks(&self, chosen: &[Worker]) -> Vec<u32> {
        let members: Vec<_> = chosen.iter().map(|worker| &self.members[worker]).collect();
        let before: Vec<Option<u32>> =
            members.iter().map(|member| member.has_been_inside.then_some(member.rank.0)).collect();
        let with_state = members.iter().enumerate().filter(|(_, member)| member.has_state);
        let first = with_state.min_by_key(|(_, member)| member.rank).map(|(index, _)| index);
        rank_assignment::number(&before, first)
    }

    /// Their local ranks: their slots, with gaps closed.
    fn locals(&self, chosen: &[Worker]) -> Vec<u32> {
        if !self.job_spec.outlives_losses() {
            return chosen.iter().map(|worker| self.members[worker].slot).collect();
        }
        let mut locals = vec![0; chosen.len()];
        for host in 0..self.hosts.all.len() {
            let here: Vec<usize> = (0..chosen.len())
                .filter(|index| self.members[&chosen[*index]].host == host)
                .collect();
            let slots: Vec<Option<u32>> =
                here.iter().map(|index| Some(self.members[&chosen[*index]].slot)).collect();
            for (index, local) in here.iter().zip(rank_assignment::number(&slots, None)) {
                locals[*index] = local;
            }
        }
        locals
    }

    /// Sends all ranks the layout, once each has reported the first rank of its host.
    pub(super) fn lay_out(&mut self, now: Time) {
        if !matches!(self.world, WorldPhase::Forming(_)) {
            return;
        }
        let mut found = Vec::new();
        for member in self.members.values() {
            if let WorkerPhase::Inside { leader } = member.phase {
                let Some(leader) = leader else { return };
                found.push((member.rank, leader));
            }
        }
        found.sort_unstable();
        let leaders: Vec<Rank> = found.into_iter().map(|(_, leader)| leader).collect();
        self.actions.push(JobAction::Tell(self.insiders(), DriverToRank::Layout { leaders }));
        let mut newcomers = 0;
        for member in self.members.values_mut().filter(|member| member.is_inside()) {
            newcomers += u32::from(!member.has_been_inside);
            member.has_been_inside = true;
        }
        self.world = WorldPhase::Whole;
        self.worlds += 1;
        self.announced = Change::default();
        self.committed = false;
        if self.job_spec.outlives_losses() {
            self.verdict.begin_anew();
        }
        if let Some(recovery) = &mut self.recovery {
            recovery.met.get_or_insert(now);
        }
        let members = self.order.iter().map(|worker| self.who(*worker)).collect();
        let (world, epoch) = (u64::from(self.worlds), self.epoch);
        self.happened(JobEventKind::WorldFormed { world, epoch, members, newcomers });
    }

    /// A world that was not complete has lost a worker: all must join again.
    pub(super) fn join_again(&mut self, reason: &str, now: Time) {
        let connections = self.insiders();
        self.world = match self.worlds {
            0 => WorldPhase::None,
            _ => WorldPhase::Broken(now),
        };
        for member in self.members.values_mut().filter(|member| member.is_inside()) {
            (member.phase, member.since, member.suspect) = (WorkerPhase::Away, now, None);
            if let Some(connection) = member.connection.take() {
                self.connections.remove(&connection);
            }
        }
        self.close_with(connections, DriverToRank::Again { reason: reason.to_owned() });
    }

    /// Announces to the workers of a complete world that the next one will be different.
    pub(super) fn announce_changes(&mut self, now: Time) {
        if self.world != WorldPhase::Whole || self.finishing || !self.job_spec.outlives_losses() {
            return;
        }
        let leaves = self.members.values().any(|member| member.is_inside() && !member.stays());
        let added = self.growth().is_some_and(|time| time <= now);
        let news = !self.announced.coming && !self.announced.added && !added;
        let coming = news && self.has_room() && self.is_growing();
        let change = Change { removed: leaves && !self.announced.removed, added, coming };
        if change != Change::default() {
            self.announced.removed |= change.removed;
            self.announced.added |= change.added;
            self.announced.coming |= change.coming;
            self.actions.push(JobAction::Tell(self.insiders(), DriverToRank::Update { change }));
        }
    }

    /// When new workers are to be announced to a complete world, if there are any that it does not
    /// know of: at once, unless others are being started.
    pub(super) fn growth(&self) -> Option<Time> {
        if self.world != WorldPhase::Whole
            || self.announced.added
            || self.finishing
            || !self.has_room()
        {
            return None;
        }
        let newcomers = || self.members.values().filter(|it| !it.is_inside() && it.stays());
        let since = newcomers().filter(|it| it.is_waiting()).map(|it| it.since).min()?;
        let others = newcomers().any(|it| !it.is_waiting() && !it.has_been_inside);
        Some(if others { since + TOGETHER } else { since })
    }

    /// Whether the world may have more workers.
    fn has_room(&self) -> bool {
        let inside = self.members.values().filter(|member| member.is_inside() && member.stays());
        self.job_spec.max.is_none_or(|max| inside.count() < max as usize)
    }

    /// The connections of all workers that are inside.
    pub(super) fn insiders(&self) -> Vec<ConnectionId> {
        let inside = self.members.values().filter(|member| member.is_inside());
        inside.filter_map(|member| member.connection).collect()
    }
}
