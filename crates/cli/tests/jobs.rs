//! What users see of a job: its output, its input, its exit code and its error messages.
#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod support;

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use support::{eventually, launch, launch_in, launch_with, signal};

#[test]
fn ranks_get_their_place_in_the_environment() {
    let script = r#"echo "$HOROVOD_RANK $HOROVOD_SIZE $HOROVOD_LOCAL_RANK $HOROVOD_LOCAL_SIZE \
$HOROVOD_CROSS_RANK $HOROVOD_CROSS_SIZE $HOROVOD_HOSTNAME $HOROVOD_CONTROLLER $RANK $WORLD_SIZE \
$MASTER_ADDR $PYTHONUNBUFFERED ${TF_CONFIG##*task}""#;
    let ended = launch(&["-np", "3", "-H", "localhost:2,127.0.0.1:4"], script).end();
    let mut lines: Vec<&str> = ended.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "[0]<stdout>:0 3 0 2 0 2 localhost gloo 0 3 127.0.0.1 1 \":{\"index\":0,\"type\":\"worker\"}}",
            "[1]<stdout>:1 3 1 2 0 1 localhost gloo 1 3 127.0.0.1 1 \":{\"index\":1,\"type\":\"worker\"}}",
            "[2]<stdout>:2 3 0 1 1 2 127.0.0.1 gloo 2 3 127.0.0.1 1 \":{\"index\":2,\"type\":\"worker\"}}",
        ]
    );
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
}

#[test]
fn options_override_the_configuration_file_which_overrides_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    let file = "params: {fusion_threshold_mb: 32, cycle_time_ms: 10}\n\
                stall_check: {enabled: false}\n\
                logging: {hide_timestamp: true}\n\
                timeline: {filename: t.json}\n";
    fs::write(&path, file).unwrap();
    let script = r#"echo "$HOROVOD_FUSION_THRESHOLD $HOROVOD_CYCLE_TIME $HOROVOD_TIMELINE \
$HOROVOD_TIMELINE_MARK_CYCLES $HOROVOD_STALL_CHECK_DISABLE $HOROVOD_LOG_HIDE_TIME \
$HOROVOD_CACHE_CAPACITY""#;
    let options = [
        "--fusion-threshold-mb=64",
        "--stall-check",
        "--config-file",
        path.to_str().unwrap(),
        "--timeline-mark-cycles",
        "-np",
        "1",
    ];
    let ended = launch_in(
        &options,
        script,
        &[("HOROVOD_CYCLE_TIME", "7"), ("HOROVOD_CACHE_CAPACITY", "9")],
    );
    assert_eq!(ended.stdout, "[0]<stdout>:67108864 10.0 t.json 1 0 1 9", "{}", ended.stderr);
}

#[test]
fn a_hostfile_places_the_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hosts");
    fs::write(&path, "# all here\n\nlocalhost slots=1\n127.0.0.1 slots=4\n").unwrap();
    let options = ["-np", "2", "-hostfile", path.to_str().unwrap()];
    let ended = launch(&options, r#"echo "$HOROVOD_RANK $HOROVOD_HOSTNAME""#).end();
    let mut lines: Vec<&str> = ended.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0]<stdout>:0 localhost", "[1]<stdout>:1 127.0.0.1"], "{}", ended.stderr);
}

#[test]
fn a_host_that_does_not_respond_in_time_is_reported() {
    let ended = launch(&["-np", "1", "--start-timeout", "0"], "sleep 60").end();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let expected =
        "error: `localhost`: it has not answered within 0 s\n\nhint: `--start-timeout` sets";
    assert!(ended.stderr.starts_with(expected), "{}", ended.stderr);
}

#[test]
fn rank_output_is_also_written_to_files() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("deep/logs");
    let script = r#"echo "out of $RANK"; printf 'err of %s' "$RANK" >&2"#;
    let options = ["--output-filename", kept.to_str().unwrap()];
    for (count, name) in [("1", "rank.0"), ("11", "rank.07")] {
        let ended = launch(&[&["-np", count], &options[..]].concat(), script).end();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let number = name.trim_start_matches("rank.").parse::<u32>().unwrap();
        let read = |file: &str| fs::read_to_string(kept.join(name).join(file)).unwrap();
        assert_eq!(read("stdout"), format!("[{number}]<stdout>:out of {number}\n"));
        assert_eq!(read("stderr"), format!("[{number}]<stderr>:err of {number}\n"));
        assert!(ended.stdout.contains(&format!("[{number}]<stdout>:out of {number}")));
    }
}

