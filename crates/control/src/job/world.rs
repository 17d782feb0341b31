//! The next world: when it can be formed, of whom, and with which ranks.

use std::time::Duration;

use super::hosts::Host;
use super::member::{Member, Phase};
use super::words::End;
use super::{Action, Machine, World, seats, words};
use crate::event::Happening;
use crate::wire::{Change, DriverToRank, Peer};
use crate::{Connection, Rank, Time, Worker};

/// How long workers may take to find their places in a world.
pub(super) const SEATING: Duration = Duration::from_secs(30);

/// How long a newcomer waits for others that are just being started, before the world is told.
pub(super) const TOGETHER: Duration = Duration::from_secs(2);

/// How long workers that have met early wait for newcomers that they were told of.
pub(super) const NEWCOMERS: Duration = Duration::from_secs(30);

/// How many worlds may fall apart by themselves before anybody has committed.
const FRUITLESS: u32 = 3;

impl Machine {
    /// Forms the next world, if everybody who must be there has come.
    pub(super) fn gather(&mut self, now: Time) {
        self.lingering = None;
        if self.finishing
            || self.is_ending()
            || matches!(self.world, World::Forming(_) | World::Whole)
        {
            return;
        }
        let first = self.worlds == 0;
        let staying = || self.members.values().filter(|member| member.stays());
        if staying().any(|member| (first || member.has_been_inside) && !member.is_waiting()) {
            return;
        }
        let needed = match first && self.hosts.all.iter().any(Host::is_coming) {
            true => self.terms.start,
            false => self.terms.min,
        };
        let chosen = self.choose();
        let has_state = chosen.iter().any(|worker| self.members[worker].has_state);
        if (chosen.len() as u32) < needed.max(1) || (self.progress && !has_state) {
            return;
        }
        if let Some(until) = self.newcomers_due().filter(|until| *until > now) {
            self.lingering = Some(until);
            return;
        }
        if self.terms.outlives_losses() && self.is_fruitless() {
            return self.end(End::NoProgress { worlds: self.fruitless }, now);
        }
        if let Some(limit) = self.terms.resets.filter(|limit| self.worlds > *limit) {
            return self.end(End::ResetLimit { limit }, now);
        }
        self.form(&chosen, now);
    }

    /// By when all must have come, once somebody has, or taken their places.
    pub(super) fn gathering_due(&self) -> Option<Time> {
        match self.world {
            World::Forming(until) => Some(until),
            _ if self.terms.outlives_losses() => None,
            _ => self.waiting().map(|(_, member)| member.since + self.terms.joining).min(),
        }
    }

    /// Ends a wait of a job that needs all its workers, once it was too long.
    pub(super) fn stop_waiting(&mut self, now: Time) {
        let is_due = |time: Option<Time>| time.is_some_and(|time| time <= now);
        if self.terms.outlives_losses() || !is_due(self.alarm) || !is_due(self.gathering_due()) {
            return;
        }
        let forming = matches!(self.world, World::Forming(_));
        let is_missing = |member: &Member| match forming {
            true => !member.is_seated() && !member.is_waiting(),
            false => !member.is_inside() && !member.is_waiting(),
        };
        let missing = self.members.iter().filter(|(_, member)| is_missing(member));
        let missing: Vec<String> = missing.map(|(worker, _)| self.name(*worker)).collect();
        let reason = words::missing(&missing, self.terms.start, self.terms.joining);
        if forming {
            self.world = World::None;
            self.turn_away_those(Member::is_inside, &reason);
        }
        self.turn_away_those(Member::is_waiting, &reason);
    }

    /// Those who have joined and may be part of the next world.
    fn waiting(&self) -> impl Iterator<Item = (&Worker, &Member)> {
        self.members.iter().filter(|(_, member)| member.is_waiting() && member.stays())
    }

    /// Whether worlds fall apart again and again although nobody dies: training cannot go on so.
    fn is_fruitless(&mut self) -> bool {
        let by_itself = !self.verdict.failed() && !self.told.removed && !self.told.added;
        match self.world {
            World::Broken(_) if by_itself && !self.committed => self.fruitless += 1,
            _ => self.fruitless = 0,
        }
        self.fruitless >= FRUITLESS
    }

