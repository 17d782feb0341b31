//! The driver: starts the agents, holds the rendezvous, shows the output, and ends the job.
//!
//! One loop takes all news in the order they come and asks the decisions in `ronde-control` what they
//! mean. There are two kinds of jobs, each with its own driver in that loop: those whose ranks are the
//! same from the beginning to the end (`fixed`), and those whose ranks come and go (`elastic`). What
//! both do in the same way lies around them: the way to a rank's screen and input (`stage`), to the
//! agents (`hands`), to the ranks themselves (`service`), and how ranks are made to end (`ending`).

mod chronicle;
mod cluster;
pub mod delegated;
pub mod elastic;
pub mod ending;
mod environment;
mod errand;
mod files;
mod fixed;
mod guests;
pub(crate) mod hands;
mod screen;
pub mod service;
mod stage;
pub(crate) mod start;
mod stdin;
mod watchers;

use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ronde_control::rendezvous::Time;
use ronde_control::settings;
use ronde_control::verdict::Outcome;
use ronde_control::wire::Greeting;
use ronde_control::wire::agent::AgentToDriver;
use ronde_control::{Rank, event, printable};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::hosts::{Host, Slot};
use crate::logs::Times;
use crate::private::Places;
use crate::reach::{Trouble, Way};
use crate::signals::Signals;
use crate::wire::Sealed;
use crate::{LaunchError, machine};
use chronicle::Follower;
use errand::Returned;
use screen::{Done, Screen};
use service::Heard;
use stage::Remains;
use watchers::Answer;

/// News that may wait for the driver; whoever brings more waits.
const NEWS: usize = 1024;

/// What a job is told whose caller has gone.
const HANG_UP: i32 = 1;

/// A job, ready to run.
#[derive(Clone, Debug)]
pub struct Job {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Who runs it, and where.
    pub crew: Crew,
    /// The environment that all ranks inherit.
    pub env: Vec<(OsString, OsString)>,
    /// Where all ranks run.
    pub cwd: PathBuf,
    /// This executable, which is also the agent.
    pub program: PathBuf,
    /// Where the ranks meet if all hosts are this machine; otherwise all addresses are tried.
    pub listen: IpAddr,
    /// The interfaces by which hosts may reach each other; all if there are none.
    pub interfaces: Vec<String>,
    /// How long it may take until all hosts have found each other.
    pub start_timeout: Duration,
    /// What becomes of the ranks' output beside the screen.
    pub output: Output,
    /// Where those who want to watch the job find it, if they may.
    pub registry: Option<Places>,
    /// The function that all ranks call, if `horovod.run` starts this job.
    pub function: Option<Arc<[u8]>>,
    /// Where goes what ranks deliver, piece by piece, if this process itself wants it; then output is
    /// shown as ever.
    pub deliveries: Option<std::sync::mpsc::Sender<Vec<u8>>>,
}

impl Job {
    /// How long ranks may wait for one that does not run, if the user has set that.
    fn stall_shutdown(&self) -> Option<Duration> {
        settings::stall_shutdown(|name| {
            let (_, value) = self.env.iter().rev().find(|(known, _)| known == name)?;
            value.to_str().map(str::to_owned)
        })
    }
}

/// The ranks of a job.
#[derive(Clone, Debug)]
pub enum Crew {
    /// They are the same from the beginning to the end.
    Fixed(Fixed),
    /// They come and go.
    Elastic(elastic::Crew),
}

/// Ranks that are the same from the beginning to the end.
#[derive(Clone, Debug)]
pub struct Fixed {
    /// Where each rank sits, in rank order.
    pub slots: Vec<Slot>,
    /// The hosts in the order of their ranks, and how each is reached.
    pub hosts: Vec<(String, Way)>,
    /// How long a gathering of the ranks may take.
    pub join_timeout: Duration,
}

/// What becomes of the ranks' output beside the screen.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// The directory where it is kept too.
    pub files: Option<PathBuf>,
    /// Whether lines begin with the time.
    pub times: Times,
    /// The file where the job's events are written as lines of JSON.
    pub event_log: Option<PathBuf>,
}

