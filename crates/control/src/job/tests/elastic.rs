//! Elastic jobs step by step. A [`Play`] has workers that do what is expected of them; everything else
//! the tests say themselves.

use std::collections::BTreeMap;

use crate::cause::{CauseKind, Raised};
use crate::event::{JobKind, Source};
use crate::job::*;
use crate::wire::{Milestone, Peer};

struct Play {
    machine: Machine,
    now: Time,
    connections: u64,
    running: BTreeMap<Worker, (String, u32, Option<Connection>)>,
    notes: Vec<String>,
    world: Vec<Worker>,
    told: Vec<(Connection, DriverToRank)>,
    signals: Vec<(Worker, i32)>,
    reached: Vec<(AgentId, String)>,
    end: Option<(u8, String)>,
}

fn limits(start: u32, min: u32) -> Terms {
    Terms {
        start,
        min,
        max: None,
        timeout: Duration::from_secs(60),
        joining: Duration::from_secs(300),
        stopped: Some(Duration::from_secs(5)),
        resets: None,
        cooldown: None,
        resting: Resting::Host,
        source: Source::Script,
        kind: JobKind::Elastic,
        least_hosts: 1,
    }
}

fn offers(text: &str) -> Vec<Offer> {
    let offer = |part: &str| {
        let (host, slots) = part.split_once(':').unwrap();
        Offer { host: host.into(), slots: slots.parse().unwrap() }
    };
    text.split_terminator(',').map(offer).collect()
}

impl Play {
    /// A job whose hosts have been reached and whose workers have all come.
    fn begin(hosts: &str, limits: Terms) -> Play {
        let mut play = Play {
            machine: Machine::new("1", limits, 7),
            now: Time::ZERO,
            connections: 0,
            running: BTreeMap::new(),
            notes: Vec::new(),
            world: Vec::new(),
            told: Vec::new(),
            signals: Vec::new(),
            reached: Vec::new(),
            end: None,
        };
        play.list(hosts);
        play.come_all();
        play
    }

    fn on(&mut self, event: Event) {
        for action in self.machine.on(event, self.now) {
            match action {
                Action::Reach(hosts) => self.reached.extend(hosts),
                Action::Start(start) => {
                    self.running.insert(start.worker, (start.host, start.slot, None));
                }
                Action::Signal(_, worker, signal) => self.signals.push((worker, signal)),
                Action::Tell(to, message) => {
                    self.told.extend(to.into_iter().map(|to| (to, message.clone())));
                }
                Action::Formed(_, workers) => self.world = workers,
                Action::Happened(what) => self.notes.extend(what.line()),
                Action::Dismiss => {
                    let Outcome { code, verdict } = self.machine.outcome();
                    self.end = Some((code, verdict.text.unwrap_or_default()));
                }
                _ => {}
            }
        }
    }

    /// The list of hosts changes; those that are sent for are reached.
    fn list(&mut self, hosts: &str) {
        self.on(Event::Discovered(offers(hosts)));
        self.reach_all();
    }

    fn reach_all(&mut self) {
        for (agent, _) in std::mem::take(&mut self.reached) {
            self.on(Event::Ready(agent));
        }
    }

    fn come(&mut self, worker: u32) {
        let worker = Worker(worker);
        self.connections += 1;
        let connection = Connection(self.connections);
        let (host, slot, before) = self.running.get_mut(&worker).unwrap();
        let (host, slot) = (host.clone(), *slot);
        let before = before.replace(connection);
        if let Some(before) = before {
            let leaving = RankToDriver::Leaving { error: None, blames: None };
            self.on(Event::Said(before, leaving));
            self.on(Event::Closed(before));
        }
        self.on(Event::Greeted(connection, Greeting::Worker { version: "1".into(), worker }));
        let peer = Peer { pid: 1, host, local_rank: slot, addresses: vec![], unix: None };
        self.on(Event::Said(connection, RankToDriver::Join(peer)));
    }

    /// Everybody who runs comes, and the world is completed and trained in.
    fn come_all(&mut self) {
        for worker in self.running.keys().map(|worker| worker.0).collect::<Vec<_>>() {
            self.come(worker);
        }
        self.settle();
    }

    fn settle(&mut self) {
        for worker in self.world.clone() {
            self.say(worker, RankToDriver::Located { leader: Rank(0) });
        }
        for milestone in [Milestone::State, Milestone::Commit] {
            for worker in self.world.clone() {
                self.say(worker, RankToDriver::Reached(milestone));
            }
        }
    }

