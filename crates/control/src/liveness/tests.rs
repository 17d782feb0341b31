//! Scenarios of ranks and hosts that fall silent, and what is reported and done about each.

use super::*;
use crate::Rank;

const LIMIT: Duration = Duration::from_secs(20);

fn seconds(seconds: u64) -> Time {
    Duration::from_secs(seconds)
}

fn condition(state: ProcessState) -> Condition {
    Condition { pid: 77, command: "python".into(), state }
}

fn member(number: u32) -> WorkerInfo {
    WorkerInfo { worker: Worker(number), rank: Rank(number), host: "b".into(), slot: 0 }
}

/// Three ranks, the last on a second host. All answer except those that a test silences.
struct Scenario {
    liveness: Liveness,
    roster: Roster,
    silent: Vec<u32>,
    frozen: Vec<u32>,
    state: ProcessState,
    reported: Vec<(u64, LivenessAction)>,
    now: u64,
}

impl Scenario {
    fn new(limits: LivenessLimits) -> Scenario {
        let mut liveness = Liveness::new(limits);
        for (rank, host) in [(0, 0), (1, 0), (2, 1)] {
            liveness.heard_host(host, seconds(0));
            liveness.started(Worker(rank), host, 70 + rank);
        }
        let connected: BTreeSet<Worker> = (0..3).map(Worker).collect();
        let name = |worker: &Worker| (*worker, member(worker.0));
        let roster = Roster {
            workers: connected.iter().map(name).collect(),
            hosts: [(0, "a".into()), (1, "b".into())].into(),
            connected,
            missing: BTreeSet::new(),
        };
        let (silent, frozen, reported) = (Vec::new(), Vec::new(), Vec::new());
        Scenario { liveness, roster, silent, frozen, state: ProcessState::Runs, reported, now: 0 }
    }

    fn run(&mut self, until: u64) {
        while self.now < until {
            self.now += 1;
            let now = seconds(self.now);
            for action in self.liveness.tick(&self.roster, now) {
                match action {
                    LivenessAction::Ping(ranks) => {
                        for rank in ranks.iter().filter(|rank| !self.silent.contains(&rank.0)) {
                            self.liveness.heard(*rank, None, now);
                        }
                    }
                    LivenessAction::Look(host, _) if self.frozen.contains(&host) => {}
                    LivenessAction::Look(host, ranks) => {
                        self.liveness.heard_host(host, now);
                        let found = |rank: Worker| (rank, condition(self.state));
                        self.liveness.looked(ranks.into_iter().map(found).collect(), now);
                    }
                    other => self.reported.push((self.now, other)),
                }
            }
        }
    }

    /// The only event that was reported, and when.
    fn only_event(&mut self) -> (u64, JobEventKind) {
        match self.only() {
            (when, LivenessAction::Tell(what)) => (when, what),
            (_, action) => panic!("{action:?}"),
        }
    }

    /// The only action, and when.
    fn only(&mut self) -> (u64, LivenessAction) {
        assert_eq!(self.reported.len(), 1, "{:?}", self.reported);
        self.reported.remove(0)
    }
}

#[test]
fn nothing_is_reported_while_all_answer() {
    let mut scenario = Scenario::new(LivenessLimits { awaited: Some(LIMIT), host: Some(LIMIT) });
    scenario.run(300);
    assert_eq!(scenario.reported, []);
}

#[test]
fn a_rank_whose_child_is_stopped_is_named_within_ten_seconds() {
    for state in [ProcessState::Stopped, ProcessState::Frozen, ProcessState::Traced] {
        for start in 20..24 {
            let mut scenario = Scenario::new(LivenessLimits::default());
            scenario.run(start);
            (scenario.silent, scenario.state) = (vec![1], state);
            scenario.run(start + 300);
            let (when, what) = scenario.only_event();
            assert!(when - start < 10, "{when} {start}");
            let JobEventKind::WorkerHalted { member, process, .. } = what else {
                panic!("{what:?}")
            };
            assert_eq!((member.worker, process), (Worker(1), condition(state)));
        }
    }
}

#[test]
fn a_stop_that_the_system_reports_is_named_even_before_the_rank_connects() {
    let mut scenario = Scenario::new(LivenessLimits::default());
    scenario.roster.connected.remove(&Worker(1));
    scenario.run(20);
    scenario.liveness.stopped(Worker(1), seconds(20));
    scenario.state = ProcessState::Stopped;
    scenario.run(22);
    assert_eq!(scenario.reported, [], "most stops are short");
    scenario.run(100);
    let (when, what) = scenario.only_event();
    assert!(when < 30 && matches!(what, JobEventKind::WorkerHalted { .. }), "{when} {what:?}");
    scenario.liveness.continued(Worker(1));
    scenario.state = ProcessState::Runs;
    scenario.run(103);
    assert!(
        matches!(scenario.only_event().1, JobEventKind::WorkerResumed { member, .. } if member.worker.0 == 1)
    );
}

#[test]
fn a_missing_rank_that_is_stopped_is_found_by_inspection() {
    let mut scenario = Scenario::new(LivenessLimits::default());
    scenario.roster.connected.remove(&Worker(1));
    scenario.roster.missing.insert(Worker(1));
    scenario.state = ProcessState::Stopped;
    scenario.run(9);
    assert!(
        matches!(scenario.only_event().1, JobEventKind::WorkerHalted { member, .. } if member.worker.0 == 1)
    );
}