#[test]
fn a_full_disk_is_reported_once_and_the_job_continues() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().to_str().unwrap().to_owned();
    // The ranks themselves replace their files with a device that is always full.
    let script = r#"ln -sf /dev/full "$0/rank.$RANK/stdout"; for n in 1 2 3; do echo $n; done"#;
    let command = ["sh", "-c", script, &kept];
    let ended =
        launch_with(&["-np", "2", "--output-filename", &kept], &command, Stdio::null()).end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.stdout.lines().count(), 6, "{}", ended.stdout);
    assert_eq!(ended.stderr.matches("No space left on device").count(), 1, "{}", ended.stderr);
    assert!(ended.stderr.contains(&format!("{kept}/rank.")), "{}", ended.stderr);
}

#[test]
fn lines_of_four_ranks_never_interleave_and_none_is_lost() {
    let script = "\
import os, sys
rank = os.environ['HOROVOD_RANK']
for number in range(2000):
    sys.stdout.write(f'{rank} {number} ' + 'ä' * 30)
    if number % 7 == 0:
        sys.stdout.flush()
    sys.stdout.write(' end\\n')
sys.stdout.write('last')
";
    let ended = launch_with(&["-np", "4"], &["python3", "-c", script], Stdio::null()).end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let mut counts = [0; 4];
    let mut lasts = 0;
    for line in ended.stdout.lines() {
        let (rank, text) = line.split_once(">:").unwrap();
        let rank: usize = rank[1..2].parse().unwrap();
        if text == "last" {
            lasts += 1;
            continue;
        }
        assert_eq!(text, format!("{rank} {} {} end", counts[rank], "ä".repeat(30)));
        counts[rank] += 1;
    }
    assert_eq!((counts, lasts), ([2000; 4], 4));
}

#[test]
fn the_first_failing_rank_sets_the_exit_code_and_the_message() {
    let script = r#"if [ "$RANK" = 2 ]; then echo "disk full" >&2; exit 3; fi; exec sleep 300"#;
    let start = Instant::now();
    let launched = launch(&["-np", "4"], script);
    let ended = launched.end();
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(ended.code, Some(3));
    let (before, rest) = ended.stderr.split_once("  process ").unwrap();
    let (process, after) = rest.split_once('\n').unwrap();
    let (pid, time) = process.split_once(", ended at ").unwrap();
    assert!(pid.parse::<u32>().is_ok() && time.len() == "14:03:59".len(), "{process}");
    assert_eq!(
        format!("{before}{after}"),
        "[2]<stderr>:disk full
error: rank 2 (localhost, slot 2) exited with code 3
  its last line on stderr: disk full
  3 ranks (0, 1, 3) were terminated

hint: see the lines marked `[2]<stderr>` above
more: `ronde explain exit_code`
"
    );
}

#[test]
fn an_exception_is_reported_with_its_type_and_location() {
    let script = "import os\nif os.environ['RANK'] == '1':\n    raise ValueError('boom')";
    let ended = launch_with(&["-np", "2"], &["python3", "-c", script], Stdio::null()).end();
    assert_eq!(ended.code, Some(1));
    let text = "error: rank 1 (localhost, slot 1) raised ValueError: boom\n  at <string>:3\n";
    assert!(ended.stderr.contains(text), "{}", ended.stderr);
}

#[test]
fn a_crash_is_reported_with_the_interpreters_traceback() {
    let script = "import ctypes, faulthandler\nfaulthandler.enable()\nctypes.string_at(0)";
    let ended = launch_with(&["-np", "1"], &["python3", "-c", script], Stdio::null()).end();
    assert_eq!(ended.code, Some(139));
    let text = "error: rank 0 (localhost, slot 0) was killed by signal 11 (SIGSEGV)
  Fatal Python error: Segmentation fault
  at <string>:3
";
    assert!(ended.stderr.contains(text), "{}", ended.stderr);
}

#[test]
fn a_killed_rank_ends_the_others_within_five_seconds() {
    // The others ignore SIGTERM.
    let script = "trap '' TERM; echo pid $$; while true; do sleep 1; done";
    let launched = launch(&["-np", "3"], script);
    let pids = launched.wait_for("pid", 3);
    let start = Instant::now();
    signal(pids[1].parse().unwrap(), "KILL");
    eventually("nothing is left", Duration::from_secs(5), || {
        launched.family().is_empty().then_some(())
    });
    let ended = launched.end();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(ended.code, Some(137));
    assert!(ended.stderr.contains("was killed by signal 9 (SIGKILL)\n"), "{}", ended.stderr);
    assert!(ended.stderr.contains("dmesg"), "{}", ended.stderr);
}

#[test]
fn missing_and_non_executable_commands_are_distinguished() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    fs::write(&text, "no program").unwrap();
    for (command, code, words) in [
        ("no-such-command", 127, "`no-such-command` was not found in PATH"),
        ("./no-such-file", 127, "`./no-such-file` does not exist"),
        (text.to_str().unwrap(), 126, "is not an executable file"),
    ] {
        let ended = launch_with(&["-np", "2"], &[command], Stdio::null()).end();
        assert_eq!(ended.code, Some(code), "{command}");
        assert!(ended.stderr.contains(words), "{command}: {}", ended.stderr);
        assert!(ended.stderr.contains("hint: "), "{command}: {}", ended.stderr);
    }
}

