//! Stories about gatherings: what happens at which second, and who hears what.

use std::rc::Rc;

use super::*;

const LIMIT: Duration = Duration::from_secs(600);

/// A rendezvous whose ranks' newest connections are known, and what each connection has heard.
struct Stage {
    rendezvous: Rendezvous,
    next: u64,
    of: BTreeMap<u32, Connection>,
    heard: BTreeMap<Connection, Vec<Rc<DriverToRank>>>,
    closed: Vec<Connection>,
    lost: Vec<(Rank, String)>,
    left: Vec<Rank>,
    reported: Vec<(Rank, Report)>,
    answered: Vec<(Rank, Option<Duration>)>,
    happened: Vec<Happening>,
    now: Time,
}

impl Stage {
    fn new(size: u32) -> Stage {
        let seats = (0..size).map(|slot| Seat { host: "node".into(), slot }).collect();
        Stage::of(Rendezvous::new("1", seats, LIMIT))
    }

    fn of(rendezvous: Rendezvous) -> Stage {
        Stage {
            rendezvous,
            next: 0,
            of: BTreeMap::new(),
            heard: BTreeMap::new(),
            closed: Vec::new(),
            lost: Vec::new(),
            left: Vec::new(),
            reported: Vec::new(),
            answered: Vec::new(),
            happened: Vec::new(),
            now: Duration::ZERO,
        }
    }

