//! What the driver works with: the rendezvous socket and the connections accepted on it, the
//! screen, the input, and connections that come for something else.

use std::ffi::OsString;
use std::net::SocketAddr;

use ronde_control::event::{JobEventKind, OutputKind};
use ronde_control::job::JobSpec;
use ronde_control::wire::JobKey;
use ronde_control::wire::agent::OutputStream;
use ronde_control::{Rank, VERSION, printable};
use tokio::sync::mpsc;

use super::event_bus::EventBus;
use super::files::OutputFiles;
use super::screen::{Screen, ScreenItem, Viewer};
use super::service::Outboxes;
use super::side_connections::SideConnections;
use super::stdin::Stdin;
use super::watchers::{self, Reply};
use super::{DriverInput, Job, service};
use crate::logs::{Lines, Stamp};
use crate::private::PrivateFile;
use crate::{LaunchError, machine};

/// The driver's resources.
pub(super) struct DriverContext {
    pub(super) key: JobKey,
    /// The addresses at which hosts may try to reach the rendezvous.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) outboxes: Outboxes,
    /// Pending requests for the job's status.
    pub(super) askers: Vec<Reply>,
    pub(super) lines: Lines,
    pub(super) stamp: Stamp,
    pub(super) screen: Screen,
    pub(super) stdin: Stdin,
    pub(super) viewer: Viewer,
    pub(super) side_connections: SideConnections,
    pub(super) event_bus: EventBus,
    /// Watchers can find the job as long as this file exists.
    _registration: Option<PrivateFile>,
    service: tokio::task::JoinHandle<()>,
}

impl DriverContext {
    /// Opens the rendezvous and starts the threads.
    pub(super) async fn open(
        job: &Job,
        news: &mpsc::Sender<DriverInput>,
    ) -> Result<DriverContext, LaunchError> {
        let ranks = job.job_spec.start as usize;
        let all = (!job.job_spec.outlives_losses()).then_some(ranks);
        let files = job.output.files.as_deref().map(|path| OutputFiles::create(path, ranks));
        let files = files.transpose()?;
        let (log, unwritten) = (job.output.event_log.as_deref(), news.clone());
        let event_bus = EventBus::open(job.job_spec.kind, log, move |reason| {
            let _ = unwritten.blocking_send(DriverInput::OutputLost(OutputKind::EventLog, reason));
        })?;
        let (key, listener, addresses) = job.hosts.open(job)?;
        let at: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        tracing::info!("waiting for {ranks} ranks at {}", at.join(", "));
        let viewer = match (&job.function, &job.deliveries) {
            (Some(_), None) => Viewer::Caller,
            _ => Viewer::Terminal,
        };
        let screen = Screen::start(viewer, &job.output.screen, files, news.clone());
        let screen = screen.map_err(machine("start a thread"))?;
        let stdin = Stdin::start(news.clone()).map_err(machine("start a thread"))?;
        if viewer == Viewer::Caller {
            stdin.next();
        }
        let registration = watchers::register(job, &listener, &key);
        let service = tokio::spawn(service::run(listener, key.clone(), news.clone()));
        Ok(DriverContext {
            key,
            addresses,
            outboxes: Outboxes::default(),
            askers: Vec::new(),
            lines: Lines::default(),
            stamp: Stamp::new(job.output.times),
            screen,
            stdin,
            viewer,
            side_connections: SideConnections::new(job.function.clone(), all, news.clone()),
            event_bus,
            _registration: registration,
            service,
        })
    }

    /// Prints a message for the user, and logs it.
    pub(super) fn tell(&self, text: &str) {
        let text = printable(text);
        tracing::info!("{text}");
        self.screen.show(ScreenItem::Note(format!("[ronde] {text}\n")));
    }

    /// Records an event, and prints it if the user should see it.
    pub(super) fn happened(&mut self, what: JobEventKind) {
        if let Some(line) = self.event_bus.record(what) {
            self.tell(&line);
        }
    }

    /// Records the start of the job.
    pub(super) fn started(&mut self, job: &Job) {
        let JobSpec { kind, start, min, max, .. } = job.job_spec;
        let word = |word: &OsString| word.to_string_lossy().into_owned();
        self.happened(JobEventKind::JobStarted {
            version: VERSION.into(),
            kind,
            ranks: start,
            min,
            max,
            command: job.command.iter().map(word).collect(),
        });
    }

    /// Shows the remaining output; returns what must still be waited for, and the side connections,
    /// which are served until then. What `through` wrote to its terminal has already been shown.
    pub(super) fn close(mut self, through: Option<Rank>) -> (Screen, EventBus, SideConnections) {
        self.service.abort();
        for (rank, stream, bytes) in self.lines.end_all(self.stamp.text()) {
            let is_shown = through == Some(rank) && stream == OutputStream::Stdout;
            let live = is_shown.then(Vec::new);
            self.screen.show(ScreenItem::Text { rank, stream, bytes, live, done: None });
        }
        (self.screen, self.event_bus, self.side_connections)
    }
}
