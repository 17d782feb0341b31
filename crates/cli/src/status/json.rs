//! A look at a job as JSON, for other programs.

use ronde_control::status::{Standing, State, Tensor};
use ronde_launch::registry::Entry;
use serde_json::{Value, json};

use super::Look;

/// A job of several.
pub(super) fn job(job: &Entry) -> Value {
    json!({ "job": job.pid, "ranks": job.ranks, "command": job.command })
}

/// One look.
pub(super) fn look(look: &Look<'_>) -> Value {
    let ranks: Vec<Value> =
        look.status.ranks.iter().enumerate().map(|(index, one)| rank(look, index, one)).collect();
    let late: Vec<Value> = look
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
        "job": look.job.pid,
        "command": look.job.command,
        "seconds": look.status.age.as_secs_f64(),
        "world": look.status.epoch,
        "ranks": ranks,
        "late": late,
        "events": look.status.events.iter().filter_map(|event| value(event)).collect::<Vec<_>>(),
    })
}

fn value(event: &str) -> Option<Value> {
    serde_json::from_str(event).ok()
}

fn rank(look: &Look<'_>, index: usize, standing: &Standing) -> Value {
    let Standing { rank, host, slot, pid, state, report } = standing;
    let (word, how) = match state {
        State::Starting => ("starting", None),
        State::Running => ("running", None),
        State::Joined => ("joined", None),
        State::Silent => ("silent", None),
        State::Ended(how) => ("ended", Some(how)),
    };
    let rates = look.rates(index);
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

fn tensor(tensor: &Tensor) -> Value {
    json!({
        "name": tensor.name,
        "kind": tensor.kind,
        "process_set": tensor.set,
        "released": tensor.released,
        "seconds": tensor.age.as_secs_f64(),
    })
}
