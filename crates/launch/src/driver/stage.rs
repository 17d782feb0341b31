//! What the driver has around it: the socket of the rendezvous and the ways to those who
//! came there, the screen, the input, and those who come for something else.

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::SocketAddr;

use ronde_control::event::{Happening, JobKind, Output};
use ronde_control::job::{Outcome, Terms};
use ronde_control::status::Status;
use ronde_control::wire::JobKey;
use ronde_control::wire::agent::{AgentToDriver, DriverToAgent, Stream, output_cost};
use ronde_control::{Rank, VERSION, Worker, printable};
use tokio::sync::mpsc;

use super::chronicle::Chronicle;
use super::errand::Returned;
use super::files::Files;
use super::guests::Guests;
use super::hands::Hands;
use super::screen::{Done, Screen, Text, Viewer, Written};
use super::service::Outboxes;
use super::stdin::{self, Stdin};
use super::watchers::{self, Watchers};
use super::{Job, News, service};
use crate::logs::{Lines, Stamp, prefix};
use crate::{LaunchError, machine};

/// Events that an answer to whoever watches shows.
const LAST: usize = 8;

/// The surroundings of a driver.
pub(super) struct Stage {
    pub(super) key: JobKey,
    /// Where hosts may try to reach the rendezvous.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) outboxes: Outboxes,
    pub(super) watchers: Watchers,
    lines: Lines,
    stamp: Stamp,
    screen: Screen,
    stdin: Stdin,
    viewer: Viewer,
    deliveries: Option<std::sync::mpsc::Sender<Vec<u8>>>,
    guests: Guests,
    chronicle: Chronicle,
    kind: JobKind,
    service: tokio::task::JoinHandle<()>,
}

/// What is left of the surroundings when a job is over: those who wait for its last event.
pub(super) struct Remains {
    chronicle: Chronicle,
    /// They are served until the end, and no longer.
    _guests: Guests,
}

impl Remains {
    /// Tells everybody how the job has ended.
    pub(super) async fn ended(self, outcome: &Outcome) {
        let Outcome { code, verdict } = outcome.clone();
        let what = Happening::JobEnded { exit_code: code, verdict };
        if let Some(line) = self.chronicle.finish(what).await {
            // The screen has ended before.
            let _ = writeln!(io::stderr(), "[ronde] {line}");
        }
    }
}

impl Stage {
    /// Opens the rendezvous and starts the threads.
    pub(super) async fn open(job: &Job, news: &mpsc::Sender<News>) -> Result<Stage, LaunchError> {
        let ranks = job.terms.start as usize;
        let all = (!job.terms.outlives_losses()).then_some(ranks);
        let files = job.output.files.as_deref().map(|path| Files::create(path, ranks));
        let files = files.transpose()?;
        let (log, unwritten) = (job.output.event_log.as_deref(), news.clone());
        let chronicle = Chronicle::open(job.terms.kind, log, move |reason| {
            let _ = unwritten.blocking_send(News::OutputLost(Output::EventLog, reason));
        })?;
        let (key, listener, addresses) = job.hosts.open(job).await?;
        tracing::info!(?addresses, ranks, "the rendezvous is open");
        let viewer = match (&job.function, &job.deliveries) {
            (Some(_), None) => Viewer::Caller,
            _ => Viewer::Terminal,
        };
        let printed = news.clone();
        let screen = Screen::start(viewer, files, move |written| {
            let _ = printed.blocking_send(match written {
                Written::Done(done) => News::Printed(done),
                Written::Lost(output, reason) => News::OutputLost(output, reason),
            });
        });
        let stdin = stdin::start(viewer, news.clone()).map_err(machine("start a thread"))?;
        let registration = watchers::register(job, ranks, &listener, &key);
        let service = tokio::spawn(service::run(listener, key.clone(), news.clone()));
        Ok(Stage {
            key,
            addresses,
            outboxes: Outboxes::default(),
            watchers: Watchers::new(registration),
            lines: Lines::default(),
            stamp: Stamp::new(job.output.times),
            screen: screen.map_err(machine("start a thread"))?,
            stdin,
            viewer,
            deliveries: job.deliveries.clone(),
            guests: Guests::new(job.function.clone(), all, news.clone()),
            kind: job.terms.kind,
            chronicle,
            service,
        })
    }

    /// Deals with news that mean the same in every job; gives the others back.
    pub(super) fn on(&mut self, news: News) -> Option<News> {
        match news {
            News::Guest(sealed, greeting) => self.guests.receive(sealed, greeting),
            News::Returned(rank, returned) => self.returned(rank, returned),
            // Whoever has gone meanwhile loses nothing.
            News::Followed(follower) => drop(follower.send(self.chronicle.follow())),
            News::OutputLost(output, reason) => {
                self.happened(Happening::OutputLost { output, reason });
            }
            other => return Some(other),
        }
        None
    }

