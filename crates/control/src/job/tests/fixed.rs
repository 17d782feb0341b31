//! Stories about jobs whose workers are always the same: what happens at which second, and who hears
//! what.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::cause::{CauseKind, Raised};
use crate::event::{EndReason, Happening};
use crate::job::*;
use crate::status::{Report, State};
use crate::wire::Peer;

const LIMIT: Duration = Duration::from_secs(600);

/// A job whose workers' newest connections are known, and what each connection has heard.
struct Stage {
    machine: Machine,
    next: u64,
    of: BTreeMap<u32, Connection>,
    heard: BTreeMap<Connection, Vec<Rc<DriverToRank>>>,
    closed: Vec<Connection>,
    /// Whose loss was told to anybody.
    lost: Vec<Rank>,
    signals: Vec<(Worker, i32)>,
    all: Vec<Action>,
    now: Time,
}

impl Stage {
    fn new(size: u32) -> Stage {
        Stage::with(size, None)
    }

    fn with(size: u32, stopped: Option<Duration>) -> Stage {
        let mut stage = Stage::of(Machine::new("1", Terms::fixed(size, LIMIT, stopped), 7));
        stage.on(Event::Discovered(vec![Offer { host: "node".into(), slots: size }]));
        stage.on(Event::Ready(AgentId(0)));
        stage
    }

    fn of(machine: Machine) -> Stage {
        Stage {
            machine,
            next: 0,
            of: BTreeMap::new(),
            heard: BTreeMap::new(),
            closed: Vec::new(),
            lost: Vec::new(),
            signals: Vec::new(),
            all: Vec::new(),
            now: Duration::ZERO,
        }
    }

    fn on(&mut self, event: Event) {
        for action in self.machine.on(event, self.now) {
            self.all.push(action.clone());
            match action {
                Action::Tell(_, DriverToRank::Ping) => {}
                Action::Tell(to, message) => {
                    if let DriverToRank::Lost { rank, .. } = message {
                        self.lost.push(rank);
                    }
                    let message = Rc::new(message);
                    for connection in to {
                        self.heard.entry(connection).or_default().push(message.clone());
                    }
                }
                Action::Close(connection) => self.closed.push(connection),
                Action::Signal(_, worker, signal) => self.signals.push((worker, signal)),
                _ => {}
            }
        }
    }

    fn happened(&self) -> impl Iterator<Item = &Happening> {
        self.all.iter().filter_map(|action| match action {
            Action::Happened(what) => Some(what),
            _ => None,
        })
    }

    fn wait(&mut self, seconds: f64) {
        self.now += Duration::from_secs_f64(seconds);
        self.on(Event::Tick);
    }

    fn greet(&mut self, rank: u32, version: &str) -> Connection {
        let connection = Connection(self.next);
        self.next += 1;
        self.of.insert(rank, connection);
        let greeting = Greeting::Rendezvous { version: version.into(), rank: Rank(rank) };
        self.on(Event::Greeted(connection, greeting));
        connection
    }

    fn say(&mut self, rank: u32, message: RankToDriver) {
        self.on(Event::Said(self.of[&rank], message));
    }

    fn join(&mut self, rank: u32) -> Connection {
        let connection = self.greet(rank, "1");
        self.say(rank, join(rank));
        connection
    }

    fn join_all(&mut self, ranks: std::ops::Range<u32>) {
        for rank in ranks {
            self.join(rank);
        }
    }

    fn leave(&mut self, rank: u32) {
        self.say(rank, RankToDriver::Leaving { error: None, blames: None });
        self.on(Event::Closed(self.of[&rank]));
    }

    fn world(&mut self, size: u32) {
        self.join_all(0..size);
        (0..size).for_each(|rank| self.say(rank, RankToDriver::Located { leader: Rank(0) }));
    }

    fn last(&self, rank: u32) -> Option<&DriverToRank> {
        self.heard.get(&self.of[&rank]).and_then(|heard| heard.last()).map(Rc::as_ref)
    }

