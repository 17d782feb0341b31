//! The events of a job, in its event log and as seen by its followers.
#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ronde_control::event::{EndReason, JobEvent, JobEventKind, OutputKind};
use support::eventually;

/// A launcher whose job is registered in a separate folder.
fn launch(runtime: &Path, arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_horovodrun"))
        .args(arguments)
        .env("XDG_RUNTIME_DIR", runtime)
        .current_dir(runtime)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn follow(runtime: &Path, arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_ronde"))
        .args(["status", "--follow"])
        .args(arguments)
        .env("XDG_RUNTIME_DIR", runtime)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The events in a file, without a partially written last line.
fn events(path: &Path) -> Vec<JobEvent> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Waits until the ranks of a job are running.
fn started(path: &Path, ranks: usize) {
    eventually("its ranks run", Duration::from_secs(20), || {
        let is_start = |event: &JobEvent| matches!(event.what, JobEventKind::WorkerStarted { .. });
        (events(path).iter().filter(|event| is_start(event)).count() == ranks).then_some(())
    });
}

#[test]
fn the_event_log_covers_a_job_from_start_to_end() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("job.yaml"), "event_log: events.jsonl\n").unwrap();
    let script = r#"test "$HOROVOD_RANK" = 0 || exit 3; sleep 300"#;
    let line = ["--config-file", "job.yaml", "-np", "2", "sh", "-c", script];
    let code = launch(folder.path(), &line).wait().unwrap().code();
    assert_eq!(code, Some(3));
    let events = events(&folder.path().join("events.jsonl"));
    let numbers: Vec<u64> = events.iter().map(|event| event.number).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    assert!(matches!(&events[0].what, JobEventKind::JobStarted { ranks: 2, max: Some(2), .. }));
    let count = |test: fn(&JobEventKind) -> bool| events.iter().filter(|it| test(&it.what)).count();
    assert_eq!(count(|what| matches!(what, JobEventKind::WorkerStarted { .. })), 2);
    assert_eq!(
        count(|what| matches!(what, JobEventKind::WorkerStopped { signal: Some(15), .. })),
        1
    );
    let lost =
        |what: &JobEventKind| matches!(what, JobEventKind::WorkerLost { exit_code: Some(3), .. });
    assert_eq!(count(lost), 1);
    let Some(JobEventKind::JobEnded { exit_code: 3, verdict }) = events.last().map(|it| &it.what)
    else {
        panic!("{events:?}")
    };
    let first = verdict.first.as_ref().unwrap();
    assert_eq!(verdict.reason, EndReason::RankFailed);
    assert_eq!((first.member.rank.0, first.member.host.as_str()), (1, "localhost"));
    assert_eq!(first.cause.kind.to_string(), "exit_code");
}

#[test]
fn a_follower_gets_past_and_future_events_until_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("events.jsonl");
    let script = "while ! test -e over; do sleep 0.05; done";
    let line = ["--event-log", "events.jsonl", "-np", "2", "sh", "-c", script];
    let mut job = launch(folder.path(), &line);
    started(&log, 2);
    let [mut json, mut words] = [&["--json"][..], &[]].map(|more| follow(folder.path(), more));
    let mut lines = BufReader::new(json.stdout.take().unwrap()).lines().map(Result::unwrap);
    let first = lines.next().unwrap();
    assert!(first.contains("job_started"), "past events come first: {first}");
    fs::write(folder.path().join("over"), "").unwrap();
    let followed: Vec<String> = std::iter::once(first).chain(lines).collect();
    assert_eq!(job.wait().unwrap().code(), Some(0));
    let written = fs::read_to_string(&log).unwrap();
    assert_eq!(followed.join("\n") + "\n", written, "the same events as in the file");
    assert_eq!(json.wait().unwrap().code(), Some(0));
    let text = std::io::read_to_string(words.stdout.take().unwrap()).unwrap();
    assert!(words.wait().unwrap().success());
    assert!(text.contains("rank 1 (localhost, slot 1) runs as process "), "{text}");
    assert!(text.ends_with("the job has ended with code 0\n"), "{text}");
}

#[test]
fn a_suspended_follower_does_not_delay_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let script = "while ! test -e over; do sleep 0.05; done";
    let line = ["--event-log", "events.jsonl", "-np", "1", "sh", "-c", script];
    let mut job = launch(folder.path(), &line);
    started(&folder.path().join("events.jsonl"), 1);
    let mut follower = follow(folder.path(), &["--json"]);
    let mut line = String::new();
    BufReader::new(follower.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    support::signal(follower.id() as i32, "STOP");
    fs::write(folder.path().join("over"), "").unwrap();
    assert_eq!(job.wait().unwrap().code(), Some(0));
    let events = events(&folder.path().join("events.jsonl"));
    assert!(matches!(events.last().unwrap().what, JobEventKind::JobEnded { exit_code: 0, .. }));
    follower.kill().unwrap();
    follower.wait().unwrap();
}

#[test]
fn status_shows_the_last_events() {
    let folder = tempfile::tempdir().unwrap();
    let line = ["--event-log", "events.jsonl", "-np", "1", "sleep", "300"];
    let mut job = launch(folder.path(), &line);
    started(&folder.path().join("events.jsonl"), 1);
    let status = |more: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_ronde"))
            .args(["status", "--once"])
            .args(more.split_whitespace())
            .env("XDG_RUNTIME_DIR", folder.path())
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = status("");
    assert!(shown.contains("  rank 0 (localhost, slot 0) runs as process "), "{shown}");
    let parsed: serde_json::Value = serde_json::from_str(&status("--json")).unwrap();
    assert_eq!(parsed["events"][0]["event"], "job_started");
    support::signal(job.id() as i32, "INT");
    assert_eq!(job.wait().unwrap().code(), Some(130));
    let last = events(&folder.path().join("events.jsonl")).pop().unwrap();
    let JobEventKind::JobEnded { verdict, .. } = last.what else { panic!("{last:?}") };
    assert_eq!((verdict.reason, verdict.signal), (EndReason::Interrupted, Some(2)));
}

#[test]
fn lost_output_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_horovodrun"))
        .args(["--event-log", "events.jsonl", "-np", "1", "sh", "-c", "echo x; sleep 1"])
        .current_dir(folder.path())
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let events = events(&folder.path().join("events.jsonl"));
    let lost = |event: &&JobEvent| matches!(event.what, JobEventKind::OutputLost { .. });
    let lost: Vec<_> = events.iter().filter(lost).collect();
    let [JobEvent { what: JobEventKind::OutputLost { output, .. }, .. }] = &lost[..] else {
        panic!("{events:?}")
    };
    assert_eq!(*output, OutputKind::Stdout);
    let last = &events.last().unwrap().what;
    assert!(
        matches!(last, JobEventKind::JobEnded { verdict, .. } if verdict.reason == EndReason::OutputLost)
    );
}

#[test]
fn an_unwritable_event_log_is_reported_and_the_job_continues() {
    let output = Command::new(env!("CARGO_BIN_EXE_horovodrun"))
        .args(["--event-log", "/dev/full", "-np", "1", "sh", "-c", "sleep 1; echo done"])
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let reason = "[ronde] cannot write the event log: No space left on device";
    assert_eq!(stderr.matches(reason).count(), 1, "{stderr}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("done"));
}
