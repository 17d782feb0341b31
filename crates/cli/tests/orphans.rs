//! Nothing is left of a job, whatever dies and however.
#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod support;

use std::time::Duration;

use support::{Launched, alive, eventually, launch, signal};

/// How long anything may survive.
const LIMIT: Duration = Duration::from_secs(5);

/// A rank with a child, a grandchild that has left its session, and one that has also lost its
/// environment; all of them ignore every polite request.
const FAMILY: &str = r#"
trap '' TERM INT HUP
sleep 300 &
setsid sh -c 'trap "" TERM INT HUP; echo pid $$; while true; do sleep 1; done' &
setsid env -i sh -c 'trap "" TERM INT HUP; echo pid $$; while true; do sleep 1; done' &
echo pid $$
wait
while true; do sleep 1; done
"#;

fn start() -> (Launched, Vec<i32>) {
    let launched = launch(&["-np", "2"], FAMILY);
    let pids = launched.told("pid", 6).iter().map(|pid| pid.parse().unwrap()).collect();
    (launched, pids)
}

fn assert_all_gone(launched: &Launched, pids: &[i32]) {
    eventually("all are gone", LIMIT, || {
        let none = launched.family().is_empty() && !pids.iter().any(|pid| alive(*pid));
        none.then_some(())
    });
}

#[test]
fn a_killed_launcher_leaves_nothing() {
    let (launched, pids) = start();
    launched.signal("KILL");
    assert_all_gone(&launched, &pids);
}

#[test]
fn a_killed_agent_leaves_nothing_and_is_named() {
    let (launched, pids) = start();
    signal(launched.part("__ronde-agent")[0], "KILL");
    assert_all_gone(&launched, &pids);
    let ended = launched.end();
    assert_eq!(ended.code, Some(1));
    let text = "error: lost host `localhost`: its agent was killed by signal 9 (SIGKILL)\n";
    assert!(ended.stderr.contains(text), "{}", ended.stderr);
}

#[test]
fn a_killed_guardian_leaves_nothing() {
    let (launched, pids) = start();
    signal(launched.part("__ronde-guardian")[0], "KILL");
    assert_all_gone(&launched, &pids);
    assert_eq!(launched.end().code, Some(1));
}

#[test]
fn launcher_and_agent_killed_at_once_leave_nothing() {
    let (launched, pids) = start();
    let agent = launched.part("__ronde-agent")[0];
    launched.signal("STOP");
    signal(agent, "KILL");
    launched.signal("KILL");
    assert_all_gone(&launched, &pids);
}

#[test]
fn agent_and_guardian_killed_at_once_leave_nothing_that_is_marked() {
    let script = "setsid sleep 300 & echo pid $!; echo pid $$; wait";
    let launched = launch(&["-np", "2"], script);
    let pids: Vec<i32> = launched.told("pid", 4).iter().map(|pid| pid.parse().unwrap()).collect();
    let guardian = launched.part("__ronde-guardian")[0];
    signal(guardian, "STOP");
    signal(launched.part("__ronde-agent")[0], "KILL");
    signal(guardian, "KILL");
    assert_all_gone(&launched, &pids);
    assert_eq!(launched.end().code, Some(1));
}

#[test]
fn a_job_inside_a_job_goes_with_it() {
    let inner = env!("CARGO_BIN_EXE_horovodrun");
    let script = format!("exec {inner} -np 2 sh -c 'setsid sleep 300 & echo pid $$; wait'");
    let launched = launch(&["-np", "2"], &script);
    let told = |_| launched.line().rsplit_once("pid ").unwrap().1.parse().unwrap();
    let pids: Vec<i32> = (0..4).map(told).collect();
    launched.signal("KILL");
    assert_all_gone(&launched, &pids);
}

#[test]
fn launcher_and_guardian_killed_at_once_leave_nothing() {
    let (launched, pids) = start();
    let guardian = launched.part("__ronde-guardian")[0];
    launched.signal("STOP");
    signal(guardian, "KILL");
    launched.signal("KILL");
    assert_all_gone(&launched, &pids);
}

#[test]
fn a_killed_rank_leaves_none_of_its_descendants() {
    let (launched, pids) = start();
    let rank = launched.part("wait").into_iter().find(|pid| pids.contains(pid)).unwrap();
    signal(rank, "KILL");
    assert_all_gone(&launched, &pids);
    assert_eq!(launched.end().code, Some(137));
}

#[test]
fn ranks_that_finish_well_leave_nothing_either() {
    let script = r#"
sleep 300 &
setsid sh -c 'echo pid $$; exec sleep 300' &
setsid env -i sh -c 'echo pid $$; exec sleep 300' &
sleep 0.3"#;
    let launched = launch(&["-np", "2"], script);
    let pids: Vec<i32> = launched.told("pid", 4).iter().map(|pid| pid.parse().unwrap()).collect();
    assert_all_gone(&launched, &pids);
    let ended = launched.end();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_stopped_launcher_does_not_protect_its_agent() {
    let (launched, pids) = start();
    launched.signal("STOP");
    signal(launched.part("__ronde-agent")[0], "TERM");
    eventually("all are gone", LIMIT, || (!pids.iter().any(|pid| alive(*pid))).then_some(()));
    launched.signal("CONT");
    assert_eq!(launched.end().code, Some(1));
}

#[test]
fn jobs_beside_each_other_do_not_touch_each_other() {
    let (first, first_pids) = start();
    let (second, second_pids) = start();
    first.signal("KILL");
    assert_all_gone(&first, &first_pids);
    assert!(second_pids.iter().all(|pid| alive(*pid)));
    second.signal("KILL");
    assert_all_gone(&second, &second_pids);
}