    fn refusal(&self, connection: Connection) -> &str {
        assert!(self.closed.contains(&connection), "{connection:?} is still open");
        match self.heard[&connection].last().map(Rc::as_ref) {
            Some(DriverToRank::Refused { reason }) => reason,
            other => panic!("no refusal but {other:?}"),
        }
    }

    fn lost_to(&self, rank: u32) -> Option<(u32, &str)> {
        match self.last(rank) {
            Some(DriverToRank::Lost { rank, cause, .. }) => Some((rank.0, cause)),
            _ => None,
        }
    }
}

#[test]
fn everybody_hears_of_which_kind_a_loss_is() {
    let late = Raised { text: "HorovodInternalError: late".into(), kind: CauseKind::Stalled };
    let stalled = RankToDriver::Leaving { error: Some(late), blames: None };
    let given_up = RankToDriver::GivenUp { rank: Rank(1), cause: "reset".into() };
    let of = |tell: &dyn Fn(&mut Stage)| {
        let mut stage = Stage::new(3);
        stage.world(3);
        tell(&mut stage);
        match stage.last(0) {
            Some(DriverToRank::Lost { rank: Rank(1), kind, .. }) => *kind,
            other => panic!("no loss of rank 1 but {other:?}"),
        }
    };
    let exited = |exit: Exit| of(&|stage| stage.on(Event::Exited(Worker(1), exit.clone())));
    assert_eq!(exited(Exit::Signal(9)), CauseKind::Signal);
    assert_eq!(exited(Exit::OutOfMemory), CauseKind::OutOfMemory);
    assert_eq!(exited(Exit::Code(3)), CauseKind::ExitCode);
    assert_eq!(of(&|stage| stage.say(1, failing("x", None))), CauseKind::Exception);
    assert_eq!(of(&|stage| stage.say(1, stalled.clone())), CauseKind::Stalled);
    assert_eq!(of(&|stage| stage.say(2, given_up.clone())), CauseKind::ConnectionLost);
}

fn join(rank: u32) -> RankToDriver {
    RankToDriver::Join(Peer {
        pid: 100 + rank,
        host: "node".into(),
        local_rank: rank,
        addresses: Vec::new(),
        unix: None,
    })
}

fn failing(error: &str, blames: Option<u32>) -> RankToDriver {
    RankToDriver::Leaving { error: Some(Raised::by_program(error)), blames: blames.map(Rank) }
}

#[test]
fn a_world_forms_when_the_last_rank_has_come() {
    let mut stage = Stage::new(3);
    stage.join(2);
    stage.join(0);
    assert_eq!(stage.last(0), None);
    stage.join(1);
    for rank in 0..3 {
        let Some(DriverToRank::World { epoch, peers }) = stage.last(rank) else { panic!() };
        let pids: Vec<_> = peers.iter().map(|peer| peer.pid).collect();
        assert_eq!((*epoch, pids), (Epoch(1), vec![100, 101, 102]));
        stage.say(rank, RankToDriver::Located { leader: Rank(rank / 2 * 2) });
    }
    let leaders = vec![Rank(0), Rank(0), Rank(2)];
    assert_eq!(stage.last(1), Some(&DriverToRank::Layout { leaders }));
    assert_eq!(stage.machine.next_wakeup(), None);
}

#[test]
fn the_same_ranks_meet_again_and_again() {
    let mut stage = Stage::new(4);
    for round in 1..=300 {
        stage.world(4);
        // The first to leave is back before the last one has left.
        stage.leave(round % 4);
        stage.join(round % 4);
        (0..4).filter(|rank| *rank != round % 4).for_each(|rank| stage.leave(rank));
        assert_eq!(stage.machine.epoch, Epoch(u64::from(round)));
        stage.leave(round % 4);
    }
    assert_eq!((stage.lost.len(), stage.closed.len()), (0, 0));
    assert!(stage.machine.connections.is_empty());
}

