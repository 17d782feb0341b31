//! Dumps the flight recorder when something has gone wrong: one line of JSON about the rank and the
//! reason, then one per recorded submission, oldest first.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ronde_control::watching::DumpTo;
use serde::Serialize;

use super::RankIdentity;
use super::record::{FlightRecord, Recorder};

/// Prefix of the file names.
const PREFIX: &str = "ronde-flight-rank";

/// Maximum number of files that one process writes to one directory.
const MOST_FILES: u32 = 1000;

/// Number of files, the newest ones, that each user keeps in the directory for temporary files.
/// Nothing is ever removed from a directory that the user has named.
const KEPT: usize = 64;

/// Writes the dump; returns the path if it is a file.
pub(super) fn write(to: &DumpTo, who: &RankIdentity, text: &str) -> io::Result<Option<PathBuf>> {
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

/// Never follows a link or replaces a file: the directory may be world-writable.
fn file(directory: &Path, who: &RankIdentity, text: &str) -> io::Result<PathBuf> {
    let RankIdentity { rank, pid, .. } = who;
    for number in 0..MOST_FILES {
        let path = directory.join(format!("{PREFIX}{}-{pid}-{number}.jsonl", rank.0));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(mut file) => return file.write_all(text.as_bytes()).map(|()| path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!("{MOST_FILES} dumps already exist")))
}

/// Removes all but the newest files of this user. Other ranks may be doing the same at this moment.
fn clear(directory: &Path, kept: usize) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let own = rustix::process::geteuid().as_raw();
    let mut files: Vec<_> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX))
        .filter_map(|entry| Some((entry.metadata().ok()?, entry.path())))
        .filter(|(metadata, _)| metadata.is_file() && metadata.uid() == own)
        .filter_map(|(metadata, path)| Some((metadata.modified().ok()?, path)))
        .collect();
    files.sort();
    for (_, path) in files.iter().rev().skip(kept) {
        let _ = std::fs::remove_file(path);
    }
}

/// The whole dump; `now` is the time since this rank's world began.
pub(super) fn text(recorder: &Recorder, who: &RankIdentity, reason: &str, now: Duration) -> String {
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
    let lines = recorder.records().map(|record| json(&SubmissionRecord::from(record)));
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

/// One submission and its progress.
#[derive(Serialize)]
struct SubmissionRecord<'a> {
    number: u64,
    state: &'static str,
    kind: &'static str,
    name: &'a str,
    set: u32,
    dtype: &'static str,
    tensors: u32,
    bytes: u64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    bucket: Option<BucketRecord>,
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

/// How the bucket was transferred.
#[derive(Serialize)]
struct BucketRecord {
    ranks: u32,
    bucket: u64,
    transport: &'static str,
}

impl<'a> From<&'a FlightRecord> for SubmissionRecord<'a> {
    fn from(record: &'a FlightRecord) -> SubmissionRecord<'a> {
        let FlightRecord { ranks, bucket, transport, .. } = *record;
        let time = |time: Duration| (!time.is_zero()).then(|| micros(time));
        SubmissionRecord {
            number: record.number,
            state: record.state(),
            kind: record.kind,
            name: record.name(),
            set: record.set,
            dtype: record.dtype.into(),
            tensors: record.tensors,
            bytes: record.bytes,
            bucket: (!transport.is_empty()).then_some(BucketRecord { ranks, bucket, transport }),
            algorithm: record.algorithm,
            queued_us: time(record.queued),
            released_us: time(record.released),
            started_us: time(record.started),
            finished_us: time(record.finished),
            error: record.error.as_deref(),
        }
    }
}

fn json(line: &impl Serialize) -> String {
    // Structs of numbers and strings always serialize.
    serde_json::to_string(line).unwrap_or_default() + "\n"
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use ronde_control::negotiate::{CollectiveKind, Request};
    use ronde_control::{DType, DeviceKind, Rank, SetId};

    use super::*;

    #[test]
    fn only_the_newest_dumps_of_this_user_are_kept() {
        let directory = std::env::temp_dir().join(format!("ronde-dumps-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let names = || {
            let entries = std::fs::read_dir(&directory).unwrap().flatten();
            let mut names: Vec<String> =
                entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names
        };
        let who = RankIdentity { rank: Rank(3), size: 4, host: "node-a".into(), pid: 17 };
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
    fn a_dump_shows_the_progress_of_each_tensor() {
        let mut recorder = Recorder::new(4);
        let request = |name: &str| Request {
            name: name.into(),
            set: SetId::WORLD,
            kind: CollectiveKind::Allgather,
            dtype: DType::F32,
            shapes: vec![vec![2, 5]],
            device: DeviceKind::Cpu,
        };
        let done = recorder.queue(&request("done"), Duration::from_nanos(1_500));
        let record = recorder.find(done).unwrap();
        (record.ranks, record.bucket, record.transport, record.algorithm) = (2, 7, "SHM", "sliced");
        record.released = Duration::from_micros(2);
        record.started = Duration::from_micros(3);
        record.finished = Duration::from_micros(4);
        record.error = Some("lost \"rank 1\"".into());
        recorder.queue(&request("late"), Duration::from_micros(9));
        let who = RankIdentity { rank: Rank(0), size: 2, host: "node-a".into(), pid: 17 };
        let expected = r#"{"rank":0,"size":2,"host":"node-a","pid":17,"reason":"SIGUSR1","now_us":10.0,"submitted":2,"remembered":2}
{"number":0,"state":"failed","kind":"ALLGATHER","name":"done","set":0,"dtype":"float32","tensors":1,"bytes":40,"ranks":2,"bucket":7,"transport":"SHM","algorithm":"sliced","queued_us":1.5,"released_us":2.0,"started_us":3.0,"finished_us":4.0,"error":"lost \"rank 1\""}
{"number":1,"state":"waiting","kind":"ALLGATHER","name":"late","set":0,"dtype":"float32","tensors":1,"bytes":40,"queued_us":9.0}
"#;
        assert_eq!(text(&recorder, &who, "SIGUSR1", Duration::from_micros(10)), expected);
    }
}
