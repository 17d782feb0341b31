//! A played worker: it calls the launcher, takes its place, trains with the others, and ends.
//!
//! Ranks do things together one after the other: thing 0 gives everybody rank 0's state, then steps and
//! agreements take turns. Each is done when all members have come to it, but one may hear of a death
//! before it hears that, as in a real network.

use ronde_control::cause::Raised;
use ronde_control::event::JobKind;
use ronde_control::job::{AgentId, Event, Start};
use ronde_control::wire::agent::Exit;
use ronde_control::wire::{DriverToRank, Milestone, Peer, RankToDriver};
use ronde_control::{Connection, Rank, Time, Worker};

use super::{Doing, Happening, STEPS, Theatre};

/// One worker.
pub(super) struct Player {
    pub(super) agent: AgentId,
    pub(super) slot: u32,
    pub(super) host: String,
    life: Life,
    pub(super) connection: Option<Connection>,
    epoch: u64,
    rank: Rank,
    /// The first rank of its host.
    leader: Rank,
    /// Whether its world is complete for all it knows.
    laid_out: bool,
    /// What it does with the others next.
    thing: u64,
    step: u64,
    saved: u64,
    committed_here: bool,
    /// Whether it was told to meet again.
    update: bool,
    /// Since when it waits for others.
    waits: Option<Time>,
    /// What it has not heard because it is stopped.
    deaf: Vec<(Connection, Option<DriverToRank>)>,
    undone: Vec<(u64, Doing)>,
    /// Plans made before this one are void.
    plan: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Runs,
    Stopped,
    Over,
}

impl Player {
    pub(super) fn is_alive(&self) -> bool {
        self.life != Life::Over
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.life == Life::Stopped
    }

    /// Whether it believes to be part of that world.
    pub(super) fn is_training_in(&self, epoch: u64) -> bool {
        self.is_alive() && epoch > 0 && self.epoch == epoch && self.connection.is_some()
    }
}

impl Theatre {
    pub(super) fn enter(&mut self, start: Start) {
        let Start { worker, agent, host, slot, rank, .. } = start;
        let player = Player {
            agent,
            slot,
            host,
            // An agent may have died and nobody knows yet.
            life: if self.agents.contains_key(&agent) { Life::Runs } else { Life::Over },
            connection: None,
            epoch: 0,
            rank,
            leader: Rank(0),
            laid_out: false,
            thing: 0,
            step: 0,
            saved: 0,
            committed_here: false,
            update: false,
            waits: None,
            deaf: Vec::new(),
            undone: Vec::new(),
            plan: 0,
        };
        if player.is_alive() {
            self.soon(1, Happening::Event(Event::Started(worker, 100 + worker.0)));
        }
        self.players.insert(worker, player);
        self.intend(worker, 3000, Doing::Call);
    }

    /// Plans a worker's next deed; what it planned before is void.
    fn intend(&mut self, worker: Worker, millis: usize, doing: Doing) {
        if let Some(player) = self.players.get_mut(&worker) {
            player.plan += 1;
            let plan = player.plan;
            self.soon(millis, Happening::Plan(worker, plan, doing));
        }
    }

    pub(super) fn carry_out(&mut self, worker: Worker, plan: u64, doing: Doing) {
        let Some(player) = self.players.get_mut(&worker) else { return };
        if player.plan != plan || player.life == Life::Over {
            return;
        }
        if player.life == Life::Stopped {
            return player.undone.push((plan, doing));
        }
        match doing {
            Doing::Call => self.call(worker),
            Doing::Locate => {
                let (connection, leader) = (player.connection, player.leader);
                if let Some(connection) = connection {
                    self.say(connection, RankToDriver::Located { leader });
                }
            }
            Doing::Finish(result) => self.finish(worker, result),
            Doing::Exit(code) => self.die(worker, Exit::Code(code)),
        }
    }

    fn call(&mut self, worker: Worker) {
        let connection = self.greet(worker);
        let player = self.players.get_mut(&worker).expect("it calls");
        player.connection = Some(connection);
        (player.laid_out, player.thing, player.update, player.epoch) = (false, 0, false, 0);
        (player.committed_here, player.step) = (false, player.saved);
        let (host, local_rank) = (player.host.clone(), player.slot);
        let peer = Peer { pid: 1, host, local_rank, addresses: Vec::new(), unix: None };
        self.say(connection, RankToDriver::Join(peer));
    }

    /// Leaves whatever world it is in and comes again.
    fn come_again(&mut self, worker: Worker) {
        let player = self.players.get_mut(&worker).expect("it is there");
        let connection = player.connection.take();
        (player.step, player.laid_out, player.epoch) = (player.saved, false, 0);
        if let Some(connection) = connection {
            self.say(connection, RankToDriver::Leaving { error: None, blames: None });
            self.drop_connection(connection);
        }
        self.intend(worker, 100, Doing::Call);
    }

