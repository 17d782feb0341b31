//! A job on a stage, fixed or elastic: the real machine of the launcher, with hosts, workers, a network
//! and a clock that are only played.
//!
//! Messages take their time but keep their order on a connection; connections break; workers and
//! agents die, stop and are slow; the list of hosts changes; somebody interrupts the launcher. The workers
//! train as real ones do: they get the state from rank 0, finish steps together, commit, and meet again
//! when told. Those of a fixed job shut down and join again now and then, and end when they lose one. After every
//! event the stage checks what must always hold (see [`Theatre::look_at`]); everything follows from
//! one seed.

mod chaos;
mod worker;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::panic::catch_unwind;
use std::time::Duration;

use ronde_control::event::{EndReason, JobKind, Judgement};
use ronde_control::job::{Action, AgentId, Event, Machine, Offer, Outcome, Start, Terms};
use ronde_control::wire::agent::Exit;
use ronde_control::wire::{DriverToRank, Greeting, RankToDriver};
use ronde_control::{Connection, Epoch, Rank, Time, Worker};

use crate::dice::Dice;
use worker::Player;

/// Steps after which the training is over.
pub const STEPS: u64 = 120;

/// How long a job may still take when nothing goes wrong any more.
const PATIENCE: Duration = Duration::from_secs(900);

/// How a job ended.
#[derive(Debug)]
pub struct Report {
    /// The launcher's exit code.
    pub code: u8,
    /// What the launcher said last.
    pub text: Option<String>,
    /// How many worlds were formed.
    pub worlds: u64,
    /// How many things went wrong.
    pub faults: usize,
    /// How long it took.
    pub end: Time,
    /// Whether it outlives its losses.
    pub kind: JobKind,
    /// How much the machine has taken in.
    pub events: u64,
}

/// Something that will happen.
enum Happening {
    /// The launcher learns of it.
    Event(Event),
    /// A worker hears this on that connection.
    Tells(Connection, DriverToRank),
    /// The launcher has ended that connection.
    HangsUp(Connection),
    /// A worker does what is next for it; the number tells old plans from new ones.
    Plan(Worker, u64, Doing),
    /// An agent has come or has not.
    Arrives(AgentId),
    /// Something goes wrong.
    Fault,
}

/// What a worker does next.
#[derive(Clone, Copy, Debug)]
enum Doing {
    /// It calls the launcher.
    Call,
    /// It has found its place.
    Locate,
    /// What all ranks do together has been done, with this result.
    Finish(u64),
    /// Its process ends.
    Exit(i32),
}

/// What ranks do together in one world, one thing after the other.
#[derive(Default)]
struct Room {
    members: Vec<Worker>,
    /// Who has come to which thing.
    there: BTreeMap<u64, BTreeSet<Worker>>,
    /// What rank 0 has brought to it.
    brought: BTreeMap<u64, u64>,
}

/// A job on the stage.
pub struct Theatre {
    machine: Machine,
    terms: Terms,
    dice: Dice,
    now: Time,
    agenda: BinaryHeap<Reverse<(Time, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    order: u64,
    players: BTreeMap<Worker, Player>,
    agents: BTreeMap<AgentId, String>,
    connections: BTreeMap<Connection, Worker>,
    /// Until when each direction of a connection is busy, so that nothing overtakes.
    busy: BTreeMap<(Connection, bool), Time>,
    calls: u64,
    rooms: BTreeMap<u64, Room>,
    epoch: u64,
    /// A step that every member of a world had committed: it must never be lost.
    safe: u64,
    offers: Vec<Offer>,
    faults: usize,
    faults_left: usize,
    last_fault: Time,
    /// Whose process was killed or failed by itself, in a job in which nothing else went wrong.
    culprit: Option<Worker>,
    events: u64,
    report: Option<Report>,
    /// What has happened, for somebody who wants to read it.
    log: Option<Vec<String>>,
}

impl Theatre {
    /// Plays a whole job. If it breaks a rule it is played once more, and all is told.
    pub fn play(seed: u64) -> Report {
        catch_unwind(|| Theatre::run(Theatre::of(seed))).unwrap_or_else(|_| {
            Theatre::run(Theatre { log: Some(Vec::new()), ..Theatre::of(seed) })
        })
    }