#[test]
fn a_busy_rank_is_not_reported_as_stopped() {
    let mut scenario = Scenario::new(LivenessLimits { awaited: Some(LIMIT), host: None });
    scenario.run(20);
    scenario.silent.push(2);
    scenario.run(26);
    assert_eq!(scenario.reported, []);
    scenario.run(60);
    let (when, what) = scenario.only_event();
    let is_silent = matches!(what, JobEventKind::WorkerSilent { process: Some(_), .. });
    assert!(when < 32 && is_silent, "{what:?}");
    scenario.silent.clear();
    scenario.run(70);
    assert!(
        matches!(scenario.only_event().1, JobEventKind::WorkerResumed { member, .. } if member.worker.0 == 2)
    );
}

#[test]
fn a_frozen_host_is_named_within_ten_seconds_and_its_ranks_are_not() {
    for start in 20..24 {
        let mut scenario = Scenario::new(LivenessLimits::default());
        scenario.run(start);
        (scenario.frozen, scenario.silent) = (vec![1], vec![2]);
        scenario.run(200);
        let (when, what) = scenario.only_event();
        assert!(when - start < 10, "{when} {start}");
        let JobEventKind::HostSilent { host, answering, .. } = what else { panic!("{what:?}") };
        assert_eq!((host.as_str(), answering.len()), ("b", 0));
        (scenario.frozen, scenario.silent) = (vec![], vec![]);
        scenario.run(300);
        assert!(
            matches!(scenario.only_event().1, JobEventKind::HostAnswers { host, .. } if host == "b")
        );
    }
}

#[test]
fn a_stopped_agent_is_distinguished_from_a_frozen_host() {
    let mut scenario = Scenario::new(LivenessLimits::default());
    scenario.run(20);
    scenario.frozen.push(0);
    scenario.run(60);
    let (_, what) = scenario.only_event();
    let JobEventKind::HostSilent { answering, .. } = &what else { panic!("{what:?}") };
    assert_eq!(answering, &[member(0), member(1)]);
    assert!(what.line().unwrap().contains("though rank 0 there does"));
}

#[test]
fn the_limit_ends_a_stopped_rank_only_if_others_have_waited_that_long() {
    let mut scenario = Scenario::new(LivenessLimits { awaited: Some(LIMIT), host: None });
    scenario.run(20);
    (scenario.silent, scenario.state) = (vec![1], ProcessState::Stopped);
    scenario.run(100);
    assert!(matches!(scenario.only_event().1, JobEventKind::WorkerHalted { .. }), "nobody waits");
    scenario.silent.push(0);
    for now in 101..110 {
        scenario.liveness.heard(Worker(0), Some(seconds(now - 89)), seconds(now));
        scenario.run(now);
    }
    let (_, action) = scenario.only();
    let LivenessAction::Overdue(Worker(1), cause) = action else { panic!("{action:?}") };
    assert_eq!(
        cause,
        "was stopped (SIGSTOP), process 77 (python), while others waited for it longer than the 20 s \
         of HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
    );
}

#[test]
fn a_silent_host_is_given_up_if_there_is_a_limit() {
    let mut scenario = Scenario::new(LivenessLimits { awaited: None, host: Some(LIMIT) });
    scenario.run(20);
    (scenario.frozen, scenario.silent) = (vec![1], vec![2]);
    scenario.run(200);
    assert!(matches!(
        scenario.reported[..],
        [
            (_, LivenessAction::Tell(JobEventKind::HostSilent { .. })),
            (38..43, LivenessAction::HostOverdue(1, _))
        ]
    ));
}

#[test]
fn a_driver_that_was_stopped_itself_reports_nobody() {
    let mut scenario = Scenario::new(LivenessLimits { awaited: Some(LIMIT), host: Some(LIMIT) });
    scenario.run(20);
    scenario.now += 1000;
    scenario.run(1100);
    assert_eq!(scenario.reported, []);
}

#[test]
fn events_say_how_to_resume_a_process() {
    let halted = |state, limit: Option<Duration>| {
        let (process, seconds) = (condition(state), Seconds(seconds(4)));
        let limit_seconds = limit.map(Seconds);
        JobEventKind::WorkerHalted { member: member(1), process, seconds, limit_seconds }.text()
    };
    assert_eq!(
        halted(ProcessState::Stopped, Some(LIMIT)),
        "rank 1 (b, slot 0) is stopped: process 77 (python) received SIGSTOP or similar 4 s ago; `kill \
         -CONT 77` on b resumes it; the job ends once others have waited 20 s for it \
         (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)"
    );
    let frozen = halted(ProcessState::Frozen, None);
    assert!(frozen.contains("in a frozen cgroup for 4 s; `docker unpause`"), "{frozen}");
    let (process, seconds) = (Some(condition(ProcessState::Blocked)), Seconds(seconds(9)));
    let blocked = JobEventKind::WorkerSilent { member: member(1), process, seconds }.text();
    assert!(blocked.contains("process 77 (python) is waiting for a disk"), "{blocked}");
}