    fn on(&mut self, event: Event) {
        for action in self.rendezvous.on(event, self.now) {
            match action {
                Action::Tell(to, message) => {
                    let message = Rc::new(message);
                    for connection in to {
                        self.heard.entry(connection).or_default().push(message.clone());
                    }
                }
                Action::Close(connection) => self.closed.push(connection),
                Action::Lost { rank, cause } => self.lost.push((rank, cause)),
                Action::Left { rank, .. } => self.left.push(rank),
                Action::Reported(rank, report) => self.reported.push((rank, report)),
                Action::Answered(rank, waits) => self.answered.push((rank, waits)),
                Action::Happened(what) => self.happened.push(what),
                Action::Formed(_) => {}
            }
        }
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

fn join(rank: u32) -> RankToDriver {
    RankToDriver::Join {
        pid: 100 + rank,
        host: "node".into(),
        local_rank: rank,
        addresses: Vec::new(),
        unix: None,
    }
}

fn failing(error: &str, blames: Option<u32>) -> RankToDriver {
    RankToDriver::Leaving { error: Some(error.into()), blames: blames.map(Rank) }
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
    assert_eq!(stage.rendezvous.next_wakeup(), None);
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
        assert_eq!(stage.rendezvous.epoch, Epoch(u64::from(round)));
        stage.leave(round % 4);
    }
    assert_eq!((stage.lost.len(), stage.closed.len()), (0, 0));
    assert!(stage.rendezvous.connections.is_empty());
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
    stage.on(Event::Exited(Rank(1), Exit::Signal(9)));
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
    closed_first.on(Event::Exited(Rank(1), Exit::Code(3)));
    assert_eq!(closed_first.lost_to(0), Some((1, "exited with code 3")));
    closed_first.wait(5.0);
    assert_eq!(closed_first.lost.len(), 1);

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
    leaves.on(Event::Exited(Rank(1), Exit::Code(0)));
    leaves.leave(1);
    leaves.wait(5.0);
    assert_eq!(leaves.lost, []);

    for silent in ["closed", "open"] {
        let mut stage = Stage::new(2);
        stage.world(2);
        stage.on(Event::Exited(Rank(1), Exit::Code(0)));
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
    assert_eq!(stage.left, [Rank(1)]);

    let mut stage = Stage::new(3);
    stage.world(3);
    stage.say(1, failing("HorovodInternalError: lost rank 2", Some(2)));
    assert_eq!(stage.lost_to(0), None);
    stage.on(Event::Exited(Rank(2), Exit::Signal(9)));
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
        stage.on(Event::Exited(Rank(2), exit.clone()));
        assert!(stage.refusal(waiting).contains(&format!("rank 2 (node, slot 2) {exit}")));
        let late = stage.join(1);
        assert!(stage.refusal(late).contains("rank 2 (node, slot 2)"));
        assert_eq!(stage.rendezvous.next_wakeup(), None);
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
    assert_eq!(stage.rendezvous.next_wakeup(), None);
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
    assert_eq!(stage.rendezvous.next_wakeup(), None);
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
    stage.on(Event::Exited(Rank(7), Exit::Code(0)));
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
    assert!(stage.lost.is_empty() && stage.closed.is_empty(), "all of them live");
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
    stage.on(Event::Exited(Rank(2), Exit::Signal(9)));
    for rank in [2, 0, 77] {
        stage.say(0, given_up(rank));
    }
    assert_eq!(stage.lost_to(1), Some((2, "was killed by signal 9 (SIGKILL)")));
    assert_eq!(stage.lost_to(0), Some((2, "was killed by signal 9 (SIGKILL)")));
}

#[test]
fn without_agents_a_closed_connection_is_a_death() {
    let mut stage = Stage::of(Rendezvous::kept_by_a_rank("1", 3, LIMIT));
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
    let mut stage = Stage::of(Rendezvous::kept_by_a_rank("1", 4, LIMIT));
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
    let mut stage = Stage::new(2);
    let connections = [stage.join(0), stage.join(1)];
    assert_eq!(stage.rendezvous.inside().count(), 0);
    stage.say(0, RankToDriver::Located { leader: Rank(0) });
    stage.say(1, RankToDriver::Located { leader: Rank(0) });
    let inside: Vec<_> = stage.rendezvous.inside().collect();
    assert_eq!(inside, [(Rank(0), connections[0]), (Rank(1), connections[1])]);
    let report = Report { collectives: 7, ..Report::default() };
    stage.say(1, RankToDriver::Report(report.clone()));
    assert_eq!(stage.reported, [(Rank(1), report)]);
    stage.say(1, RankToDriver::Leaving { error: None, blames: None });
    assert_eq!(stage.rendezvous.inside().count(), 1);
}

#[test]
fn ranks_can_be_asked_whether_they_run_and_a_stopped_one_can_be_given_up() {
    let mut stage = Stage::new(3);
    stage.join(0);
    let roll = stage.rendezvous.roll();
    assert_eq!(Vec::from_iter(roll.connected), [Rank(0)]);
    assert_eq!(Vec::from_iter(roll.missing), [Rank(1), Rank(2)], "the first one waits for them");
    stage.join_all(1..3);
    stage.say(2, RankToDriver::Pong { waits: Some(LIMIT) });
    assert_eq!(stage.answered, [(Rank(2), Some(LIMIT))]);
    assert!(stage.rendezvous.roll().missing.is_empty());
    stage.say(2, RankToDriver::WorldEnded);
    assert_eq!(Vec::from_iter(stage.rendezvous.roll().connected), [Rank(0), Rank(1)]);
    stage.on(Event::Condemned(Rank(1), "was stopped".into()));
    assert_eq!(stage.lost, [(Rank(1), "was stopped".to_owned())]);
    assert_eq!(stage.lost_to(0), Some((1, "was stopped")));
}

#[test]
fn who_joins_and_which_world_is_complete_are_events() {
    let mut stage = Stage::new(2);
    stage.world(2);
    let joined = |what: &Happening| match what {
        Happening::WorkerJoined { member } => Some(member.rank),
        _ => None,
    };
    let ranks: Vec<Rank> = stage.happened.iter().filter_map(joined).collect();
    assert_eq!(ranks, [Rank(0), Rank(1)]);
    (0..2).for_each(|rank| stage.leave(rank));
    stage.world(2);
    let formed = |what: &Happening| match what {
        Happening::WorldFormed { world, members, newcomers, .. } => {
            Some((*world, members.len(), *newcomers))
        }
        _ => None,
    };
    let worlds: Vec<_> = stage.happened.iter().filter_map(formed).collect();
    assert_eq!(worlds, [(1, 2, 2), (2, 2, 0)]);
    let (waiting, late) = (vec![Rank(0)], vec![Rank(1)]);
    let during = Duration::from_secs(60);
    let told = RankToDriver::Stalled { tensor: "g".into(), during, waiting, late };
    stage.say(0, told);
    assert!(
        matches!(stage.happened.last(), Some(Happening::Stalled { late, .. }) if *late == [Rank(1)])
    );
}