    pub(super) fn hear(&mut self, connection: Connection, message: DriverToRank) {
        let Some(&worker) = self.connections.get(&connection) else { return };
        let Some(player) = self.players.get_mut(&worker) else { return };
        if player.life == Life::Stopped {
            return player.deaf.push((connection, Some(message)));
        }
        match message {
            DriverToRank::Seat { rank } => player.rank = rank,
            DriverToRank::World { epoch, peers } => {
                player.epoch = epoch.0;
                let me = &peers[player.rank.index()];
                let here = peers.iter().position(|peer| peer.host == me.host);
                let (host, slots) = (me.host.clone(), peers.len());
                player.leader = Rank(here.unwrap_or_default() as u32);
                let right = host == player.host && player.rank.index() < slots;
                self.hold(right, "a worker is told of somebody else's place");
                self.intend(worker, 30, Doing::Locate);
            }
            DriverToRank::Layout { .. } => {
                player.laid_out = true;
                self.arrive_at(worker);
            }
            DriverToRank::Lost { rank, .. } if self.terms.kind == JobKind::Fixed => {
                self.fail_because_of(worker, rank);
            }
            DriverToRank::Lost { .. } | DriverToRank::Again { .. } => self.come_again(worker),
            DriverToRank::Removed { .. } => self.intend(worker, 200, Doing::Exit(0)),
            DriverToRank::Refused { .. } => self.intend(worker, 200, Doing::Exit(1)),
            // Some meet as soon as they hear of newcomers, as scripts do that wait for that word.
            DriverToRank::Update { change } => {
                let early = change.coming && worker.0.is_multiple_of(3);
                player.update |= change.removed || change.added || early;
            }
            DriverToRank::Ask => {}
            DriverToRank::Ping => {
                let waits = player.waits.map(|since| self.now.saturating_sub(since));
                self.say(connection, RankToDriver::Pong { waits });
            }
        }
    }

    /// The launcher has ended a connection.
    pub(super) fn hung_up(&mut self, connection: Connection) {
        let Some(&worker) = self.connections.get(&connection) else { return };
        let Some(player) = self.players.get_mut(&worker) else { return };
        if player.life == Life::Stopped {
            return player.deaf.push((connection, None));
        }
        self.connections.remove(&connection);
        if player.connection == Some(connection) {
            player.connection = None;
            player.epoch = 0;
        }
    }

    /// A worker of a fixed job ends because it has lost another.
    fn fail_because_of(&mut self, worker: Worker, rank: Rank) {
        let player = self.players.get_mut(&worker).expect("it is there");
        let connection = player.connection.take();
        (player.laid_out, player.epoch) = (false, 0);
        if let Some(connection) = connection {
            let error = Some(Raised::by_program(format!("HorovodInternalError: lost {rank}")));
            self.say(connection, RankToDriver::Leaving { error, blames: Some(rank) });
            self.drop_connection(connection);
        }
        self.intend(worker, 300, Doing::Exit(1));
    }

    /// A worker comes to what it does with the others next.
    fn arrive_at(&mut self, worker: Worker) {
        // Programs of fixed jobs shut down and join again now and then.
        let again = self.terms.kind == JobKind::Fixed && self.dice.once_in(40);
        let now = self.now;
        let player = self.players.get_mut(&worker).expect("it is there");
        player.waits = Some(now);
        player.update |= again;
        let (epoch, thing, rank) = (player.epoch, player.thing, player.rank);
        let brings = match thing {
            0 => player.saved,
            _ => u64::from(player.update),
        };
        let Some(room) = self.rooms.get_mut(&epoch) else { return };
        let there = room.there.entry(thing).or_default();
        there.insert(worker);
        if rank == Rank(0) {
            room.brought.insert(thing, brings);
        }
        if there.len() < room.members.len() {
            return;
        }
        let (members, result) = (room.members.clone(), room.brought.get(&thing).copied());
        let result = result.unwrap_or_default();
        // Without those who have left nothing is done any more.
        if !members.iter().all(|member| self.players[member].is_training_in(epoch)) {
            return;
        }
        if thing == 0 {
            let (safe, most) = (self.safe, self.players.values().map(|it| it.saved).max());
            self.hold(result >= safe, "a committed step is lost");
            self.hold(Some(result) <= most, "a step comes from nowhere");
        }
        if thing > 0 && thing % 2 == 0 {
            let least = members.iter().map(|member| self.players[member].saved).min();
            self.safe = self.safe.max(least.unwrap_or_default());
        }
        for member in members {
            let millis = if self.dice.once_in(10) { 300 } else { 40 };
            self.intend(member, millis, Doing::Finish(result));
        }
    }

