//! The signals that end a job (SIGINT, SIGTERM and SIGHUP) as a stream, and SIGWINCH, which reports
//! a new size of the terminal's window.

use std::fs;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A stream of signal numbers.
pub struct Signals {
    kinds: Vec<(i32, Signal)>,
    resizes: Resizes,
}

/// A stream of the terminal's changes of size.
#[derive(Default)]
pub struct Resizes(Option<Signal>);

impl Resizes {
    /// Waits for the next change of size; forever, if [`Signals::resizes`] has already been called.
    /// Cancel-safe.
    pub async fn next(&mut self) {
        match &mut self.0 {
            Some(stream) => drop(stream.recv().await),
            None => std::future::pending().await,
        }
    }
}

/// Listens for the signals that this process does not ignore: under `nohup`, SIGHUP has no effect.
pub fn listen() -> io::Result<Signals> {
    let ignored = ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    // If this launcher was started with SIGCHLD ignored, the guardian would inherit that, and its
    // wait for the agent would not end with the agent. A handled signal is not inherited as
    // ignored.
    let _ = signal(SignalKind::child())?;
    let mut kinds = Vec::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let number = kind.as_raw_value();
        if ignored & (1 << (number - 1)) == 0 {
            kinds.push((number, signal(kind)?));
        }
    }
    let resizes = Resizes(Some(signal(SignalKind::window_change())?));
    Ok(Signals { kinds, resizes })
}

impl Signals {
    /// Takes the stream of the terminal's changes of size.
    pub fn resizes(&mut self) -> Resizes {
        std::mem::take(&mut self.resizes)
    }

    /// The number of the next signal. Cancel-safe.
    pub async fn next(&mut self) -> i32 {
        std::future::poll_fn(|context| {
            for (number, stream) in &mut self.kinds {
                if stream.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(*number);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

/// The set of ignored signals in a process's status, bit n-1 for signal n.
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_parsed() {
        let status = "Name:\tx\nSigBlk:\t0000000000000003\nSigIgn:\t0000000000000001\n";
        assert_eq!(ignored(status), 1);
        assert_eq!(ignored("Name:\tx\n"), 0);
    }
}
