//! No process outlives its job, whichever process of the job dies, and however it dies.
#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod support;

use std::time::Duration;

use support::{Launched, alive, eventually, launch, signal};

/// How long a process may outlive its job.
const LIMIT: Duration = Duration::from_secs(5);

/// A rank with a child, a grandchild that has left the session, and one that has also cleared its
/// environment; all of them ignore every signal they can.
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
    let pids = launched.wait_for("pid", 6).iter().map(|pid| pid.parse().unwrap()).collect();
    (launched, pids)
}

fn assert_all_gone(launched: &Launched, pids: &[i32]) {
    eventually("all are gone", LIMIT, || {
        let none = launched.family().is_empty() && !pids.iter().any(|pid| alive(*pid));
        none.then_some(())
    });
}

#[test]
fn a_killed_launcher_leaves_no_processes() {
    let (launched, pids) = start();
    launched.signal("KILL");
    assert_all_gone(&launched, &pids);
}

#[test]
fn a_killed_agent_leaves_no_processes_and_is_named() {
    let (launched, pids) = start();
    signal(launched.part("__ronde-agent")[0], "KILL");
    assert_all_gone(&launched, &pids);
    let ended = launched.end();
    assert_eq!(ended.code, Some(1));
    let text = "error: lost host `localhost`: its agent was killed by signal 9 (SIGKILL)\n";
    assert!(ended.stderr.contains(text), "{}", ended.stderr);
}

#[test]
fn a_killed_guardian_leaves_no_processes() {
    let (launched, pids) = start();
    signal(launched.part("__ronde-guardian")[0], "KILL");
    assert_all_gone(&launched, &pids);
    assert_eq!(launched.end().code, Some(1));
}

#[test]
fn killing_launcher_and_agent_at_once_leaves_no_processes() {
    let (launched, pids) = start();
    let agent = launched.part("__ronde-agent")[0];
    launched.signal("STOP");
    signal(agent, "KILL");
    launched.signal("KILL");
    assert_all_gone(&launched, &pids);
}

#[test]
fn killing_agent_and_guardian_at_once_leaves_no_marked_processes() {
    let script = "setsid sleep 300 & echo pid $!; echo pid $$; wait";
    let launched = launch(&["-np", "2"], script);
    let pids: Vec<i32> =
        launched.wait_for("pid", 4).iter().map(|pid| pid.parse().unwrap()).collect();
    let guardian = launched.part("__ronde-guardian")[0];
    signal(guardian, "STOP");
    signal(launched.part("__ronde-agent")[0], "KILL");
    signal(guardian, "KILL");
    assert_all_gone(&launched, &pids);
    assert_eq!(launched.end().code, Some(1));
}

#[test]
fn a_nested_job_ends_with_the_outer_job() {
    let inner = env!("CARGO_BIN_EXE_horovodrun");
    let script = format!("exec {inner} -np 2 sh -c 'setsid sleep 300 & echo pid $$; wait'");
    let launched = launch(&["-np", "2"], &script);
    let read_pid = |_| launched.line().rsplit_once("pid ").unwrap().1.parse().unwrap();
    let pids: Vec<i32> = (0..4).map(read_pid).collect();
    launched.signal("KILL");
    assert_all_gone(&launched, &pids);
}

#[test]
fn killing_launcher_and_guardian_at_once_leaves_no_processes() {
    let (launched, pids) = start();
    let guardian = launched.part("__ronde-guardian")[0];
    launched.signal("STOP");
    signal(guardian, "KILL");
    launched.signal("KILL");
    assert_all_gone(&launched, &pids);
}

#[test]
fn a_killed_rank_leaves_no_descendants() {
    let (launched, pids) = start();
    let rank = launched.part("wait").into_iter().find(|pid| pids.contains(pid)).unwrap();
    signal(rank, "KILL");
    assert_all_gone(&launched, &pids);
    assert_eq!(launched.end().code, Some(137));
}

#[test]
fn ranks_that_succeed_leave_no_processes() {
    let script = r#"
sleep 300 &
setsid sh -c 'echo pid $$; exec sleep 300' &
setsid env -i sh -c 'echo pid $$; exec sleep 300' &
sleep 0.3"#;
    let launched = launch(&["-np", "2"], script);
    let pids: Vec<i32> =
        launched.wait_for("pid", 4).iter().map(|pid| pid.parse().unwrap()).collect();
    assert_all_gone(&launched, &pids);
    let ended = launched.end();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_suspended_launcher_does_not_keep_its_agent_alive() {
    let (launched, pids) = start();
    launched.signal("STOP");
    signal(launched.part("__ronde-agent")[0], "TERM");
    eventually("all are gone", LIMIT, || (!pids.iter().any(|pid| alive(*pid))).then_some(()));
    launched.signal("CONT");
    assert_eq!(launched.end().code, Some(1));
}

#[test]
fn concurrent_jobs_do_not_affect_each_other() {
    let (first, first_pids) = start();
    let (second, second_pids) = start();
    first.signal("KILL");
    assert_all_gone(&first, &first_pids);
    assert!(second_pids.iter().all(|pid| alive(*pid)));
    second.signal("KILL");
    assert_all_gone(&second, &second_pids);
}