    fn run(mut theatre: Theatre) -> Report {
        theatre.begin();
        while theatre.report.is_none() {
            theatre.next();
        }
        theatre.report.unwrap_or_else(|| unreachable!("the loop ends with a report"))
    }

    /// The next thing that happens, on the stage or by the machine's own clock.
    fn next(&mut self) {
        let planned = self.agenda.peek().map(|Reverse((time, _))| *time);
        let wakeup = self.machine.next_wakeup();
        let Some(time) = [planned, wakeup].into_iter().flatten().min() else {
            self.fail("nothing will ever happen again, and the job has not ended");
        };
        self.now = self.now.max(time);
        if self.now > self.last_fault + PATIENCE {
            self.fail("the job does not end although nothing goes wrong any more");
        }
        if planned == Some(time)
            && let Some(Reverse((_, order))) = self.agenda.pop()
        {
            if let Some(happening) = self.happenings.remove(&order) {
                self.happen(happening);
            }
        } else {
            self.tell_machine(Event::Tick);
            let again = self.machine.next_wakeup().is_some_and(|wakeup| wakeup <= self.now);
            self.hold(!again || self.report.is_some(), "the machine wakes up for nothing");
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Event(event) => self.tell_machine(event),
            Happening::Tells(connection, message) => self.hear(connection, message),
            Happening::HangsUp(connection) => self.hung_up(connection),
            Happening::Plan(worker, plan, doing) => self.carry_out(worker, plan, doing),
            Happening::Arrives(agent) => self.arrive(agent),
            Happening::Fault => self.fault(),
        }
    }

    fn tell_machine(&mut self, event: Event) {
        if let Some(log) = &mut self.log {
            log.push(format!("{:?} {event:?}", self.now));
        }
        self.events += 1;
        let actions = self.machine.on(event, self.now);
        for action in actions {
            if let Some(log) = &mut self.log {
                log.push(format!("    {action:?}"));
            }
            self.look_at(&action);
            self.perform(action);
        }
    }

    /// What must hold of every decision.
    fn look_at(&mut self, action: &Action) {
        match action {
            Action::Formed(epoch, workers) => {
                let count = workers.len() as u32;
                let distinct: BTreeSet<&Worker> = workers.iter().collect();
                self.hold(distinct.len() == workers.len(), "a worker has two ranks");
                self.hold(epoch.0 == self.epoch + 1, "worlds are numbered one by one");
                self.hold(count >= self.terms.min, "a world is smaller than allowed");
                let max = self.terms.max.unwrap_or(u32::MAX);
                self.hold(count <= max, "a world is larger than allowed");
                let inside = |worker: &&Worker| self.players[worker].is_training_in(self.epoch);
                let busy = workers.iter().find(inside).copied();
                self.hold(busy.is_none(), "a worker is in two worlds at once");
            }
            Action::Start(Start { agent, host, slot, .. }) => {
                let offered = self.offers.iter().filter(|offer| offer.host == *host);
                let slots = offered.map(|offer| offer.slots).sum::<u32>();
                self.hold(*slot < slots, "a worker is started on a slot that is not offered");
                let twice = self.players.values().any(|player| {
                    player.is_alive() && player.agent == *agent && player.slot == *slot
                });
                self.hold(!twice, "two workers live on one slot");
            }
            Action::Dismiss => {
                let outcome = self.machine.outcome();
                self.judge(&outcome);
            }
            _ => {}
        }
    }

