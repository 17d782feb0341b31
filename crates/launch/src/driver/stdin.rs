//! Reads the launcher's standard input for rank 0, one piece at a time.
//!
//! A thread of its own, because a terminal or a file cannot be awaited. It reads only when the last
//! piece was taken, and never from a terminal whose foreground belongs to somebody else: that would
//! stop the whole launcher when it runs in the background.

use std::io::{self, PipeReader, PipeWriter, Read};
use std::sync::mpsc;
use std::thread;

use ronde_control::wire::agent::MAX_PIECE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::getpgrp;
use rustix::termios::{isatty, tcgetpgrp};
use tokio::sync::mpsc::Sender;

use super::News;
use super::screen::Viewer;

/// How often a job in the background looks whether it has come to the foreground.
const BACKGROUND: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Reads for rank 0, or watches over the caller of `horovod.run`.
pub(super) fn start(viewer: Viewer, news: Sender<News>) -> io::Result<Stdin> {
    match viewer {
        Viewer::Terminal => Stdin::start(move |piece| {
            let _ = news.blocking_send(News::Stdin(piece));
        }),
        Viewer::Caller => Stdin::lifeline(move || {
            let _ = news.blocking_send(News::Orphaned);
        }),
    }
}

/// The thread's controls; dropping them ends it.
pub(super) struct Stdin {
    wanted: mpsc::Sender<()>,
    _stop: PipeWriter,
}

impl Stdin {
    /// Starts the thread. `piece` is called on it, with nothing at the end of the input.
    fn start(piece: impl Fn(Option<Vec<u8>>) + Send + 'static) -> io::Result<Stdin> {
        let (wanted, requests) = mpsc::channel();
        let (stopped, stop) = io::pipe()?;
        thread::Builder::new().name("ronde-stdin".into()).spawn(move || {
            while requests.recv().is_ok() {
                match read(&stopped) {
                    Some(bytes) if !bytes.is_empty() => piece(Some(bytes)),
                    Some(_) => return piece(None),
                    None => return,
                }
            }
        })?;
        Ok(Stdin { wanted, _stop: stop })
    }

    /// Reads nothing for a rank: the input only shows whether the caller of `horovod.run` lives. `gone`
    /// is called when it ends.
    fn lifeline(gone: impl Fn() + Send + 'static) -> io::Result<Stdin> {
        let stdin = Stdin::start(move |piece| {
            if piece.is_none() {
                gone();
            }
        })?;
        stdin.next();
        Ok(stdin)
    }

    /// Asks for the next piece.
    pub(super) fn next(&self) {
        // At the end of the input the thread has gone, and there is no next piece.
        let _ = self.wanted.send(());
    }
}

/// The next piece, an empty one at the end, none when the thread is to end.
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
