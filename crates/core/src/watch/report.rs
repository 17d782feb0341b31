//! What this rank says of itself when the launcher asks, for whoever watches the job.

use std::time::Duration;

use ronde_control::status::{MOST_WAITING, Report, Tensor};

use super::Watch;
use super::record::Record;

impl Watch {
    /// The counts, the last tensor that arrived, and the oldest of those that are on their way.
    pub(crate) fn report(&self) -> Report {
        let now = self.now();
        let ledger = self.ledger();
        let (collectives, bytes) = ledger.counts.totals();
        let open = || ledger.recorder.records().filter(|record| record.finished.is_zero());
        let done = ledger.recorder.records().filter(|record| record.state() == "finished");
        let last = done.max_by_key(|record| record.finished);
        Report {
            collectives,
            bytes,
            failed: ledger.counts.failed,
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
    /// How long this rank has waited for others, if it does.
    pub(crate) fn longest_wait(&self) -> Option<Duration> {
        self.ledger().longest_wait(self.now())
    }

    /// What all ranks work on: for how long, and in words.
    pub(crate) fn underway(&self) -> Option<(Duration, String)> {
        self.ledger().underway(self.now())
    }
}

fn tensor(record: &Record, age: Duration) -> Tensor {
    Tensor {
        name: record.name().to_owned(),
        kind: record.kind.to_ascii_lowercase(),
        set: record.set,
        released: !record.started.is_zero(),
        age,
    }
}
