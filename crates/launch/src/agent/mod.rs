//! The agent of a host: starts the workers that the driver asks for, forwards their output, reports
//! how they ended, and makes sure that none of their processes outlives the job.
//!
//! The driver makes all decisions, such as when to signal and when to end. The agent ends the
//! workers on its own only when the driver goes away or this process is asked to stop: SIGTERM
//! first, SIGKILL [`GRACE`] later. If the workers can leave cleanly, the driver makes the agent
//! wait before that.

mod condition;
mod confinement;
mod examine;
pub(crate) mod gpus;
pub mod join;
mod path_check;
mod pipe;
mod receive;
mod speed_test;
pub mod standing;
mod terminal;
mod worker;

pub(crate) use pipe::read_frame;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ronde_control::Worker;
use ronde_control::wire::agent::{AgentToDriver, DriverToAgent, Exit, OUTPUT_WINDOW, WorkerSpec};
use ronde_control::wire::copy::{CopyAnswer, CopyCommand};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, getppid, kill_process,
    kill_process_group, set_child_subreaper, wait, waitid, waitpid,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use path_check::PathCheckServer;
use receive::FileReceiver;

use crate::doctor::unix_micros;
use crate::lifeline;
use crate::supervise::memory::out_of_memory_kills;
use crate::supervise::{self, Scope};

/// How long workers have to exit on their own once the driver is gone.
pub const GRACE: Duration = Duration::from_secs(1);

/// How long processes that workers left behind have to exit on their own.
const LEFTOVER_GRACE: Duration = Duration::from_millis(500);

/// Messages that may be queued for the driver. More than the output window lets through, so a
/// stalled driver does not block the agent itself.
const NEWS: usize = 16 << 10;

/// How often to check whether processes have ended.
const POLL: Duration = Duration::from_millis(20);

/// How long to wait for the last output when a process that cannot be killed may still hold a pipe.
const DRAIN: Duration = Duration::from_secs(5);

/// SIGTERM.
const TERMINATE: u8 = 15;

/// Runs an agent's work in this process, if the guardian that started it is still alive.
fn live<T>(parent: &OsStr, work: impl Future<Output = T>) -> Option<T> {
    let _ = set_child_subreaper(Some(getpid()));
    // Without the guardian nothing would clean up after this agent, so it shuts down when the
    // guardian dies.
    if !supervise::end_with(parent, Signal::TERM) {
        return None;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime
        .inspect_err(|error| tracing::error!(%error, "cannot start the agent's event loop"))
        .ok()?;
    let result = runtime.block_on(work);
    // The thread that reads standard input stops only at end of file.
    runtime.shutdown_background();
    Some(result)
}

/// Runs the agent as a separate process; its pipe is standard input and output.
pub fn main(program: &Path, mark: &OsStr, parent: &OsStr) -> u8 {
    let mark = mark.to_string_lossy().into_owned();
    let pipe = (tokio::io::stdin(), tokio::io::stdout());
    match live(parent, run(pipe, program.to_owned(), mark)) {
        None => 1,
        Some(Ok(_)) => 0,
        Some(Err(error)) => {
            tracing::error!(%error, "the agent failed");
            1
        }
    }
}

/// Serves one driver over a pipe until it sends `End` or goes away, or this process is asked to
/// stop.
pub async fn run<R, W>(pipe: (R, W), program: PathBuf, mark: String) -> io::Result<AgentExit>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (news, outgoing) = mpsc::channel(NEWS);
    let (commands_in, mut commands) = mpsc::channel(64);
    let reader = tokio::spawn(pipe::read(pipe.0, commands_in));
    let writer = tokio::spawn(pipe::write(pipe.1, outgoing));
    let mut agent = AgentProcess {
        program,
        mark,
        window: Arc::new(Semaphore::new(OUTPUT_WINDOW)),
        running: BTreeMap::new(),
        terminals: BTreeMap::new(),
        streams: JoinSet::new(),
        stdin: None,
        files: None,
        memory_kills: out_of_memory_kills(),
        all_well: true,
        path_check: PathCheckServer::new(news.clone()),
        news,
        lifeline: JoinSet::new(),
        examination: JoinSet::new(),
        guardian: getppid(),
        linger: None,
        leaves_at: None,
    };
    let mut children = signal(SignalKind::child())?;
    // A guardian that is asked to stop passes the request on as SIGUSR1. If the whole process group
    // was signalled too, the second signal is ignored.
    let mut leave = signal(SignalKind::user_defined1())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let agent_exit = loop {
        tokio::select! {
            command = commands.recv() => match command {
                Some(DriverToAgent::End) => break AgentExit::Dismissed,
                Some(command) => agent.execute(command).await,
                None => break AgentExit::Abandoned,
            },
            // An examination waits for its own child processes.
            _ = children.recv(), if agent.examination.is_empty() => agent.reap().await,
            Some(_) = agent.examination.join_next() => {}
            Some(Ok(error)) = agent.lifeline.join_next() => {
                tracing::warn!(%error, "the launcher's host has stopped responding");
                break AgentExit::Abandoned;
            }
            _ = terminate.recv() => if !agent.lingers().await { break AgentExit::Stopped },
            _ = leave.recv(), if agent.leaves_at.is_none() => {
                if !agent.lingers().await { break AgentExit::Stopped }
            }
            () = sleep_until(agent.leaves_at.unwrap_or_else(Instant::now)),
                if agent.leaves_at.is_some() => break AgentExit::Stopped,
            _ = interrupt.recv() => break AgentExit::Stopped,
            _ = hangup.recv() => break AgentExit::Stopped,
        }
    };
    if let Some(files) = agent.files.take() {
        let _ = timeout(DRAIN, files.end()).await;
    }
    agent.clear_up(agent_exit, &mut commands).await;
    drop(agent);
    let _ = timeout(DRAIN, writer).await;
    reader.abort();
    Ok(agent_exit)
}

