//! `ronde status` with real launchers: which jobs run, what their ranks report, which rank is late.
#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use ronde_control::status::{RankReport, TensorStatus};
use ronde_control::wire::{DriverToRank, RankToDriver};
use support::eventually;
use support::rank::{FakeRank, TestRendezvous};

/// A launcher whose jobs are registered in a separate folder.
struct Job {
    launcher: Child,
    lines: BufReader<ChildStdout>,
}

impl Job {
    fn start(runtime: &Path, count: &str, script: &str) -> Job {
        let mut launcher = Command::new(env!("CARGO_BIN_EXE_horovodrun"))
            .args(["-np", count, "sh", "-c", script])
            .env("XDG_RUNTIME_DIR", runtime)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(launcher.stdout.take().unwrap());
        Job { launcher, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

fn status(runtime: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ronde"))
        .arg("status")
        .args(arguments)
        .env("XDG_RUNTIME_DIR", runtime)
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    let (out, error) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(error))
}

/// Joins as a rank and answers every query with the same report until the connection ends.
fn take_part(rendezvous: &TestRendezvous, rank: u32, report: RankReport) -> thread::JoinHandle<()> {
    let mut fake = FakeRank::join(rendezvous, rank);
    thread::spawn(move || {
        fake.join_world();
        while let Ok(message) = fake.try_receive() {
            if matches!(message, DriverToRank::Ask) {
                fake.send(&RankToDriver::Report(report.clone()));
            }
        }
    })
}

#[test]
fn a_job_is_shown_with_its_ranks_and_who_is_late() {
    let runtime = tempfile::tempdir().unwrap();
    let mut job = Job::start(
        runtime.path(),
        "3",
        r#"test "$RANK" != 0 || echo "$RONDE_RENDEZVOUS $RONDE_JOB_KEY"; exec sleep 300"#,
    );
    let line = job.line();
    let (address, key) = line.trim().split_once(">:").unwrap().1.split_once(' ').unwrap();
    let key = ronde_control::wire::JobKey::from_hex(key).unwrap();
    let rendezvous = TestRendezvous { address: address.parse().unwrap(), key };
    let before = text(&status(runtime.path(), &["--once"]));
    assert!(before.contains("no world yet") && before.contains("running"), "{before}");
    let waits = TensorStatus {
        name: "layer.1".into(),
        kind: "allreduce".into(),
        set: 0,
        released: false,
        age: Duration::from_secs(5),
    };
    let waiting = RankReport {
        collectives: 12,
        bytes: 1 << 20,
        waiting: vec![waits],
        outstanding: 1,
        ..RankReport::default()
    };
    let idle = RankReport { collectives: 12, ..RankReport::default() };
    let ranks = [waiting.clone(), idle, waiting].map(Some);
    let threads: Vec<_> = (0..)
        .zip(ranks)
        .map(|(rank, report)| take_part(&rendezvous, rank, report.unwrap()))
        .collect();
    let once = eventually("all ranks have reported", Duration::from_secs(20), || {
        let output = status(runtime.path(), &["--once"]);
        text(&output).contains("late: ").then_some(output)
    });
    let shown = text(&once);
    for part in [
        "3 ranks on 1 host, world 1, for ",
        "sh -c test",
        "waiting 5.0 s for allreduce layer.1",
        "late: rank 1 has not submitted `layer.1` (allreduce); 2 ranks have waited 5.0 s",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let output = status(runtime.path(), &["--once", "--json"]);
    let parsed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(parsed["job"], job.launcher.id());
    assert_eq!(parsed["ranks"][0]["report"]["bytes"], 1 << 20);
    assert_eq!(parsed["ranks"][0]["report"]["bytes_per_second"], 0.0);
    assert_eq!(parsed["late"][0]["rank"], 1);
    drop(job);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn jobs_are_listed_only_while_they_run() {
    let runtime = tempfile::tempdir().unwrap();
    let none = status(runtime.path(), &[]);
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none).starts_with("error: you have no running jobs on this machine"));
    let [mut one, mut two] =
        ["1", "2"].map(|count| Job::start(runtime.path(), count, "echo up; exec sleep 300"));
    one.line();
    two.line();
    let both = status(runtime.path(), &[]);
    let (first, second) = (one.launcher.id(), two.launcher.id());
    for part in [first.to_string(), second.to_string(), "sh -c echo up".into()] {
        assert!(text(&both).contains(&part), "{part}: {}", text(&both));
    }
    let other = status(runtime.path(), &["1"]);
    assert_eq!(other.status.code(), Some(2), "{}", text(&other));
    let chosen = text(&status(runtime.path(), &["--once", &second.to_string()]));
    assert!(chosen.starts_with(&format!("job {second}: 2 ranks")), "{chosen}");
    // A killed driver leaves its file behind; the next `ronde status` removes it.
    drop(one);
    let folder = runtime.path().join("ronde");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
    assert!(text(&status(runtime.path(), &["--once"])).starts_with(&format!("job {second}:")));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    support::signal(second as i32, "TERM");
    two.launcher.wait().unwrap();
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn a_killed_launcher_leaves_no_entry() {
    let runtime = tempfile::tempdir().unwrap();
    let mut job = Job::start(runtime.path(), "1", "echo here; exec sleep 300");
    assert!(job.line().contains("here"));
    let entries = || fs::read_dir(runtime.path().join("ronde")).unwrap().count();
    assert_eq!(entries(), 1);
    job.launcher.kill().unwrap();
    job.launcher.wait().unwrap();
    eventually("its entry is gone", Duration::from_secs(20), || (entries() == 0).then_some(()));
}
