//! What a user may ask of the watching of a job, in parsed form: timeline, flight recorder, metrics.
//!
//! The names of these settings stand in the table of `settings`; here is what their values mean.

use std::net::SocketAddr;
use std::path::PathBuf;

/// How a rank is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watching {
    /// The timeline, if there may be one.
    pub timeline: Option<TimelineWish>,
    /// Collectives that the flight recorder remembers; 0 is none.
    pub records: usize,
    /// Where the flight recorder goes when something goes wrong.
    pub dump: DumpTo,
    /// Where metrics can be read, if anywhere.
    pub metrics: Option<MetricsAt>,
}

/// A timeline that was asked for at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineWish {
    /// The file; none if the program will start one itself.
    pub path: Option<PathBuf>,
    /// Whether it shows where each bucket begins.
    pub cycles: Cycles,
}

/// Whether a timeline shows where each bucket begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cycles {
    /// It does.
    Marked,
    /// It does not.
    Unmarked,
}

/// Where the flight recorder goes when something goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DumpTo {
    /// Files in the system's directory for temporary files.
    Temporary,
    /// Files in this directory.
    Directory(PathBuf),
    /// Standard error.
    Stderr,
    /// Nowhere.
    Nowhere,
}

/// Where metrics can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAt {
    /// A port of the loopback address; each rank adds its local rank to it.
    Loopback(SocketAddr),
    /// A unix socket; each rank adds a dot and its rank to the path.
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
                "RONDE_METRICS is `{address}`, but metrics are served on the loopback address only, \
                 since whoever asks is not asked who they are: use `127.0.0.1:{}` or `unix:PATH`",
                address.port()
            )),
            Err(_) => Err(format!(
                "RONDE_METRICS is `{text}`, it must be `127.0.0.1:PORT` or `unix:PATH`"
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
            let mistake = MetricsAt::parse(public).unwrap_err();
            assert!(mistake.contains("loopback address only"), "{mistake}");
        }
        for nonsense in ["9400", "unix:", "127.0.0.1", "yes"] {
            let mistake = MetricsAt::parse(nonsense).unwrap_err();
            assert!(mistake.contains("127.0.0.1:PORT"), "{mistake}");
        }
    }
}
