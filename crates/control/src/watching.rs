//! Parsed settings for observing a job: timeline, flight recorder, metrics.
//!
//! The table in `settings` has their names; this module defines what their values mean.

use std::net::SocketAddr;
use std::path::PathBuf;

/// What a rank records and exposes while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watching {
    /// The timeline, if one is enabled.
    pub timeline: Option<TimelineRequest>,
    /// How many collectives the flight recorder remembers; 0 turns it off.
    pub records: usize,
    /// Where the flight recorder is written when something goes wrong.
    pub dump: DumpTo,
    /// Where metrics are served, if anywhere.
    pub metrics: Option<MetricsAt>,
}

/// A timeline requested at startup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineRequest {
    /// The output file; `None` if the program starts the timeline itself.
    pub path: Option<PathBuf>,
    /// Whether the start of each bucket is marked.
    pub cycles: Cycles,
}

/// Whether a timeline marks the start of each bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cycles {
    /// Mark the start of each bucket.
    Marked,
    /// Do not mark bucket starts.
    Unmarked,
}

/// Where the flight recorder is written when something goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DumpTo {
    /// Files in the system's temporary directory.
    Temporary,
    /// Files in this directory.
    Directory(PathBuf),
    /// Standard error.
    Stderr,
    /// Do not write it.
    Nowhere,
}

/// Where metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAt {
    /// A port on the loopback address, plus each rank's local rank.
    Loopback(SocketAddr),
    /// A unix socket; each rank appends a dot and its rank to the path.
    Unix(PathBuf),
}

impl MetricsAt {
    pub(crate) fn parse(text: &str) -> Result<MetricsAt, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(MetricsAt::Unix(path.into()));
        }
        let text = text.replace("localhost:", "127.0.0.1:");
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(MetricsAt::Loopback(address)),
            Ok(address) => Err(format!(
                "RONDE_METRICS is `{address}`, but metrics are served on the loopback address \
                 only, because they need no authentication: use `127.0.0.1:{}` or `unix:PATH`",
                address.port()
            )),
            Err(_) => Err(format!(
                "RONDE_METRICS is `{text}`, but must be `127.0.0.1:PORT` or `unix:PATH`"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_served_to_this_host_only() {
        for (text, expected) in [
            ("127.0.0.1:9400", "127.0.0.1:9400"),
            ("localhost:9400", "127.0.0.1:9400"),
            ("[::1]:9400", "[::1]:9400"),
        ] {
            let at = MetricsAt::parse(text).unwrap();
            assert_eq!(at, MetricsAt::Loopback(expected.parse().unwrap()), "{text}");
        }
        let unix = MetricsAt::parse("unix:m.sock").unwrap();
        assert_eq!(unix, MetricsAt::Unix("m.sock".into()));
        for public in ["0.0.0.0:9400", "192.168.1.4:9400", "[::]:9400", "[2001:db8::1]:1"] {
            let error = MetricsAt::parse(public).unwrap_err();
            assert!(error.contains("loopback address only"), "{error}");
        }
        for invalid in ["9400", "unix:", "127.0.0.1", "yes"] {
            let error = MetricsAt::parse(invalid).unwrap_err();
            assert!(error.contains("127.0.0.1:PORT"), "{error}");
        }
    }
}
