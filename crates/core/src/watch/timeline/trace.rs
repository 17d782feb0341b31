//! Turns events into records of a Chrome trace, in Horovod's layout.
//!
//! Each tensor is a "process" of the trace, with a number and the tensor's name. Its row has first
//! `NEGOTIATE_ALLREDUCE`, with a tick for each rank at the moment it became ready, then
//! `ALLREDUCE`, which contains `QUEUE` (all ranks are ready, but another bucket is in progress) and
//! the transfer itself. Spans are pairs of a beginning and an end; each row tracks its open spans,
//! so that a lost event leaves no end without a beginning.
//!
//! A tensor on a GPU is launched where others are transferred, and the host goes on. What the GPU
//! then does has a row of its own, `GPU`.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

/// An event for the timeline. Times count from the start of this rank's world.
#[derive(Clone, Debug)]
pub(crate) enum TraceEvent {
    /// A rank is ready for a tensor.
    Announced { name: String, kind: &'static str, rank: u32, at: Duration },
    /// All ranks have submitted it.
    Ready { name: String, at: Duration },
    /// The transfer has started.
    Started { name: String, kind: &'static str, activity: String, at: Duration },
    /// The transfer has finished.
    Finished { name: String, at: Duration, result: ResultShape },
    /// The GPU has run a bucket.
    OnGpu {
        activity: String,
        /// The name of the first tensor, how many there are, and their bytes.
        what: (String, usize, u64),
        started: Duration,
        ended: Duration,
    },
    /// A bucket begins.
    Cycle { at: Duration },
}

/// What the end of a row's span says about the tensor.
#[derive(Clone, Debug)]
pub(crate) enum ResultShape {
    /// Its type and shape.
    Of(&'static str, String),
    /// It failed, and why.
    Failed(String),
    /// It belongs to a process set without this rank, which does not see its end.
    Elsewhere,
}

/// The state of a trace: the row of each tensor, and its open spans.
pub(super) struct Trace {
    start: Duration,
    rows: HashMap<String, TraceRow>,
}

struct TraceRow {
    pid: usize,
    kind: &'static str,
    state: SpanState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SpanState {
    Closed,
    Negotiating,
    Queued,
    Running,
}

impl Trace {
    /// A trace that starts `start` after the beginning of this rank's world.
    pub(super) fn new(start: Duration) -> Trace {
        Trace { start, rows: HashMap::new() }
    }

    /// The records that every trace begins with.
    pub(super) fn head(epoch_micros: u64) -> String {
        let began = json!({ "start_time_since_epoch_in_micros": epoch_micros });
        let records = [("process_name", began), ("process_sort_index", json!({ "sort_index": 0 }))];
        let records = records.map(|(name, args)| TraceRecord::about(name, args, 0).json());
        records.join(",\n")
    }

    /// Writes the records of an event, each with a comma in front.
    pub(super) fn on(&mut self, event: &TraceEvent, out: &mut String) {
        match event {
            TraceEvent::Announced { name, kind, rank, at } => {
                let ts = self.micros(*at);
                let row = self.row(name, kind, out);
                if row.state != SpanState::Negotiating {
                    row.close(ts, None, out);
                    row.begin(&format!("NEGOTIATE_{kind}"), ts, out);
                    row.state = SpanState::Negotiating;
                }
                let (rank, pid) = (rank.to_string(), row.pid);
                let (name, ts, dur) = (Some(rank.as_str()), Some(ts), Some(0));
                TraceRecord { ph: "X", name, ts, dur, pid, ..TraceRecord::default() }.write(out);
            }
            TraceEvent::Ready { name, at } => {
                let ts = self.micros(*at);
                let Some(row) = self.rows.get_mut(name) else { return };
                if row.state == SpanState::Negotiating {
                    row.queue(ts, out);
                }
            }
            TraceEvent::Started { name, kind, activity, at } => {
                let ts = self.micros(*at);
                let row = self.row(name, kind, out);
                if row.state != SpanState::Queued {
                    row.close(ts, None, out);
                    row.queue(ts, out);
                }
                row.end(ts, None, out);
                row.begin(activity, ts, out);
                row.state = SpanState::Running;
            }
            TraceEvent::Finished { name, at, result } => {
                let ts = self.micros(*at);
                let Some(row) = self.rows.get_mut(name) else { return };
                row.close(ts, result.arguments(), out);
            }
            TraceEvent::OnGpu { activity, what: (first, tensors, bytes), started, ended } => {
                let pid = self.row("GPU", "GPU", out).pid;
                let (name, ts) = (Some(activity.as_str()), Some(self.micros(*started)));
                let dur = Some(ended.saturating_sub(*started).as_micros() as u32);
                let args = Some(json!({ "first": first, "tensors": tensors, "bytes": bytes }));
                TraceRecord { ph: "X", name, ts, dur, args, pid, ..TraceRecord::default() }
                    .write(out);
            }
            TraceEvent::Cycle { at } => {
                let (name, ts, s) = (Some("CYCLE_START"), Some(self.micros(*at)), Some("g"));
                TraceRecord { ph: "i", name, ts, s, ..TraceRecord::default() }.write(out);
            }
        }
    }

    fn row(&mut self, name: &str, kind: &'static str, out: &mut String) -> &mut TraceRow {
        let pid = self.rows.len() + 1;
        let row = self.rows.entry(name.into()).or_insert_with(|| {
            TraceRecord::about("process_name", json!({ "name": name }), pid).write(out);
            TraceRecord::about("process_sort_index", json!({ "sort_index": pid }), pid).write(out);
            TraceRow { pid, kind, state: SpanState::Closed }
        });
        row.kind = kind;
        row
    }

    /// Microseconds since the trace began, with nanosecond resolution: a small tensor takes only a
    /// few.
    fn micros(&self, at: Duration) -> f64 {
        at.saturating_sub(self.start).as_nanos() as f64 / 1000.0
    }
}

impl TraceRow {
    fn begin(&self, name: &str, ts: f64, out: &mut String) {
        let (name, ts, pid) = (Some(name), Some(ts), self.pid);
        TraceRecord { ph: "B", name, ts, pid, ..TraceRecord::default() }.write(out);
    }

    fn end(&self, ts: f64, args: Option<Value>, out: &mut String) {
        let (ts, pid) = (Some(ts), self.pid);
        TraceRecord { ph: "E", ts, args, pid, ..TraceRecord::default() }.write(out);
    }

    /// Moves from the negotiation, or from nothing, to the queue.
    fn queue(&mut self, ts: f64, out: &mut String) {
        if self.state == SpanState::Negotiating {
            self.end(ts, None, out);
        }
        self.begin(self.kind, ts, out);
        self.begin("QUEUE", ts, out);
        self.state = SpanState::Queued;
    }

    fn close(&mut self, ts: f64, args: Option<Value>, out: &mut String) {
        match self.state {
            SpanState::Closed => {}
            SpanState::Negotiating => self.end(ts, args, out),
            SpanState::Queued | SpanState::Running => {
                self.end(ts, None, out);
                self.end(ts, args, out);
            }
        }
        self.state = SpanState::Closed;
    }
}

impl ResultShape {
    fn arguments(&self) -> Option<Value> {
        match self {
            ResultShape::Of(dtype, shape) => Some(json!({ "dtype": dtype, "shape": shape })),
            ResultShape::Failed(error) => Some(json!({ "error": error })),
            ResultShape::Elsewhere => None,
        }
    }
}

/// One record; its field names are those of the format.
#[derive(Default, Serialize)]
struct TraceRecord<'a> {
    ph: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Value>,
    pid: usize,
}

impl TraceRecord<'_> {
    /// A metadata record about a row.
    fn about(name: &'static str, args: Value, pid: usize) -> TraceRecord<'static> {
        TraceRecord { ph: "M", name: Some(name), args: Some(args), pid, ..TraceRecord::default() }
    }

    fn json(&self) -> String {
        // Numbers and strings always serialize.
        serde_json::to_string(self).unwrap_or_default()
    }

    fn write(&self, out: &mut String) {
        out.push_str(",\n");
        out.push_str(&self.json());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: &str = "allreduce.x";

    fn written(events: &[TraceEvent]) -> String {
        let mut trace = Trace::new(Duration::from_micros(100));
        let mut out = String::new();
        events.iter().for_each(|event| trace.on(event, &mut out));
        out
    }

    fn at(micros: u64) -> Duration {
        Duration::from_micros(100 + micros)
    }

    fn announced(rank: u32, micros: u64) -> TraceEvent {
        TraceEvent::Announced { name: X.into(), kind: "ALLREDUCE", rank, at: at(micros) }
    }

    fn started(micros: u64) -> TraceEvent {
        let (name, kind, activity) = (X.into(), "ALLREDUCE", "SHM_ALLREDUCE".into());
        TraceEvent::Started { name, kind, activity, at: at(micros) }
    }

    fn finished(micros: u64) -> TraceEvent {
        let result = ResultShape::Of("float32", "[2, 3]".into());
        TraceEvent::Finished { name: X.into(), at: at(micros), result }
    }

    #[test]
    fn what_the_gpu_does_has_a_row_of_its_own() {
        let what = (X.to_owned(), 3, 4096);
        let (activity, started, ended) = ("NCCL_ALLREDUCE".to_owned(), at(20), at(4520));
        let text = written(&[TraceEvent::OnGpu { activity, what, started, ended }]);
        let expected = r#"{"ph":"X","name":"NCCL_ALLREDUCE","ts":20.0,"dur":4500,"args":{"bytes":4096,"first":"allreduce.x","tensors":3},"pid":1}"#;
        assert!(text.contains(r#"{"name":"GPU"}"#) && text.ends_with(expected), "{text}");
    }

    #[test]
    fn the_steps_of_a_tensor_are_written_in_horovods_layout() {
        let events = [
            announced(0, 1),
            announced(1, 5),
            TraceEvent::Ready { name: X.into(), at: at(5) },
            TraceEvent::Cycle { at: at(6) },
            started(7),
            finished(9),
        ];
        let expected = r#",
{"ph":"M","name":"process_name","args":{"name":"allreduce.x"},"pid":1},
{"ph":"M","name":"process_sort_index","args":{"sort_index":1},"pid":1},
{"ph":"B","name":"NEGOTIATE_ALLREDUCE","ts":1.0,"pid":1},
{"ph":"X","name":"0","ts":1.0,"dur":0,"pid":1},
{"ph":"X","name":"1","ts":5.0,"dur":0,"pid":1},
{"ph":"E","ts":5.0,"pid":1},
{"ph":"B","name":"ALLREDUCE","ts":5.0,"pid":1},
{"ph":"B","name":"QUEUE","ts":5.0,"pid":1},
{"ph":"i","name":"CYCLE_START","ts":6.0,"s":"g","pid":0},
{"ph":"E","ts":7.0,"pid":1},
{"ph":"B","name":"SHM_ALLREDUCE","ts":7.0,"pid":1},
{"ph":"E","ts":9.0,"pid":1},
{"ph":"E","ts":9.0,"args":{"dtype":"float32","shape":"[2, 3]"},"pid":1}"#;
        assert_eq!(written(&events), expected);
    }

    #[test]
    fn the_head_contains_the_start_time() {
        assert_eq!(
            Trace::head(1_700_000_000_000_000),
            r#"{"ph":"M","name":"process_name","args":{"start_time_since_epoch_in_micros":1700000000000000},"pid":0},
{"ph":"M","name":"process_sort_index","args":{"sort_index":0},"pid":0}"#
        );
    }

    #[test]
    fn every_end_has_a_beginning_even_if_events_are_lost() {
        let all = [
            announced(0, 1),
            announced(1, 2),
            TraceEvent::Ready { name: X.into(), at: at(3) },
            started(4),
            finished(5),
            announced(0, 6),
            TraceEvent::Ready { name: X.into(), at: at(7) },
            started(8),
            finished(9),
        ];
        for lost in 0u32..1 << all.len() {
            let kept = all.iter().enumerate().filter(|(index, _)| lost & (1 << index) == 0);
            let kept: Vec<TraceEvent> = kept.map(|(_, event)| event.clone()).collect();
            let mut open = 0;
            for line in written(&kept).lines() {
                open += i32::from(line.contains(r#""ph":"B""#));
                open -= i32::from(line.contains(r#""ph":"E""#));
                assert!((0..=2).contains(&open), "{lost:b}: {line}");
            }
        }
    }
}
