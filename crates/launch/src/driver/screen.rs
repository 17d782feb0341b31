//! Writes to the terminal, on a separate thread, because a blocked terminal (as behind `less`) must
//! not block control of the job.
//!
//! If `horovod.run` started the job, its caller takes the place of the terminal, and gets frames.
//! The `display` module decides what a terminal shows when several ranks write at once.
//!
//! The agents' output windows bound what waits to be written. If the reader of the output goes
//! away, like `head`, the job continues without it. If output cannot be written for another reason,
//! such as a full disk, the job also continues, but the failure is reported at once and again at
//! the end.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ronde_control::event::OutputKind;
use ronde_control::launcher::Invitation;
use ronde_control::wire::agent::OutputStream;
use ronde_control::{Rank, Worker};
use tokio::sync::mpsc::Sender;

use super::display::Display;
use super::files::OutputFiles;
use super::remote_call::CallResult;
use super::{DriverInput, ScreenOptions};
use crate::caller::{self, FrameKind, NOBODY};
use crate::ranks::RankSet;

/// The thread that currently writes to a terminal, for the lines of this process's own log.
static SHOWING: Mutex<Option<mpsc::Sender<ScreenItem>>> = Mutex::new(None);

/// Writes the launcher's log to standard error or, while a job uses the terminal, above its
/// unfinished lines.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScreenLogWriter;

impl Write for ScreenLogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let showing = SHOWING.lock().unwrap_or_else(PoisonError::into_inner);
        match &*showing {
            Some(items) => {
                let line = String::from_utf8_lossy(bytes).into_owned();
                items.send(ScreenItem::Note(line)).map_err(io::Error::other)?;
                Ok(bytes.len())
            }
            None => io::stderr().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// What the thread is asked to write.
pub(super) enum ScreenItem {
    /// What a rank wrote, as lines with their prefixes, and the credit to return once it is shown.
    /// If it is passed through unchanged, it is in `live` and the lines are only for the files.
    Text {
        rank: Rank,
        stream: OutputStream,
        bytes: Vec<u8>,
        live: Option<Vec<u8>>,
        done: Option<WindowCredit>,
    },
    /// A rank has closed a stream.
    End(Rank, OutputStream, Passing),
    /// The terminal's new number of columns.
    Resized(usize),
    /// Part of what a rank has returned.
    Returned(Rank, CallResult),
    /// A line from the launcher itself, with its line feed.
    Note(String),
    /// For the caller: the workers whose results count, in rank order.
    World(Vec<Worker>),
    /// For the caller: where agents connect, and the key.
    Invitation(Invitation),
}

/// How a rank's output reaches the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passing {
    /// As lines with prefixes.
    Lines,
    /// Unchanged, because its terminal is passed through.
    Through,
}

/// Who sees the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Viewer {
    /// The reader of standard output and standard error.
    Terminal,
    /// The Python process that called `horovod.run`.
    Caller,
}

/// An amount to return to an agent's output window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowCredit {
    pub(super) agent: usize,
    pub(super) cost: u32,
}

/// Handle of the thread that writes.
pub(super) struct Screen {
    items: mpsc::Sender<ScreenItem>,
    thread: JoinHandle<Vec<String>>,
}

impl Screen {
    /// Starts the thread, which also writes to `files`. It reports what it has written and, once
    /// per output, what it cannot write.
    pub(super) fn start(
        viewer: Viewer,
        options: &ScreenOptions,
        files: Option<OutputFiles>,
        news: Sender<DriverInput>,
    ) -> io::Result<Screen> {
        let (items, incoming) = mpsc::channel();
        let window = options.window.filter(|_| viewer == Viewer::Terminal);
        let display = window.map(|window| Display::new(window.size.columns.into()));
        let stderr_is_display = window.is_some_and(|window| window.stderr);
        let shown = options.shown.clone();
        let thread = thread::Builder::new().name("ronde-screen".into()).spawn(move || {
            let lost = Vec::new();
            let mut printer =
                Printer { viewer, shown, display, stderr_is_display, files, lost, news };
            printer.print(&incoming);
            printer.lost
        })?;
        if window.is_some() {
            show_log(Some(items.clone()));
        }
        Ok(Screen { items, thread })
    }

    /// Queues something to write.
    pub(super) fn show(&self, item: ScreenItem) {
        // The thread lives as long as this sender does.
        let _ = self.items.send(item);
    }

    /// Waits until everything is written; returns what could not be.
    pub(super) fn finish(self) -> Vec<String> {
        show_log(None);
        drop(self.items);
        self.thread.join().unwrap_or_default()
    }
}

/// Sets where the log is shown from now on.
fn show_log(items: Option<mpsc::Sender<ScreenItem>>) {
    *SHOWING.lock().unwrap_or_else(PoisonError::into_inner) = items;
}

/// The thread's state.
struct Printer {
    viewer: Viewer,
    shown: RankSet,
    /// The terminal, if standard output is one; standard error may go elsewhere.
    display: Option<Display>,
    stderr_is_display: bool,
    files: Option<OutputFiles>,
    /// Which of standard output and standard error could not be written, and why.
    lost: Vec<String>,
    news: Sender<DriverInput>,
}

