//! Elastic jobs step by step. The workers of a [`Scenario`] do what is expected of them; the tests
//! specify everything else.

use std::collections::BTreeMap;

use crate::cause::{CauseKind, Raised};
use crate::event::{HostSourceKind, JobKind};
use crate::job::*;
use crate::wire::{Milestone, Peer};

struct Scenario {
    machine: JobMachine,
    now: Time,
    connections: u64,
    running: BTreeMap<Worker, (String, u32, Option<ConnectionId>)>,
    lines: Vec<String>,
    world: Vec<Worker>,
    sent: Vec<(ConnectionId, DriverToRank)>,
    signals: Vec<(Worker, i32)>,
    reached: Vec<(AgentId, String)>,
    end: Option<(u8, String)>,
}

fn limits(start: u32, min: u32) -> JobSpec {
    JobSpec {
        start,
        min,
        max: None,
        timeout: Duration::from_secs(60),
        joining: Duration::from_secs(300),
        stopped: Some(Duration::from_secs(5)),
        leaving: Duration::from_secs(30),
        resets: None,
        cooldown: None,
        cooldown_scope: CooldownScope::Host,
        source: HostSourceKind::Script,
        kind: JobKind::Elastic,
        least_hosts: 1,
    }
}

fn offers(text: &str) -> Vec<HostOffer> {
    let offer = |part: &str| {
        let (host, slots) = part.split_once(':').unwrap();
        HostOffer { host: host.into(), slots: slots.parse().unwrap() }
    };
    text.split_terminator(',').map(offer).collect()
}

impl Scenario {
    /// A job whose hosts have been reached and whose workers have all joined.
    fn begin(hosts: &str, limits: JobSpec) -> Scenario {
        let mut scenario = Scenario {
            machine: JobMachine::new("1", limits, 7),
            now: Time::ZERO,
            connections: 0,
            running: BTreeMap::new(),
            lines: Vec::new(),
            world: Vec::new(),
            sent: Vec::new(),
            signals: Vec::new(),
            reached: Vec::new(),
            end: None,
        };
        scenario.list(hosts);
        scenario.join_all();
        scenario
    }

    fn on(&mut self, event: JobInput) {
        for action in self.machine.on(event, self.now) {
            match action {
                JobAction::Reach(hosts) => self.reached.extend(hosts),
                JobAction::Start(start) => {
                    self.running.insert(start.worker, (start.host, start.slot, None));
                }
                JobAction::Signal(_, worker, signal) => self.signals.push((worker, signal)),
                JobAction::Tell(to, message) => {
                    self.sent.extend(to.into_iter().map(|to| (to, message.clone())));
                }
                JobAction::Formed(_, workers) => self.world = workers,
                JobAction::Happened(what) => self.lines.extend(what.line()),
                JobAction::Dismiss => {
                    let JobOutcome { code, verdict } = self.machine.outcome();
                    self.end = Some((code, verdict.text.unwrap_or_default()));
                }
                _ => {}
            }
        }
    }

    /// The list of hosts changes; the hosts that the job needs are reached.
    fn list(&mut self, hosts: &str) {
        self.on(JobInput::Discovered(offers(hosts)));
        self.reach_all();
    }

    fn reach_all(&mut self) {
        for (agent, _) in std::mem::take(&mut self.reached) {
            self.on(JobInput::Ready(agent));
        }
    }

    fn join(&mut self, worker: u32) {
        let worker = Worker(worker);
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        let (host, slot, before) = self.running.get_mut(&worker).unwrap();
        let (host, slot) = (host.clone(), *slot);
        let before = before.replace(connection);
        if let Some(before) = before {
            let leaving = RankToDriver::Leaving { error: None, blames: None };
            self.on(JobInput::Said(before, leaving));
            self.on(JobInput::Closed(before));
        }
        self.on(JobInput::Greeted(connection, Greeting::Worker { version: "1".into(), worker }));
        let peer = Peer {
            pid: 1,
            host,
            machine: String::new(),
            local_rank: slot,
            addresses: vec![],
            unix: None,
        };
        self.on(JobInput::Said(connection, RankToDriver::Join(peer)));
    }