    fn say(&mut self, worker: Worker, message: RankToDriver) {
        if let Some((_, _, Some(connection))) = self.running.get(&worker) {
            self.on(Event::Said(*connection, message));
        }
    }

    fn die(&mut self, worker: u32, exit: Exit) {
        let (_, _, connection) = self.running.remove(&Worker(worker)).unwrap();
        self.on(Event::Exited(Worker(worker), exit));
        if let Some(connection) = connection {
            self.on(Event::Closed(connection));
        }
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.on(Event::Tick);
    }

    fn world(&self) -> Vec<u32> {
        self.world.iter().map(|worker| worker.0).collect()
    }

    fn heard(&self, worker: u32) -> Vec<&DriverToRank> {
        let connection = self.running[&Worker(worker)].2;
        self.told.iter().filter(|(to, _)| Some(*to) == connection).map(|(_, it)| it).collect()
    }

    fn is_whole(&self) -> bool {
        self.machine.world == World::Whole
    }

    fn says(&self, text: &str) -> bool {
        self.notes.iter().any(|note| note.contains(text))
    }
}

const KILLED: Exit = Exit::Signal(9);

#[test]
fn survivors_go_on_at_once_and_keep_their_ranks() {
    let mut play = Play::begin("a:4", limits(4, 2));
    assert_eq!(play.world(), [0, 1, 2, 3]);
    play.die(1, KILLED);
    assert!(matches!(
        play.heard(2).last(),
        Some(DriverToRank::Lost { rank: Rank(1), kind: CauseKind::Signal, .. })
    ));
    play.come_all();
    assert_eq!(play.world(), [0, 3, 2]);
    assert!(play.says("lost rank 1 (a, slot 1): was killed by signal 9 (SIGKILL)"));
    assert!(play.says("recovered with 3 ranks"));
    assert!(play.says("host `a` takes no new ranks from now on"));
}

#[test]
fn a_host_with_a_failure_goes_if_there_are_enough_elsewhere() {
    let mut play = Play::begin("a:2,b:2", limits(4, 2));
    play.die(0, Exit::Code(1));
    assert!(play.says("host `a` takes no part from now on"));
    play.come(2);
    play.come(3);
    assert_eq!(play.world(), [2, 3]);
    play.come(1);
    assert!(matches!(play.heard(1).last(), Some(DriverToRank::Removed { .. })));
}

#[test]
fn a_host_that_has_rested_takes_new_workers_who_join_at_the_next_meeting() {
    let rest = (Duration::from_secs(1), Duration::from_secs(2));
    let mut play = Play::begin("a:2,b:2", Terms { cooldown: Some(rest), ..limits(4, 2) });
    play.die(0, Exit::Code(1));
    play.die(1, KILLED);
    play.come_all();
    assert_eq!(play.world(), [2, 3]);
    play.pass(1);
    assert!(!play.running.contains_key(&Worker(4)), "the first rest is twice the least");
    play.pass(1);
    assert!(play.says("host `a` may be used again"));
    let coming = DriverToRank::Update { change: Change { coming: true, ..Change::default() } };
    play.come(4);
    assert_eq!(play.heard(2).last(), Some(&&coming));
    play.come(5);
    let update = DriverToRank::Update { change: Change { added: true, ..Change::default() } };
    assert_eq!(play.heard(2).last(), Some(&&update));
    play.come(2);
    play.come(3);
    assert_eq!(play.world(), [2, 3, 4, 5]);
}

#[test]
fn the_notice_of_a_host_comes_when_it_is_discovered_and_the_meeting_when_its_workers_are_ready() {
    let mut play = Play::begin("a:2", limits(2, 1));
    play.on(Event::Discovered(offers("a:2,b:2")));
    let coming = DriverToRank::Update { change: Change { coming: true, ..Change::default() } };
    assert_eq!(play.heard(0).last(), Some(&&coming), "it has not even been reached");
    let heard = play.heard(0).len();
    play.reach_all();
    play.pass(200);
    assert_eq!(play.heard(0).len(), heard, "nobody waits for those who import");
    play.come(2);
    play.come(3);
    let added = DriverToRank::Update { change: Change { added: true, ..Change::default() } };
    assert_eq!(play.heard(0).last(), Some(&&added));
    play.come_all();
    assert_eq!(play.world(), [0, 1, 2, 3]);
}