    /// Until when to wait for newcomers, if the others meet only because they have heard of them.
    fn newcomers_due(&self) -> Option<Time> {
        let World::Broken(since) = self.world else { return None };
        let early = self.told.coming && !self.told.added && !self.told.removed;
        (early && !self.verdict.failed() && self.is_growing()).then_some(since + NEWCOMERS)
    }

    /// Whether workers are on their way who are not ready.
    fn is_growing(&self) -> bool {
        let coming = |member: &Member| {
            member.stays() && !member.has_been_inside && !member.is_inside() && !member.is_waiting()
        };
        let reached = |host: &Host| host.is_coming() && host.unreached == 0;
        self.members.values().any(coming) || self.hosts.all.iter().any(reached)
    }

    /// Those who wait and may be part of the next world: who has the state first, then who was there
    /// before, then in the order of their starts; no more than there may be.
    fn choose(&self) -> Vec<Worker> {
        let mut chosen: Vec<_> = self
            .waiting()
            .map(|(worker, member)| (!member.has_state, !member.has_been_inside, *worker))
            .collect();
        chosen.sort_unstable();
        chosen.truncate(self.terms.max.map_or(usize::MAX, |max| max as usize));
        let mut chosen: Vec<Worker> = chosen.into_iter().map(|(.., worker)| worker).collect();
        chosen.sort_unstable();
        chosen
    }

    fn form(&mut self, chosen: &[Worker], now: Time) {
        let outlives = self.terms.outlives_losses();
        let (ranks, locals) = (self.ranks(chosen), self.locals(chosen));
        let mut seats: Vec<(u32, Worker, u32)> = ranks
            .iter()
            .zip(chosen)
            .zip(locals)
            .map(|((rank, worker), local)| (*rank, *worker, local))
            .collect();
        seats.sort_unstable();
        // Whoever was told to go and has not noticed yet belongs to the past.
        for member in self.members.values_mut().filter(|member| member.is_inside()) {
            (member.phase, member.since, member.suspect) = (Phase::Away, now, None);
        }
        let mut peers: Vec<Peer> = Vec::with_capacity(seats.len());
        for (rank, worker, local_rank) in &seats {
            let Some(member) = self.members.get_mut(worker) else { continue };
            let inside = Phase::Inside { leader: None };
            if let Phase::Waiting(peer) = std::mem::replace(&mut member.phase, inside) {
                peers.push(Peer { local_rank: *local_rank, ..peer });
            }
            member.rank = Rank(*rank);
            if outlives {
                let seat = DriverToRank::Seat { rank: member.rank };
                self.actions.push(Action::Tell(member.connection.into_iter().collect(), seat));
            }
            self.verdict.enter(self.who(*worker));
        }
        self.epoch.0 += 1;
        self.alarm(now + self.terms.joining);
        self.world = World::Forming(now + if outlives { SEATING } else { self.terms.joining });
        self.order = seats.iter().map(|(_, worker, _)| *worker).collect();
        self.actions.push(Action::Formed(self.epoch, self.order.clone()));
        let world = DriverToRank::World { epoch: self.epoch, peers };
        self.actions.push(Action::Tell(self.insiders(), world));
    }

    /// Ranks for these: kept where that can be, and rank 0 for somebody with the state.
    fn ranks(&self, chosen: &[Worker]) -> Vec<u32> {
        let members: Vec<_> = chosen.iter().map(|worker| &self.members[worker]).collect();
        let before: Vec<Option<u32>> =
            members.iter().map(|member| member.has_been_inside.then_some(member.rank.0)).collect();
        let with_state = members.iter().enumerate().filter(|(_, member)| member.has_state);
        let first = with_state.min_by_key(|(_, member)| member.rank).map(|(index, _)| index);
        seats::number(&before, first)
    }

