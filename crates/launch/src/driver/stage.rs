//! What the driver has around it: the socket of the rendezvous and the ways to those who
//! came there, the screen, the input, and those who come for something else.

use std::net::SocketAddr;

use ronde_control::event::{Happening, JobKind};
use ronde_control::wire::JobKey;
use ronde_control::wire::agent::{AgentToDriver, DriverToAgent, Stream, output_cost};
use ronde_control::{Rank, Worker, printable};
use tokio::sync::mpsc;

use super::errand::Returned;
use super::files::Files;
use super::guests::Guests;
use super::hands::Hands;
use super::screen::{Done, Screen, Text, Viewer};
use super::service::Outboxes;
use super::stdin::{self, Stdin};
use super::watchers::{self, Watchers};
use super::{Job, News, service};
use crate::logs::{Lines, Stamp, prefix};
use crate::{LaunchError, machine};

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
    kind: JobKind,
    service: tokio::task::JoinHandle<()>,
}

impl Stage {
    /// Opens the rendezvous and starts the threads.
    pub(super) async fn open(job: &Job, news: &mpsc::Sender<News>) -> Result<Stage, LaunchError> {
        let ranks = job.terms.start as usize;
        let all = (!job.terms.outlives_losses()).then_some(ranks);
        let files = job.output.files.as_deref().map(|path| Files::create(path, ranks));
        let files = files.transpose()?;
        let (key, listener, addresses) = job.hosts.open(job).await?;
        tracing::info!(?addresses, ranks, "the rendezvous is open");
        let viewer = match (&job.function, &job.deliveries) {
            (Some(_), None) => Viewer::Caller,
            _ => Viewer::Terminal,
        };
        let printed = news.clone();
        let screen = Screen::start(viewer, files, move |done| {
            let _ = printed.blocking_send(News::Printed(done));
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
            service,
        })
    }

    /// Deals with news that mean the same in every job; gives the others back.
    pub(super) fn on(&mut self, news: News) -> Option<News> {
        match news {
            News::Guest(sealed, greeting) => self.guests.receive(sealed, greeting),
            News::Returned(rank, returned) => self.returned(rank, returned),
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
    #[expect(clippy::needless_pass_by_value, reason = "the stream of events will own it")]
    pub(super) fn happened(&mut self, what: Happening) {
        if let Some(line) = what.line().filter(|_| what.is_shown_in(self.kind)) {
            let line = printable(&line);
            tracing::info!("{line}");
            self.screen.note(format!("[ronde] {line}\n"));
        }
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

    /// Shows what is left and gives the screen.
    pub(super) fn close(mut self) -> Screen {
        self.service.abort();
        for (rank, stream, bytes) in self.lines.end_all(self.stamp.text()) {
            self.show((rank, stream), bytes, None);
        }
        self.screen
    }
}

/// What goes to an agent of what came from standard input.
pub(super) fn input(piece: Option<Vec<u8>>) -> DriverToAgent {
    match piece {
        Some(bytes) => DriverToAgent::Stdin { bytes },
        None => DriverToAgent::StdinEnd,
    }
}