    /// All running workers join, and the world is completed and trained in.
    fn join_all(&mut self) {
        for worker in self.running.keys().map(|worker| worker.0).collect::<Vec<_>>() {
            self.join(worker);
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
            self.on(JobInput::Said(*connection, message));
        }
    }

    fn die(&mut self, worker: u32, exit: Exit) {
        let (_, _, connection) = self.running.remove(&Worker(worker)).unwrap();
        self.on(JobInput::Exited(Worker(worker), exit));
        if let Some(connection) = connection {
            self.on(JobInput::Closed(connection));
        }
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.on(JobInput::Tick);
    }

    fn world(&self) -> Vec<u32> {
        self.world.iter().map(|worker| worker.0).collect()
    }

    fn received(&self, worker: u32) -> Vec<&DriverToRank> {
        let connection = self.running[&Worker(worker)].2;
        self.sent.iter().filter(|(to, _)| Some(*to) == connection).map(|(_, it)| it).collect()
    }

    fn is_whole(&self) -> bool {
        self.machine.world == WorldPhase::Whole
    }

    fn says(&self, text: &str) -> bool {
        self.lines.iter().any(|line| line.contains(text))
    }
}

const KILLED: Exit = Exit::Signal(9);

#[test]
fn survivors_continue_at_once_and_keep_their_ranks() {
    let mut scenario = Scenario::begin("a:4", limits(4, 2));
    assert_eq!(scenario.world(), [0, 1, 2, 3]);
    scenario.die(1, KILLED);
    assert!(matches!(
        scenario.received(2).last(),
        Some(DriverToRank::Lost { rank: Rank(1), kind: CauseKind::Signal, .. })
    ));
    scenario.join_all();
    assert_eq!(scenario.world(), [0, 3, 2]);
    assert!(scenario.says("lost rank 1 (a, slot 1): was killed by signal 9 (SIGKILL)"));
    assert!(scenario.says("recovered with 3 ranks"));
    assert!(scenario.says("host `a` gets no new ranks for the rest of the job"));
}

#[test]
fn a_host_with_a_failure_is_dropped_if_there_are_enough_workers_elsewhere() {
    let mut scenario = Scenario::begin("a:2,b:2", limits(4, 2));
    scenario.die(0, Exit::Code(1));
    assert!(scenario.says("host `a` is not used for the rest of the job"));
    scenario.join(2);
    scenario.join(3);
    assert_eq!(scenario.world(), [2, 3]);
    scenario.join(1);
    assert!(matches!(scenario.received(1).last(), Some(DriverToRank::Removed { .. })));
}

#[test]
fn after_its_cooldown_a_host_gets_new_workers_that_join_the_next_world() {
    let cooldown = Some((Duration::from_secs(1), Duration::from_secs(2)));
    let mut scenario = Scenario::begin("a:2,b:2", JobSpec { cooldown, ..limits(4, 2) });
    scenario.die(0, Exit::Code(1));
    scenario.die(1, KILLED);
    scenario.join_all();
    assert_eq!(scenario.world(), [2, 3]);
    scenario.pass(1);
    assert!(!scenario.running.contains_key(&Worker(4)), "the first cooldown is twice the minimum");
    scenario.pass(1);
    assert!(scenario.says("host `a` may be used again"));
    let coming = DriverToRank::Update { change: Change { coming: true, ..Change::default() } };
    scenario.join(4);
    assert_eq!(scenario.received(2).last(), Some(&&coming));
    scenario.join(5);
    let update = DriverToRank::Update { change: Change { added: true, ..Change::default() } };
    assert_eq!(scenario.received(2).last(), Some(&&update));
    scenario.join(2);
    scenario.join(3);
    assert_eq!(scenario.world(), [2, 3, 4, 5]);
}