    /// Their places on their hosts: their slots, where there is no gap below.
    fn locals(&self, chosen: &[Worker]) -> Vec<u32> {
        if !self.terms.outlives_losses() {
            return chosen.iter().map(|worker| self.members[worker].slot).collect();
        }
        let mut locals = vec![0; chosen.len()];
        for host in 0..self.hosts.all.len() {
            let here: Vec<usize> = (0..chosen.len())
                .filter(|index| self.members[&chosen[*index]].host == host)
                .collect();
            let slots: Vec<Option<u32>> =
                here.iter().map(|index| Some(self.members[&chosen[*index]].slot)).collect();
            for (index, local) in here.iter().zip(seats::number(&slots, None)) {
                locals[*index] = local;
            }
        }
        locals
    }

    /// Tells everybody what all have found, once all have.
    pub(super) fn lay_out(&mut self, now: Time) {
        if !matches!(self.world, World::Forming(_)) {
            return;
        }
        let mut found = Vec::new();
        for member in self.members.values() {
            if let Phase::Inside { leader } = member.phase {
                let Some(leader) = leader else { return };
                found.push((member.rank, leader));
            }
        }
        found.sort_unstable();
        let leaders: Vec<Rank> = found.into_iter().map(|(_, leader)| leader).collect();
        self.actions.push(Action::Tell(self.insiders(), DriverToRank::Layout { leaders }));
        let mut newcomers = 0;
        for member in self.members.values_mut().filter(|member| member.is_inside()) {
            newcomers += u32::from(!member.has_been_inside);
            member.has_been_inside = true;
        }
        self.world = World::Whole;
        self.worlds += 1;
        self.told = Change::default();
        self.committed = false;
        if self.terms.outlives_losses() {
            self.verdict.begin_anew();
        }
        if let Some(recovery) = &mut self.recovery {
            recovery.met.get_or_insert(now);
        }
        let members = self.order.iter().map(|worker| self.who(*worker)).collect();
        let (world, epoch) = (u64::from(self.worlds), self.epoch);
        self.happened(Happening::WorldFormed { world, epoch, members, newcomers });
    }

    /// A world that is not complete has lost somebody: all must join again.
    pub(super) fn meet_again(&mut self, reason: &str, now: Time) {
        let connections = self.insiders();
        self.world = match self.worlds {
            0 => World::None,
            _ => World::Broken(now),
        };
        for member in self.members.values_mut().filter(|member| member.is_inside()) {
            (member.phase, member.since, member.suspect) = (Phase::Away, now, None);
            if let Some(connection) = member.connection.take() {
                self.connections.remove(&connection);
            }
        }
        self.part_with(connections, DriverToRank::Again { reason: reason.to_owned() });
    }

    /// Tells the workers of a complete world that the next one will be another one.
    pub(super) fn announce_changes(&mut self, now: Time) {
        if self.world != World::Whole || self.finishing || !self.terms.outlives_losses() {
            return;
        }
        let leaves = self.members.values().any(|member| member.is_inside() && !member.stays());
        let added = self.growth().is_some_and(|time| time <= now);
        let news = !self.told.coming && !self.told.added && !added;
        let coming = news && self.has_room() && self.is_growing();
        let change = Change { removed: leaves && !self.told.removed, added, coming };
        if change != Change::default() {
            self.told.removed |= change.removed;
            self.told.added |= change.added;
            self.told.coming |= change.coming;
            self.actions.push(Action::Tell(self.insiders(), DriverToRank::Update { change }));
        }
    }

    /// When the workers of a complete world are to be told of newcomers, if there are any they have
    /// not heard of: at once, unless others are just being started.
    pub(super) fn growth(&self) -> Option<Time> {
        if self.world != World::Whole || self.told.added || self.finishing || !self.has_room() {
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
        self.terms.max.is_none_or(|max| inside.count() < max as usize)
    }

    /// The ways to all who are inside.
    pub(super) fn insiders(&self) -> Vec<Connection> {
        let inside = self.members.values().filter(|member| member.is_inside());
        inside.filter_map(|member| member.connection).collect()
    }
}
