//! Writes to the terminal, on a thread of its own: a screen that stands still, as behind `less`, must
//! not hold up the job's control.
//!
//! What waits to be written is bounded by the agents' output windows. If the reader of the output
//! goes away, the job goes on without it.

use std::io::{self, Write};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use ronde_control::Rank;
use ronde_control::wire::agent::Stream;

use super::files::Files;

/// Something to write, and what is told back when that is done.
pub(super) struct Text {
    pub(super) rank: Rank,
    pub(super) stream: Stream,
    pub(super) bytes: Vec<u8>,
    pub(super) done: Option<Done>,
}

/// So much of an agent's window is free again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) agent: usize,
    pub(super) cost: u32,
}

/// The thread and the way to it.
pub(super) struct Screen {
    texts: mpsc::Sender<Text>,
    thread: JoinHandle<()>,
}

impl Screen {
    /// Starts the thread, which writes to `files` too. `done` is called on it.
    pub(super) fn start(
        files: Option<Files>,
        done: impl Fn(Done) + Send + 'static,
    ) -> io::Result<Screen> {
        let (texts, incoming) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("ronde-screen".into())
            .spawn(move || print(&incoming, files, &done))?;
        Ok(Screen { texts, thread })
    }

    /// Queues a text.
    pub(super) fn show(&self, text: Text) {
        // The thread lives as long as this sender does.
        let _ = self.texts.send(text);
    }

    /// Waits until everything is written.
    pub(super) fn finish(self) {
        drop(self.texts);
        let _ = self.thread.join();
    }
}

fn print(texts: &mpsc::Receiver<Text>, mut files: Option<Files>, done: &impl Fn(Done)) {
    while let Ok(text) = texts.recv() {
        if !text.bytes.is_empty() {
            let result = match text.stream {
                Stream::Stdout => write(&mut io::stdout().lock(), &text.bytes),
                Stream::Stderr => write(&mut io::stderr().lock(), &text.bytes),
            };
            if let Err(error) = result {
                tracing::debug!(%error, "output could not be written");
            }
            if let Some(files) = &mut files {
                files.write(text.rank, text.stream, &text.bytes);
            }
        }
        if let Some(credit) = text.done {
            done(credit);
        }
    }
}

fn write(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(bytes)?;
    out.flush()
}
