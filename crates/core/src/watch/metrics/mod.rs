//! What this rank has done so far, in numbers, and their text for Prometheus.

mod histogram;
pub(super) mod http;

use std::fmt::Write;
use std::time::Duration;

use ronde_control::Collective;
use ronde_control::negotiate::CollectiveKind;

use self::histogram::Histogram;
use super::RankIdentity;

/// Bounds of time histograms, in nanoseconds, with their text in seconds.
const TIMES: [(u64, &str); 12] = [
    (5_000, "0.000005"),
    (10_000, "0.00001"),
    (25_000, "0.000025"),
    (100_000, "0.0001"),
    (250_000, "0.00025"),
    (1_000_000, "0.001"),
    (2_500_000, "0.0025"),
    (10_000_000, "0.01"),
    (50_000_000, "0.05"),
    (250_000_000, "0.25"),
    (1_000_000_000, "1"),
    (10_000_000_000, "10"),
];
/// Bounds of histograms of tensor counts.
const TENSORS: [(u64, &str); 8] =
    [(1, "1"), (2, "2"), (4, "4"), (8, "8"), (16, "16"), (64, "64"), (256, "256"), (1024, "1024")];

/// A number counted by another module.
pub(crate) struct Reading {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) value: u64,
}

/// The counters of this rank.
#[derive(Clone)]
pub(super) struct Counts {
    kinds: [PerKind; Collective::ALL.len()],
    queue: Histogram<12>,
    bucket: Histogram<8>,
    pub(super) stalls: u64,
    pub(super) failed: u64,
}

#[derive(Clone)]
struct PerKind {
    tensors: u64,
    bytes: u64,
    seconds: Histogram<12>,
}

impl Counts {
    pub(super) fn new() -> Counts {
        let kind = || PerKind { tensors: 0, bytes: 0, seconds: Histogram::new(&TIMES) };
        Counts {
            kinds: std::array::from_fn(|_| kind()),
            queue: Histogram::new(&TIMES),
            bucket: Histogram::new(&TENSORS),
            stalls: 0,
            failed: 0,
        }
    }

    /// Counts a completed bucket.
    pub(super) fn ran(
        &mut self,
        kind: &CollectiveKind,
        tensors: usize,
        bytes: u64,
        took: Duration,
    ) {
        self.bucket.add(tensors as u64);
        let Some(collective) = kind.collective() else { return };
        let kind = &mut self.kinds[collective as usize];
        kind.tensors += tensors as u64;
        kind.bytes += bytes;
        kind.seconds.add(took.as_nanos() as u64);
    }

    /// Counts the time from a submission to its release.
    pub(super) fn queued(&mut self, waited: Duration) {
        self.queue.add(waited.as_nanos() as u64);
    }

    /// All completed tensors, and their bytes.
    pub(super) fn totals(&self) -> (u64, u64) {
        let add = |(tensors, bytes): (u64, u64), kind: &PerKind| {
            (tensors + kind.tensors, bytes + kind.bytes)
        };
        self.kinds.iter().fold((0, 0), add)
    }

    /// All counters in Prometheus' text format.
    pub(super) fn text(&self, who: &RankIdentity, others: &[Reading]) -> String {
        let mut out = String::new();
        head(&mut out, "ronde_info", "gauge", "Identity of this rank.");
        let RankIdentity { rank, size, .. } = who;
        let version = ronde_control::VERSION;
        let _ = writeln!(
            out,
            "ronde_info{{rank=\"{}\",size=\"{size}\",version=\"{version}\"}} 1",
            rank.0
        );
        head(&mut out, "ronde_collectives_total", "counter", "Completed tensors.");
        for (name, kind) in Collective::ALL.iter().zip(&self.kinds) {
            let _ = writeln!(out, "ronde_collectives_total{{kind=\"{name}\"}} {}", kind.tensors);
        }
        head(&mut out, "ronde_collective_bytes_total", "counter", "Bytes of these tensors.");
        for (name, kind) in Collective::ALL.iter().zip(&self.kinds) {
            let _ = writeln!(out, "ronde_collective_bytes_total{{kind=\"{name}\"}} {}", kind.bytes);
        }
        for (name, kind) in Collective::ALL.iter().zip(&self.kinds) {
            let name = format!("ronde_{name}_seconds");
            kind.seconds.seconds(&name, "Transfer time of each bucket.", &mut out);
        }
        let help = "Time from a submission until all ranks were ready.";
        self.queue.seconds("ronde_queue_seconds", help, &mut out);
        self.bucket.numbers("ronde_bucket_tensors", "Tensors per bucket.", &mut out);
        let reading = |name, help, value| Reading { name, help, value }.text();
        out += &reading("ronde_stalls_total", "Reports that a rank is late.", self.stalls);
        out += &reading("ronde_failed_total", "Tensors that failed.", self.failed);
        others.iter().for_each(|reading| out += &reading.text());
        out
    }
}

impl Reading {
    pub(super) fn text(&self) -> String {
        let Reading { name, help, value } = self;
        format!("# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}\n")
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

#[cfg(test)]
mod tests {
    use ronde_control::Rank;

    use super::*;

    #[test]
    fn the_text_has_each_name_once_and_adds_up() {
        let mut counts = Counts::new();
        counts.ran(&CollectiveKind::Barrier, 1, 0, Duration::from_micros(7));
        counts.ran(&CollectiveKind::Allgather, 3, 1200, Duration::from_millis(3));
        counts.queued(Duration::from_secs(20));
        let who = RankIdentity { rank: Rank(1), size: 4, host: "node-a".into(), pid: 1 };
        let reading = Reading { name: "ronde_link_sent_bytes_total", help: "Sent.", value: 12 };
        let text = counts.text(&who, &[reading]);
        for line in [
            "ronde_collectives_total{kind=\"allgather\"} 3",
            "ronde_collective_bytes_total{kind=\"allgather\"} 1200",
            "ronde_barrier_seconds_bucket{le=\"0.000005\"} 0",
            "ronde_barrier_seconds_bucket{le=\"0.00001\"} 1",
            "ronde_barrier_seconds_sum 0.000007",
            "ronde_allgather_seconds_bucket{le=\"0.0025\"} 0",
            "ronde_allgather_seconds_bucket{le=\"+Inf\"} 1",
            "ronde_queue_seconds_bucket{le=\"10\"} 0",
            "ronde_queue_seconds_count 1",
            "ronde_bucket_tensors_bucket{le=\"2\"} 1",
            "ronde_bucket_tensors_sum 4",
            "ronde_link_sent_bytes_total 12",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        let mut types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let all = types.len();
        types.sort_unstable();
        types.dedup();
        assert_eq!(types.len(), all);
    }
}
