//! Writes the flight recorder down when something has gone wrong: one line of JSON about the rank and
//! the reason, then one for each submission that is remembered, oldest first.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ronde_control::watching::DumpTo;

use super::Who;
use super::json::quoted;
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
    let remembered = recorder.records().count();
    let mut out = format!(
        "{{\"rank\": {}, \"size\": {}, \"host\": {}, \"pid\": {}, \"reason\": {}, \"now_us\": {}, \
         \"submitted\": {}, \"remembered\": {remembered}}}\n",
        who.rank.0,
        who.size,
        quoted(&who.host),
        who.pid,
        quoted(reason),
        micros(now),
        recorder.count(),
    );
    recorder.records().for_each(|record| line(record, &mut out));
    out
}

fn line(record: &Record, out: &mut String) {
    let _ = write!(
        out,
        "{{\"number\": {}, \"state\": \"{}\", \"kind\": \"{}\", \"name\": {}, \"set\": {}, \
         \"dtype\": \"{}\", \"tensors\": {}, \"bytes\": {}",
        record.number,
        record.state(),
        record.kind,
        quoted(record.name()),
        record.set,
        record.dtype,
        record.tensors,
        record.bytes,
    );
    if !record.way.is_empty() {
        let (ranks, bucket, way) = (record.ranks, record.bucket, record.way);
        let _ = write!(out, ", \"ranks\": {ranks}, \"bucket\": {bucket}, \"way\": \"{way}\"");
    }
    if !record.algorithm.is_empty() {
        let _ = write!(out, ", \"algorithm\": \"{}\"", record.algorithm);
    }
    let times = [
        ("queued_us", record.queued),
        ("released_us", record.released),
        ("started_us", record.started),
        ("finished_us", record.finished),
    ];
    for (name, time) in times.into_iter().filter(|(_, time)| !time.is_zero()) {
        let _ = write!(out, ", \"{name}\": {}", micros(time));
    }
    if let Some(error) = &record.error {
        let _ = write!(out, ", \"error\": {}", quoted(error));
    }
    out.push_str("}\n");
}

fn micros(time: Duration) -> String {
    format!("{}.{:03}", time.as_micros(), time.subsec_nanos() % 1000)
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
        let expected = r#"{"rank": 0, "size": 2, "host": "node-a", "pid": 17, "reason": "SIGUSR1", "now_us": 10.000, "submitted": 2, "remembered": 2}
{"number": 0, "state": "failed", "kind": "ALLGATHER", "name": "done", "set": 0, "dtype": "float32", "tensors": 1, "bytes": 40, "ranks": 2, "bucket": 7, "way": "SHM", "algorithm": "sliced", "queued_us": 1.500, "released_us": 2.000, "started_us": 3.000, "finished_us": 4.000, "error": "lost \"rank 1\""}
{"number": 1, "state": "waiting", "kind": "ALLGATHER", "name": "late", "set": 0, "dtype": "float32", "tensors": 1, "bytes": 40, "queued_us": 9.000}
"#;
        assert_eq!(text(&recorder, &who, "SIGUSR1", Duration::from_micros(10)), expected);
    }
}