/// Why an agent ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentExit {
    /// The driver dismissed it, and still reads its last messages.
    Dismissed,
    /// The driver is gone.
    Abandoned,
    /// This process was asked to stop.
    Stopped,
}

struct AgentProcess {
    program: PathBuf,
    mark: String,
    news: mpsc::Sender<AgentToDriver>,
    /// How much output may still be sent before the driver prints what it has.
    window: Arc<Semaphore>,
    running: BTreeMap<Worker, Pid>,
    terminals: BTreeMap<Worker, OwnedFd>,
    streams: JoinSet<()>,
    stdin: Option<mpsc::Sender<Vec<u8>>>,
    /// Writes files that the driver copies to this host.
    files: Option<FileReceiver>,
    /// The kernel's count of out-of-memory kills when this agent started.
    memory_kills: u64,
    /// Whether every worker that has ended exited with code 0.
    all_well: bool,
    path_check: PathCheckServer,
    /// The connection that shows whether the launcher's host is still up.
    lifeline: JoinSet<io::Error>,
    /// Collects facts about the host, when the driver asks for them.
    examination: JoinSet<()>,
    guardian: Option<Pid>,
    /// How long to keep running once this process is asked to stop.
    linger: Option<Duration>,
    /// When it stops after such a request.
    leaves_at: Option<Instant>,
}

impl AgentProcess {
    async fn send(&self, message: AgentToDriver) {
        // If the driver is gone, the closed pipe ends the agent.
        let _ = self.news.send(message).await;
    }

