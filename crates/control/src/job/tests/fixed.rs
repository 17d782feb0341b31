//! Scenarios of jobs whose workers never change: what happens when, and who receives which message.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::cause::{CauseKind, Raised};
use crate::event::{EndReason, JobEventKind};
use crate::job::*;
use crate::status::{RankReport, RankState};
use crate::wire::Peer;

const LIMIT: Duration = Duration::from_secs(600);

/// A job with the newest connection of each worker, and the messages each connection has received.
struct TestJob {
    machine: JobMachine,
    next: u64,
    of: BTreeMap<u32, ConnectionId>,
    received: BTreeMap<ConnectionId, Vec<Rc<DriverToRank>>>,
    closed: Vec<ConnectionId>,
    /// The ranks whose loss was reported to others.
    lost: Vec<Rank>,
    signals: Vec<(Worker, i32)>,
    all: Vec<JobAction>,
    now: Time,
}

impl TestJob {
    fn new(size: u32) -> TestJob {
        TestJob::with(size, None)
    }

    fn with(size: u32, stopped: Option<Duration>) -> TestJob {
        let mut test_job =
            TestJob::of(JobMachine::new("1", JobSpec::fixed(size, LIMIT, stopped), 7));
        test_job.on(JobInput::Discovered(vec![HostOffer { host: "node".into(), slots: size }]));
        test_job.on(JobInput::Ready(AgentId(0)));
        test_job
    }

    fn of(machine: JobMachine) -> TestJob {
        TestJob {
            machine,
            next: 0,
            of: BTreeMap::new(),
            received: BTreeMap::new(),
            closed: Vec::new(),
            lost: Vec::new(),
            signals: Vec::new(),
            all: Vec::new(),
            now: Duration::ZERO,
        }
    }

    fn on(&mut self, event: JobInput) {
        for action in self.machine.on(event, self.now) {
            self.all.push(action.clone());
            match action {
                JobAction::Tell(_, DriverToRank::Ping) => {}
                JobAction::Tell(to, message) => {
                    if let DriverToRank::Lost { rank, .. } = message {
                        self.lost.push(rank);
                    }
                    let message = Rc::new(message);
                    for connection in to {
                        self.received.entry(connection).or_default().push(message.clone());
                    }
                }
                JobAction::Close(connection) => self.closed.push(connection),
                JobAction::Signal(_, worker, signal) => self.signals.push((worker, signal)),
                _ => {}
            }
        }
    }

    fn happened(&self) -> impl Iterator<Item = &JobEventKind> {
        self.all.iter().filter_map(|action| match action {
            JobAction::Happened(what) => Some(what),
            _ => None,
        })
    }

    fn wait(&mut self, seconds: f64) {
        self.now += Duration::from_secs_f64(seconds);
        self.on(JobInput::Tick);
    }

    fn greet(&mut self, rank: u32, version: &str) -> ConnectionId {
        let connection = ConnectionId(self.next);
        self.next += 1;
        self.of.insert(rank, connection);
        let greeting = Greeting::Rendezvous { version: version.into(), rank: Rank(rank) };
        self.on(JobInput::Greeted(connection, greeting));
        connection
    }

    fn say(&mut self, rank: u32, message: RankToDriver) {
        self.on(JobInput::Said(self.of[&rank], message));
    }

    fn join(&mut self, rank: u32) -> ConnectionId {
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
        self.on(JobInput::Closed(self.of[&rank]));
    }

    fn world(&mut self, size: u32) {
        self.join_all(0..size);
        (0..size).for_each(|rank| self.say(rank, RankToDriver::Located { leader: Rank(0) }));
    }

    fn last(&self, rank: u32) -> Option<&DriverToRank> {
        self.received.get(&self.of[&rank]).and_then(|received| received.last()).map(Rc::as_ref)
    }