#[test]
fn who_meets_as_soon_as_it_hears_of_newcomers_waits_for_them_but_not_for_long() {
    let mut play = Play::begin("a:2", limits(2, 1));
    play.list("a:2,b:1");
    play.come(0);
    play.come(1);
    play.pass(29);
    assert!(!play.is_whole());
    play.come(2);
    assert_eq!(play.world(), [0, 1, 2]);
    play.settle();
    play.list("a:2,b:1,c:1");
    (0..3).for_each(|worker| play.come(worker));
    play.pass(29);
    assert!(!play.is_whole());
    assert_eq!(play.machine.next_wakeup(), Some(play.now + Duration::from_secs(1)));
    play.pass(1);
    play.settle();
    assert_eq!((play.world(), play.is_whole()), (vec![0, 1, 2], true));
}

#[test]
fn a_loss_does_not_wait_for_newcomers() {
    let mut play = Play::begin("a:2", limits(2, 1));
    play.list("a:2,b:1");
    play.die(1, KILLED);
    play.come(0);
    play.settle();
    assert!(play.is_whole() && play.world() == [0]);
}

#[test]
fn importing_may_take_longer_than_the_wait_for_slots() {
    let mut play = Play::begin("a:1", limits(1, 1));
    play.list("a:1,b:1");
    play.pass(299);
    assert_eq!(play.signals, []);
    play.pass(1);
    assert_eq!(play.signals, [(Worker(1), 9)]);
    assert!(play.says("raise RONDE_JOIN_TIMEOUT_SECONDS"));
}

#[test]
fn rank_0_is_one_who_has_the_state() {
    let mut play = Play::begin("a:1,b:1", limits(2, 1));
    play.list("a:1,b:1,c:1");
    play.come(2);
    play.die(0, KILLED);
    play.come(1);
    assert_eq!(play.world(), [1, 2]);
}

#[test]
fn without_anybody_who_has_the_state_the_job_ends() {
    let mut play = Play::begin("a:1", limits(1, 1));
    play.list("a:1,b:1");
    play.come(1);
    play.die(0, KILLED);
    assert_eq!(play.end, None);
    play.pass(1);
    let (code, text) = play.end.clone().unwrap();
    assert_eq!(code, 137);
    assert!(text.contains("No hosts from previous set remaining"), "{text}");
}

#[test]
fn workers_of_a_host_that_is_not_listed_stay_until_the_others_meet_again() {
    let mut play = Play::begin("a:1,b:1", limits(2, 1));
    play.list("b:1");
    let update = DriverToRank::Update { change: Change { removed: true, ..Change::default() } };
    assert_eq!(play.heard(1).last(), Some(&&update));
    assert_eq!(play.signals, []);
    play.come(1);
    assert_eq!(play.world(), [1]);
    play.come(0);
    assert!(matches!(play.heard(0).last(), Some(DriverToRank::Removed { .. })));
    play.die(0, Exit::Code(0));
    assert_eq!(play.end, None, "a worker that was sent away has not finished the job");
}

#[test]
fn one_who_was_asked_to_go_loses_no_step() {
    let mut play = Play::begin("a:2", limits(2, 1));
    play.say(Worker(1), RankToDriver::Departing { reason: "it was sent SIGTERM".into() });
    assert!(matches!(play.heard(0).last(), Some(DriverToRank::Update { .. })));
    play.come(0);
    assert_eq!(play.world(), [0]);
    assert!(!play.says("takes no"), "it has not failed");
}

#[test]
fn the_last_one_with_the_state_stays_until_another_has_it() {
    let mut play = Play::begin("a:1", limits(1, 1));
    play.list("b:1");
    play.come(1);
    play.come(0);
    assert_eq!(play.world(), [0, 1]);
    play.settle();
    assert!(play.says("rank 0 (a, slot 0) leaves the job: its host is not listed any more"));
    play.come(1);
    assert_eq!(play.world(), [1]);
}

#[test]
fn a_world_that_loses_somebody_while_it_forms_meets_again() {
    let mut play = Play::begin("a:3", limits(3, 1));
    play.die(2, KILLED);
    play.come(0);
    play.come(1);
    play.say(Worker(0), RankToDriver::Located { leader: Rank(0) });
    play.die(1, KILLED);
    assert!(matches!(play.heard(0).last(), Some(DriverToRank::Again { .. })));
    play.come_all();
    assert_eq!(play.world(), [0]);
}