    async fn execute(&mut self, command: DriverToAgent) {
        match command {
            DriverToAgent::Start { workers } => {
                self.path_check.end();
                for spec in workers {
                    self.start(spec).await;
                }
            }
            DriverToAgent::Signal { signal } => match Signal::from_named_raw(signal) {
                Some(signal) => self.signal_workers(signal),
                None => {
                    let reason = format!("no such signal: {signal}");
                    self.send(AgentToDriver::Problem { reason }).await;
                }
            },
            DriverToAgent::SignalOne { worker, signal } => {
                if let (Some(pid), Some(signal)) =
                    (self.running.get(&worker), Signal::from_named_raw(signal))
                {
                    signal_worker(*pid, signal);
                }
            }
            DriverToAgent::Stdin { bytes } => {
                let passed = self.stdin.as_ref().is_some_and(|stdin| stdin.try_send(bytes).is_ok());
                if !passed {
                    self.send(AgentToDriver::StdinTaken).await;
                }
            }
            DriverToAgent::StdinEnd => self.stdin = None,
            DriverToAgent::Printed { cost } => self.window.add_permits(cost as usize),
            DriverToAgent::End => {}
            DriverToAgent::Listen { key, host, interfaces, ports, network } => {
                let at = (ports, network);
                let listening = self.path_check.listen((key, host), &interfaces, at);
                self.send(listening).await;
            }
            DriverToAgent::Dial { targets, limit_millis } => {
                let limit = Duration::from_millis(limit_millis.into());
                self.path_check.dial(targets, limit);
            }
            DriverToAgent::Stay { addresses } => {
                if let Some((key, host)) = self.path_check.identity.clone() {
                    self.lifeline.spawn(lifeline::hold_on(addresses, key, host));
                }
            }
            DriverToAgent::Linger { millis } => {
                self.linger = Some(Duration::from_millis(millis.into()));
            }
            DriverToAgent::Look { workers } => {
                let workers = workers.into_iter();
                let workers =
                    workers.filter_map(|worker| Some((worker, *self.running.get(&worker)?)));
                let found = condition::of(&workers.collect::<Vec<_>>());
                self.send(AgentToDriver::Looked { found }).await;
            }
            DriverToAgent::Resize { worker, size } => {
                if let Some(terminal) = self.terminals.get(&worker)
                    && terminal::resize(terminal, size).is_ok()
                    && let Some(pid) = self.running.get(&worker)
                {
                    signal_worker(*pid, Signal::WINCH);
                }
            }
            DriverToAgent::Copy(command) => self.receive(command).await,
            DriverToAgent::AskTime => {
                self.send(AgentToDriver::Time { unix_micros: unix_micros() }).await;
            }
            DriverToAgent::Examine => {
                let (program, news) = (self.program.clone(), self.news.clone());
                self.examination.spawn(async move {
                    let facts = Box::new(examine::facts(&program).await);
                    let _ = news.send(AgentToDriver::Examined { facts }).await;
                });
            }
            DriverToAgent::Measure { callee, address, millis } => {
                let load = Duration::from_millis(millis.into());
                self.path_check.measure(callee, address, load);
            }
        }
    }

    async fn receive(&mut self, command: CopyCommand) {
        if self.files.is_none() {
            match FileReceiver::start(self.news.clone()) {
                Ok(files) => self.files = Some(files),
                Err(error) => {
                    let reason = format!("cannot start a thread: {error}");
                    self.send(AgentToDriver::Copy(CopyAnswer::Failed { reason })).await;
                }
            }
        }
        if let Some(files) = &self.files {
            files.pass(command);
        }
    }

    async fn start(&mut self, spec: WorkerSpec) {
        let worker = spec.worker;
        match worker::start(&self.program, spec) {
            Ok(started) => {
                self.running.insert(worker, started.pid);
                self.terminals.extend(started.terminal.map(|terminal| (worker, terminal)));
                let pid = started.pid.as_raw_nonzero().get().unsigned_abs();
                self.send(AgentToDriver::Started { worker, pid }).await;
                for (stream, end) in started.outputs {
                    let (news, window) = (self.news.clone(), self.window.clone());
                    self.streams.spawn(pipe::forward(worker, stream, end, news, window));
                }
                if let Some(end) = started.stdin {
                    let (pieces, incoming) = mpsc::channel(1);
                    self.stdin = Some(pieces);
                    // It may wait for a worker that never reads; closing the pipe ends it.
                    tokio::spawn(pipe::feed(end, incoming, self.news.clone().downgrade()));
                }
            }
            Err(exit) => self.send(AgentToDriver::Exited { worker, exit }).await,
        }
    }

    /// Called when this process is asked to stop: returns whether it keeps running for a while, so
    /// that the workers can leave cleanly. It does so only once, and only if its guardian is alive,
    /// because the guardian's death arrives as the same signal.
    async fn lingers(&mut self) -> bool {
        let Some(limit) = self.linger.take().filter(|_| getppid() == self.guardian) else {
            return false;
        };
        self.leaves_at = Some(Instant::now() + limit);
        self.send(AgentToDriver::Leaving).await;
        true
    }

    fn signal_workers(&self, signal: Signal) {
        self.running.values().for_each(|pid| signal_worker(*pid, signal));
    }