#[test]
fn a_host_is_announced_when_it_is_discovered_and_its_workers_when_they_are_ready() {
    let mut scenario = Scenario::begin("a:2", limits(2, 1));
    scenario.on(JobInput::Discovered(offers("a:2,b:2")));
    let coming = DriverToRank::Update { change: Change { coming: true, ..Change::default() } };
    assert_eq!(scenario.received(0).last(), Some(&&coming), "it has not even been reached");
    let received = scenario.received(0).len();
    scenario.reach_all();
    scenario.pass(200);
    assert_eq!(scenario.received(0).len(), received, "workers that import are not waited for");
    scenario.join(2);
    scenario.join(3);
    let added = DriverToRank::Update { change: Change { added: true, ..Change::default() } };
    assert_eq!(scenario.received(0).last(), Some(&&added));
    scenario.join_all();
    assert_eq!(scenario.world(), [0, 1, 2, 3]);
}

#[test]
fn workers_that_rejoin_early_wait_for_announced_workers_but_not_for_long() {
    let mut scenario = Scenario::begin("a:2", limits(2, 1));
    scenario.list("a:2,b:1");
    scenario.join(0);
    scenario.join(1);
    scenario.pass(29);
    assert!(!scenario.is_whole());
    scenario.join(2);
    assert_eq!(scenario.world(), [0, 1, 2]);
    scenario.settle();
    scenario.list("a:2,b:1,c:1");
    (0..3).for_each(|worker| scenario.join(worker));
    scenario.pass(29);
    assert!(!scenario.is_whole());
    assert_eq!(scenario.machine.next_wakeup(), Some(scenario.now + Duration::from_secs(1)));
    scenario.pass(1);
    scenario.settle();
    assert_eq!((scenario.world(), scenario.is_whole()), (vec![0, 1, 2], true));
}

#[test]
fn after_a_loss_the_survivors_do_not_wait_for_new_workers() {
    let mut scenario = Scenario::begin("a:2", limits(2, 1));
    scenario.list("a:2,b:1");
    scenario.die(1, KILLED);
    scenario.join(0);
    scenario.settle();
    assert!(scenario.is_whole() && scenario.world() == [0]);
}

#[test]
fn importing_may_take_longer_than_the_wait_for_slots() {
    let mut scenario = Scenario::begin("a:1", limits(1, 1));
    scenario.list("a:1,b:1");
    scenario.pass(299);
    assert_eq!(scenario.signals, []);
    scenario.pass(1);
    assert_eq!(scenario.signals, [(Worker(1), 9)]);
    assert!(scenario.says("raise RONDE_JOIN_TIMEOUT_SECONDS"));
}

#[test]
fn rank_0_has_the_training_state() {
    let mut scenario = Scenario::begin("a:1,b:1", limits(2, 1));
    scenario.list("a:1,b:1,c:1");
    scenario.join(2);
    scenario.die(0, KILLED);
    scenario.join(1);
    assert_eq!(scenario.world(), [1, 2]);
}

#[test]
fn the_job_ends_if_no_worker_has_the_training_state() {
    let mut scenario = Scenario::begin("a:1", limits(1, 1));
    scenario.list("a:1,b:1");
    scenario.join(1);
    scenario.die(0, KILLED);
    assert_eq!(scenario.end, None);
    scenario.pass(1);
    let (code, text) = scenario.end.clone().unwrap();
    assert_eq!(code, 137);
    assert!(text.contains("No hosts from previous set remaining"), "{text}");
}

#[test]
fn workers_of_an_unlisted_host_stay_until_the_others_rejoin() {
    let mut scenario = Scenario::begin("a:1,b:1", limits(2, 1));
    scenario.list("b:1");
    let update = DriverToRank::Update { change: Change { removed: true, ..Change::default() } };
    assert_eq!(scenario.received(1).last(), Some(&&update));
    assert_eq!(scenario.signals, []);
    scenario.join(1);
    assert_eq!(scenario.world(), [1]);
    scenario.join(0);
    assert!(matches!(scenario.received(0).last(), Some(DriverToRank::Removed { .. })));
    scenario.die(0, Exit::Code(0));
    assert_eq!(scenario.end, None, "a worker that was removed has not finished the job");
}

