//! What goes wrong on the stage: chosen by dice, and how the job is set up in the first place.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use ronde_control::event::{JobKind, Source};
use ronde_control::job::{AgentId, Event, Machine, Offer, Resting, Terms};
use ronde_control::wire::RankToDriver;
use ronde_control::wire::agent::Exit;
use ronde_control::{Time, Worker};

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
        let terms = match dice.once_in(3) {
            true => Theatre::fixed(slots, &mut dice),
            false => Theatre::elastic(slots, &mut dice),
        };
        let faults = dice.below(15);
        let seed = dice.roll();
        Theatre::on_stage((Machine::new("1", terms.clone(), seed), terms), offers, dice, faults)
    }

    fn fixed(slots: u32, dice: &mut Dice) -> Terms {
        let second = Duration::from_secs(1);
        let stopped = dice.once_in(2).then_some(20 * second);
        Terms::fixed(1 + dice.below(slots as usize) as u32, 90 * second, stopped)
    }

    fn elastic(slots: u32, dice: &mut Dice) -> Terms {
        let start = 1 + dice.below(slots as usize) as u32;
        let second = Duration::from_secs(1);
        Terms {
            kind: JobKind::Elastic,
            least_hosts: 1,
            start,
            min: 1 + dice.below(start as usize) as u32,
            max: dice.once_in(2).then(|| start + dice.below(3) as u32),
            timeout: 60 * second,
            joining: 90 * second,
            stopped: Some(5 * second),
            resets: dice.once_in(5).then(|| dice.below(6) as u32),
            cooldown: (!dice.once_in(3)).then_some((second, 4 * second)),
            resting: if dice.once_in(2) { Resting::Host } else { Resting::Slot },
            source: if dice.once_in(4) { Source::List } else { Source::Script },
        }
    }

    fn on_stage(
        (machine, terms): (Machine, Terms),
        offers: Vec<Offer>,
        dice: Dice,
        faults: usize,
    ) -> Theatre {
        Theatre {
            machine,
            terms,
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
            culprit: None,
            events: 0,
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
        match (fails, self.terms.kind) {
            (false, _) => self.tell_machine(Event::Ready(agent)),
            (true, JobKind::Elastic) => self.agent_lost(agent),
            (true, JobKind::Fixed) => {
                self.faults += 1;
                self.tell_machine(Event::CalledOff("error: a host is not there\n".into()));
            }
        }
    }

    pub(super) fn agent_lost(&mut self, agent: AgentId) {
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
        let is_elastic = self.terms.kind == JobKind::Elastic;
        match (self.dice.below(10), alive.is_empty()) {
            (0, _) if is_elastic => self.change_hosts(),
            (0, _) if self.dice.once_in(4) => self.tell_machine(Event::Interrupted(15)),
            (1, _) if !self.agents.is_empty() => {
                let agents: Vec<AgentId> = self.agents.keys().copied().collect();
                let agent = self.dice.pick(&agents);
                self.agent_lost(agent);
            }
            (2, _) if is_elastic => {
                self.tell_machine(Event::Undiscovered("the script hangs".into()));
            }
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
            3..=5 => {
                self.culprit = Some(worker);
                self.die(worker, if kind == 5 { Exit::Code(1) } else { Exit::Signal(9) });
            }
            6 => self.stop_or_resume(worker),
            7 => self.lose_connection(worker),
            8 => {
                let connection = self.players[&worker].connection;
                let connection = connection.filter(|_| self.terms.kind == JobKind::Elastic);
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
            // Some stay as they are: the machine must give up on them. That of a fixed job may do so only
            // while others wait for them.
            if self.dice.once_in(2) || self.terms.kind == JobKind::Fixed {
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