#[test]
fn a_new_connection_may_be_heard_before_the_old_one_leaves() {
    let mut stage = Stage::new(2);
    stage.world(2);
    let old = stage.of[&0];
    stage.join(0);
    stage.on(Event::Said(old, RankToDriver::Leaving { error: None, blames: None }));
    stage.on(Event::Closed(old));
    stage.leave(1);
    stage.join(1);
    assert!(matches!(stage.last(0), Some(DriverToRank::World { epoch: Epoch(2), .. })));
    assert_eq!(stage.lost, []);
}

#[test]
fn a_killed_rank_is_lost_to_those_who_share_its_world() {
    let mut stage = Stage::new(4);
    stage.world(4);
    stage.leave(3);
    stage.on(Event::Exited(Worker(1), Exit::Signal(9)));
    let text = "was killed by signal 9 (SIGKILL)";
    assert_eq!((stage.lost_to(0), stage.lost_to(2)), (Some((1, text)), Some((1, text))));
    assert_eq!((stage.lost_to(1), stage.lost_to(3)), (None, None));
    let late = stage.join(3);
    assert_eq!(
        stage.refusal(late),
        "rank 1 (node, slot 1) was killed by signal 9 (SIGKILL) and cannot be part of the next \
         world, which needs all 4 ranks"
    );
}

#[test]
fn the_two_reports_of_a_death_may_come_in_any_order() {
    let mut closed_first = Stage::new(2);
    closed_first.world(2);
    closed_first.on(Event::Closed(closed_first.of[&1]));
    assert_eq!(closed_first.lost_to(0), None);
    closed_first.on(Event::Exited(Worker(1), Exit::Code(3)));
    assert_eq!(closed_first.lost_to(0), Some((1, "exited with code 3")));
    closed_first.wait(5.0);
    assert_eq!(closed_first.lost, [Rank(1)]);

    let mut never_reported = Stage::new(2);
    never_reported.world(2);
    never_reported.on(Event::Closed(never_reported.of[&1]));
    never_reported.wait(0.9);
    assert_eq!(never_reported.lost_to(0), None);
    never_reported.wait(0.1);
    let cause = "its connection to the launcher closed";
    assert_eq!(never_reported.lost_to(0), Some((1, cause)));
}

#[test]
fn a_clean_exit_waits_for_the_last_words() {
    let mut leaves = Stage::new(2);
    leaves.world(2);
    leaves.on(Event::Exited(Worker(1), Exit::Code(0)));
    leaves.leave(1);
    leaves.wait(5.0);
    assert_eq!(leaves.lost, []);

    for silent in ["closed", "open"] {
        let mut stage = Stage::new(2);
        stage.world(2);
        stage.on(Event::Exited(Worker(1), Exit::Code(0)));
        match silent {
            "closed" => stage.on(Event::Closed(stage.of[&1])),
            _ => stage.wait(1.0),
        }
        let expected = Some((1, "exited with code 0 without leaving"));
        assert_eq!(stage.lost_to(0), expected, "{silent}");
    }
}

#[test]
fn an_exception_is_told_at_once_and_a_victim_only_if_nothing_else_is() {
    let mut stage = Stage::new(3);
    stage.world(3);
    stage.say(1, failing("ValueError: boom", None));
    assert_eq!(stage.lost_to(0), Some((1, "raised ValueError: boom")));

    let mut stage = Stage::new(3);
    stage.world(3);
    stage.say(1, failing("HorovodInternalError: lost rank 2", Some(2)));
    assert_eq!(stage.lost_to(0), None);
    stage.on(Event::Exited(Worker(2), Exit::Signal(9)));
    assert_eq!(stage.lost_to(0).unwrap().0, 2);

    let mut stage = Stage::new(3);
    stage.world(3);
    stage.say(1, failing("HorovodInternalError: lost rank 2", Some(2)));
    stage.wait(1.0);
    assert_eq!(stage.lost_to(0).unwrap().0, 1);
}

