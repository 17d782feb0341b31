//! A job's status as a table, for people.

use std::time::Duration;

use ronde_control::counted;
use ronde_control::event::JobEvent;
use ronde_control::status::{LateRank, RankReport, RankState, RankStatus, TensorStatus};
use ronde_launch::logs::time_of_day;
use ronde_launch::registry::Entry;

use super::Snapshot;
use crate::bench::units;
use crate::tables;

const HEADS: [&str; 9] = ["rank", "host", "pid", "state", "done", "/s", "bytes", "/s", "activity"];

/// Whether each column is right-aligned; numbers are.
const RIGHT: [bool; 9] = [true, false, true, false, true, true, true, true, false];

/// Number of characters of a tensor's name to show; its end is the most specific part.
const NAME: usize = 40;

/// A table of jobs that fits into `width`.
pub(super) fn jobs(jobs: &[Entry], width: Option<u16>) -> String {
    let mut rows = vec![["job", "ranks", "command"].map(str::to_owned).to_vec()];
    rows.extend(
        jobs.iter()
            .map(|job| vec![job.pid.to_string(), job.ranks.to_string(), job.command.clone()]),
    );
    tables::plain(&rows, &[true, true, false], width)
}

/// The status of one job, with a table that fits into `width`.
pub(super) fn snapshot(snapshot: &Snapshot<'_>, width: Option<u16>) -> String {
    let status = &snapshot.status;
    let mut hosts: Vec<&str> = status.ranks.iter().map(|one| one.host.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let world = match status.epoch {
        0 => "no world yet".into(),
        epoch => format!("world {epoch}"),
    };
    let mut text = format!(
        "job {}: {} on {}, {world}, for {}: {}\n\n",
        snapshot.job.pid,
        counted(status.ranks.len(), "rank"),
        counted(hosts.len(), "host"),
        long(status.age),
        snapshot.job.command,
    );
    let mut rows = vec![HEADS.map(str::to_owned).to_vec()];
    rows.extend(status.ranks.iter().enumerate().map(|(index, one)| row(snapshot, index, one)));
    text += &tables::cut(&tables::plain(&rows, &RIGHT, None), width);
    for late in status.late() {
        text += &format!("\n{}", late_line(&late));
    }
    let events: Vec<String> = status.events.iter().filter_map(|event| self::event(event)).collect();
    if !events.is_empty() {
        text += &format!("\n{}\n", events.join("\n"));
    }
    text
}

/// Formats an event from JSON: time and text.
pub(super) fn event(json: &str) -> Option<String> {
    let JobEvent { time, what, .. } = serde_json::from_str(json).ok()?;
    Some(format!("{}  {}", time_of_day(time.0), what.text()))
}

fn late_line(late: &LateRank) -> String {
    let LateRank { rank, tensor, kind, waiting, age } = late;
    let have = if *waiting == 1 { "1 rank has" } else { &format!("{waiting} ranks have") };
    format!("late: {rank} has not submitted `{tensor}` ({kind}); {have} waited {}\n", long(*age))
}

fn row(snapshot: &Snapshot<'_>, index: usize, rank_status: &RankStatus) -> Vec<String> {
    let state = match &rank_status.state {
        RankState::Starting => "starting",
        RankState::Running => "running",
        RankState::Joined => "in world",
        RankState::Silent => "no answer",
        RankState::Ended(how) => how,
    };
    let mut cells = vec![
        rank_status.rank.0.to_string(),
        rank_status.host.clone(),
        rank_status.pid.map(|pid| pid.to_string()).unwrap_or_default(),
        state.to_owned(),
    ];
    let Some(report) = &rank_status.report else {
        cells.resize(HEADS.len(), String::new());
        return cells;
    };
    let rates = snapshot.rates(index);
    let rate = |text: Option<String>| text.unwrap_or_default();
    cells.extend([
        report.collectives.to_string(),
        rate(rates.map(|(collectives, _)| format!("{collectives:.0}"))),
        units::bytes(report.bytes),
        rate(rates.map(|(_, bytes)| units::bytes(bytes as u64))),
        doing(report),
    ]);
    cells
}

fn doing(report: &RankReport) -> String {
    let others = |count: u64| match count {
        0 | 1 => String::new(),
        more => format!(" and {} more", more - 1),
    };
    match (report.waiting.first(), &report.last) {
        (Some(tensor), _) => {
            let (age, others) = (long(tensor.age), others(report.outstanding));
            match tensor.released {
                true => format!("transferring {}{others}, {age}", named(tensor)),
                false => format!("waiting {age} for {}{others}", named(tensor)),
            }
        }
        (None, Some(tensor)) => format!("{}, {} ago", named(tensor), long(tensor.age)),
        (None, None) => String::new(),
    }
}

fn named(tensor: &TensorStatus) -> String {
    let length = tensor.name.chars().count();
    let end: String = tensor.name.chars().skip(length.saturating_sub(NAME)).collect();
    let cut = if length > NAME { "…" } else { "" };
    // Generated names start with the kind.
    match tensor.name.starts_with(tensor.kind.as_str()) {
        true => format!("{cut}{end}"),
        false => format!("{} {cut}{end}", tensor.kind),
    }
}

/// Formats a duration: `4.2 s`, `3 min 5 s`, `2 h 7 min`.
fn long(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use ronde_control::Rank;
    use ronde_control::status::Status;
    use ronde_control::wire::JobKey;

    use super::*;

    fn tensor(name: &str, released: bool, millis: u64) -> TensorStatus {
        let (kind, age) = ("allreduce".into(), Duration::from_millis(millis));
        TensorStatus { name: name.into(), kind, set: 0, released, age }
    }

    fn rank_status(rank: u32, state: RankState, report: Option<RankReport>) -> RankStatus {
        let pid = (state != RankState::Starting).then_some(4000 + rank);
        RankStatus { rank: Rank(rank), host: "node-a".into(), slot: rank, pid, state, report }
    }

    fn status(done: u64) -> Status {
        let report = |waiting: &[TensorStatus]| RankReport {
            collectives: done,
            bytes: done << 20,
            failed: 0,
            last: Some(tensor("layer.3.weight", true, 1200)),
            outstanding: waiting.len() as u64,
            waiting: waiting.to_vec(),
        };
        let waits = [tensor("layer.4.weight", false, 4200), tensor("layer.4.bias", false, 4100)];
        Status {
            age: Duration::from_secs(754),
            epoch: 1,
            events: vec![r#"{"number":1,"time":0.5,"event":"hosts_known"}"#.into(), "?".into()],
            ranks: vec![
                rank_status(0, RankState::Joined, Some(report(&waits))),
                rank_status(1, RankState::Joined, Some(report(&[]))),
                rank_status(2, RankState::Silent, None),
                rank_status(3, RankState::Starting, None),
                rank_status(4, RankState::Ended("exited with code 0".into()), None),
            ],
        }
    }

    #[test]
    fn the_table_shows_what_each_rank_does_and_which_is_late() {
        let job = Entry {
            pid: 3990,
            address: "127.0.0.1:1".parse().unwrap(),
            key: JobKey::from_entropy([1; 32]),
            ranks: 5,
            command: "python train.py".into(),
        };
        let before = Some((status(900), Duration::from_secs(2)));
        let snapshot = snapshot(&Snapshot { job: &job, status: status(1000), before }, None);
        let midnight = time_of_day(Duration::from_millis(500));
        assert_eq!(midnight.len(), 8, "{midnight}");
        let snapshot = snapshot.replace(&midnight, "[time]");
        insta::assert_snapshot!(snapshot, @r"
        job 3990: 5 ranks on 1 host, world 1, for 12 min 34 s: python train.py

        rank  host     pid  state               done  /s     bytes      /s  activity
           0  node-a  4000  in world            1000  50  1000 MiB  50 MiB  waiting 4.2 s for allreduce layer.4.weight and 1 more
           1  node-a  4001  in world            1000  50  1000 MiB  50 MiB  allreduce layer.3.weight, 1.2 s ago
           2  node-a  4002  no answer
           3  node-a        starting
           4  node-a  4004  exited with code 0

        late: rank 1 has not submitted `layer.4.weight` (allreduce); 1 rank has waited 4.2 s

        [time]  host discovery works again
        ");
        assert_eq!(jobs(&[job], None), " job  ranks  command\n3990      5  python train.py\n");
    }

    #[test]
    fn durations_are_readable() {
        for (millis, expected) in [
            (40, "0.0 s"),
            (4_200, "4.2 s"),
            (59_999, "59 s"),
            (185_000, "3 min 5 s"),
            (7_620_000, "2 h 7 min"),
        ] {
            assert_eq!(long(Duration::from_millis(millis)), expected);
        }
    }
}