#[test]
fn one_that_is_stopped_for_too_long_is_killed() {
    let mut play = Play::begin("a:2", limits(2, 1));
    play.on(Event::Started(Worker(1), 8));
    play.on(Event::Stopped(Worker(1)));
    play.pass(4);
    play.on(Event::Continued(Worker(1)));
    play.pass(10);
    assert_eq!(play.signals, []);
    play.on(Event::Stopped(Worker(1)));
    play.pass(5);
    assert_eq!(play.signals, [(Worker(1), 9)]);
    play.come(0);
    assert_eq!(play.world(), [0]);
}

#[test]
fn an_interrupt_while_the_others_recover_ends_the_job_as_one() {
    let mut play = Play::begin("a:2", limits(2, 1));
    play.die(1, KILLED);
    play.on(Event::Interrupted(2));
    play.die(0, Exit::Signal(2));
    let (code, text) = play.end.clone().unwrap();
    assert_eq!(
        (code, text.as_str()),
        (130, "error: stopped by signal 2 (SIGINT), and all 1 ranks with it\n")
    );
}

#[test]
fn too_many_resets_end_the_job() {
    let mut play = Play::begin("a:4", Terms { resets: Some(1), ..limits(4, 1) });
    play.die(3, KILLED);
    play.come_all();
    assert_eq!(play.world(), [0, 1, 2]);
    play.die(2, KILLED);
    play.come_all();
    let (_, text) = play.end.clone().unwrap();
    assert!(text.contains("number of resets during elastic job exceeded limit: 1"), "{text}");
}

#[test]
fn too_few_workers_are_waited_for_and_then_the_job_ends() {
    let mut play = Play::begin("a:1,b:1", limits(2, 2));
    play.die(1, KILLED);
    play.come(0);
    play.pass(2);
    assert!(play.says("1 of at least 2 ranks are there: waiting up to 60 s for more"));
    play.list("a:1,b:1,c:1");
    play.come(2);
    assert_eq!(play.world(), [0, 2]);
    play.settle();
    play.die(2, KILLED);
    play.pass(60);
    let (code, text) = play.end.clone().unwrap();
    assert!(code == 1 && text.contains("Timed out waiting for 2 ranks: 1 are there"), "{text}");
    assert!(text.contains("`c`: 1 slots, has failed"), "{text}");
}

#[test]
fn a_fixed_list_without_hope_ends_the_job_at_once() {
    let mut play = Play::begin("a:2", Terms { source: Source::List, ..limits(2, 2) });
    play.die(1, KILLED);
    let (_, text) = play.end.clone().unwrap();
    assert!(text.contains("1 of at least 2 ranks are left and no host may start more"), "{text}");
}

#[test]
fn a_script_that_always_raises_is_the_reason_for_the_end() {
    let mut play = Play::begin("a:2", Terms { source: Source::List, ..limits(2, 2) });
    play.machine.wrote(Worker(1), "Traceback (most recent call last):");
    play.machine.wrote(Worker(1), "  File \"train.py\", line 7, in <module>");
    play.die(1, Exit::Code(1));
    // Its last line comes when its end is known already.
    play.machine.wrote(Worker(1), "KeyError: 'lr'");
    let (code, _) = play.end.clone().unwrap();
    let text = play.machine.outcome().verdict.text.unwrap();
    let said = "error: rank 1 (a, slot 1) raised KeyError: 'lr'\n  at train.py:7\n  1 of at least 2 \
                ranks are left and no host may start more\n";
    assert!(code == 1 && text.starts_with(said), "{text}");
    assert!(
        text.contains("hint: see what it wrote above; to outlive it, give more hosts"),
        "{text}"
    );
}

#[test]
fn the_job_ends_well_when_all_have_finished() {
    let mut play = Play::begin("a:2", limits(2, 1));
    for worker in [0, 1] {
        play.say(Worker(worker), RankToDriver::Leaving { error: None, blames: None });
        play.die(worker, Exit::Code(0));
    }
    assert_eq!(play.end, Some((0, String::new())));
}

#[test]
fn workers_that_never_meet_may_finish_one_after_the_other() {
    let mut machine = Machine::new("1", limits(2, 2), 7);
    let mut on = |event| machine.on(event, Time::ZERO);
    on(Event::Discovered(offers("a:2")));
    on(Event::Ready(AgentId(0)));
    let actions = on(Event::Exited(Worker(0), Exit::Code(0)));
    assert!(actions.iter().all(|action| matches!(action, Action::Happened(_))), "{actions:?}");
    let actions = on(Event::Exited(Worker(1), Exit::Code(0)));
    assert_eq!(actions.last(), Some(&Action::Dismiss));
    assert_eq!(machine.outcome(), Outcome::well());
}