#[test]
fn a_gathering_that_can_never_be_complete_is_refused() {
    for exit in [Exit::Code(0), Exit::Code(1)] {
        let mut stage = Stage::new(3);
        let waiting = stage.join(0);
        stage.on(Event::Exited(Worker(2), exit.clone()));
        assert!(stage.refusal(waiting).contains(&format!("rank 2 (node, slot 2) {exit}")));
        let late = stage.join(1);
        assert!(stage.refusal(late).contains("rank 2 (node, slot 2)"));
        assert_eq!(stage.machine.gathering_due(), None);
    }
}

#[test]
fn a_gathering_has_a_time_limit_that_names_the_missing() {
    let mut stage = Stage::new(12);
    let waiting = stage.join(0);
    stage.wait(599.0);
    assert_eq!(stage.last(0), None);
    stage.wait(1.0);
    let reason = stage.refusal(waiting);
    assert!(reason.starts_with(
        "after 600 s 11 of 12 ranks are still missing: rank 1 (node, slot 1), rank 2 (node, slot 2)"
    ));
    assert!(reason.contains("and 3 more; does every rank call `hvd.init()`?"), "{reason}");
    assert_eq!(stage.machine.next_wakeup(), None);
}

#[test]
fn a_rank_that_never_locates_itself_does_not_hold_the_others_for_ever() {
    let mut stage = Stage::new(2);
    stage.join_all(0..2);
    stage.say(0, RankToDriver::Located { leader: Rank(0) });
    stage.wait(600.0);
    assert!(stage.refusal(stage.of[&0]).contains("1 of 2 ranks are still missing: rank 1"));

    let mut stage = Stage::new(2);
    stage.join_all(0..2);
    stage.leave(1);
    assert_eq!(stage.lost_to(0), Some((1, "left before the world was complete")));
}

#[test]
fn who_waits_and_hangs_up_may_come_again() {
    let mut stage = Stage::new(2);
    let first = stage.join(0);
    stage.on(Event::Closed(first));
    assert_eq!(stage.machine.next_wakeup(), None);
    stage.join(0);
    stage.join(1);
    assert!(matches!(stage.last(0), Some(DriverToRank::World { .. })));
    assert_eq!(stage.lost, []);
}

#[test]
fn wrong_guests_are_refused_in_words() {
    let mut stage = Stage::new(2);
    let old = stage.greet(0, "0.9");
    assert!(stage.refusal(old).contains("runs Ronde 0.9 and its launcher runs Ronde 1"));
    let beyond = stage.greet(2, "1");
    assert!(stage.refusal(beyond).contains("no rank 2 in a world of 2"));
    let first = stage.join(1);
    let double = stage.join(1);
    stage.wait(1.0);
    assert!(stage.refusal(double).contains("two processes have the same HOROVOD_RANK"));
    stage.on(Event::Closed(double));
    stage.on(Event::Said(first, join(1)));
    assert!(stage.refusal(first).contains("spoke out of turn"));
    let link = Connection(99);
    stage.on(Event::Greeted(link, Greeting::Control { epoch: Epoch(1), rank: Rank(0) }));
    assert!(stage.refusal(link).contains("rendezvous"));
}

#[test]
fn nonsense_is_ignored() {
    let mut stage = Stage::new(2);
    stage.on(Event::Closed(Connection(7)));
    stage.on(Event::Said(Connection(7), join(0)));
    stage.on(Event::Exited(Worker(7), Exit::Code(0)));
    assert_eq!(stage.heard.len(), 0);
    stage.world(2);
    assert!(matches!(stage.last(0), Some(DriverToRank::Layout { .. })));
}

#[test]
fn four_thousand_ranks_meet() {
    let mut stage = Stage::new(4096);
    stage.world(4096);
    assert!(matches!(stage.last(4095), Some(DriverToRank::Layout { .. })));
}

