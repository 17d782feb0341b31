//! Tensor bytes sent and received through sockets, for the metrics. A process is one rank, so the
//! counters are per process.

use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) static TRAFFIC: Traffic =
    Traffic { sent: AtomicU64::new(0), received: AtomicU64::new(0) };

pub(crate) struct Traffic {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Traffic {
    /// Counts the bytes that a write accepted, if any.
    pub(crate) fn count_sent(&self, bytes: Option<usize>) {
        self.sent.fetch_add(bytes.unwrap_or(0) as u64, Ordering::Relaxed);
    }

    /// Counts the bytes that a read returned, if any.
    pub(crate) fn count_received(&self, bytes: Option<usize>) {
        self.received.fetch_add(bytes.unwrap_or(0) as u64, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}