#[test]
fn the_first_failure_of_the_last_world_gives_the_exit_code() {
    let mut play = Play::begin("a:2", limits(2, 1));
    let error = Some(Raised::by_program("ValueError: no"));
    play.say(Worker(0), RankToDriver::Leaving { error, blames: None });
    play.die(0, Exit::Code(3));
    play.die(1, KILLED);
    let (code, text) = play.end.clone().unwrap();
    assert_eq!(code, 3);
    assert!(text.starts_with("error: rank 0 (a, slot 0) raised ValueError: no\n"), "{text}");
}

#[test]
fn a_lost_host_takes_its_workers_with_it() {
    let mut play = Play::begin("a:2,b:1", limits(3, 1));
    let (reason, hint) = ("it does not answer any more".into(), "look".into());
    play.on(Event::Gone { agent: AgentId(0), reason, hint });
    assert!(play.says("lost host `a`: it does not answer any more"));
    play.come(2);
    assert_eq!(play.world(), [2]);
    play.come(0);
    assert!(matches!(play.heard(0).last(), Some(DriverToRank::Removed { .. })));
}

#[test]
fn a_host_that_cannot_be_reached_is_tried_again() {
    let mut play = Play::begin("a:1", limits(1, 1));
    play.on(Event::Discovered(offers("a:1,b:1")));
    let (agent, host) = play.reached.pop().unwrap();
    assert_eq!(host, "b");
    play.on(Event::Gone { agent, reason: "port 22 is closed".into(), hint: "open it".into() });
    assert!(play.says("host `b` cannot be used, trying again in 1 s: port 22 is closed"));
    play.pass(1);
    assert_eq!(play.reached.last().map(|(agent, _)| *agent), Some(AgentId(2)));
}

#[test]
fn more_than_the_most_are_never_started() {
    let mut play = Play::begin("a:2,b:4", Terms { max: Some(3), ..limits(2, 2) });
    assert_eq!(play.world(), [0, 1, 2]);
    play.die(0, KILLED);
    play.come_all();
    assert_eq!(play.running.len(), 3, "a slot elsewhere makes up for it");
}

#[test]
fn trouble_with_the_list_is_said_once_and_changes_nothing() {
    let mut play = Play::begin("a:2", limits(2, 1));
    for _ in 0..3 {
        play.on(Event::Undiscovered("the script hangs".into()));
    }
    assert_eq!(play.notes.iter().filter(|note| note.contains("the script hangs")).count(), 1);
    play.list("a:2");
    assert!(play.says("found out again") && play.world() == [0, 1]);
}

#[test]
fn one_that_others_cannot_reach_twice_is_given_up() {
    let mut play = Play::begin("a:1,b:1,c:1", limits(3, 1));
    for _ in 0..2 {
        let given_up = RankToDriver::GivenUp { rank: Rank(2), cause: "reset".into() };
        play.say(Worker(1), given_up);
        let told = |it: &&DriverToRank| matches!(it, DriverToRank::Lost { rank: Rank(1), .. });
        assert!(play.heard(2).into_iter().any(|it| told(&it)));
        for worker in [0, 1, 2] {
            play.come(worker);
        }
        for worker in play.world.clone() {
            play.say(worker, RankToDriver::Located { leader: Rank(0) });
        }
    }
    assert_eq!(play.signals, [(Worker(2), 9)]);
    assert_eq!(play.world(), [0, 1]);
}

#[test]
fn worlds_that_fall_apart_by_themselves_again_and_again_end_the_job() {
    let mut play = Play::begin("a:2", limits(2, 1));
    for _ in 0..2 {
        play.come_all();
        assert_eq!(play.end, None, "a commit makes up for it");
    }
    for number in 0..4 {
        assert_eq!(play.end, None, "{number}");
        play.come(0);
        play.come(1);
        for worker in play.world.clone() {
            play.say(worker, RankToDriver::Located { leader: Rank(0) });
        }
    }
    let (_, text) = play.end.clone().unwrap();
    assert!(text.contains("3 worlds in a row have fallen apart"), "{text}");
}
