//! A histogram with fixed bounds.

use std::fmt::Write;

use super::head;

/// Counts values by upper bound; the bounds are in ascending order, each with its text.
#[derive(Clone)]
pub(super) struct Histogram<const N: usize> {
    bounds: &'static [(u64, &'static str); N],
    counts: [u64; N],
    count: u64,
    sum: u64,
}

impl<const N: usize> Histogram<N> {
    pub(super) const fn new(bounds: &'static [(u64, &'static str); N]) -> Histogram<N> {
        Histogram { bounds, counts: [0; N], count: 0, sum: 0 }
    }

    pub(super) fn add(&mut self, value: u64) {
        let above = self.bounds.partition_point(|(bound, _)| *bound < value);
        if let Some(count) = self.counts.get_mut(above) {
            *count += 1;
        }
        self.count += 1;
        self.sum += value;
    }

    /// The text for values in nanoseconds, as seconds.
    pub(super) fn seconds(&self, name: &str, help: &str, out: &mut String) {
        let nanos = self.sum;
        let sum = format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
        self.text(name, help, sum.trim_end_matches('0').trim_end_matches('.'), out);
    }

    /// The text for plain numbers.
    pub(super) fn numbers(&self, name: &str, help: &str, out: &mut String) {
        self.text(name, help, &self.sum.to_string(), out);
    }

    fn text(&self, name: &str, help: &str, sum: &str, out: &mut String) {
        head(out, name, "histogram", help);
        let mut below = 0;
        for ((_, bound), count) in self.bounds.iter().zip(self.counts) {
            below += count;
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {below}");
        }
        let count = self.count;
        let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {count}");
        let _ = writeln!(out, "{name}_sum {sum}\n{name}_count {count}");
    }
}