#[test]
fn a_host_whose_agent_left_or_died_is_used_again_once_its_agent_stands_again() {
    let mut scenario = Scenario::begin("a:1,b:1,c:1", limits(3, 1));
    let (left, died) = (AgentId(1), AgentId(2));
    scenario.on(JobInput::Leaving(left, Duration::from_secs(30)));
    scenario.join(0);
    scenario.join(2);
    assert_eq!(scenario.world(), [0, 2]);
    let gone = |agent| JobInput::Gone { agent, reason: "it exited".into(), hint: String::new() };
    scenario.die(1, Exit::Code(0));
    scenario.on(gone(left));
    scenario.on(gone(died));
    scenario.join(0);
    assert_eq!(scenario.world(), [0]);
    // That they are still listed is no reason to use them.
    scenario.list("a:1,b:1,c:1");
    scenario.pass(60);
    assert_eq!(scenario.reached, []);
    for host in ["b", "c"] {
        scenario.on(JobInput::OfferedAgain(host.into()));
    }
    scenario.list("a:1,b:1,c:1");
    assert_eq!(scenario.running.values().filter(|(host, ..)| host != "a").count(), 3);
    assert!(scenario.says("found host `b` with 1 slot"));
}

#[test]
fn a_worker_that_asks_to_leave_loses_no_step() {
    let mut scenario = Scenario::begin("a:2", limits(2, 1));
    scenario.say(Worker(1), RankToDriver::Departing { reason: "it was sent SIGTERM".into() });
    assert!(matches!(scenario.received(0).last(), Some(DriverToRank::Update { .. })));
    scenario.join(0);
    assert_eq!(scenario.world(), [0]);
    assert!(!scenario.says("for the rest of the job"), "it has not failed");
}

#[test]
fn the_last_worker_with_the_state_stays_until_another_has_it() {
    let mut scenario = Scenario::begin("a:1", limits(1, 1));
    scenario.list("b:1");
    scenario.join(1);
    scenario.join(0);
    assert_eq!(scenario.world(), [0, 1]);
    scenario.settle();
    assert!(scenario.says("rank 0 (a, slot 0) leaves the job: its host is no longer listed"));
    scenario.join(1);
    assert_eq!(scenario.world(), [1]);
}

#[test]
fn a_world_that_loses_a_worker_while_it_forms_is_formed_again() {
    let mut scenario = Scenario::begin("a:3", limits(3, 1));
    scenario.die(2, KILLED);
    scenario.join(0);
    scenario.join(1);
    scenario.say(Worker(0), RankToDriver::Located { leader: Rank(0) });
    scenario.die(1, KILLED);
    assert!(matches!(scenario.received(0).last(), Some(DriverToRank::Again { .. })));
    scenario.join_all();
    assert_eq!(scenario.world(), [0]);
}

#[test]
fn a_worker_that_is_stopped_for_too_long_is_killed() {
    let mut scenario = Scenario::begin("a:2", limits(2, 1));
    scenario.on(JobInput::Started(Worker(1), 8));
    scenario.on(JobInput::Stopped(Worker(1)));
    scenario.pass(4);
    scenario.on(JobInput::Continued(Worker(1)));
    scenario.pass(10);
    assert_eq!(scenario.signals, []);
    scenario.on(JobInput::Stopped(Worker(1)));
    scenario.pass(5);
    assert_eq!(scenario.signals, [(Worker(1), 9)]);
    scenario.join(0);
    assert_eq!(scenario.world(), [0]);
}

#[test]
fn an_interrupt_during_recovery_ends_the_job_like_any_other() {
    let mut scenario = Scenario::begin("a:2", limits(2, 1));
    scenario.die(1, KILLED);
    scenario.on(JobInput::Interrupted(2));
    scenario.die(0, Exit::Signal(2));
    let (code, text) = scenario.end.clone().unwrap();
    assert_eq!(
        (code, text.as_str()),
        (130, "error: stopped by signal 2 (SIGINT), along with its only rank\n")
    );
}