    fn returned(&self, rank: Rank, returned: Returned) {
        match (&self.deliveries, returned) {
            // Nobody may listen any more; then what comes is for nobody.
            (Some(deliveries), Returned::Piece(bytes, _place)) => drop(deliveries.send(bytes)),
            (Some(_), Returned::End) => {}
            (None, returned) => self.screen.hand_over(rank, returned),
        }
    }

    /// Deals with an agent's words that mean the same in every job; gives the others back. `complains`
    /// is called with each whole line of somebody's standard error.
    pub(super) fn hear(
        &mut self,
        (index, agent): (usize, &Hands),
        message: AgentToDriver,
        complains: impl FnMut(Worker, &str),
    ) -> Option<AgentToDriver> {
        match message {
            AgentToDriver::Output { worker, stream, bytes } => {
                let done = Done { agent: index, cost: output_cost(bytes.len()) };
                let text = self.lines.push(worker, stream, &bytes, self.stamp.text());
                self.read(worker, stream, &text, complains);
                self.show((self.lines.name(worker), stream), text, Some(done));
            }
            AgentToDriver::OutputEnd { worker, stream } => {
                let text = self.lines.end(worker, stream, self.stamp.text());
                self.read(worker, stream, &text, complains);
                self.show((self.lines.name(worker), stream), text, None);
            }
            AgentToDriver::StdinTaken => self.stdin.next(),
            AgentToDriver::Problem { reason } => {
                tracing::warn!(host = agent.host, reason, "an agent has a problem");
            }
            other => return Some(other),
        }
        None
    }

    /// The first process runs: it may have the launcher's input.
    pub(super) fn feed(&self, agent: &Hands) {
        match self.viewer {
            Viewer::Terminal => self.stdin.next(),
            Viewer::Caller => agent.tell(DriverToAgent::StdinEnd),
        }
    }

    /// From here on the lines of a worker say that they are those of `rank`.
    pub(super) fn rename(&mut self, worker: Worker, rank: Rank) {
        self.lines.rename(worker, rank);
    }

    /// Tells the user how to go on.
    pub(super) fn tell(&self, text: &str) {
        let text = printable(text);
        tracing::info!("{text}");
        self.screen.note(format!("[ronde] {text}\n"));
    }

    /// Something happened: whoever wants to know is told.
    pub(super) fn happened(&mut self, what: Happening) {
        if let Some(line) = self.chronicle.record(what) {
            tracing::info!("{line}");
            self.screen.note(format!("[ronde] {line}\n"));
        }
    }

    /// The job begins.
    pub(super) fn started(&mut self, job: &Job) {
        let Terms { kind, start, min, max, .. } = job.terms;
        let word = |word: &OsString| word.to_string_lossy().into_owned();
        self.happened(Happening::JobStarted {
            version: VERSION.into(),
            kind,
            ranks: start,
            min,
            max,
            command: job.command.iter().map(word).collect(),
        });
    }

    /// Answers those who have asked how the job stands.
    pub(super) fn answer(&mut self, status: Status) {
        let events = self.chronicle.last(LAST);
        self.watchers.answer(&Status { events, ..status });
    }

    /// Tells the caller of `horovod.run` whose results count, in order.
    pub(super) fn tell_world(&self, workers: &[Worker]) {
        if self.viewer == Viewer::Caller && self.kind == JobKind::Elastic {
            self.screen.tell_world(workers);
        }
    }

    fn read(
        &mut self,
        worker: Worker,
        stream: Stream,
        text: &[u8],
        mut complains: impl FnMut(Worker, &str),
    ) {
        if stream == Stream::Stderr {
            let prefix =
                format!("{}{}", self.stamp.text(), prefix(self.lines.name(worker), stream));
            for line in String::from_utf8_lossy(text).split(['\n', '\r']) {
                complains(worker, line.strip_prefix(&prefix).unwrap_or(line));
            }
        }
    }

    fn show(&self, (rank, stream): (Rank, Stream), bytes: Vec<u8>, done: Option<Done>) {
        self.screen.show(Text { rank, stream, bytes, done });
    }

    /// Shows what is left and gives the screen, and what waits for the end.
    pub(super) fn close(mut self) -> (Screen, Remains) {
        self.service.abort();
        for (rank, stream, bytes) in self.lines.end_all(self.stamp.text()) {
            self.show((rank, stream), bytes, None);
        }
        (self.screen, Remains { chronicle: self.chronicle, _guests: self.guests })
    }
}

/// What goes to an agent of what came from standard input.
pub(super) fn input(piece: Option<Vec<u8>>) -> DriverToAgent {
    match piece {
        Some(bytes) => DriverToAgent::Stdin { bytes },
        None => DriverToAgent::StdinEnd,
    }
}