    /// What must hold of every end.
    fn judge(&mut self, outcome: &Outcome) {
        let Outcome { code, verdict: Judgement { reason, first, text, .. } } = outcome;
        self.hold((*code == 0) == text.is_none(), "a failure without a word, or words without");
        self.hold((*code == 0) == (*reason == EndReason::Done), "a reason that does not fit");
        self.hold(*code == 0 || self.faults > 0, "a job fails in which nothing went wrong");
        if let (Some(culprit), JobKind::Fixed, 1) = (self.culprit, self.terms.kind, self.faults) {
            let first = first.as_ref().map(|first| first.member.worker);
            self.hold(first == Some(culprit), "somebody else is called the first cause");
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Reach(hosts) => {
                for (agent, host) in hosts {
                    self.agents.insert(agent, host);
                    self.soon(2000, Happening::Arrives(agent));
                }
            }
            Action::Release(agent) => self.end_agent(agent),
            Action::Start(start) => self.enter(start),
            Action::Signal(_, worker, signal) => self.signal(worker, signal),
            Action::SignalAll(signal) => self.signal_all(signal),
            Action::Cut(agent, _) => self.agent_lost(agent),
            Action::Tell(connections, message) => {
                for connection in connections {
                    let told = Happening::Tells(connection, message.clone());
                    self.over(connection, true, told);
                }
            }
            Action::Close(connection) => {
                self.over(connection, true, Happening::HangsUp(connection));
            }
            Action::Formed(Epoch(epoch), workers) => {
                self.epoch = epoch;
                self.rooms.insert(epoch, Room { members: workers, ..Room::default() });
            }
            Action::Look(..) | Action::Answer(_) | Action::Happened(_) => {}
            Action::GiveUp => self.fail("the machine gives up on processes that can be killed"),
            Action::Dismiss => {
                let Outcome { code, verdict: Judgement { text, .. } } = self.machine.outcome();
                let (worlds, faults, end) = (self.epoch, self.faults, self.now);
                let (kind, events) = (self.terms.kind, self.events);
                self.report = Some(Report { code, text, worlds, faults, end, kind, events });
            }
        }
    }

    /// Lets something happen within so many milliseconds.
    fn soon(&mut self, millis: usize, happening: Happening) {
        let delay = Duration::from_micros(1 + self.dice.below(millis * 1000) as u64);
        self.at(self.now + delay, happening);
    }

    fn at(&mut self, time: Time, happening: Happening) {
        self.order += 1;
        self.agenda.push(Reverse((time, self.order)));
        self.happenings.insert(self.order, happening);
    }

    /// Sends something over a connection, behind what is on its way; `down` is towards the worker.
    fn over(&mut self, connection: Connection, down: bool, happening: Happening) {
        let slow = self.dice.once_in(20);
        let delay = self.dice.below(if slow { 400_000 } else { 3000 }) as u64;
        let free = self.busy.get(&(connection, down)).copied().unwrap_or_default();
        let time = (self.now + Duration::from_micros(delay)).max(free + Duration::from_nanos(1));
        self.busy.insert((connection, down), time);
        self.at(time, happening);
    }

    fn say(&mut self, connection: Connection, message: RankToDriver) {
        self.over(connection, false, Happening::Event(Event::Said(connection, message)));
    }

    fn greet(&mut self, worker: Worker) -> Connection {
        self.calls += 1;
        let connection = Connection(self.calls);
        self.connections.insert(connection, worker);
        let version = "1".to_owned();
        let greeting = match self.terms.kind {
            JobKind::Fixed => Greeting::Rendezvous { version, rank: Rank(worker.0) },
            JobKind::Elastic => Greeting::Worker { version, worker },
        };
        self.over(connection, false, Happening::Event(Event::Greeted(connection, greeting)));
        connection
    }

    /// A worker's end of a connection is gone.
    fn drop_connection(&mut self, connection: Connection) {
        if self.connections.remove(&connection).is_some() {
            self.over(connection, false, Happening::Event(Event::Closed(connection)));
        }
    }

    fn exited(&mut self, worker: Worker, exit: Exit) {
        self.soon(50, Happening::Event(Event::Exited(worker, exit)));
    }

    fn hold(&mut self, condition: bool, rule: &str) {
        if !condition {
            self.fail(rule);
        }
    }

    fn fail(&mut self, rule: &str) -> ! {
        let log = self.log.take().unwrap_or_default();
        let log = log[log.len().saturating_sub(120)..].join("\n");
        panic!("{log}\n{rule}, at {:?} with {:?}", self.now, self.terms);
    }
}
