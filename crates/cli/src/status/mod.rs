//! `ronde status`: shows the status of this user's running jobs on this machine, live or once.

mod json;
mod table;

use std::io::{self, IsTerminal, Write};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ronde_control::event::{JobEvent, JobEventKind};
use ronde_control::printable;
use ronde_control::status::{RankState, Status};
use ronde_launch::private::PrivateDirs;
use ronde_launch::registry::{self, Entry};
use ronde_launch::watcher::{EventStream, Watcher};
use serde_json::json;

use crate::horovodrun::{report_error, written};
use crate::messages::{USAGE, UserError, print_stderr};
use crate::tables::terminal_width;

/// Show the status of your running jobs on this machine
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Process ID of the job's `horovodrun`; if omitted and you have several jobs, they are listed
    #[arg(value_name = "JOB")]
    job: Option<u32>,

    /// Print the status once instead of every second
    #[arg(long)]
    once: bool,

    /// Print the latest events, then each new one, until the job ends
    #[arg(long, conflicts_with = "once")]
    follow: bool,

    /// Print JSON, one object per line for each update or event
    #[arg(long)]
    json: bool,
}

/// Interval between two updates, and between the two queries that rates need with `--once`.
const PERIOD: Duration = Duration::from_secs(1);
const SHORT: Duration = Duration::from_millis(500);

/// The status of a job, and the previous one with the time between them.
struct Snapshot<'a> {
    job: &'a Entry,
    status: Status,
    before: Option<(Status, Duration)>,
}

pub(crate) fn run(arguments: &Arguments) -> u8 {
    let jobs = registry::jobs(&PrivateDirs::here());
    match choose(&jobs, arguments.job) {
        Ok(Some(job)) => watch(job, arguments).unwrap_or_else(|code| code),
        Ok(None) => list(&jobs, arguments),
        Err((error, code)) => report_error(&error, code),
    }
}

/// The job to show; `None` if there are several and the user named none.
fn choose(jobs: &[Entry], wanted: Option<u32>) -> Result<Option<&Entry>, (UserError, u8)> {
    match (jobs, wanted) {
        ([], _) => {
            let hint =
                "start one with `horovodrun`; jobs of other users and on other hosts are not shown";
            Err((UserError::new("you have no running jobs on this machine", hint), 1))
        }
        ([job], None) => Ok(Some(job)),
        (_, None) => Ok(None),
        (jobs, Some(pid)) => match jobs.iter().find(|job| job.pid == pid) {
            Some(job) => Ok(Some(job)),
            None => {
                let all: Vec<String> = jobs.iter().map(|job| job.pid.to_string()).collect();
                let hint = format!("running jobs: {}", all.join(", "));
                Err((UserError::new(format!("there is no job {pid}"), hint), USAGE))
            }
        },
    }
}

fn list(jobs: &[Entry], arguments: &Arguments) -> u8 {
    if arguments.json {
        let all: Vec<_> = jobs.iter().map(json::job).collect();
        return show(&format!("{}\n", json!(all)), false).map_or_else(|code| code, |()| 0);
    }
    if let Err(code) = show(&table::jobs(jobs, terminal_width()), false) {
        return code;
    }
    print_stderr(&format!("\nhint: `ronde status {}` shows the first one", jobs[0].pid));
    0
}

fn watch(job: &Entry, arguments: &Arguments) -> Result<u8, u8> {
    let lost = |error: io::Error| {
        let error = format!("job {} does not respond: {error}", job.pid);
        report_error(&UserError::new(error, "it may have just ended; run `ronde status` again"), 1)
    };
    let mut watcher = Watcher::connect(job).map_err(lost)?;
    if arguments.follow {
        return follow(watcher.follow().map_err(lost)?, arguments, lost);
    }
    let status = watcher.ask().map_err(lost)?;
    let mut snapshot = Snapshot { job, status, before: None };
    let mut at = Instant::now();
    let clear = io::stdout().is_terminal() && !arguments.once && !arguments.json;
    if !arguments.once {
        snapshot.show(arguments, clear)?;
    }
    loop {
        sleep(if arguments.once { SHORT } else { PERIOD });
        let Ok(status) = watcher.ask() else {
            snapshot.end();
            if arguments.once || clear {
                snapshot.show(arguments, clear)?;
            }
            print_stderr("the job has ended");
            return Ok(0);
        };
        let passed = at.elapsed();
        at = Instant::now();
        let before = std::mem::replace(&mut snapshot.status, status);
        snapshot.before = Some((before, passed));
        snapshot.show(arguments, clear)?;
        if arguments.once {
            return Ok(0);
        }
    }
}

/// Prints events as they arrive, until the last one.
fn follow(
    mut events: EventStream,
    arguments: &Arguments,
    lost: impl Fn(io::Error) -> u8,
) -> Result<u8, u8> {
    loop {
        let (event, missed) = events.wait().map_err(&lost)?;
        if missed > 0 {
            print_stderr(&format!("missed {missed} events, which arrived too fast"));
        }
        // An event of a kind that this version does not know is printed as JSON.
        let text = match arguments.json {
            true => event.clone(),
            false => table::event(&event).unwrap_or_else(|| event.clone()),
        };
        show(&format!("{text}\n"), false)?;
        let event: Option<JobEvent> = serde_json::from_str(&event).ok();
        if event.is_some_and(|event| matches!(event.what, JobEventKind::JobEnded { .. })) {
            return Ok(0);
        }
    }
}

impl Snapshot<'_> {
    fn show(&self, arguments: &Arguments, clear: bool) -> Result<(), u8> {
        match arguments.json {
            true => show(&format!("{}\n", json::snapshot(self)), clear),
            false => show(&table::snapshot(self, terminal_width()), clear),
        }
    }

    /// Marks all ranks as ended.
    fn end(&mut self) {
        for one in &mut self.status.ranks {
            if !matches!(one.state, RankState::Ended(_)) {
                one.state = RankState::Ended("ended".into());
            }
        }
    }

    /// Collectives and bytes of a rank per second since the previous status.
    fn rates(&self, index: usize) -> Option<(f64, f64)> {
        let (before, passed) = self.before.as_ref()?;
        let old = before.ranks.get(index)?.report.as_ref()?;
        let new = self.status.ranks.get(index)?.report.as_ref()?;
        let per_second = |new: u64, old: u64| new.saturating_sub(old) as f64 / passed.as_secs_f64();
        Some((per_second(new.collectives, old.collectives), per_second(new.bytes, old.bytes)))
    }
}

/// Writes to standard output; fails with an exit code, for example if the reader is gone.
fn show(text: &str, clear: bool) -> Result<(), u8> {
    let clear = if clear { "\x1b[H\x1b[2J" } else { "" };
    let mut out = io::stdout().lock();
    let text = format!("{clear}{}", printable(text));
    let result = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    result.map_err(|error| written(Err(error)))
}
