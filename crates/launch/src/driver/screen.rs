//! Writes to the terminal, on a thread of its own: a screen that stands still, as behind `less`, must
//! not hold up the job's control.
//!
//! Where `horovod.run` has started the job, its caller is the screen, and gets frames.
//!
//! What waits to be written is bounded by the agents' output windows. If the reader of the output
//! goes away, the job goes on without it.

use std::io::{self, Write};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use ronde_control::Rank;
use ronde_control::wire::agent::Stream;

use super::errand::Returned;
use super::files::Files;
use crate::caller::{self, Kind, NOBODY};

/// Something to write, and what is told back when that is done.
pub(super) struct Text {
    pub(super) rank: Rank,
    pub(super) stream: Stream,
    pub(super) bytes: Vec<u8>,
    pub(super) done: Option<Done>,
}

/// What the thread gets.
pub(super) enum Item {
    Text(Text),
    /// Something that a rank has returned.
    Returned(Rank, Returned),
    /// A line of the launcher's own, with its end.
    Note(String),
    /// Whose results count, in order.
    World(Vec<u8>),
}

/// Who sees the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Viewer {
    /// Whoever looks at standard output and standard error.
    Terminal,
    /// The Python that called `horovod.run`.
    Caller,
}

/// So much of an agent's window is free again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(super) agent: usize,
    pub(super) cost: u32,
}

/// The thread and the way to it.
pub(super) struct Screen {
    items: mpsc::Sender<Item>,
    thread: JoinHandle<()>,
}

impl Screen {
    /// Starts the thread, which writes to `files` too. `done` is called on it.
    pub(super) fn start(
        viewer: Viewer,
        files: Option<Files>,
        done: impl Fn(Done) + Send + 'static,
    ) -> io::Result<Screen> {
        let (items, incoming) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("ronde-screen".into())
            .spawn(move || print(viewer, &incoming, files, &done))?;
        Ok(Screen { items, thread })
    }

    /// Queues a text.
    pub(super) fn show(&self, text: Text) {
        // The thread lives as long as this sender does.
        let _ = self.items.send(Item::Text(text));
    }

    /// Queues what a rank has returned.
    pub(super) fn hand_over(&self, rank: Rank, returned: Returned) {
        let _ = self.items.send(Item::Returned(rank, returned));
    }

    /// Queues a line of the launcher's own, with its end.
    pub(super) fn note(&self, line: String) {
        let _ = self.items.send(Item::Note(line));
    }

    /// Queues for the caller whose results count, in order.
    pub(super) fn tell_world(&self, processes: &[u32]) {
        let bytes = processes.iter().flat_map(|process| process.to_le_bytes()).collect();
        let _ = self.items.send(Item::World(bytes));
    }

    /// Waits until everything is written.
    pub(super) fn finish(self) {
        drop(self.items);
        let _ = self.thread.join();
    }
}

fn print(
    viewer: Viewer,
    items: &mpsc::Receiver<Item>,
    mut files: Option<Files>,
    done: &impl Fn(Done),
) {
    if viewer == Viewer::Caller {
        tell(&caller::frame(Kind::Started, NOBODY, b""));
    }
    while let Ok(item) = items.recv() {
        let text = match item {
            Item::Text(text) => text,
            Item::Returned(Rank(rank), Returned::Piece(bytes, _place)) => {
                tell(&caller::frame(Kind::Piece, rank, &bytes));
                continue;
            }
            Item::Returned(Rank(rank), Returned::End) => {
                tell(&caller::frame(Kind::Complete, rank, b""));
                continue;
            }
            Item::Note(line) => {
                complain(line.as_bytes());
                continue;
            }
            Item::World(bytes) => {
                tell(&caller::frame(Kind::World, NOBODY, &bytes));
                continue;
            }
        };
        if !text.bytes.is_empty() {
            show(viewer, &text);
            if let Some(files) = &mut files {
                files.write(text.rank, text.stream, &text.bytes);
            }
        }
        if let Some(credit) = text.done {
            done(credit);
        }
    }
}

fn show(viewer: Viewer, text: &Text) {
    match (viewer, text.stream) {
        (Viewer::Terminal, Stream::Stdout) => tell(&text.bytes),
        (Viewer::Terminal, Stream::Stderr) => complain(&text.bytes),
        (Viewer::Caller, stream) => {
            let kind = if stream == Stream::Stdout { Kind::Stdout } else { Kind::Stderr };
            tell(&caller::frame(kind, text.rank.0, &text.bytes));
        }
    }
}

fn complain(bytes: &[u8]) {
    if let Err(error) = write(&mut io::stderr().lock(), bytes) {
        tracing::debug!(%error, "output could not be written");
    }
}

fn tell(bytes: &[u8]) {
    if let Err(error) = write(&mut io::stdout().lock(), bytes) {
        tracing::debug!(%error, "output could not be written");
    }
}

fn write(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(bytes)?;
    out.flush()
}
