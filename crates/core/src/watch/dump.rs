//! Writes the flight recorder down when something has gone wrong: one line of JSON about the rank and
//! the reason, then one for each submission that is remembered, oldest first.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ronde_control::watching::DumpTo;
use serde::Serialize;

use super::Who;
use super::record::{Record, Recorder};

/// How the names of the files begin.
const PREFIX: &str = "ronde-flight-rank";

/// Files that one process writes into one directory, at the most.
const MOST_FILES: u32 = 1000;

/// Files of one user that stay in the directory for temporary files: the newest. What users name
/// themselves is theirs to clear.
const KEPT: usize = 64;

/// Writes it, and gives the path if it is a file.
pub(super) fn write(to: &DumpTo, who: &Who, text: &str) -> io::Result<Option<PathBuf>> {
    match to {
        DumpTo::Nowhere => Ok(None),
        DumpTo::Stderr => io::stderr().write_all(text.as_bytes()).map(|()| None),
        DumpTo::Temporary => {
            let directory = std::env::temp_dir();
            let path = file(&directory, who, text)?;
            clear(&directory, KEPT);
            Ok(Some(path))
        }
        DumpTo::Directory(directory) => {
            std::fs::create_dir_all(directory)?;
            file(directory, who, text).map(Some)
        }
    }
}

/// Never follows or replaces what is there: the directory may belong to everybody.
fn file(directory: &Path, who: &Who, text: &str) -> io::Result<PathBuf> {
    let Who { rank, pid, .. } = who;
    for number in 0..MOST_FILES {
        let path = directory.join(format!("{PREFIX}{}-{pid}-{number}.jsonl", rank.0));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(mut file) => return file.write_all(text.as_bytes()).map(|()| path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!("{MOST_FILES} of them are there already")))
}

/// Removes all files of this user but the newest. Other ranks may do the same at this moment.
fn clear(directory: &Path, kept: usize) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let own = rustix::process::geteuid().as_raw();
    let mut files: Vec<_> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX))
        .filter_map(|entry| Some((entry.metadata().ok()?, entry.path())))
        .filter(|(about, _)| about.is_file() && about.uid() == own)
        .filter_map(|(about, path)| Some((about.modified().ok()?, path)))
        .collect();
    files.sort();
    for (_, path) in files.iter().rev().skip(kept) {
        let _ = std::fs::remove_file(path);
    }
}

/// The whole text; `now` is the time since this rank's world began.
pub(super) fn text(recorder: &Recorder, who: &Who, reason: &str, now: Duration) -> String {
    let head = Head {
        rank: who.rank.0,
        size: who.size,
        host: &who.host,
        pid: who.pid,
        reason,
        now_us: micros(now),
        submitted: recorder.count(),
        remembered: recorder.records().count(),
    };
    let lines = recorder.records().map(|record| json(&Line::from(record)));
    std::iter::once(json(&head)).chain(lines).collect()
}

/// The first line.
#[derive(Serialize)]
struct Head<'a> {
    rank: u32,
    size: u32,
    host: &'a str,
    pid: u32,
    reason: &'a str,
    now_us: f64,
    submitted: u64,
    remembered: usize,
}

/// One submission, as far as it has come.
#[derive(Serialize)]
struct Line<'a> {
    number: u64,
    state: &'static str,
    kind: &'static str,
    name: &'a str,
    set: u32,
    dtype: &'static str,
    tensors: u32,
    bytes: u64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    bucket: Option<Bucket>,
    #[serde(skip_serializing_if = "str::is_empty")]
    algorithm: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    queued_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    released_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

/// How it travelled.
#[derive(Serialize)]
struct Bucket {
    ranks: u32,
    bucket: u64,
    way: &'static str,
}

impl<'a> From<&'a Record> for Line<'a> {
    fn from(record: &'a Record) -> Line<'a> {
        let Record { ranks, bucket, way, .. } = *record;
        let time = |time: Duration| (!time.is_zero()).then(|| micros(time));
        Line {
            number: record.number,
            state: record.state(),
            kind: record.kind,
            name: record.name(),
            set: record.set,
            dtype: record.dtype.into(),
            tensors: record.tensors,
            bytes: record.bytes,
            bucket: (!way.is_empty()).then_some(Bucket { ranks, bucket, way }),
            algorithm: record.algorithm,
            queued_us: time(record.queued),
            released_us: time(record.released),
            started_us: time(record.started),
            finished_us: time(record.finished),
            error: record.error.as_deref(),
        }
    }
}

/// A line of JSON.
fn json(what: &impl Serialize) -> String {
    // Structs of numbers and texts always can be written.
    serde_json::to_string(what).unwrap_or_default() + "\n"
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use ronde_control::negotiate::{Kind, Request};
    use ronde_control::{DType, Rank, SetId};

    use super::*;

    #[test]
    fn only_the_newest_of_this_user_stay() {
        let directory = std::env::temp_dir().join(format!("ronde-dumps-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let names = || {
            let entries = std::fs::read_dir(&directory).unwrap().flatten();
            let mut names: Vec<String> =
                entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names
        };
        let who = Who { rank: Rank(3), size: 4, host: "node-a".into(), pid: 17 };
        for age in (0..5_u64).rev() {
            let path = file(&directory, &who, "{}\n").unwrap();
            let time = std::time::SystemTime::now() - Duration::from_secs(10 * age);
            std::fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
        }
        std::fs::write(directory.join("ronde-other"), "").unwrap();
        std::os::unix::fs::symlink("/", directory.join("ronde-flight-rank9")).unwrap();
        clear(&directory, 2);
        let left = ["ronde-flight-rank3-17-3.jsonl", "ronde-flight-rank3-17-4.jsonl"];
        assert_eq!(names(), [left[0], left[1], "ronde-flight-rank9", "ronde-other"]);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_dump_tells_how_far_each_tensor_has_come() {
        let mut recorder = Recorder::new(4);
        let request = |name: &str| Request {
            name: name.into(),
            set: SetId::WORLD,
            kind: Kind::Allgather,
            dtype: DType::F32,
            shapes: vec![vec![2, 5]],
        };
        let done = recorder.queue(&request("done"), Duration::from_nanos(1_500));
        let record = recorder.find(done).unwrap();
        (record.ranks, record.bucket, record.way, record.algorithm) = (2, 7, "SHM", "sliced");
        record.released = Duration::from_micros(2);
        record.started = Duration::from_micros(3);
        record.finished = Duration::from_micros(4);
        record.error = Some("lost \"rank 1\"".into());
        recorder.queue(&request("late"), Duration::from_micros(9));
        let who = Who { rank: Rank(0), size: 2, host: "node-a".into(), pid: 17 };
        let expected = r#"{"rank":0,"size":2,"host":"node-a","pid":17,"reason":"SIGUSR1","now_us":10.0,"submitted":2,"remembered":2}
{"number":0,"state":"failed","kind":"ALLGATHER","name":"done","set":0,"dtype":"float32","tensors":1,"bytes":40,"ranks":2,"bucket":7,"way":"SHM","algorithm":"sliced","queued_us":1.5,"released_us":2.0,"started_us":3.0,"finished_us":4.0,"error":"lost \"rank 1\""}
{"number":1,"state":"waiting","kind":"ALLGATHER","name":"late","set":0,"dtype":"float32","tensors":1,"bytes":40,"queued_us":9.0}
"#;
        assert_eq!(text(&recorder, &who, "SIGUSR1", Duration::from_micros(10)), expected);
    }
}