#[test]
fn too_many_resets_end_the_job() {
    let mut scenario = Scenario::begin("a:4", JobSpec { resets: Some(1), ..limits(4, 1) });
    scenario.die(3, KILLED);
    scenario.join_all();
    assert_eq!(scenario.world(), [0, 1, 2]);
    scenario.die(2, KILLED);
    scenario.join_all();
    let (_, text) = scenario.end.clone().unwrap();
    assert!(text.contains("number of resets during elastic job exceeded limit: 1"), "{text}");
}

#[test]
fn the_job_waits_for_enough_workers_and_then_ends() {
    let mut scenario = Scenario::begin("a:1,b:1", limits(2, 2));
    scenario.die(1, KILLED);
    scenario.join(0);
    scenario.pass(2);
    assert!(scenario.says("1 of at least 2 ranks ready: waiting up to 60 s for more"));
    scenario.list("a:1,b:1,c:1");
    scenario.join(2);
    assert_eq!(scenario.world(), [0, 2]);
    scenario.settle();
    scenario.die(2, KILLED);
    scenario.pass(60);
    let (code, text) = scenario.end.clone().unwrap();
    assert!(code == 1 && text.contains("Timed out waiting for 2 ranks: 1 ready"), "{text}");
    assert!(text.contains("`c`: 1 slot, has failed"), "{text}");
}

#[test]
fn a_fixed_list_without_usable_hosts_ends_the_job_at_once() {
    let mut scenario =
        Scenario::begin("a:2", JobSpec { source: HostSourceKind::List, ..limits(2, 2) });
    scenario.die(1, KILLED);
    let (_, text) = scenario.end.clone().unwrap();
    assert!(text.contains("1 of at least 2 ranks are left and no host may start more"), "{text}");
}

#[test]
fn a_script_that_always_raises_is_the_reason_for_the_end() {
    let mut scenario =
        Scenario::begin("a:2", JobSpec { source: HostSourceKind::List, ..limits(2, 2) });
    scenario.machine.wrote(Worker(1), "Traceback (most recent call last):");
    scenario.machine.wrote(Worker(1), "  File \"train.py\", line 7, in <module>");
    scenario.die(1, Exit::Code(1));
    // Its last line arrives after its exit.
    scenario.machine.wrote(Worker(1), "KeyError: 'lr'");
    let (code, _) = scenario.end.clone().unwrap();
    let text = scenario.machine.outcome().verdict.text.unwrap();
    let expected = "error: rank 1 (a, slot 1) raised KeyError: 'lr'\n  at train.py:7\n  1 of at least 2 \
                ranks are left and no host may start more\n";
    assert!(code == 1 && text.starts_with(expected), "{text}");
    let hint = "hint: see the lines marked `[1]<stderr>` above; to survive it, add hosts";
    assert!(text.contains(hint), "{text}");
}

#[test]
fn the_job_succeeds_when_all_have_finished() {
    let mut scenario = Scenario::begin("a:2", limits(2, 1));
    for worker in [0, 1] {
        scenario.say(Worker(worker), RankToDriver::Leaving { error: None, blames: None });
        scenario.die(worker, Exit::Code(0));
    }
    assert_eq!(scenario.end, Some((0, String::new())));
}

#[test]
fn workers_that_never_join_may_finish_one_after_the_other() {
    let mut machine = JobMachine::new("1", limits(2, 2), 7);
    let mut on = |event| machine.on(event, Time::ZERO);
    on(JobInput::Discovered(offers("a:2")));
    on(JobInput::Ready(AgentId(0)));
    let actions = on(JobInput::Exited(Worker(0), Exit::Code(0)));
    assert!(actions.iter().all(|action| matches!(action, JobAction::Happened(_))), "{actions:?}");
    let actions = on(JobInput::Exited(Worker(1), Exit::Code(0)));
    assert_eq!(actions.last(), Some(&JobAction::Dismiss));
    assert_eq!(machine.outcome(), JobOutcome::well());
}

#[test]
fn the_first_failure_of_the_last_world_gives_the_exit_code() {
    let mut scenario = Scenario::begin("a:2", limits(2, 1));
    let error = Some(Raised::by_program("ValueError: no"));
    scenario.say(Worker(0), RankToDriver::Leaving { error, blames: None });
    scenario.die(0, Exit::Code(3));
    scenario.die(1, KILLED);
    let (code, text) = scenario.end.clone().unwrap();
    assert_eq!(code, 3);
    assert!(text.starts_with("error: rank 0 (a, slot 0) raised ValueError: no\n"), "{text}");
}