#[test]
fn a_broken_connection_between_two_who_live_is_told_to_all_with_the_same_names() {
    let given_up = |rank: u32| RankToDriver::GivenUp { rank: Rank(rank), cause: "reset".into() };
    let mut stage = Stage::new(4);
    stage.world(4);
    stage.say(1, given_up(2));
    for rank in [0, 1, 3] {
        assert_eq!(stage.lost_to(rank), Some((2, "reset (seen by rank 1 (node, slot 1))")));
    }
    assert_eq!(stage.lost_to(2), Some((1, "it has given up on this rank: reset")));
    stage.say(2, given_up(1));
    stage.say(0, given_up(3));
    assert_eq!(stage.lost_to(3).map(|(rank, _)| rank), Some(2), "the first word counts");
    assert!(stage.closed.is_empty() && stage.machine.outcome().code == 0, "all of them live");
    // In the next world it may happen again.
    (0..4).for_each(|rank| stage.leave(rank));
    stage.world(4);
    stage.say(3, given_up(0));
    assert_eq!(stage.lost_to(1).map(|(rank, _)| rank), Some(0));
}

#[test]
fn giving_up_on_somebody_who_is_dead_or_no_one_changes_nothing() {
    let given_up = |rank: u32| RankToDriver::GivenUp { rank: Rank(rank), cause: "reset".into() };
    let mut stage = Stage::new(3);
    stage.world(3);
    stage.on(Event::Exited(Worker(2), Exit::Signal(9)));
    for rank in [2, 0, 77] {
        stage.say(0, given_up(rank));
    }
    assert_eq!(stage.lost_to(1), Some((2, "was killed by signal 9 (SIGKILL)")));
    assert_eq!(stage.lost_to(0), Some((2, "was killed by signal 9 (SIGKILL)")));
}

#[test]
fn without_agents_a_closed_connection_is_a_death() {
    let mut stage = Stage::of(Machine::kept_by_a_rank("1", 3, LIMIT));
    stage.world(3);
    stage.leave(2);
    assert_eq!(stage.lost, []);
    stage.on(Event::Closed(stage.of[&1]));
    let (lost, cause) = stage.lost_to(0).unwrap();
    assert_eq!((lost, cause), (1, "its process has ended, or its host is gone"));
    assert!(matches!(stage.last(0), Some(DriverToRank::Lost { host, .. }) if host == "node"));
}

#[test]
fn without_agents_ranks_are_named_by_what_they_said() {
    let mut stage = Stage::of(Machine::kept_by_a_rank("1", 4, LIMIT));
    let first = stage.join(0);
    let second = stage.join(1);
    stage.on(Event::Closed(second));
    let reason = stage.refusal(first);
    assert_eq!(reason, "rank 1 (node, slot 1) ended while the others were still to come");
    let again = stage.join(0);
    stage.wait(LIMIT.as_secs_f64());
    let reason = stage.refusal(again).to_owned();
    assert!(reason.contains("missing: rank 1 (node, slot 1), rank 2, rank 3;"), "{reason}");
    let stranger = stage.greet(7, "1");
    assert!(stage.refusal(stranger).contains("rank is set by the launcher"));
}

#[test]
fn only_ranks_that_have_found_their_place_are_asked_what_they_do() {
    let mut stage = Stage::new(3);
    let states = |stage: &Stage| {
        let Some(Action::Answer(status)) = stage.all.last() else { panic!("{:?}", stage.all) };
        status.ranks.iter().map(|rank| rank.state.clone()).collect::<Vec<_>>()
    };
    stage.on(Event::Asked);
    assert_eq!(states(&stage), [State::Starting, State::Starting, State::Starting]);
    (0..3).for_each(|worker| stage.on(Event::Started(Worker(worker), 100 + worker)));
    stage.join_all(0..3);
    stage.on(Event::Asked);
    assert_eq!(states(&stage), [State::Running, State::Running, State::Running]);
    (0..3).for_each(|rank| stage.say(rank, RankToDriver::Located { leader: Rank(0) }));
    stage.say(2, RankToDriver::Leaving { error: None, blames: None });
    stage.on(Event::Exited(Worker(2), Exit::Code(0)));
    stage.on(Event::Asked);
    assert_eq!(stage.last(1), Some(&DriverToRank::Ask));
    let report = Report { collectives: 7, ..Report::default() };
    stage.say(1, RankToDriver::Report(report.clone()));
    assert!(!matches!(stage.all.last(), Some(Action::Answer(_))), "rank 0 has its time");
    stage.wait(0.5);
    let ended = State::Ended("exited with code 0".into());
    assert_eq!(states(&stage), [State::Silent, State::Joined, ended]);
    // An answer that comes too late is not taken for one to a later question.
    stage.say(0, RankToDriver::Report(report.clone()));
    stage.on(Event::Asked);
    stage.say(1, RankToDriver::Report(report));
    stage.wait(0.5);
    assert_eq!(states(&stage)[0], State::Silent);
}

