//! A job's status as JSON, for other programs.

use ronde_control::status::{RankState, RankStatus, TensorStatus};
use ronde_launch::registry::Entry;
use serde_json::{Value, json};

use super::Snapshot;

/// An entry in the list of jobs.
pub(super) fn job(job: &Entry) -> Value {
    json!({ "job": job.pid, "ranks": job.ranks, "command": job.command })
}

/// The status of one job.
pub(super) fn snapshot(snapshot: &Snapshot<'_>) -> Value {
    let ranks: Vec<Value> = snapshot
        .status
        .ranks
        .iter()
        .enumerate()
        .map(|(index, one)| rank(snapshot, index, one))
        .collect();
    let late: Vec<Value> = snapshot
        .status
        .late()
        .iter()
        .map(|late| {
            json!({
                "rank": late.rank.0,
                "tensor": late.tensor,
                "kind": late.kind,
                "waiting_ranks": late.waiting,
                "seconds": late.age.as_secs_f64(),
            })
        })
        .collect();
    json!({
        "job": snapshot.job.pid,
        "command": snapshot.job.command,
        "seconds": snapshot.status.age.as_secs_f64(),
        "world": snapshot.status.epoch,
        "ranks": ranks,
        "late": late,
        "events": snapshot.status.events.iter().filter_map(|event| value(event)).collect::<Vec<_>>(),
    })
}

fn value(event: &str) -> Option<Value> {
    serde_json::from_str(event).ok()
}

fn rank(snapshot: &Snapshot<'_>, index: usize, status: &RankStatus) -> Value {
    let RankStatus { rank, host, slot, pid, state, report } = status;
    let (word, how) = match state {
        RankState::Starting => ("starting", None),
        RankState::Running => ("running", None),
        RankState::Joined => ("joined", None),
        RankState::Silent => ("silent", None),
        RankState::Ended(how) => ("ended", Some(how)),
    };
    let rates = snapshot.rates(index);
    let report = report.as_ref().map(|report| {
        json!({
            "collectives": report.collectives,
            "collectives_per_second": rates.map(|(collectives, _)| collectives),
            "bytes": report.bytes,
            "bytes_per_second": rates.map(|(_, bytes)| bytes),
            "failed": report.failed,
            "outstanding": report.outstanding,
            "last": report.last.as_ref().map(tensor),
            "waiting": report.waiting.iter().map(tensor).collect::<Vec<_>>(),
        })
    });
    json!({
        "rank": rank.0,
        "host": host,
        "slot": slot,
        "pid": pid,
        "state": word,
        "ended": how,
        "report": report,
    })
}

fn tensor(tensor: &TensorStatus) -> Value {
    json!({
        "name": tensor.name,
        "kind": tensor.kind,
        "process_set": tensor.set,
        "released": tensor.released,
        "seconds": tensor.age.as_secs_f64(),
    })
}