    /// Reports workers that have exited, stopped or continued, and reaps orphans that this process
    /// inherited.
    async fn reap(&mut self) {
        let running: Vec<_> = self.running.iter().map(|(worker, pid)| (*worker, *pid)).collect();
        for (worker, pid) in &running {
            self.notice_stop(*worker, *pid).await;
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            let Ok(Some(status)) = waitid(WaitId::Pid(*pid), options) else { continue };
            let exit = self.exit(status.exit_status(), status.terminating_signal());
            self.ended(*worker, *pid, exit).await;
        }
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if let Some((worker, _)) = running.iter().find(|(_, known)| *known == pid) {
                let exit = self.exit(status.exit_status(), status.terminating_signal());
                self.ended(*worker, pid, exit).await;
            }
        }
    }

    async fn notice_stop(&self, worker: Worker, pid: Pid) {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
        let Ok(Some(status)) = waitid(WaitId::Pid(pid), options) else { return };
        let message = match status.stopped() {
            true => AgentToDriver::Stopped { worker },
            false => AgentToDriver::Continued { worker },
        };
        self.send(message).await;
    }

    async fn ended(&mut self, worker: Worker, pid: Pid, exit: Exit) {
        // Until the worker is reaped its process ID cannot be reused, so the group is certainly the
        // worker's. What a failed worker left running only delays the others; a helper process of a
        // worker that succeeded may keep working until the job ends.
        if !exit.is_success() {
            self.all_well = false;
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        self.terminals.remove(&worker);
        if self.running.remove(&worker).is_some() {
            self.send(AgentToDriver::Exited { worker, exit }).await;
        }
    }

    fn exit(&self, code: Option<i32>, signal: Option<i32>) -> Exit {
        match (code, signal) {
            (Some(code), _) => Exit::Code(code),
            (None, Some(9)) if out_of_memory_kills() != self.memory_kills => Exit::OutOfMemory,
            (None, Some(signal)) => Exit::Signal(signal),
            (None, None) => {
                Exit::Unknown { reason: "has ended, and the system did not report how".into() }
            }
        }
    }

    /// Ends what is left, forwards the last output, and reports the last exits.
    async fn clear_up(
        &mut self,
        agent_exit: AgentExit,
        commands: &mut mpsc::Receiver<DriverToAgent>,
    ) {
        self.stdin = None;
        self.examination.shutdown().await;
        if agent_exit != AgentExit::Dismissed {
            self.all_well = false;
            // Nothing may wait for a driver that no longer reads.
            self.news = mpsc::channel(1).0;
            self.streams.abort_all();
            supervise::signal_all(&self.mark, Scope::Family, Signal::TERM);
            self.reap_for(GRACE).await;
        }
        self.signal_workers(Signal::KILL);
        self.reap_for(LEFTOVER_GRACE).await;
        // Processes left behind by workers that succeeded get SIGTERM first; after a failure there
        // is no time for that.
        if self.all_well && supervise::signal_all(&self.mark, Scope::Family, Signal::TERM) > 0 {
            let _ = timeout(LEFTOVER_GRACE, async {
                while supervise::any_left(&self.mark, Scope::Family) {
                    sleep(POLL).await;
                    self.reap().await;
                }
            })
            .await;
        }
        let all_gone = supervise::sweep(&self.mark, Scope::Family);
        self.reap().await;
        match agent_exit {
            // With the last writer gone, every pipe reaches end of file, however slow the terminal
            // is.
            AgentExit::Dismissed if all_gone => self.drain(commands).await,
            AgentExit::Dismissed => {
                tracing::warn!("some processes of the job cannot be killed");
                let _ = timeout(DRAIN, self.drain(commands)).await;
            }
            AgentExit::Abandoned | AgentExit::Stopped => {}
        }
    }

    async fn reap_for(&mut self, limit: Duration) {
        let _ = timeout(limit, async {
            loop {
                self.reap().await;
                if self.running.is_empty() {
                    return;
                }
                sleep(POLL).await;
            }
        })
        .await;
    }

    async fn drain(&mut self, commands: &mut mpsc::Receiver<DriverToAgent>) {
        loop {
            tokio::select! {
                stream = self.streams.join_next() => if stream.is_none() { return },
                command = commands.recv() => match command {
                    Some(command) => self.execute(command).await,
                    None => return,
                },
            }
        }
    }
}

fn signal_worker(pid: Pid, signal: Signal) {
    // A worker that has just been started may not have its own group yet.
    if kill_process_group(pid, signal).is_err() {
        let _ = kill_process(pid, signal);
    }
}
