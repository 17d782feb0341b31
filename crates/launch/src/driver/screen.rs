//! Writes to the terminal, on a thread of its own: a screen that stands still, as behind `less`, must
//! not hold up the job's control.
//!
//! Where `horovod.run` has started the job, its caller is the screen, and gets frames.
//!
//! What waits to be written is bounded by the agents' output windows. If the reader of the output
//! goes away, as `head` does, the job goes on without it. If output cannot be written for another
//! reason, as on a full disk, the job goes on, too, but that is told at once and at the end.

use std::io::{self, Write};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ronde_control::event::Output;
use ronde_control::wire::agent::Stream;
use ronde_control::{Rank, Worker};
use tokio::sync::mpsc::Sender;

use super::News;
use super::errand::Returned;
use super::files::Files;
use crate::caller::{self, Kind, NOBODY};

/// What the thread gets.
pub(super) enum Item {
    /// What a rank wrote, and what is told back when it is shown.
    Text { rank: Rank, stream: Stream, bytes: Vec<u8>, done: Option<Done> },
    /// Something that a rank has returned.
    Returned(Rank, Returned),
    /// A line of the launcher's own, with its end.
    Note(String),
    /// For the caller: whose results count, in order.
    World(Vec<Worker>),
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
    thread: JoinHandle<Vec<String>>,
}

impl Screen {
    /// Starts the thread, which writes to `files` too. It tells what it has written, and what it cannot
    /// write, once of each.
    pub(super) fn start(
        viewer: Viewer,
        files: Option<Files>,
        news: Sender<News>,
    ) -> io::Result<Screen> {
        let (items, incoming) = mpsc::channel();
        let thread = thread::Builder::new().name("ronde-screen".into()).spawn(move || {
            let mut printer = Printer { viewer, files, lost: Vec::new(), news };
            printer.print(&incoming);
            printer.lost
        })?;
        Ok(Screen { items, thread })
    }

    /// Queues something to write.
    pub(super) fn show(&self, item: Item) {
        // The thread lives as long as this sender does.
        let _ = self.items.send(item);
    }

    /// Waits until everything is written; says what could not be.
    pub(super) fn finish(self) -> Vec<String> {
        drop(self.items);
        self.thread.join().unwrap_or_default()
    }
}

/// What the thread has.
struct Printer {
    viewer: Viewer,
    files: Option<Files>,
    /// What of standard output and standard error could not be written, and why.
    lost: Vec<String>,
    news: Sender<News>,
}

impl Printer {
    fn print(&mut self, items: &mpsc::Receiver<Item>) {
        if self.viewer == Viewer::Caller {
            self.write(Stream::Stdout, &caller::frame(Kind::Started, NOBODY, b""));
        }
        while let Ok(item) = items.recv() {
            match item {
                Item::Text { rank, stream, bytes, done } => {
                    self.show(rank, stream, &bytes);
                    if let Some(done) = done {
                        self.tell(News::Printed(done));
                    }
                }
                Item::Returned(Rank(rank), Returned::Piece(bytes, _place)) => {
                    self.write(Stream::Stdout, &caller::frame(Kind::Piece, rank, &bytes));
                }
                Item::Returned(Rank(rank), Returned::End) => {
                    self.write(Stream::Stdout, &caller::frame(Kind::Complete, rank, b""));
                }
                Item::Note(line) => self.write(Stream::Stderr, line.as_bytes()),
                Item::World(workers) => {
                    let bytes: Vec<u8> =
                        workers.iter().flat_map(|worker| worker.0.to_le_bytes()).collect();
                    self.write(Stream::Stdout, &caller::frame(Kind::World, NOBODY, &bytes));
                }
            }
        }
    }

    fn show(&mut self, rank: Rank, stream: Stream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        match self.viewer {
            Viewer::Terminal => self.write(stream, bytes),
            Viewer::Caller => {
                let kind = if stream == Stream::Stdout { Kind::Stdout } else { Kind::Stderr };
                self.write(Stream::Stdout, &caller::frame(kind, rank.0, bytes));
            }
        }
        if let Some(trouble) = self.files.as_mut().and_then(|it| it.write(rank, stream, bytes)) {
            self.write(Stream::Stderr, format!("[ronde] {trouble}\n").as_bytes());
            self.tell(News::OutputLost(Output::Files, trouble));
        }
    }

    fn tell(&self, news: News) {
        // A driver that has ended wants to know nothing more.
        let _ = self.news.blocking_send(news);
    }

    fn write(&mut self, stream: Stream, bytes: &[u8]) {
        let (name, output, result) = match stream {
            Stream::Stdout => {
                ("standard output", Output::Stdout, write(&mut io::stdout().lock(), bytes))
            }
            Stream::Stderr => {
                ("standard error", Output::Stderr, write(&mut io::stderr().lock(), bytes))
            }
        };
        let Err(error) = result else { return };
        tracing::debug!(%error, "{name} could not be written");
        let is_known = self.lost.iter().any(|lost| lost.starts_with(name));
        if error.kind() == io::ErrorKind::BrokenPipe || is_known {
            return;
        }
        let trouble = format!("{name} cannot be written: {error}");
        self.lost.push(trouble.clone());
        self.tell(News::OutputLost(output, error.to_string()));
        if stream == Stream::Stdout {
            let line = format!("[ronde] {trouble}; the job goes on, and what it prints is lost\n");
            self.write(Stream::Stderr, line.as_bytes());
        }
    }
}

/// Writes everything, even where somebody has made the file one that does not wait.
fn write(out: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(PAUSE),
            Err(error) => return Err(error),
        }
    }
    out.flush()
}

/// The time between two tries to write where nobody may wait.
const PAUSE: Duration = Duration::from_millis(2);
