//! From what happens to records of a Chrome trace, in Horovod's layout.
//!
//! Each tensor is a "process" of the trace, with a number and the tensor's name. In its row, first
//! `NEGOTIATE_ALLREDUCE` with a tick for each rank at the moment it became ready, then `ALLREDUCE` with
//! `QUEUE` (everybody is ready, but another bucket is on its way) and the transfer itself inside.
//! Spans are pairs of a beginning and an end; each row remembers which of its spans are open, so
//! that a lost event leaves no end without a beginning.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

use super::super::json::quoted;

/// Something that a timeline shows. Times count from the start of this rank's world.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A rank is ready for a tensor.
    Announced { name: String, kind: &'static str, rank: u32, at: Duration },
    /// All ranks are.
    Ready { name: String, at: Duration },
    /// It travels.
    Started { name: String, kind: &'static str, activity: String, at: Duration },
    /// It has arrived.
    Finished { name: String, at: Duration, result: Shape },
    /// A bucket begins.
    Cycle { at: Duration },
}

/// What the end of a row's span tells of the tensor.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// Its type and shape.
    Of(&'static str, String),
    /// It failed, and why.
    Failed(String),
    /// It is the business of others, and this rank does not see its end.
    Elsewhere,
}

/// The state of a trace: which row each tensor has, and what is open in it.
pub(super) struct Trace {
    start: Duration,
    rows: HashMap<String, Row>,
}

struct Row {
    pid: usize,
    kind: &'static str,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Closed,
    Negotiating,
    Queued,
    Running,
}

impl Trace {
    /// A trace that starts at `start` of this rank's world.
    pub(super) fn new(start: Duration) -> Trace {
        Trace { start, rows: HashMap::new() }
    }

    /// The records that every trace begins with.
    pub(super) fn head(epoch_micros: u128) -> String {
        format!(
            "{{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 0, \"args\": \
             {{\"start_time_since_epoch_in_micros\": {epoch_micros}}}}},\n\
             {{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": 0, \"args\": \
             {{\"sort_index\": 0}}}}"
        )
    }

    /// Writes the records of an event, each with a comma in front.
    pub(super) fn on(&mut self, event: &Event, out: &mut String) {
        match event {
            Event::Announced { name, kind, rank, at } => {
                let ts = self.micros(*at);
                let row = self.row(name, kind, out);
                if row.stage != Stage::Negotiating {
                    row.close(&ts, "", out);
                    row.begin(&format!("NEGOTIATE_{kind}"), &ts, out);
                    row.stage = Stage::Negotiating;
                }
                let pid = row.pid;
                record(out, &format!(r#""ph": "X", "name": "{rank}", "ts": {ts}, "dur": 0"#), pid);
            }
            Event::Ready { name, at } => {
                let ts = self.micros(*at);
                let Some(row) = self.rows.get_mut(name) else { return };
                if row.stage == Stage::Negotiating {
                    row.queue(&ts, out);
                }
            }
            Event::Started { name, kind, activity, at } => {
                let ts = self.micros(*at);
                let row = self.row(name, kind, out);
                if row.stage != Stage::Queued {
                    row.close(&ts, "", out);
                    row.queue(&ts, out);
                }
                row.end(&ts, "", out);
                row.begin(activity, &ts, out);
                row.stage = Stage::Running;
            }
            Event::Finished { name, at, result } => {
                let ts = self.micros(*at);
                let Some(row) = self.rows.get_mut(name) else { return };
                row.close(&ts, &result.arguments(), out);
            }
            Event::Cycle { at } => {
                let ts = self.micros(*at);
                record(
                    out,
                    &format!(r#""ph": "i", "name": "CYCLE_START", "ts": {ts}, "s": "g""#),
                    0,
                );
            }
        }
    }

    fn row(&mut self, name: &str, kind: &'static str, out: &mut String) -> &mut Row {
        let pid = self.rows.len() + 1;
        let row = self.rows.entry(name.into()).or_insert_with(|| {
            let named = format!(
                "\"name\": \"process_name\", \"ph\": \"M\", \"args\": {{\"name\": {}}}",
                quoted(name)
            );
            record(out, &named, pid);
            let sorted = format!(
                "\"name\": \"process_sort_index\", \"ph\": \"M\", \"args\": {{\"sort_index\": {pid}}}"
            );
            record(out, &sorted, pid);
            Row { pid, kind, stage: Stage::Closed }
        });
        row.kind = kind;
        row
    }

    /// Microseconds since the trace began, to the nanosecond: a small tensor takes only a few.
    fn micros(&self, at: Duration) -> String {
        let nanos = at.saturating_sub(self.start).as_nanos();
        format!("{}.{:03}", nanos / 1000, nanos % 1000)
    }
}

impl Row {
    fn begin(&self, name: &str, ts: &str, out: &mut String) {
        record(out, &format!(r#""ph": "B", "name": "{name}", "ts": {ts}"#), self.pid);
    }

    fn end(&self, ts: &str, arguments: &str, out: &mut String) {
        record(out, &format!(r#""ph": "E", "ts": {ts}{arguments}"#), self.pid);
    }

    /// From the negotiation, or from nothing, into the queue.
    fn queue(&mut self, ts: &str, out: &mut String) {
        if self.stage == Stage::Negotiating {
            self.end(ts, "", out);
        }
        self.begin(self.kind, ts, out);
        self.begin("QUEUE", ts, out);
        self.stage = Stage::Queued;
    }

    fn close(&mut self, ts: &str, arguments: &str, out: &mut String) {
        match self.stage {
            Stage::Closed => {}
            Stage::Negotiating => self.end(ts, arguments, out),
            Stage::Queued | Stage::Running => {
                self.end(ts, "", out);
                self.end(ts, arguments, out);
            }
        }
        self.stage = Stage::Closed;
    }
}

impl Shape {
    fn arguments(&self) -> String {
        match self {
            Shape::Of(dtype, shape) => {
                format!(
                    ", \"args\": {{\"dtype\": {}, \"shape\": {}}}",
                    quoted(dtype),
                    quoted(shape)
                )
            }
            Shape::Failed(error) => format!(", \"args\": {{\"error\": {}}}", quoted(error)),
            Shape::Elsewhere => String::new(),
        }
    }
}

fn record(out: &mut String, fields: &str, pid: usize) {
    let _ = write!(out, ",\n{{{fields}, \"pid\": {pid}}}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: &str = "allreduce.x";

    fn written(events: &[Event]) -> String {
        let mut trace = Trace::new(Duration::from_micros(100));
        let mut out = String::new();
        events.iter().for_each(|event| trace.on(event, &mut out));
        out
    }

    fn at(micros: u64) -> Duration {
        Duration::from_micros(100 + micros)
    }

    fn announced(rank: u32, micros: u64) -> Event {
        Event::Announced { name: X.into(), kind: "ALLREDUCE", rank, at: at(micros) }
    }

    fn started(micros: u64) -> Event {
        let (name, kind, activity) = (X.into(), "ALLREDUCE", "SHM_ALLREDUCE".into());
        Event::Started { name, kind, activity, at: at(micros) }
    }

    fn finished(micros: u64) -> Event {
        let result = Shape::Of("float32", "[2, 3]".into());
        Event::Finished { name: X.into(), at: at(micros), result }
    }

    #[test]
    fn the_way_of_a_tensor_is_written_in_horovods_layout() {
        let events = [
            announced(0, 1),
            announced(1, 5),
            Event::Ready { name: X.into(), at: at(5) },
            Event::Cycle { at: at(6) },
            started(7),
            finished(9),
        ];
        let expected = r#",
{"name": "process_name", "ph": "M", "args": {"name": "allreduce.x"}, "pid": 1},
{"name": "process_sort_index", "ph": "M", "args": {"sort_index": 1}, "pid": 1},
{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1.000, "pid": 1},
{"ph": "X", "name": "0", "ts": 1.000, "dur": 0, "pid": 1},
{"ph": "X", "name": "1", "ts": 5.000, "dur": 0, "pid": 1},
{"ph": "E", "ts": 5.000, "pid": 1},
{"ph": "B", "name": "ALLREDUCE", "ts": 5.000, "pid": 1},
{"ph": "B", "name": "QUEUE", "ts": 5.000, "pid": 1},
{"ph": "i", "name": "CYCLE_START", "ts": 6.000, "s": "g", "pid": 0},
{"ph": "E", "ts": 7.000, "pid": 1},
{"ph": "B", "name": "SHM_ALLREDUCE", "ts": 7.000, "pid": 1},
{"ph": "E", "ts": 9.000, "pid": 1},
{"ph": "E", "ts": 9.000, "args": {"dtype": "float32", "shape": "[2, 3]"}, "pid": 1}"#;
        assert_eq!(written(&events), expected);
    }

    #[test]
    fn the_head_tells_when_the_trace_began() {
        assert_eq!(
            Trace::head(1_700_000_000_000_000),
            r#"{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 1700000000000000}},
{"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}}"#
        );
    }

    #[test]
    fn whatever_is_lost_every_end_has_a_beginning() {
        let all = [
            announced(0, 1),
            announced(1, 2),
            Event::Ready { name: X.into(), at: at(3) },
            started(4),
            finished(5),
            announced(0, 6),
            Event::Ready { name: X.into(), at: at(7) },
            started(8),
            finished(9),
        ];
        for lost in 0u32..1 << all.len() {
            let kept = all.iter().enumerate().filter(|(index, _)| lost & (1 << index) == 0);
            let kept: Vec<Event> = kept.map(|(_, event)| event.clone()).collect();
            let mut open = 0;
            for line in written(&kept).lines() {
                open += i32::from(line.contains(r#""ph": "B""#));
                open -= i32::from(line.contains(r#""ph": "E""#));
                assert!((0..=2).contains(&open), "{lost:b}: {line}");
            }
        }
    }
}