    /// Something that all did together is done: things with odd numbers are steps, the others
    /// agreements whether to meet again.
    fn finish(&mut self, worker: Worker, result: u64) {
        let player = self.players.get_mut(&worker).expect("it is there");
        let Some(connection) = player.connection else { return };
        let thing = player.thing;
        player.thing += 1;
        player.waits = None;
        if thing == 0 {
            (player.step, player.saved) = (result, result);
            self.reach(connection, Milestone::State);
        } else if thing % 2 == 1 {
            player.step += 1;
            player.saved = player.step;
            if !std::mem::replace(&mut player.committed_here, true) {
                self.reach(connection, Milestone::Commit);
            }
        } else if result > 0 {
            return self.come_again(worker);
        } else if player.step >= STEPS {
            player.connection = None;
            self.say(connection, RankToDriver::Leaving { error: None, blames: None });
            self.drop_connection(connection);
            return self.intend(worker, 100, Doing::Exit(0));
        }
        self.arrive_at(worker);
    }

    /// Workers of elastic jobs tell how far they have come.
    fn reach(&mut self, connection: Connection, milestone: Milestone) {
        if self.terms.kind == JobKind::Elastic {
            self.say(connection, RankToDriver::Reached(milestone));
        }
    }

    /// All workers get a signal; of those that are stopped only a kill is heard.
    pub(super) fn signal_all(&mut self, signal: i32) {
        for worker in self.players.keys().copied().collect::<Vec<_>>() {
            if signal == 9 || !self.players[&worker].is_stopped() {
                self.die(worker, Exit::Signal(signal));
            }
        }
    }

    pub(super) fn signal(&mut self, worker: Worker, signal: i32) {
        let Some(player) = self.players.get(&worker) else { return };
        if player.is_alive() && (signal == 9 || player.connection.is_none()) {
            self.die(worker, Exit::Signal(signal));
        }
    }

    pub(super) fn stop(&mut self, worker: Worker) {
        let player = self.players.get_mut(&worker).expect("it is there");
        player.life = Life::Stopped;
    }

    /// Lets a stopped worker go on with what it missed.
    pub(super) fn resume(&mut self, worker: Worker) {
        let player = self.players.get_mut(&worker).expect("it is there");
        player.life = Life::Runs;
        let (deaf, undone) = (std::mem::take(&mut player.deaf), std::mem::take(&mut player.undone));
        for (plan, doing) in undone {
            self.carry_out(worker, plan, doing);
        }
        for (connection, message) in deaf {
            match message {
                Some(message) => self.hear(connection, message),
                None => self.hung_up(connection),
            }
        }
    }

    /// A worker's process ends.
    pub(super) fn die(&mut self, worker: Worker, exit: Exit) {
        let player = self.players.get_mut(&worker).expect("it is there");
        if !player.is_alive() {
            return;
        }
        player.life = Life::Over;
        let (connection, agent) = (player.connection.take(), player.agent);
        if let Some(connection) = connection {
            self.drop_connection(connection);
        }
        // Of workers whose agent is gone nobody reports.
        if self.agents.contains_key(&agent) {
            self.exited(worker, exit);
        }
    }

    /// An agent ends and takes its workers with it.
    pub(super) fn end_agent(&mut self, agent: AgentId) {
        self.agents.remove(&agent);
        let here = self.players.iter().filter(|(_, player)| player.agent == agent);
        for worker in here.map(|(worker, _)| *worker).collect::<Vec<_>>() {
            if self.players[&worker].is_alive() {
                self.die(worker, Exit::Signal(9));
            }
        }
    }

    /// A worker that stopped answering because it lost its launcher comes again.
    pub(super) fn lose_connection(&mut self, worker: Worker) {
        let player = self.players.get_mut(&worker).expect("it is there");
        if let Some(connection) = player.connection.take() {
            (player.step, player.laid_out, player.epoch) = (player.saved, false, 0);
            self.drop_connection(connection);
            // Without its launcher a rank of a fixed job cannot go on.
            let next = match self.terms.kind {
                JobKind::Fixed => Doing::Exit(1),
                JobKind::Elastic => Doing::Call,
            };
            self.intend(worker, 200, next);
        }
    }

    /// Two workers of a world cannot reach each other any more.
    pub(super) fn quarrel(&mut self, by: Worker, other: Worker) {
        let (rank, together) = {
            let (a, b) = (&self.players[&by], &self.players[&other]);
            (b.rank, a.epoch == b.epoch && a.laid_out && b.laid_out)
        };
        if let (true, Some(connection)) = (together, self.players[&by].connection) {
            let cause = "connection reset".to_owned();
            self.say(connection, RankToDriver::GivenUp { rank, cause });
            match self.terms.kind {
                JobKind::Fixed => self.fail_because_of(by, rank),
                JobKind::Elastic => self.come_again(by),
            }
        }
    }
}
