//! Stories of ranks and hosts that fall silent, and what is said and done about each.

use super::*;
use crate::Rank;

const LIMIT: Duration = Duration::from_secs(20);

fn seconds(seconds: u64) -> Time {
    Duration::from_secs(seconds)
}

fn condition(state: ProcessState) -> Condition {
    Condition { pid: 77, command: "python".into(), state }
}

fn member(number: u32) -> Member {
    Member { worker: Worker(number), rank: Rank(number), host: "b".into(), slot: 0 }
}

/// Three ranks, the last on a second host. Everybody answers but whom a test has silenced.
struct Play {
    liveness: Liveness,
    roll: Roll,
    silent: Vec<u32>,
    frozen: Vec<u32>,
    state: ProcessState,
    told: Vec<(u64, Action)>,
    now: u64,
}

impl Play {
    fn new(limits: Limits) -> Play {
        let mut liveness = Liveness::new(limits);
        for (rank, host) in [(0, 0), (1, 0), (2, 1)] {
            liveness.heard_host(host, seconds(0));
            liveness.started(Worker(rank), host, 70 + rank);
        }
        let connected: BTreeSet<Worker> = (0..3).map(Worker).collect();
        let name = |worker: &Worker| (*worker, member(worker.0));
        let roll = Roll {
            workers: connected.iter().map(name).collect(),
            hosts: [(0, "a".into()), (1, "b".into())].into(),
            connected,
            missing: BTreeSet::new(),
        };
        let (silent, frozen, told) = (Vec::new(), Vec::new(), Vec::new());
        Play { liveness, roll, silent, frozen, state: ProcessState::Runs, told, now: 0 }
    }

    fn run(&mut self, until: u64) {
        while self.now < until {
            self.now += 1;
            let now = seconds(self.now);
            for action in self.liveness.tick(&self.roll, now) {
                match action {
                    Action::Ping(ranks) => {
                        for rank in ranks.iter().filter(|rank| !self.silent.contains(&rank.0)) {
                            self.liveness.heard(*rank, None, now);
                        }
                    }
                    Action::Look(host, _) if self.frozen.contains(&host) => {}
                    Action::Look(host, ranks) => {
                        self.liveness.heard_host(host, now);
                        let found = |rank: Worker| (rank, condition(self.state));
                        self.liveness.looked(ranks.into_iter().map(found).collect(), now);
                    }
                    other => self.told.push((self.now, other)),
                }
            }
        }
    }

    /// The only event that was told of, and when.
    fn only_event(&mut self) -> (u64, Happening) {
        match self.only() {
            (when, Action::Tell(what)) => (when, what),
            (_, action) => panic!("{action:?}"),
        }
    }

    /// The only thing that was told, and when.
    fn only(&mut self) -> (u64, Action) {
        assert_eq!(self.told.len(), 1, "{:?}", self.told);
        self.told.remove(0)
    }
}

#[test]
fn nothing_is_said_while_everybody_answers() {
    let mut play = Play::new(Limits { awaited: Some(LIMIT), host: Some(LIMIT) });
    play.run(300);
    assert_eq!(play.told, []);
}

#[test]
fn a_rank_whose_child_is_stopped_is_named_within_ten_seconds() {
    for state in [ProcessState::Stopped, ProcessState::Frozen, ProcessState::Traced] {
        for start in 20..24 {
            let mut play = Play::new(Limits::default());
            play.run(start);
            (play.silent, play.state) = (vec![1], state);
            play.run(start + 300);
            let (when, what) = play.only_event();
            assert!(when - start < 10, "{when} {start}");
            let Happening::WorkerHalted { member, process, .. } = what else { panic!("{what:?}") };
            assert_eq!((member.worker, process), (Worker(1), condition(state)));
        }
    }
}

#[test]
fn a_stop_that_the_system_reports_is_named_even_before_the_rank_connects() {
    let mut play = Play::new(Limits::default());
    play.roll.connected.remove(&Worker(1));
    play.run(20);
    play.liveness.stopped(Worker(1), seconds(20));
    play.state = ProcessState::Stopped;
    play.run(22);
    assert_eq!(play.told, [], "many a stop is short");
    play.run(100);
    let (when, what) = play.only_event();
    assert!(when < 30 && matches!(what, Happening::WorkerHalted { .. }), "{when} {what:?}");
    play.liveness.continued(Worker(1));
    play.state = ProcessState::Runs;
    play.run(103);
    assert!(
        matches!(play.only_event().1, Happening::WorkerResumed { member, .. } if member.worker.0 == 1)
    );
}

#[test]
fn a_rank_that_is_missing_and_stopped_is_found_by_looking() {
    let mut play = Play::new(Limits::default());
    play.roll.connected.remove(&Worker(1));
    play.roll.missing.insert(Worker(1));
    play.state = ProcessState::Stopped;
    play.run(9);
    assert!(
        matches!(play.only_event().1, Happening::WorkerHalted { member, .. } if member.worker.0 == 1)
    );
}