#[test]
fn ranks_can_be_asked_whether_they_run() {
    let mut stage = Stage::new(3);
    stage.join(0);
    let roll = stage.machine.roll();
    assert_eq!(Vec::from_iter(roll.connected), [Worker(0)]);
    assert_eq!(Vec::from_iter(roll.missing), [Worker(1), Worker(2)], "the first waits for them");
    stage.join_all(1..3);
    assert!(stage.machine.roll().missing.is_empty());
    stage.say(2, RankToDriver::WorldEnded);
    assert_eq!(Vec::from_iter(stage.machine.roll().connected), [Worker(0), Worker(1)]);
}

#[test]
fn a_stopped_rank_is_the_first_cause_of_what_the_others_suffer() {
    let mut stage = Stage::with(3, Some(Duration::from_secs(20)));
    (0..3).for_each(|worker| stage.on(Event::Started(Worker(worker), 100 + worker)));
    stage.world(3);
    stage.on(Event::Stopped(Worker(1)));
    stage.on(Event::Exited(Worker(0), Exit::Code(1)));
    assert_eq!(stage.signals, [(Worker(1), 9)]);
    let (rank, cause) = stage.lost_to(2).unwrap();
    assert!(rank == 0 || cause.starts_with("was stopped (SIGSTOP)"), "{cause}");
    assert_eq!(stage.lost, [Rank(1), Rank(0)]);
    stage.on(Event::Exited(Worker(1), Exit::Signal(9)));
    stage.on(Event::Exited(Worker(2), Exit::Code(1)));
    assert_eq!(stage.all.last(), Some(&Action::Dismiss));
    let outcome = stage.machine.outcome();
    assert_eq!((outcome.code, outcome.verdict.reason), (1, EndReason::RankFailed));
    let first = outcome.verdict.first.unwrap();
    assert_eq!((first.member.rank, first.cause.kind), (Rank(1), CauseKind::Halted));
}

#[test]
fn the_end_of_a_job_is_asked_for_and_then_enforced() {
    let mut stage = Stage::new(2);
    stage.world(2);
    stage.on(Event::Exited(Worker(1), Exit::Code(3)));
    let signals = |stage: &Stage| {
        let signals = stage.all.iter().filter_map(|action| match action {
            Action::SignalAll(signal) => Some(*signal),
            _ => None,
        });
        signals.collect::<Vec<_>>()
    };
    stage.wait(1.0);
    assert_eq!(signals(&stage), [15]);
    stage.wait(2.5);
    assert_eq!(signals(&stage), [15, 9]);
    stage.on(Event::Exited(Worker(0), Exit::Signal(9)));
    assert_eq!(stage.all.last(), Some(&Action::Dismiss));
    assert!(stage.machine.is_over());
    let outcome = stage.machine.outcome();
    assert_eq!(outcome.code, 3);
    assert!(outcome.verdict.text.unwrap().contains("rank 0 was stopped"));
}

#[test]
fn a_signal_to_the_launcher_is_passed_on_and_ends_the_job() {
    let mut stage = Stage::new(2);
    stage.world(2);
    stage.on(Event::Interrupted(2));
    assert!(stage.all.contains(&Action::SignalAll(2)));
    (0..2).for_each(|worker| stage.on(Event::Exited(Worker(worker), Exit::Signal(2))));
    let outcome = stage.machine.outcome();
    assert_eq!((outcome.code, outcome.verdict.signal), (130, Some(2)));
    assert_eq!(
        outcome.verdict.text.unwrap(),
        "error: stopped by signal 2 (SIGINT), and all 2 ranks with it\n"
    );
}

