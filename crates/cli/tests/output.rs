//! High-volume output: a hundred thousand lines per second from each of four ranks, and lines that
//! are very long, binary or unterminated. Nothing is lost or reordered within a rank, and the
//! driver and the agent together use less than one core.
#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

/// Lines per rank: two seconds' worth.
const LINES: usize = 200_000;

/// Writes lines in small chunks, like a program with a small buffer, then waits for a file.
const WRITE_LINES: &str = r"
import os, sys, time
rank, count, start = os.environ['RANK'], int(sys.argv[1]), time.monotonic()
for begin in range(0, count, 20):
    lines = [f'{rank} {number} {number * 7919 % 1000003:040}\n' for number in range(begin, begin + 20)]
    os.write(1, ''.join(lines).encode())
    ahead = begin / 100_000 - (time.monotonic() - start)
    if ahead > 0:
        time.sleep(ahead)
print('done', flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
";

#[test]
fn four_hundred_thousand_lines_per_second_arrive_intact_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let (kept, flag) = (folder.path().join("kept"), folder.path().join("flag"));
    let start = Instant::now();
    let (mut child, output) = start_writers(&kept, &flag);
    let (mut counts, mut done) = ([0; 4], 0);
    for line in output.lines() {
        let line = line.unwrap();
        let (rank, text) = split_prefix(&line);
        if text == "done" {
            done += 1;
        } else {
            assert_eq!(text, expected(rank, counts[rank]));
            counts[rank] += 1;
        }
        if done == 4 {
            done = 0;
            let (busy, wall) = (launcher_seconds(child.id()), start.elapsed().as_secs_f64());
            assert!(busy < wall, "the launcher took {busy} s of processor time in {wall} s");
            fs::write(&flag, "").unwrap();
        }
    }
    assert_eq!(counts, [LINES; 4]);
    assert!(child.wait().unwrap().success());
    for rank in 0..4 {
        let file = fs::read_to_string(kept.join(format!("rank.{rank}/stdout"))).unwrap();
        let mut lines = file.lines();
        assert!(
            (0..LINES)
                .all(|number| split_prefix(lines.next().unwrap()).1 == expected(rank, number))
        );
    }
}

fn start_writers(kept: &Path, flag: &Path) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_horovodrun"))
        .args(["-np", "4", "--output-filename"])
        .arg(kept)
        .args(["python3", "-c", WRITE_LINES, &LINES.to_string()])
        .arg(flag)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::with_capacity(1 << 20, child.stdout.take().unwrap());
    (child, output)
}

fn split_prefix(line: &str) -> (usize, &str) {
    let (prefix, text) = line.split_once("]<stdout>:").unwrap();
    (prefix.strip_prefix('[').unwrap().parse().unwrap(), text)
}

fn expected(rank: usize, number: usize) -> String {
    format!("{rank} {number} {:040}", number * 7919 % 1_000_003)
}

/// CPU time of the driver and the processes it starts itself: the guardian and the agent.
fn launcher_seconds(driver: u32) -> f64 {
    let guardian = child_of(driver);
    [driver, guardian, child_of(guardian)].into_iter().map(seconds).sum()
}

fn child_of(pid: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.split_whitespace().next().unwrap().parse().unwrap()
}

fn seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // User and system time, in hundredths of a second on every Linux.
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap() / 100.0).sum()
}

#[test]
fn long_binary_and_unterminated_lines_arrive_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().to_str().unwrap();
    let script = "\
import os, sys
raw = bytes(b for b in range(256) if b not in b'\\n\\r')
for number in range(500):
    os.write(1, b'%d ' % number + raw * 16 + b'\\n')
os.write(1, raw * 12000)
";
    let output = Command::new(env!("CARGO_BIN_EXE_horovodrun"))
        .args(["-np", "2", "--output-filename", kept, "python3", "-c", script])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success());
    let raw: Vec<u8> = (0..=255).filter(|byte| !b"\n\r".contains(byte)).collect();
    for rank in 0..2 {
        let prefix = format!("[{rank}]<stdout>:").into_bytes();
        let lines = output.stdout.split(|byte| *byte == b'\n');
        let own: Vec<&[u8]> = lines.filter_map(|line| line.strip_prefix(&prefix[..])).collect();
        for (number, line) in own[..500].iter().enumerate() {
            assert!(**line == [format!("{number} ").as_bytes(), &raw.repeat(16)].concat());
        }
        // An unterminated line arrives in pieces, and no piece is missing.
        assert!(own.len() > 501 && own[500..].concat() == raw.repeat(12000));
        let file = fs::read(folder.path().join(format!("rank.{rank}/stdout"))).unwrap();
        let own: Vec<u8> =
            own.iter().flat_map(|line| [&prefix[..], line, b"\n"].concat()).collect();
        assert!(file == own);
    }
}