    fn refusal(&self, connection: ConnectionId) -> &str {
        assert!(self.closed.contains(&connection), "{connection:?} is still open");
        match self.received[&connection].last().map(Rc::as_ref) {
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
fn all_ranks_learn_the_kind_of_a_loss() {
    let late = Raised { text: "HorovodInternalError: late".into(), kind: CauseKind::Stalled };
    let stalled = RankToDriver::Leaving { error: Some(late), blames: None };
    let given_up = RankToDriver::GivenUp { rank: Rank(1), cause: "reset".into() };
    let of = |lose: &dyn Fn(&mut TestJob)| {
        let mut test_job = TestJob::new(3);
        test_job.world(3);
        lose(&mut test_job);
        match test_job.last(0) {
            Some(DriverToRank::Lost { rank: Rank(1), kind, .. }) => *kind,
            other => panic!("no loss of rank 1 but {other:?}"),
        }
    };
    let exited =
        |exit: Exit| of(&|test_job| test_job.on(JobInput::Exited(Worker(1), exit.clone())));
    assert_eq!(exited(Exit::Signal(9)), CauseKind::Signal);
    assert_eq!(exited(Exit::OutOfMemory), CauseKind::OutOfMemory);
    assert_eq!(exited(Exit::Code(3)), CauseKind::ExitCode);
    assert_eq!(of(&|test_job| test_job.say(1, failing("x", None))), CauseKind::Exception);
    assert_eq!(of(&|test_job| test_job.say(1, stalled.clone())), CauseKind::Stalled);
    assert_eq!(of(&|test_job| test_job.say(2, given_up.clone())), CauseKind::ConnectionLost);
}

fn join(rank: u32) -> RankToDriver {
    RankToDriver::Join(Peer {
        pid: 100 + rank,
        host: "node".into(),
        machine: String::new(),
        local_rank: rank,
        addresses: Vec::new(),
        unix: None,
    })
}

fn failing(error: &str, blames: Option<u32>) -> RankToDriver {
    RankToDriver::Leaving { error: Some(Raised::by_program(error)), blames: blames.map(Rank) }
}

#[test]
fn a_world_forms_when_the_last_rank_has_joined() {
    let mut test_job = TestJob::new(3);
    test_job.join(2);
    test_job.join(0);
    assert_eq!(test_job.last(0), None);
    test_job.join(1);
    for rank in 0..3 {
        let Some(DriverToRank::World { epoch, peers }) = test_job.last(rank) else { panic!() };
        let pids: Vec<_> = peers.iter().map(|peer| peer.pid).collect();
        assert_eq!((*epoch, pids), (Epoch(1), vec![100, 101, 102]));
        test_job.say(rank, RankToDriver::Located { leader: Rank(rank / 2 * 2) });
    }
    let leaders = vec![Rank(0), Rank(0), Rank(2)];
    assert_eq!(test_job.last(1), Some(&DriverToRank::Layout { leaders }));
    assert_eq!(test_job.machine.next_wakeup(), None);
}

#[test]
fn the_same_ranks_can_rejoin_many_times() {
    let mut test_job = TestJob::new(4);
    for round in 1..=300 {
        test_job.world(4);
        // The first to leave rejoins before the last one has left.
        test_job.leave(round % 4);
        test_job.join(round % 4);
        (0..4).filter(|rank| *rank != round % 4).for_each(|rank| test_job.leave(rank));
        assert_eq!(test_job.machine.epoch, Epoch(u64::from(round)));
        test_job.leave(round % 4);
    }
    assert_eq!((test_job.lost.len(), test_job.closed.len()), (0, 0));
    assert!(test_job.machine.connections.is_empty());
}

#[test]
fn a_new_connection_may_be_opened_before_the_old_one_leaves() {
    let mut test_job = TestJob::new(2);
    test_job.world(2);
    let old = test_job.of[&0];
    test_job.join(0);
    test_job.on(JobInput::Said(old, RankToDriver::Leaving { error: None, blames: None }));
    test_job.on(JobInput::Closed(old));
    test_job.leave(1);
    test_job.join(1);
    assert!(matches!(test_job.last(0), Some(DriverToRank::World { epoch: Epoch(2), .. })));
    assert_eq!(test_job.lost, []);
}

#[test]
fn a_killed_rank_is_lost_to_the_ranks_of_its_world() {
    let mut test_job = TestJob::new(4);
    test_job.world(4);
    test_job.leave(3);
    test_job.on(JobInput::Exited(Worker(1), Exit::Signal(9)));
    let text = "was killed by signal 9 (SIGKILL)";
    assert_eq!((test_job.lost_to(0), test_job.lost_to(2)), (Some((1, text)), Some((1, text))));
    assert_eq!((test_job.lost_to(1), test_job.lost_to(3)), (None, None));
    let late = test_job.join(3);
    assert_eq!(
        test_job.refusal(late),
        "rank 1 (node, slot 1) was killed by signal 9 (SIGKILL) and cannot be part of the next \
         world, which needs all 4 ranks"
    );
}

#[test]
fn the_two_reports_of_a_death_may_come_in_any_order() {
    let mut closed_first = TestJob::new(2);
    closed_first.world(2);
    closed_first.on(JobInput::Closed(closed_first.of[&1]));
    assert_eq!(closed_first.lost_to(0), None);
    closed_first.on(JobInput::Exited(Worker(1), Exit::Code(3)));
    assert_eq!(closed_first.lost_to(0), Some((1, "exited with code 3")));
    closed_first.wait(5.0);
    assert_eq!(closed_first.lost, [Rank(1)]);

    let mut never_reported = TestJob::new(2);
    never_reported.world(2);
    never_reported.on(JobInput::Closed(never_reported.of[&1]));
    never_reported.wait(0.9);
    assert_eq!(never_reported.lost_to(0), None);
    never_reported.wait(0.1);
    let cause = "its connection to the launcher closed";
    assert_eq!(never_reported.lost_to(0), Some((1, cause)));
}

#[test]
fn a_clean_exit_waits_for_the_last_message() {
    let mut leaves = TestJob::new(2);
    leaves.world(2);
    leaves.on(JobInput::Exited(Worker(1), Exit::Code(0)));
    leaves.leave(1);
    leaves.wait(5.0);
    assert_eq!(leaves.lost, []);

    for silent in ["closed", "open"] {
        let mut test_job = TestJob::new(2);
        test_job.world(2);
        test_job.on(JobInput::Exited(Worker(1), Exit::Code(0)));
        match silent {
            "closed" => test_job.on(JobInput::Closed(test_job.of[&1])),
            _ => test_job.wait(1.0),
        }
        let expected = Some((1, "exited with code 0 without leaving"));
        assert_eq!(test_job.lost_to(0), expected, "{silent}");
    }
}

#[test]
fn an_exception_is_reported_at_once_and_a_victim_only_without_another_cause() {
    let mut test_job = TestJob::new(3);
    test_job.world(3);
    test_job.say(1, failing("ValueError: boom", None));
    assert_eq!(test_job.lost_to(0), Some((1, "raised ValueError: boom")));

    let mut test_job = TestJob::new(3);
    test_job.world(3);
    test_job.say(1, failing("HorovodInternalError: lost rank 2", Some(2)));
    assert_eq!(test_job.lost_to(0), None);
    test_job.on(JobInput::Exited(Worker(2), Exit::Signal(9)));
    assert_eq!(test_job.lost_to(0).unwrap().0, 2);

    let mut test_job = TestJob::new(3);
    test_job.world(3);
    test_job.say(1, failing("HorovodInternalError: lost rank 2", Some(2)));
    test_job.wait(1.0);
    assert_eq!(test_job.lost_to(0).unwrap().0, 1);
}

#[test]
fn waiting_ranks_are_refused_if_the_world_can_never_be_complete() {
    for exit in [Exit::Code(0), Exit::Code(1)] {
        let mut test_job = TestJob::new(3);
        let waiting = test_job.join(0);
        test_job.on(JobInput::Exited(Worker(2), exit.clone()));
        assert!(test_job.refusal(waiting).contains(&format!("rank 2 (node, slot 2) {exit}")));
        let late = test_job.join(1);
        assert!(test_job.refusal(late).contains("rank 2 (node, slot 2)"));
        assert_eq!(test_job.machine.gathering_due(), None);
    }
}

#[test]
fn joining_has_a_time_limit_and_the_error_names_the_missing_ranks() {
    let mut test_job = TestJob::new(12);
    let waiting = test_job.join(0);
    test_job.wait(599.0);
    assert_eq!(test_job.last(0), None);
    test_job.wait(1.0);
    let reason = test_job.refusal(waiting);
    assert!(reason.starts_with(
        "after 600 s 11 of 12 ranks are still missing: rank 1 (node, slot 1), rank 2 (node, slot 2)"
    ));
    assert!(reason.contains("and 3 more; does every rank call `hvd.init()`?"), "{reason}");
    assert_eq!(test_job.machine.next_wakeup(), None);
}

#[test]
fn a_rank_that_never_reports_its_leader_does_not_block_the_others_forever() {
    let mut test_job = TestJob::new(2);
    test_job.join_all(0..2);
    test_job.say(0, RankToDriver::Located { leader: Rank(0) });
    test_job.wait(600.0);
    assert!(test_job.refusal(test_job.of[&0]).contains("1 of 2 ranks are still missing: rank 1"));

    let mut test_job = TestJob::new(2);
    test_job.join_all(0..2);
    test_job.leave(1);
    assert_eq!(test_job.lost_to(0), Some((1, "left before the world was complete")));
}

#[test]
fn a_waiting_rank_that_disconnects_may_join_again() {
    let mut test_job = TestJob::new(2);
    let first = test_job.join(0);
    test_job.on(JobInput::Closed(first));
    assert_eq!(test_job.machine.next_wakeup(), None);
    test_job.join(0);
    test_job.join(1);
    assert!(matches!(test_job.last(0), Some(DriverToRank::World { .. })));
    assert_eq!(test_job.lost, []);
}

#[test]
fn wrong_peers_are_refused_with_a_reason() {
    let mut test_job = TestJob::new(2);
    let old = test_job.greet(0, "0.9");
    assert!(test_job.refusal(old).contains("runs Ronde 0.9, but its launcher runs Ronde 1"));
    let beyond = test_job.greet(2, "1");
    assert!(test_job.refusal(beyond).contains("no rank 2 in a world of 2"));
    let first = test_job.join(1);
    let duplicate = test_job.join(1);
    test_job.wait(1.0);
    assert!(test_job.refusal(duplicate).contains("two processes have the same HOROVOD_RANK"));
    test_job.on(JobInput::Closed(duplicate));
    test_job.on(JobInput::Said(first, join(1)));
    assert!(test_job.refusal(first).contains("unexpected message from rank 1"));
    let link = ConnectionId(99);
    test_job.on(JobInput::Greeted(link, Greeting::Control { epoch: Epoch(1), rank: Rank(0) }));
    assert!(test_job.refusal(link).contains("rendezvous"));
}

#[test]
fn events_about_unknown_peers_are_ignored() {
    let mut test_job = TestJob::new(2);
    test_job.on(JobInput::Closed(ConnectionId(7)));
    test_job.on(JobInput::Said(ConnectionId(7), join(0)));
    test_job.on(JobInput::Exited(Worker(7), Exit::Code(0)));
    assert_eq!(test_job.received.len(), 0);
    test_job.world(2);
    assert!(matches!(test_job.last(0), Some(DriverToRank::Layout { .. })));
}

#[test]
fn four_thousand_ranks_form_a_world() {
    let mut test_job = TestJob::new(4096);
    test_job.world(4096);
    assert!(matches!(test_job.last(4095), Some(DriverToRank::Layout { .. })));
}

#[test]
fn a_broken_connection_between_two_live_ranks_is_reported_to_all_with_the_same_names() {
    let given_up = |rank: u32| RankToDriver::GivenUp { rank: Rank(rank), cause: "reset".into() };
    let mut test_job = TestJob::new(4);
    test_job.world(4);
    test_job.say(1, given_up(2));
    for rank in [0, 1, 3] {
        assert_eq!(test_job.lost_to(rank), Some((2, "reset (seen by rank 1 (node, slot 1))")));
    }
    assert_eq!(test_job.lost_to(2), Some((1, "it gave up on this rank: reset")));
    test_job.say(2, given_up(1));
    test_job.say(0, given_up(3));
    assert_eq!(test_job.lost_to(3).map(|(rank, _)| rank), Some(2), "the first report counts");
    assert!(
        test_job.closed.is_empty() && test_job.machine.outcome().code == 0,
        "all of them are alive"
    );
    // In the next world it may happen again.
    (0..4).for_each(|rank| test_job.leave(rank));
    test_job.world(4);
    test_job.say(3, given_up(0));
    assert_eq!(test_job.lost_to(1).map(|(rank, _)| rank), Some(0));
}

#[test]
fn giving_up_on_a_dead_or_unknown_rank_changes_nothing() {
    let given_up = |rank: u32| RankToDriver::GivenUp { rank: Rank(rank), cause: "reset".into() };
    let mut test_job = TestJob::new(3);
    test_job.world(3);
    test_job.on(JobInput::Exited(Worker(2), Exit::Signal(9)));
    for rank in [2, 0, 77] {
        test_job.say(0, given_up(rank));
    }
    assert_eq!(test_job.lost_to(1), Some((2, "was killed by signal 9 (SIGKILL)")));
    assert_eq!(test_job.lost_to(0), Some((2, "was killed by signal 9 (SIGKILL)")));
}

#[test]
fn without_agents_a_closed_connection_is_a_death() {
    let mut test_job = TestJob::of(JobMachine::kept_by_a_rank("1", 3, LIMIT));
    test_job.world(3);
    test_job.leave(2);
    assert_eq!(test_job.lost, []);
    test_job.on(JobInput::Closed(test_job.of[&1]));
    let (lost, cause) = test_job.lost_to(0).unwrap();
    assert_eq!((lost, cause), (1, "its process has ended, or its host is gone"));
    assert!(matches!(test_job.last(0), Some(DriverToRank::Lost { host, .. }) if host == "node"));
}

#[test]
fn without_agents_ranks_have_the_names_that_they_reported() {
    let mut test_job = TestJob::of(JobMachine::kept_by_a_rank("1", 4, LIMIT));
    let first = test_job.join(0);
    let second = test_job.join(1);
    test_job.on(JobInput::Closed(second));
    let reason = test_job.refusal(first);
    assert_eq!(reason, "rank 1 (node, slot 1) ended before all ranks had joined");
    let again = test_job.join(0);
    test_job.wait(LIMIT.as_secs_f64());
    let reason = test_job.refusal(again).to_owned();
    assert!(reason.contains("missing: rank 1 (node, slot 1), rank 2, rank 3;"), "{reason}");
    let unknown = test_job.greet(7, "1");
    assert!(test_job.refusal(unknown).contains("rank is set by the launcher"));
}

#[test]
fn only_ranks_of_a_complete_world_are_asked_for_their_status() {
    let mut test_job = TestJob::new(3);
    let states = |test_job: &TestJob| {
        let Some(JobAction::Answer(status)) = test_job.all.last() else {
            panic!("{:?}", test_job.all)
        };
        status.ranks.iter().map(|rank| rank.state.clone()).collect::<Vec<_>>()
    };
    test_job.on(JobInput::Asked);
    assert_eq!(states(&test_job), [RankState::Starting, RankState::Starting, RankState::Starting]);
    (0..3).for_each(|worker| test_job.on(JobInput::Started(Worker(worker), 100 + worker)));
    test_job.join_all(0..3);
    test_job.on(JobInput::Asked);
    assert_eq!(states(&test_job), [RankState::Running, RankState::Running, RankState::Running]);
    (0..3).for_each(|rank| test_job.say(rank, RankToDriver::Located { leader: Rank(0) }));
    test_job.say(2, RankToDriver::Leaving { error: None, blames: None });
    test_job.on(JobInput::Exited(Worker(2), Exit::Code(0)));
    test_job.on(JobInput::Asked);
    assert_eq!(test_job.last(1), Some(&DriverToRank::Ask));
    let report = RankReport { collectives: 7, ..RankReport::default() };
    test_job.say(1, RankToDriver::Report(report.clone()));
    assert!(!matches!(test_job.all.last(), Some(JobAction::Answer(_))), "rank 0 still has time");
    test_job.wait(0.5);
    let ended = RankState::Ended("exited with code 0".into());
    assert_eq!(states(&test_job), [RankState::Silent, RankState::Joined, ended]);
    // A late answer is not taken for an answer to the next question.
    test_job.say(0, RankToDriver::Report(report.clone()));
    test_job.on(JobInput::Asked);
    test_job.say(1, RankToDriver::Report(report));
    test_job.wait(0.5);
    assert_eq!(states(&test_job)[0], RankState::Silent);
}

#[test]
fn the_roster_has_connected_and_missing_ranks() {
    let mut test_job = TestJob::new(3);
    test_job.join(0);
    let roster = test_job.machine.roster();
    assert_eq!(Vec::from_iter(roster.connected), [Worker(0)]);
    assert_eq!(Vec::from_iter(roster.missing), [Worker(1), Worker(2)], "the first waits for them");
    test_job.join_all(1..3);
    assert!(test_job.machine.roster().missing.is_empty());
    test_job.say(2, RankToDriver::WorldEnded);
    assert_eq!(Vec::from_iter(test_job.machine.roster().connected), [Worker(0), Worker(1)]);
}

#[test]
fn a_stopped_rank_is_the_first_cause_of_the_other_failures() {
    let mut test_job = TestJob::with(3, Some(Duration::from_secs(20)));
    (0..3).for_each(|worker| test_job.on(JobInput::Started(Worker(worker), 100 + worker)));
    test_job.world(3);
    test_job.on(JobInput::Stopped(Worker(1)));
    test_job.on(JobInput::Exited(Worker(0), Exit::Code(1)));
    assert_eq!(test_job.signals, [(Worker(1), 9)]);
    let (rank, cause) = test_job.lost_to(2).unwrap();
    assert!(rank == 0 || cause.starts_with("was stopped (SIGSTOP)"), "{cause}");
    assert_eq!(test_job.lost, [Rank(1), Rank(0)]);
    test_job.on(JobInput::Exited(Worker(1), Exit::Signal(9)));
    test_job.on(JobInput::Exited(Worker(2), Exit::Code(1)));
    assert_eq!(test_job.all.last(), Some(&JobAction::Dismiss));
    let outcome = test_job.machine.outcome();
    assert_eq!((outcome.code, outcome.verdict.reason), (1, EndReason::RankFailed));
    let first = outcome.verdict.first.unwrap();
    assert_eq!((first.member.rank, first.cause.kind), (Rank(1), CauseKind::Halted));
}

#[test]
fn ranks_are_asked_to_end_and_then_killed() {
    let mut test_job = TestJob::new(2);
    test_job.world(2);
    test_job.on(JobInput::Exited(Worker(1), Exit::Code(3)));
    let signals = |test_job: &TestJob| {
        let signals = test_job.all.iter().filter_map(|action| match action {
            JobAction::SignalAll(signal) => Some(*signal),
            _ => None,
        });
        signals.collect::<Vec<_>>()
    };
    test_job.wait(1.0);
    assert_eq!(signals(&test_job), [15]);
    test_job.wait(2.5);
    assert_eq!(signals(&test_job), [15, 9]);
    test_job.on(JobInput::Exited(Worker(0), Exit::Signal(9)));
    assert_eq!(test_job.all.last(), Some(&JobAction::Dismiss));
    assert!(test_job.machine.is_over());
    let outcome = test_job.machine.outcome();
    assert_eq!(outcome.code, 3);
    assert!(outcome.verdict.text.unwrap().contains("rank 0 was terminated"));
}

#[test]
fn a_signal_to_the_launcher_is_passed_on_and_ends_the_job() {
    let mut test_job = TestJob::new(2);
    test_job.world(2);
    test_job.on(JobInput::Interrupted(2));
    assert!(test_job.all.contains(&JobAction::SignalAll(2)));
    (0..2).for_each(|worker| test_job.on(JobInput::Exited(Worker(worker), Exit::Signal(2))));
    let outcome = test_job.machine.outcome();
    assert_eq!((outcome.code, outcome.verdict.signal), (130, Some(2)));
    assert_eq!(
        outcome.verdict.text.unwrap(),
        "error: stopped by signal 2 (SIGINT), along with its 2 ranks\n"
    );
}

#[test]
fn a_job_whose_hosts_cannot_be_set_up_is_called_off() {
    let mut test_job = TestJob::of(JobMachine::new("1", JobSpec::fixed(2, LIMIT, None), 7));
    test_job.on(JobInput::Discovered(vec![
        HostOffer { host: "a".into(), slots: 1 },
        HostOffer { host: "b".into(), slots: 4 },
    ]));
    let hosts = vec![(AgentId(0), "a".to_owned()), (AgentId(1), "b".to_owned())];
    assert!(test_job.all.contains(&JobAction::Reach(hosts)), "{:?}", test_job.all);
    test_job.on(JobInput::CalledOff("error: no\n".into()));
    assert_eq!(test_job.all.last(), Some(&JobAction::Dismiss));
    let outcome = test_job.machine.outcome();
    assert_eq!((outcome.code, outcome.verdict.reason), (1, EndReason::NotStarted));
    assert_eq!(outcome.verdict.text.as_deref(), Some("error: no\n"));
}

#[test]
fn a_lost_host_ends_the_job_and_is_its_reason() {
    let mut test_job = TestJob::of(JobMachine::new("1", JobSpec::fixed(3, LIMIT, None), 7));
    test_job.on(JobInput::Discovered(vec![
        HostOffer { host: "a".into(), slots: 2 },
        HostOffer { host: "b".into(), slots: 2 },
    ]));
    test_job.on(JobInput::Ready(AgentId(0)));
    assert!(!test_job.all.iter().any(|action| matches!(action, JobAction::Start(_))));
    test_job.on(JobInput::Ready(AgentId(1)));
    let started: Vec<_> = test_job
        .all
        .iter()
        .filter_map(|action| match action {
            JobAction::Start(start) => Some((start.worker.0, start.host.as_str(), start.slot)),
            _ => None,
        })
        .collect();
    assert_eq!(started, [(0, "a", 0), (1, "a", 1), (2, "b", 0)]);
    test_job.world(3);
    let (reason, hint) = ("it no longer answers".into(), "look".into());
    test_job.on(JobInput::Gone { agent: AgentId(1), reason, hint });
    assert_eq!(test_job.lost_to(0).unwrap().0, 2);
    (0..2).for_each(|worker| test_job.on(JobInput::Exited(Worker(worker), Exit::Code(1))));
    let outcome = test_job.machine.outcome();
    assert_eq!((outcome.code, outcome.verdict.reason), (1, EndReason::HostLost));
    let text = outcome.verdict.text.unwrap();
    assert!(text.starts_with("error: lost host `b`: it no longer answers\n  3 of 3"), "{text}");
}

#[test]
fn joining_workers_and_complete_worlds_are_events() {
    let mut test_job = TestJob::new(2);
    test_job.world(2);
    let joined = |what: &JobEventKind| match what {
        JobEventKind::WorkerJoined { member } => Some(member.rank),
        _ => None,
    };
    let ranks: Vec<Rank> = test_job.happened().filter_map(joined).collect();
    assert_eq!(ranks, [Rank(0), Rank(1)]);
    (0..2).for_each(|rank| test_job.leave(rank));
    test_job.world(2);
    let formed = |what: &JobEventKind| match what {
        JobEventKind::WorldFormed { world, members, newcomers, .. } => {
            Some((*world, members.len(), *newcomers))
        }
        _ => None,
    };
    let worlds: Vec<_> = test_job.happened().filter_map(formed).collect();
    assert_eq!(worlds, [(1, 2, 2), (2, 2, 0)]);
    let (waiting, late) = (vec![Rank(0)], vec![Rank(1)]);
    let during = Duration::from_secs(60);
    let stalled = RankToDriver::Stalled { tensor: "g".into(), during, waiting, late };
    test_job.say(0, stalled);
    assert!(
        matches!(test_job.happened().last(), Some(JobEventKind::Stalled { late, .. }) if *late == [Rank(1)])
    );
}