/// Everything the driver can learn.
pub(crate) enum News {
    /// Something happened at the rendezvous.
    Rendezvous(Heard),
    /// An agent is there; this is its version.
    Hello(usize, String),
    /// An agent said something.
    Agent(usize, AgentToDriver),
    /// An agent has ended, in this way.
    AgentGone(usize, Trouble),
    /// Nothing is heard any more from a host, or its lifeline was cut.
    Silent(usize, io::Error),
    /// Output has been written.
    Printed(Done),
    /// Standard input, or its end.
    Stdin(Option<Vec<u8>>),
    /// Somebody with the key has come for something else than the rendezvous.
    Guest(Sealed, Greeting),
    /// A rank has returned something to the caller of `horovod.run`.
    Returned(Rank, Returned),
    /// That caller has gone.
    Orphaned,
    /// Somebody wants to know how the job stands.
    Asked(Answer),
    /// Somebody wants to know what happens from now on.
    Followed(Follower),
    /// Something that the job writes could not be written.
    OutputLost(event::Output, String),
    /// These are the hosts of an elastic job now, or why that is not known.
    Hosts(Result<Vec<(Host, Way)>, String>),
}

impl From<Heard> for News {
    fn from(heard: Heard) -> News {
        match heard {
            Heard::Silent(host, error) => News::Silent(host as usize, error),
            Heard::Guest(sealed, greeting) => News::Guest(sealed, greeting),
            heard => News::Rendezvous(heard),
        }
    }
}

/// What the loop has a job's driver do.
trait Driver {
    /// Takes in some news.
    fn on(&mut self, news: News, now: Time);

    /// The launcher was sent a signal.
    fn signalled(&mut self, signal: i32, now: Time);

    /// Time has passed.
    fn tick(&mut self, now: Time);

    /// When something must happen even if nothing else does.
    fn next_wakeup(&self) -> Option<Time>;

    /// Whether nothing is left of the job.
    fn is_over(&self) -> bool;

    /// How the job ended, and what is still open of its surroundings; the screen only if it is worth
    /// waiting for what it has still to show.
    fn finish(self) -> (Outcome, Option<Screen>, Remains);
}

/// Runs a job to its end.
pub async fn run(job: &Job, signals: Signals) -> Result<Outcome, LaunchError> {
    let (sender, news) = mpsc::channel(NEWS);
    Ok(match &job.crew {
        Crew::Fixed(crew) => {
            let driver = fixed::Driver::start(job, crew, &sender).await?;
            conduct(driver, news, signals).await
        }
        Crew::Elastic(crew) => {
            let driver = elastic::Driver::start(job, crew, &sender).await?;
            conduct(driver, news, signals).await
        }
    })
}

async fn conduct(
    mut driver: impl Driver,
    mut news: mpsc::Receiver<News>,
    mut signals: Signals,
) -> Outcome {
    let start = Instant::now();
    driver.tick(start.elapsed());
    while !driver.is_over() {
        let wakeup = driver.next_wakeup().map(|time| start + time);
        tokio::select! {
            Some(item) = news.recv() => match item {
                News::Orphaned => driver.signalled(HANG_UP, start.elapsed()),
                item => driver.on(item, start.elapsed()),
            },
            signal = signals.next() => driver.signalled(signal, start.elapsed()),
            () = sleep_until(wakeup.unwrap_or(start)), if wakeup.is_some() => {}
        }
        driver.tick(start.elapsed());
    }
    while let Ok(item) = news.try_recv() {
        driver.on(item, start.elapsed());
    }
    // The threads must not wait for a loop that has ended.
    drop(news);
    let (mut outcome, screen, remains) = driver.finish();
    // It quotes what ranks, hosts and scripts have said.
    outcome.verdict.text = outcome.verdict.text.map(|text| printable(&text).into_owned());
    if let Some(screen) = screen {
        tokio::select! {
            lost = tokio::task::spawn_blocking(|| screen.finish()) => {
                outcome = outcome.without(&lost.unwrap_or_default());
            }
            _ = signals.next() => {}
        }
    }
    tokio::select! {
        () = remains.ended(&outcome) => {}
        _ = signals.next() => {}
    }
    outcome
}

pub(crate) fn entropy() -> Result<[u8; 32], LaunchError> {
    let mut bytes = [0u8; 32];
    let count = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match count {
        Ok(32) => Ok(bytes),
        Ok(_) => Err(machine("draw random numbers")(std::io::Error::other("too few were given"))),
        Err(error) => Err(machine("draw random numbers")(error.into())),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
