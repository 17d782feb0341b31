//! A job of `horovod.run` whose ranks another launcher starts: `horovod.run(use_mpi=True)`.
//!
//! 1. This process listens, with its own key, and has `mpirun` start the ranks. The address and the
//!    key reach them in their environment, which `mpirun` passes on like MPI's own variables.
//! 2. Each rank fetches the function from this process and delivers its result here. The ranks find
//!    each other over MPI, as under a bare `mpirun`: this process is not their rendezvous.
//! 3. The output of `mpirun` goes to the caller. Its exit code is the job's.
//!
//! `mpirun` ends its ranks when it is asked to end, so that is done when the caller or this process
//! goes away. It is also asked to end when a rank has delivered an exception, because MPICH's
//! `mpirun` does not end on its own while ranks on other hosts wait in `MPI_Finalize` for the
//! failed one.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use ronde_control::event::{EndReason, Verdict};
use ronde_control::job::JobOutcome;
use ronde_control::job::ending::{Ending, ShutdownStep};
use ronde_control::settings::HostNetwork;
use ronde_control::wire::agent::{Exit, OutputStream, signal_name};
use ronde_control::{Rank, settings, to_hex};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::remote_call::CallResult;
use super::screen::{Screen, ScreenItem, Viewer, WindowCredit};
use super::side_connections::SideConnections;
use super::start::{self, Span};
use super::stdin::Stdin;
use super::{DriverInput, NEWS, ScreenOptions, entropy, service};
use crate::caller::{NOBODY, RAISED};
use crate::delegate::LauncherCommand;
use crate::signals::Signals;
use crate::supervise::{self, MARK, Scope};
use crate::{LaunchError, hidden, machine, new_key};

/// How many bytes of output the caller may have left unread.
const WINDOW: usize = 1 << 20;

/// The most bytes read at once.
const PIECE: usize = 64 << 10;

/// How long to wait for the last output once the other launcher has ended.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

const TERMINATE: i32 = 15;
const KILL: i32 = 9;

/// A job that another launcher runs for `horovod.run`.
#[derive(Clone, Debug)]
pub struct Delegated {
    /// The launcher's command line.
    pub line: LauncherCommand,
    /// The function that all ranks call.
    pub function: Arc<[u8]>,
    /// Number of ranks.
    pub ranks: usize,
    /// Whether the job runs on this machine only or on several hosts.
    pub span: Span,
    /// The network interfaces on which ranks may connect; all if empty.
    pub interfaces: Vec<String>,
    /// How this machine can be reached.
    pub network: HostNetwork,
    /// Path of this executable.
    pub program: PathBuf,
}

/// The variables that the launcher must pass on to the ranks; they are set when the job starts.
pub const PASSED_ON: [&str; 3] =
    [settings::RONDE_CALL_ADDRESSES.name, settings::RONDE_CALL_KEY.name, MARK];

/// Runs the job to its end.
pub async fn run(job: &Delegated, signals: Signals) -> Result<JobOutcome, LaunchError> {
    let key = new_key()?;
    let alone = std::net::Ipv4Addr::LOCALHOST.into();
    let (listener, addresses) = start::listen(job.span, alone, &job.interfaces, &job.network)?;
    let (sender, news) = mpsc::channel(NEWS);
    let mark = to_hex(&entropy::<8>()?);
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let mut command = Command::new(&job.program);
    command
        .arg(hidden::DELEGATE)
        .arg(&mark)
        .arg(std::process::id().to_string())
        .arg(&job.line.program)
        .args(&job.line.arguments)
        .env_clear()
        .envs(job.line.env.iter().map(|(name, value)| (name, value)))
        .envs(PASSED_ON.into_iter().zip([addresses.join(","), key.to_hex(), mark.clone()]))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().map_err(machine("start another launcher"))?;
    let window = Arc::new(Semaphore::new(WINDOW));
    let screen = Screen::start(Viewer::Caller, &ScreenOptions::default(), None, sender.clone());
    let screen = screen.map_err(machine("start a thread"))?;
    let caller = Stdin::start(sender.clone()).map_err(machine("start a thread"))?;
    caller.next();
    let service = tokio::spawn(service::run(listener, key, sender.clone()));
    let side_connections =
        SideConnections::new(Some(job.function.clone()), Some(job.ranks), sender);
    let name = job.line.program.to_string_lossy().into_owned();
    let (screen, raised) = (Arc::new(screen), HashMap::new());
    let running = DelegatedRun { name, mark, screen, side_connections, window, raised };
    let outcome = running.run(child, news, signals).await;
    drop(caller);
    service.abort();
    Ok(outcome)
}

struct DelegatedRun {
    name: String,
    mark: String,
    screen: Arc<Screen>,
    side_connections: SideConnections,
    window: Arc<Semaphore>,
    /// Whether each rank's result is an exception.
    raised: HashMap<Rank, bool>,
}

