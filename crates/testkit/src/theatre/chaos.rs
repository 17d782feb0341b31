//! What goes wrong on the stage: chosen by dice, and how the job is set up in the first place.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use ronde_control::Worker;
use ronde_control::elastic::{AgentId, Elastic, Event, Limits, Offer, Resting, Source};
use ronde_control::Time;
use ronde_control::wire::RankToDriver;
use ronde_control::wire::agent::Exit;

use super::{Happening, Theatre};
use crate::dice::Dice;

impl Theatre {
    pub(super) fn of(seed: u64) -> Theatre {
        let mut dice = Dice::of(seed);
        let hosts = 1 + dice.below(4);
        let offers: Vec<Offer> = (0..hosts)
            .map(|host| Offer { host: format!("h{host}"), slots: 1 + dice.below(3) as u32 })
            .collect();
        let slots: u32 = offers.iter().map(|offer| offer.slots).sum();
        let start = 1 + dice.below(slots as usize) as u32;
        let min = 1 + dice.below(start as usize) as u32;
        let second = Duration::from_secs(1);
        let limits = Limits {
            start,
            min,
            max: dice.once_in(2).then(|| start + dice.below(3) as u32),
            timeout: 60 * second,
            joining: 90 * second,
            stopped: Some(5 * second),
            resets: dice.once_in(5).then(|| dice.below(6) as u32),
            cooldown: (!dice.once_in(3)).then_some((second, 4 * second)),
            resting: if dice.once_in(2) { Resting::Host } else { Resting::Slot },
            source: if dice.once_in(4) { Source::List } else { Source::Script },
        };
        let faults = dice.below(15);
        Theatre {
            machine: Elastic::new("1", limits.clone(), dice.roll()),
            limits,
            dice,
            now: Time::ZERO,
            agenda: BinaryHeap::<Reverse<(Time, u64)>>::new(),
            happenings: BTreeMap::new(),
            order: 0,
            players: BTreeMap::new(),
            agents: BTreeMap::new(),
            connections: BTreeMap::new(),
            busy: BTreeMap::new(),
            calls: 0,
            rooms: BTreeMap::new(),
            epoch: 0,
            safe: 0,
            offers,
            faults: 0,
            faults_left: faults,
            last_fault: Time::ZERO,
            report: None,
            log: None,
        }
    }

    pub(super) fn begin(&mut self) {
        self.list();
        if self.faults_left > 0 {
            self.soon(4000, Happening::Fault);
        }
    }

    fn list(&mut self) {
        let offers = self.offers.clone();
        self.tell_machine(Event::Discovered(offers));
    }

    /// An agent that was sent for comes, or not.
    pub(super) fn arrive(&mut self, agent: AgentId) {
        if !self.agents.contains_key(&agent) {
            return;
        }
        let fails = self.faults_left > 0 && self.dice.once_in(8);
        match fails {
            true => self.agent_lost(agent),
            false => self.tell_machine(Event::Ready(agent)),
        }
    }

    fn agent_lost(&mut self, agent: AgentId) {
        self.end_agent(agent);
        let (reason, hint) = ("it does not answer".to_owned(), "look".to_owned());
        self.soon(1500, Happening::Event(Event::Gone { agent, reason, hint }));
    }

    /// One thing goes wrong, and the next one is planned.
    pub(super) fn fault(&mut self) {
        self.faults += 1;
        self.faults_left -= 1;
        self.last_fault = self.now;
        let alive = self.players.iter().filter(|(_, player)| player.is_alive());
        let alive: Vec<Worker> = alive.map(|(worker, _)| *worker).collect();
        match (self.dice.below(10), alive.is_empty()) {
            (0, _) => self.change_hosts(),
            (1, _) if !self.agents.is_empty() => {
                let agents: Vec<AgentId> = self.agents.keys().copied().collect();
                let agent = self.dice.pick(&agents);
                self.agent_lost(agent);
            }
            (2, _) => self.tell_machine(Event::Undiscovered("the script hangs".into())),
            (_, true) => {}
            (kind, false) => {
                let worker = self.dice.pick(&alive);
                self.hurt(kind, worker, &alive);
            }
        }
        if self.faults_left > 0 {
            // Troubles come together, too.
            let millis = if self.dice.once_in(3) { 20 } else { 5000 };
            self.soon(millis, Happening::Fault);
        } else {
            self.resume_all();
        }
    }

    fn hurt(&mut self, kind: usize, worker: Worker, alive: &[Worker]) {
        match kind {
            3 | 4 => self.die(worker, Exit::Signal(9)),
            5 => self.die(worker, Exit::Code(1)),
            6 => self.stop_or_resume(worker),
            7 => self.lose_connection(worker),
            8 => {
                let connection = self.players[&worker].connection;
                if let Some(connection) = connection.filter(|_| !self.players[&worker].is_stopped())
                {
                    let reason = "it was sent SIGTERM".to_owned();
                    self.say(connection, RankToDriver::Departing { reason });
                }
            }
            _ => {
                let other = self.dice.pick(alive);
                let stopped = self.players[&worker].is_stopped();
                if other != worker && !stopped {
                    self.quarrel(worker, other);
                }
            }
        }
    }

    fn stop_or_resume(&mut self, worker: Worker) {
        match self.players[&worker].is_stopped() {
            false => {
                self.stop(worker);
                self.agent_says(Event::Stopped(worker));
            }
            true => self.go_on(worker),
        }
    }

    fn go_on(&mut self, worker: Worker) {
        self.agent_says(Event::Continued(worker));
        self.resume(worker);
    }

    /// What an agent says of a worker is heard in order.
    fn agent_says(&mut self, event: Event) {
        self.at(self.now + Duration::from_millis(5), Happening::Event(event));
    }

    fn resume_all(&mut self) {
        let stopped = self.players.iter().filter(|(_, player)| player.is_stopped());
        for worker in stopped.map(|(worker, _)| *worker).collect::<Vec<_>>() {
            // Some stay as they are: the machine must give up on them.
            if self.dice.once_in(2) {
                self.go_on(worker);
            }
        }
    }

    fn change_hosts(&mut self) {
        match self.dice.below(3) {
            0 if self.offers.len() > 1 => {
                let gone = self.dice.below(self.offers.len());
                self.offers.remove(gone);
            }
            1 => {
                let name = format!("h{}", self.dice.below(8));
                if !self.offers.iter().any(|offer| offer.host == name) {
                    let slots = 1 + self.dice.below(3) as u32;
                    self.offers.push(Offer { host: name, slots });
                }
            }
            _ => {
                let index = self.dice.below(self.offers.len());
                self.offers[index].slots = 1 + self.dice.below(3) as u32;
            }
        }
        self.list();
    }
}
