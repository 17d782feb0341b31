//! This rank's status report for the launcher, shown by `ronde status`.

use std::time::Duration;

use ronde_control::status::{MOST_WAITING, RankReport, TensorStatus};

use super::Watch;
use super::record::FlightRecord;

impl Watch {
    /// The totals, the last completed tensor, and the oldest outstanding ones.
    pub(crate) fn report(&self) -> RankReport {
        let now = self.now();
        let watch_state = self.watch_state();
        let (collectives, bytes) = watch_state.counts.totals();
        let open = || watch_state.recorder.records().filter(|record| record.finished.is_zero());
        let done = watch_state.recorder.records().filter(|record| record.state() == "finished");
        let last = done.max_by_key(|record| record.finished);
        RankReport {
            collectives,
            bytes,
            failed: watch_state.counts.failed,
            last: last.map(|record| tensor(record, now.saturating_sub(record.finished))),
            waiting: open()
                .take(MOST_WAITING)
                .map(|record| tensor(record, now.saturating_sub(record.queued)))
                .collect(),
            outstanding: open().count() as u64,
        }
    }
}

impl Watch {
    /// How long this rank has been waiting for others, if it is.
    pub(crate) fn longest_wait(&self) -> Option<Duration> {
        self.watch_state().longest_wait(self.now())
    }

    /// The bucket that all ranks work on: for how long, and its description.
    pub(crate) fn underway(&self) -> Option<(Duration, String)> {
        self.watch_state().underway(self.now())
    }
}

fn tensor(record: &FlightRecord, age: Duration) -> TensorStatus {
    TensorStatus {
        name: record.name().to_owned(),
        kind: record.kind.to_ascii_lowercase(),
        set: record.set,
        released: !record.started.is_zero(),
        age,
    }
}