impl Printer {
    fn print(&mut self, items: &mpsc::Receiver<ScreenItem>) {
        if self.viewer == Viewer::Caller {
            self.write(OutputStream::Stdout, &caller::frame(FrameKind::Started, NOBODY, b""));
        }
        while let Ok(item) = items.recv() {
            match item {
                ScreenItem::Text { rank, stream, bytes, live, done } => {
                    self.show(rank, stream, &bytes, live.as_deref());
                    if let Some(done) = done {
                        self.report(DriverInput::Printed(done));
                    }
                }
                ScreenItem::Returned(Rank(rank), CallResult::Piece(bytes, _place)) => {
                    self.write(
                        OutputStream::Stdout,
                        &caller::frame(FrameKind::Piece, rank, &bytes),
                    );
                }
                ScreenItem::Returned(Rank(rank), CallResult::End) => {
                    self.write(
                        OutputStream::Stdout,
                        &caller::frame(FrameKind::Complete, rank, b""),
                    );
                }
                ScreenItem::End(rank, stream, passing) => {
                    let bytes = self.on_display(stream, |display| match passing {
                        Passing::Through => display.end_live(),
                        Passing::Lines => display.end(rank, stream),
                    });
                    self.write(stream, &bytes.unwrap_or_default());
                }
                ScreenItem::Resized(columns) => {
                    self.on_display(OutputStream::Stdout, |display| display.resize(columns));
                }
                ScreenItem::Note(line) => self.note(&line),
                ScreenItem::Invitation(invitation) => {
                    let text = invitation.to_text();
                    self.write(
                        OutputStream::Stdout,
                        &caller::frame(FrameKind::Invitation, NOBODY, text.as_bytes()),
                    );
                }
                ScreenItem::World(workers) => {
                    let bytes: Vec<u8> =
                        workers.iter().flat_map(|worker| worker.0.to_le_bytes()).collect();
                    self.write(
                        OutputStream::Stdout,
                        &caller::frame(FrameKind::World, NOBODY, &bytes),
                    );
                }
            }
        }
        let last = self.on_display(OutputStream::Stdout, Display::finish);
        self.write(OutputStream::Stdout, &last.unwrap_or_default());
    }

    /// Updates the display, if this stream goes to it.
    fn on_display<T>(
        &mut self,
        stream: OutputStream,
        act: impl FnOnce(&mut Display) -> T,
    ) -> Option<T> {
        let is_display = stream == OutputStream::Stdout || self.stderr_is_display;
        self.display.as_mut().filter(|_| is_display).map(act)
    }

    /// Writes a line from the launcher itself, with its line feed.
    fn note(&mut self, line: &str) {
        let bytes = self.on_display(OutputStream::Stderr, |display| display.print(line.as_bytes()));
        self.write(OutputStream::Stderr, &bytes.unwrap_or_else(|| line.into()));
    }

    fn show(&mut self, rank: Rank, stream: OutputStream, bytes: &[u8], live: Option<&[u8]>) {
        match self.viewer {
            _ if !self.shown.contains(rank) => {}
            Viewer::Terminal => {
                let shown = self.on_display(stream, |display| match live {
                    Some(live) => display.pass_through(live),
                    None => display.show(rank, stream, bytes),
                });
                match shown {
                    Some(shown) => self.write(stream, &shown),
                    None => self.write(stream, bytes),
                }
            }
            Viewer::Caller if bytes.is_empty() => {}
            Viewer::Caller => {
                let kind = if stream == OutputStream::Stdout {
                    FrameKind::Stdout
                } else {
                    FrameKind::Stderr
                };
                self.write(OutputStream::Stdout, &caller::frame(kind, rank.0, bytes));
            }
        }
        if bytes.is_empty() {
            return;
        }
        if let Some(problem) = self.files.as_mut().and_then(|it| it.write(rank, stream, bytes)) {
            self.note(&format!("[ronde] {problem}\n"));
            self.report(DriverInput::OutputLost(OutputKind::Files, problem));
        }
    }

    fn report(&self, news: DriverInput) {
        // A driver that has ended needs no more inputs.
        let _ = self.news.blocking_send(news);
    }

    fn write(&mut self, stream: OutputStream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let (name, output, result) = match stream {
            OutputStream::Stdout => {
                ("standard output", OutputKind::Stdout, write(&mut io::stdout().lock(), bytes))
            }
            OutputStream::Stderr => {
                ("standard error", OutputKind::Stderr, write(&mut io::stderr().lock(), bytes))
            }
        };
        let Err(error) = result else { return };
        tracing::debug!(%error, "{name} could not be written");
        let is_known = self.lost.iter().any(|lost| lost.starts_with(name));
        if error.kind() == io::ErrorKind::BrokenPipe || is_known {
            return;
        }
        let problem = format!("{name} cannot be written: {error}");
        self.lost.push(problem.clone());
        self.report(DriverInput::OutputLost(output, error.to_string()));
        if stream == OutputStream::Stdout {
            let line = format!("[ronde] {problem}; the job continues, but its output is lost\n");
            self.write(OutputStream::Stderr, line.as_bytes());
        }
    }
}

/// Writes everything, even if another process has made the file non-blocking.
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

/// How long to wait before writing to a non-blocking file again.
const PAUSE: Duration = Duration::from_millis(2);