#[test]
fn the_workers_of_a_lost_host_are_lost_too() {
    let mut scenario = Scenario::begin("a:2,b:1", limits(3, 1));
    let (reason, hint) = ("it no longer answers".into(), "look".into());
    scenario.on(JobInput::Gone { agent: AgentId(0), reason, hint });
    assert!(scenario.says("lost host `a`: it no longer answers"));
    scenario.join(2);
    assert_eq!(scenario.world(), [2]);
    scenario.join(0);
    assert!(matches!(scenario.received(0).last(), Some(DriverToRank::Removed { .. })));
}

#[test]
fn a_host_that_cannot_be_reached_is_tried_again() {
    let mut scenario = Scenario::begin("a:1", limits(1, 1));
    scenario.on(JobInput::Discovered(offers("a:1,b:1")));
    let (agent, host) = scenario.reached.pop().unwrap();
    assert_eq!(host, "b");
    scenario.on(JobInput::Gone {
        agent,
        reason: "port 22 is closed".into(),
        hint: "open it".into(),
    });
    assert!(scenario.says("host `b` cannot be used, trying again in 1 s: port 22 is closed"));
    scenario.pass(1);
    assert_eq!(scenario.reached.last().map(|(agent, _)| *agent), Some(AgentId(2)));
}

#[test]
fn no_more_than_the_maximum_are_started() {
    let mut scenario = Scenario::begin("a:2,b:4", JobSpec { max: Some(3), ..limits(2, 2) });
    assert_eq!(scenario.world(), [0, 1, 2]);
    scenario.die(0, KILLED);
    scenario.join_all();
    assert_eq!(scenario.running.len(), 3, "a slot elsewhere replaces it");
}

#[test]
fn a_failed_discovery_is_reported_once_and_changes_nothing() {
    let mut scenario = Scenario::begin("a:2", limits(2, 1));
    for _ in 0..3 {
        scenario.on(JobInput::Undiscovered("the script hangs".into()));
    }
    assert_eq!(scenario.lines.iter().filter(|line| line.contains("the script hangs")).count(), 1);
    scenario.list("a:2");
    assert!(scenario.says("host discovery works again") && scenario.world() == [0, 1]);
}

#[test]
fn a_worker_that_others_cannot_reach_twice_is_given_up() {
    let mut scenario = Scenario::begin("a:1,b:1,c:1", limits(3, 1));
    for _ in 0..2 {
        let given_up = RankToDriver::GivenUp { rank: Rank(2), cause: "reset".into() };
        scenario.say(Worker(1), given_up);
        let is_loss = |it: &&DriverToRank| matches!(it, DriverToRank::Lost { rank: Rank(1), .. });
        assert!(scenario.received(2).into_iter().any(|it| is_loss(&it)));
        for worker in [0, 1, 2] {
            scenario.join(worker);
        }
        for worker in scenario.world.clone() {
            scenario.say(worker, RankToDriver::Located { leader: Rank(0) });
        }
    }
    assert_eq!(scenario.signals, [(Worker(2), 9)]);
    assert_eq!(scenario.world(), [0, 1]);
}

#[test]
fn the_job_ends_if_worlds_keep_breaking_up_by_themselves() {
    let mut scenario = Scenario::begin("a:2", limits(2, 1));
    for _ in 0..2 {
        scenario.join_all();
        assert_eq!(scenario.end, None, "a commit resets the count");
    }
    for number in 0..4 {
        assert_eq!(scenario.end, None, "{number}");
        scenario.join(0);
        scenario.join(1);
        for worker in scenario.world.clone() {
            scenario.say(worker, RankToDriver::Located { leader: Rank(0) });
        }
    }
    let (_, text) = scenario.end.clone().unwrap();
    assert!(text.contains("3 worlds in a row broke up"), "{text}");
}