#[test]
fn the_command_bypasses_the_shell_and_keeps_its_flags() {
    let command = ["printf", "%s|", "$HOME", "a b", "-np", "--verbose", "--", "x"];
    let ended = launch_with(&["-np", "1"], &command, Stdio::null()).end();
    assert_eq!(ended.stdout, "[0]<stdout>:$HOME|a b|-np|--verbose|--|x|");
}

#[test]
fn standard_input_goes_only_to_rank_0() {
    let mut launched = launch_with(&["-np", "3"], &["wc", "-c"], Stdio::piped());
    launched.feed(&vec![b'x'; 1_000_000]);
    let ended = launched.end();
    let mut lines: Vec<&str> = ended.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0]<stdout>:1000000", "[1]<stdout>:0", "[2]<stdout>:0"]);
}

#[test]
fn unread_input_does_not_block_the_job() {
    let mut launched = launch_with(&["-np", "2"], &["true"], Stdio::piped());
    launched.feed(&vec![b'x'; 1_000_000]);
    assert_eq!(launched.end().code, Some(0));
}

#[test]
fn signals_are_forwarded_and_set_the_exit_code() {
    for (name, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let script = "\
trap 'echo got HUP; exit 0' HUP; trap 'echo got INT; exit 0' INT; trap 'echo got TERM; exit 0' TERM
echo ready; while true; do sleep 0.05; done";
        let launched = launch(&["-np", "2"], script);
        launched.wait_for("ready", 2);
        launched.signal(name);
        assert_eq!(launched.wait_for("got", 2), [name, name]);
        let ended = launched.end();
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
        assert!(ended.stderr.contains(&format!("(SIG{name})")), "{}", ended.stderr);
    }
}

#[test]
fn a_second_interrupt_kills_immediately() {
    let script = "trap '' INT TERM; echo ready; while true; do sleep 1; done";
    let mut launched = launch(&["-np", "2"], script);
    launched.wait_for("ready", 2);
    let start = Instant::now();
    // The kernel may merge signals of one kind that arrive close together.
    eventually("the launcher ends", Duration::from_secs(4), || {
        launched.signal_if_alive("INT").then_some(())
    });
    assert_eq!(launched.status().code(), Some(130));
    assert!(start.elapsed() < Duration::from_secs(4));
    launched.assert_nothing_left(Duration::from_secs(1));
}

#[test]
fn the_key_appears_on_no_command_line_and_in_no_log() {
    let script = r#"echo "key $RONDE_JOB_KEY"; exec sleep 300"#;
    let launched = launch(&["--verbose", "-np", "2"], script);
    let key = launched.wait_for("key", 2).remove(0);
    assert_eq!(key.len(), 64);
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&line).contains(&key), "{entry:?}");
    }
    launched.signal("TERM");
    let ended = launched.end();
    assert!(ended.stderr.contains("rank 0 runs on localhost, process "), "{}", ended.stderr);
    assert!(!ended.stderr.contains(&key));
}

#[test]
fn a_closed_output_pipe_does_not_stop_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let proof = folder.path().join("proof");
    let script = format!("seq 200000; echo done > {}", proof.display());
    let launcher = env!("CARGO_BIN_EXE_horovodrun");
    let line = format!("{launcher} -np 1 sh -c '{script}' | head -n 1");
    let output = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "[0]<stdout>:1\n");
    assert!(proof.exists());
}

#[test]
fn unwritable_output_is_reported_and_exits_with_code_1() {
    let folder = tempfile::tempdir().unwrap();
    let proof = folder.path().join("proof");
    let script = format!("seq 2000; echo done > {}", proof.display());
    let launcher = env!("CARGO_BIN_EXE_horovodrun");
    let output = std::process::Command::new(launcher)
        .args(["-np", "1", "sh", "-c", &script])
        .stdout(fs::OpenOptions::new().write(true).open("/dev/full").unwrap())
        .output()
        .unwrap();
    let lost = "standard output cannot be written: No space left on device (os error 28)";
    let expected = format!(
        "[ronde] {lost}; the job continues, but its output is lost
error: all ranks succeeded, but output was lost: {lost}

hint: free space there, or send the output elsewhere; `--output-filename` keeps a copy of it
more: `ronde explain output_lost`
"
    );
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
    assert_eq!(output.status.code(), Some(1));
    assert!(proof.exists(), "the job continues");
}

#[test]
fn unwritable_standard_error_exits_with_code_1() {
    let launcher = env!("CARGO_BIN_EXE_horovodrun");
    let status = std::process::Command::new(launcher)
        .args(["-np", "1", "sh", "-c", "echo a warning >&2"])
        .stderr(fs::OpenOptions::new().write(true).open("/dev/full").unwrap())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(1));
}