#[test]
fn a_rank_that_is_merely_busy_is_not_called_stopped() {
    let mut play = Play::new(Limits { awaited: Some(LIMIT), host: None });
    play.run(20);
    play.silent.push(2);
    play.run(26);
    assert_eq!(play.told, []);
    play.run(60);
    let (when, what) = play.only_event();
    let is_silent = matches!(what, Happening::WorkerSilent { process: Some(_), .. });
    assert!(when < 32 && is_silent, "{what:?}");
    play.silent.clear();
    play.run(70);
    assert!(
        matches!(play.only_event().1, Happening::WorkerResumed { member, .. } if member.worker.0 == 2)
    );
}

#[test]
fn a_frozen_host_is_named_within_ten_seconds_and_its_ranks_are_not() {
    for start in 20..24 {
        let mut play = Play::new(Limits::default());
        play.run(start);
        (play.frozen, play.silent) = (vec![1], vec![2]);
        play.run(200);
        let (when, what) = play.only_event();
        assert!(when - start < 10, "{when} {start}");
        let Happening::HostSilent { host, answering, .. } = what else { panic!("{what:?}") };
        assert_eq!((host.as_str(), answering.len()), ("b", 0));
        (play.frozen, play.silent) = (vec![], vec![]);
        play.run(300);
        assert!(matches!(play.only_event().1, Happening::HostAnswers { host, .. } if host == "b"));
    }
}

#[test]
fn an_agent_that_is_stopped_alone_is_told_from_a_frozen_host() {
    let mut play = Play::new(Limits::default());
    play.run(20);
    play.frozen.push(0);
    play.run(60);
    let (_, what) = play.only_event();
    let Happening::HostSilent { answering, .. } = &what else { panic!("{what:?}") };
    assert_eq!(answering, &[member(0), member(1)]);
    assert!(what.line().unwrap().contains("though rank 0 there does"));
}

#[test]
fn the_limit_ends_a_stopped_rank_only_if_others_have_waited_that_long() {
    let mut play = Play::new(Limits { awaited: Some(LIMIT), host: None });
    play.run(20);
    (play.silent, play.state) = (vec![1], ProcessState::Stopped);
    play.run(100);
    assert!(matches!(play.only_event().1, Happening::WorkerHalted { .. }), "nobody waits");
    play.silent.push(0);
    for now in 101..110 {
        play.liveness.heard(Worker(0), Some(seconds(now - 89)), seconds(now));
        play.run(now);
    }
    let (_, action) = play.only();
    let Action::Overdue(Worker(1), cause) = action else { panic!("{action:?}") };
    assert_eq!(
        cause,
        "was stopped (SIGSTOP), process 77 (python), while others waited for it longer than the 20 s \
         of HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
    );
}

#[test]
fn a_host_that_stays_silent_is_given_up_where_a_limit_says_so() {
    let mut play = Play::new(Limits { awaited: None, host: Some(LIMIT) });
    play.run(20);
    (play.frozen, play.silent) = (vec![1], vec![2]);
    play.run(200);
    assert!(matches!(
        play.told[..],
        [(_, Action::Tell(Happening::HostSilent { .. })), (38..43, Action::HostOverdue(1, _))]
    ));
}

#[test]
fn a_driver_that_was_stopped_itself_blames_nobody() {
    let mut play = Play::new(Limits { awaited: Some(LIMIT), host: Some(LIMIT) });
    play.run(20);
    play.now += 1000;
    play.run(1100);
    assert_eq!(play.told, []);
}

#[test]
fn words_say_what_resumes_a_process() {
    let halted = |state, limit: Option<Duration>| {
        let (process, seconds) = (condition(state), Seconds(seconds(4)));
        let limit_seconds = limit.map(Seconds);
        Happening::WorkerHalted { member: member(1), process, seconds, limit_seconds }.text()
    };
    assert_eq!(
        halted(ProcessState::Stopped, Some(LIMIT)),
        "rank 1 (b, slot 0) is stopped: process 77 (python) got SIGSTOP or the like 4 s ago; `kill \
         -CONT 77` on b resumes it; the job ends once others have waited 20 s for it \
         (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)"
    );
    let frozen = halted(ProcessState::Frozen, None);
    assert!(frozen.contains("in a frozen cgroup for 4 s; `docker unpause`"), "{frozen}");
    let (process, seconds) = (Some(condition(ProcessState::Blocked)), Seconds(seconds(9)));
    let blocked = Happening::WorkerSilent { member: member(1), process, seconds }.text();
    assert!(blocked.contains("process 77 (python) waits for a disk"), "{blocked}");
}
