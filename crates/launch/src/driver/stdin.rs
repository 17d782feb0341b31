//! Reads the launcher's standard input, one piece at a time: for rank 0, or to notice when the
//! caller of `horovod.run` is gone.
//!
//! It uses its own thread, because a terminal or a file cannot be awaited. It reads only after the
//! last piece was consumed, and never from a terminal while another process group is in the
//! foreground: that would stop the whole launcher when it runs in the background.

use std::io::{self, PipeReader, PipeWriter, Read};
use std::sync::mpsc;
use std::thread;

use ronde_control::wire::agent::MAX_PIECE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::getpgrp;
use rustix::termios::{isatty, tcgetpgrp};
use tokio::sync::mpsc::Sender;

use super::DriverInput;

/// How often a background job checks whether it is in the foreground.
const BACKGROUND: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Controls the thread; dropping it ends the thread.
pub(super) struct Stdin {
    wanted: mpsc::Sender<()>,
    _stop: PipeWriter,
}

impl Stdin {
    /// Starts the thread, which sends each requested piece, then ends at the end of the input.
    pub(super) fn start(news: Sender<DriverInput>) -> io::Result<Stdin> {
        let (wanted, requests) = mpsc::channel();
        let (stopped, stop) = io::pipe()?;
        thread::Builder::new().name("ronde-stdin".into()).spawn(move || {
            while requests.recv().is_ok() {
                let Some(bytes) = read(&stopped) else { return };
                let piece = Some(bytes).filter(|bytes| !bytes.is_empty());
                let is_end = piece.is_none();
                if news.blocking_send(DriverInput::Stdin(piece)).is_err() || is_end {
                    return;
                }
            }
        })?;
        Ok(Stdin { wanted, _stop: stop })
    }

    /// Requests the next piece.
    pub(super) fn next(&self) {
        // At the end of the input the thread has exited, and there is no next piece.
        let _ = self.wanted.send(());
    }
}

/// The next piece, an empty one at the end of the input, `None` if the thread is to exit.
fn read(stopped: &PipeReader) -> Option<Vec<u8>> {
    let mut input = io::stdin();
    loop {
        let mut ready = [PollFd::new(&input, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        let polled = poll(&mut ready, None);
        if ready[1].revents().intersects(PollFlags::IN | PollFlags::HUP) {
            return None;
        }
        if polled.is_err() {
            continue;
        }
        if isatty(&input) && tcgetpgrp(&input).is_ok_and(|group| group != getpgrp()) {
            let _ = poll(&mut [PollFd::new(stopped, PollFlags::IN)], Some(&BACKGROUND));
            continue;
        }
        let mut bytes = vec![0; MAX_PIECE];
        let count = input.read(&mut bytes).unwrap_or(0);
        bytes.truncate(count);
        return Some(bytes);
    }
}