#[test]
fn a_job_whose_hosts_do_not_come_together_is_called_off() {
    let mut stage = Stage::of(Machine::new("1", Terms::fixed(2, LIMIT, None), 7));
    stage.on(Event::Discovered(vec![
        Offer { host: "a".into(), slots: 1 },
        Offer { host: "b".into(), slots: 4 },
    ]));
    let hosts = vec![(AgentId(0), "a".to_owned()), (AgentId(1), "b".to_owned())];
    assert!(stage.all.contains(&Action::Reach(hosts)), "{:?}", stage.all);
    stage.on(Event::CalledOff("error: no\n".into()));
    assert_eq!(stage.all.last(), Some(&Action::Dismiss));
    let outcome = stage.machine.outcome();
    assert_eq!((outcome.code, outcome.verdict.reason), (1, EndReason::NotStarted));
    assert_eq!(outcome.verdict.text.as_deref(), Some("error: no\n"));
}

#[test]
fn a_lost_host_ends_the_job_and_is_its_reason() {
    let mut stage = Stage::of(Machine::new("1", Terms::fixed(3, LIMIT, None), 7));
    stage.on(Event::Discovered(vec![
        Offer { host: "a".into(), slots: 2 },
        Offer { host: "b".into(), slots: 2 },
    ]));
    stage.on(Event::Ready(AgentId(0)));
    assert!(!stage.all.iter().any(|action| matches!(action, Action::Start(_))));
    stage.on(Event::Ready(AgentId(1)));
    let seats: Vec<_> = stage
        .all
        .iter()
        .filter_map(|action| match action {
            Action::Start(start) => Some((start.worker.0, start.host.as_str(), start.slot)),
            _ => None,
        })
        .collect();
    assert_eq!(seats, [(0, "a", 0), (1, "a", 1), (2, "b", 0)]);
    stage.world(3);
    let (reason, hint) = ("it does not answer any more".into(), "look".into());
    stage.on(Event::Gone { agent: AgentId(1), reason, hint });
    assert_eq!(stage.lost_to(0).unwrap().0, 2);
    (0..2).for_each(|worker| stage.on(Event::Exited(Worker(worker), Exit::Code(1))));
    let outcome = stage.machine.outcome();
    assert_eq!((outcome.code, outcome.verdict.reason), (1, EndReason::HostLost));
    let text = outcome.verdict.text.unwrap();
    assert!(
        text.starts_with("error: lost host `b`: it does not answer any more\n  3 of 3"),
        "{text}"
    );
}

#[test]
fn who_joins_and_which_world_is_complete_are_events() {
    let mut stage = Stage::new(2);
    stage.world(2);
    let joined = |what: &Happening| match what {
        Happening::WorkerJoined { member } => Some(member.rank),
        _ => None,
    };
    let ranks: Vec<Rank> = stage.happened().filter_map(joined).collect();
    assert_eq!(ranks, [Rank(0), Rank(1)]);
    (0..2).for_each(|rank| stage.leave(rank));
    stage.world(2);
    let formed = |what: &Happening| match what {
        Happening::WorldFormed { world, members, newcomers, .. } => {
            Some((*world, members.len(), *newcomers))
        }
        _ => None,
    };
    let worlds: Vec<_> = stage.happened().filter_map(formed).collect();
    assert_eq!(worlds, [(1, 2, 2), (2, 2, 0)]);
    let (waiting, late) = (vec![Rank(0)], vec![Rank(1)]);
    let during = Duration::from_secs(60);
    let told = RankToDriver::Stalled { tensor: "g".into(), during, waiting, late };
    stage.say(0, told);
    assert!(
        matches!(stage.happened().last(), Some(Happening::Stalled { late, .. }) if *late == [Rank(1)])
    );
}