impl DelegatedRun {
    async fn run(
        mut self,
        mut child: Child,
        mut news: mpsc::Receiver<DriverInput>,
        mut signals: Signals,
    ) -> JobOutcome {
        let mut pipes = JoinSet::new();
        if let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) {
            pipes.spawn(pass_on(
                stdout,
                OutputStream::Stdout,
                self.screen.clone(),
                self.window.clone(),
            ));
            pipes.spawn(pass_on(
                stderr,
                OutputStream::Stderr,
                self.screen.clone(),
                self.window.clone(),
            ));
        }
        let start = Instant::now();
        let (mut ending, mut received) = (Ending::default(), None);
        let status = loop {
            let wakeup = ending.next_wakeup().map(|time| start + time);
            let step = tokio::select! {
                status = child.wait() => break status.ok(),
                Some(item) = news.recv() => match item {
                    DriverInput::Stdin(None) => ending.signalled(TERMINATE, start.elapsed()),
                    item => {
                        if self.on(item) {
                            ending.failed(start.elapsed());
                        }
                        None
                    }
                },
                signal = signals.next() => {
                    received.get_or_insert(signal);
                    ending.signalled(signal, start.elapsed())
                }
                () = sleep_until(wakeup.unwrap_or(start)), if wakeup.is_some() => {
                    ending.tick(start.elapsed())
                }
            };
            match step {
                Some(ShutdownStep::Send(signal)) => self.send(&child, signal),
                Some(ShutdownStep::GiveUp) => break None,
                None => {}
            }
        };
        // Leave nothing of the job on this machine, even if its launcher was killed.
        supervise::sweep(&self.mark, Scope::Marked);
        let _ = timeout(LAST_OUTPUT, async {
            while !pipes.is_empty() {
                tokio::select! {
                    _ = pipes.join_next() => {}
                    Some(item) = news.recv() => { self.on(item); }
                }
            }
        })
        .await;
        pipes.shutdown().await;
        while let Ok(item) = news.try_recv() {
            self.on(item);
        }
        drop(news);
        let exit = status.map(|status| match (status.code(), status.signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, signal) => Exit::Signal(signal.unwrap_or(KILL)),
        });
        if let Some(screen) = Arc::into_inner(self.screen) {
            let _ = tokio::task::spawn_blocking(|| screen.finish()).await;
        }
        outcome(&self.name, exit, received)
    }

    /// Handles an input; returns whether a rank has just finished delivering an exception to the
    /// caller.
    fn on(&mut self, news: DriverInput) -> bool {
        match news {
            DriverInput::SideConnection(sealed, greeting) => {
                self.side_connections.receive(sealed, greeting);
            }
            DriverInput::Returned(rank, returned) => {
                let first = match &returned {
                    CallResult::Piece(bytes, _) => bytes.first() == Some(&RAISED),
                    CallResult::End => false,
                };
                let raised = *self.raised.entry(rank).or_insert(first);
                let failed = raised && matches!(returned, CallResult::End);
                self.screen.show(ScreenItem::Returned(rank, returned));
                return failed;
            }
            DriverInput::Printed(done) => self.window.add_permits(done.cost as usize),
            // Other requests have no one to answer them here, and output that cannot be written is
            // reported at the end.
            _ => {}
        }
        false
    }

    fn send(&self, child: &Child, signal: i32) {
        supervise::signal_child(child, signal);
        if signal == KILL {
            supervise::sweep(&self.mark, Scope::Marked);
        }
    }
}

/// What to report to the caller, worded as in Horovod.
fn outcome(name: &str, exit: Option<Exit>, received: Option<i32>) -> JobOutcome {
    let (code, how) = match (received, exit) {
        (Some(signal), _) => {
            (Exit::Signal(signal).code(), format!(": stopped by {}", signal_name(signal)))
        }
        (None, Some(Exit::Code(0))) => return JobOutcome::well(),
        (None, Some(Exit::Signal(signal))) => {
            (Exit::Signal(signal).code(), format!(": it was killed by {}", signal_name(signal)))
        }
        (None, Some(exit)) => (exit.code(), String::new()),
        (None, None) => (1, ": how it ended is unknown".to_owned()),
    };
    let text = format!("{name} failed with exit code {code}{how}\n");
    let reason = if received.is_some() { EndReason::Interrupted } else { EndReason::RankFailed };
    let verdict = Verdict { signal: received, ..Verdict::of(reason, Some(text)) };
    JobOutcome { code, verdict }
}

/// Forwards a pipe until end of file, no faster than the caller reads.
async fn pass_on(
    mut pipe: impl AsyncRead + Unpin,
    stream: OutputStream,
    screen: Arc<Screen>,
    window: Arc<Semaphore>,
) {
    let mut buffer = vec![0; PIECE];
    loop {
        let Ok(count @ 1..) = pipe.read(&mut buffer).await else { return };
        let Ok(permits) = window.acquire_many(count as u32).await else { return };
        permits.forget();
        let done = Some(WindowCredit { agent: 0, cost: count as u32 });
        let bytes = buffer[..count].to_vec();
        screen.show(ScreenItem::Text { rank: Rank(NOBODY), stream, bytes, live: None, done });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_is_reported_in_horovods_words() {
        for (exit, received, code, text) in [
            (Some(Exit::Code(3)), None, 3, "mpirun failed with exit code 3\n"),
            (
                Some(Exit::Signal(9)),
                None,
                137,
                "mpirun failed with exit code 137: it was killed by signal 9 (SIGKILL)\n",
            ),
            (
                Some(Exit::Code(1)),
                Some(2),
                130,
                "mpirun failed with exit code 130: stopped by signal 2 (SIGINT)\n",
            ),
            (None, None, 1, "mpirun failed with exit code 1: how it ended is unknown\n"),
        ] {
            let outcome = outcome("mpirun", exit, received);
            assert_eq!((outcome.code, outcome.verdict.text.as_deref()), (code, Some(text)));
        }
        assert_eq!(outcome("mpirun", Some(Exit::Code(0)), None).verdict.text, None);
    }
}
