//! The agent of a host: starts the workers that the driver names, passes their output on, says how
//! they ended, and lets none of their processes outlive the job.
//!
//! It decides nothing: when to signal and when to end is the driver's business. Only when the driver
//! goes away, or this process is told to stop, it ends the workers by itself: a request first, a kill
//! [`GRACE`] later. A driver whose workers can leave in order has it wait with that for a while.

mod condition;
mod examine;
pub mod join;
mod path_check;
mod pipe;
mod speed_test;
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
pub(crate) use path_check::free_ports;

use crate::doctor::unix_micros;
use crate::lifeline;
use crate::supervise::memory::out_of_memory_kills;
use crate::supervise::{self, Scope};

/// How long workers have to end by themselves when the driver has gone.
pub const GRACE: Duration = Duration::from_secs(1);

/// How long processes that workers left behind have to end by themselves.
const LEFTOVER_GRACE: Duration = Duration::from_millis(500);

/// News that may wait for the driver. More than the window of output lets through, so that a driver
/// that stands still does not hold up the agent itself.
const NEWS: usize = 16 << 10;

/// How often a wait for the end of processes looks again.
const POLL: Duration = Duration::from_millis(20);

/// How long the last output may take if a process that cannot be killed may still hold a pipe.
const DRAIN: Duration = Duration::from_secs(5);

/// The number of the signal that asks a process to end.
const TERMINATE: u8 = 15;

/// Does an agent's work as a process of its own, if the guardian that started it still lives.
fn live<T>(parent: &OsStr, work: impl Future<Output = T>) -> Option<T> {
    let _ = set_child_subreaper(Some(getpid()));
    // Should the guardian die, nobody would be left to clear up after this agent: it ends in order.
    if !supervise::end_with(parent, Signal::TERM) {
        return None;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.inspect_err(|error| tracing::error!(%error, "the agent has no event loop")).ok()?;
    let result = runtime.block_on(work);
    // Standard input is read by a thread that only its end would stop.
    runtime.shutdown_background();
    Some(result)
}

/// The agent as a process of its own: its pipe is standard input and output.
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

/// Serves one driver over a pipe until it says `End` or goes away, or this process is told to stop.
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
    // A guardian that was told to stop passes that on so; that the whole group of processes may have
    // been told as well does not count twice.
    let mut leave = signal(SignalKind::user_defined1())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let agent_exit = loop {
        tokio::select! {
            command = commands.recv() => match command {
                Some(DriverToAgent::End) => break AgentExit::Dismissed,
                Some(command) => agent.obey(command).await,
                None => break AgentExit::Abandoned,
            },
            // What an examination runs is awaited by itself.
            _ = children.recv(), if agent.examination.is_empty() => agent.reap().await,
            Some(_) = agent.examination.join_next() => {}
            Some(Ok(error)) = agent.lifeline.join_next() => {
                tracing::warn!(%error, "the launcher's host does not answer any more");
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
    agent.clear_up(agent_exit, &mut commands).await;
    drop(agent);
    let _ = timeout(DRAIN, writer).await;
    reader.abort();
    Ok(agent_exit)
}

/// Why an agent ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentExit {
    /// The driver said so, and listens to the last news.
    Dismissed,
    /// The driver has gone.
    Abandoned,
    /// Somebody told this process to stop.
    Stopped,
}

struct AgentProcess {
    program: PathBuf,
    mark: String,
    news: mpsc::Sender<AgentToDriver>,
    /// How much output may still be sent before the driver has printed what it has.
    window: Arc<Semaphore>,
    running: BTreeMap<Worker, Pid>,
    terminals: BTreeMap<Worker, OwnedFd>,
    streams: JoinSet<()>,
    stdin: Option<mpsc::Sender<Vec<u8>>>,
    /// How often the kernel had killed for lack of memory before.
    memory_kills: u64,
    /// Whether every worker that has ended did so with code 0.
    all_well: bool,
    path_check: PathCheckServer,
    /// The connection that shows whether the launcher's host is still there.
    lifeline: JoinSet<io::Error>,
    /// Finds out how the host is, if somebody wants to know.
    examination: JoinSet<()>,
    guardian: Option<Pid>,
    /// How long to go on when somebody tells this process to stop.
    linger: Option<Duration>,
    /// When it stops because somebody has.
    leaves_at: Option<Instant>,
}

impl AgentProcess {
    async fn tell(&self, message: AgentToDriver) {
        // If the driver has gone, the closed pipe ends the agent; there is nobody left to tell.
        let _ = self.news.send(message).await;
    }

    async fn obey(&mut self, command: DriverToAgent) {
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
                    let reason = format!("there is no signal {signal}");
                    self.tell(AgentToDriver::Problem { reason }).await;
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
                    self.tell(AgentToDriver::StdinTaken).await;
                }
            }
            DriverToAgent::StdinEnd => self.stdin = None,
            DriverToAgent::Printed { cost } => self.window.add_permits(cost as usize),
            DriverToAgent::End => {}
            DriverToAgent::Listen { key, host, interfaces, ports } => {
                let listening = self.path_check.listen((key, host), &interfaces, ports).await;
                self.tell(listening).await;
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
                self.tell(AgentToDriver::Looked { found }).await;
            }
            DriverToAgent::Resize { worker, size } => {
                if let Some(terminal) = self.terminals.get(&worker)
                    && terminal::resize(terminal, size).is_ok()
                    && let Some(pid) = self.running.get(&worker)
                {
                    signal_worker(*pid, Signal::WINCH);
                }
            }
            DriverToAgent::AskTime => {
                self.tell(AgentToDriver::Time { unix_micros: unix_micros() }).await;
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

    async fn start(&mut self, spec: WorkerSpec) {
        let worker = spec.worker;
        match worker::start(&self.program, spec) {
            Ok(started) => {
                self.running.insert(worker, started.pid);
                self.terminals.extend(started.terminal.map(|terminal| (worker, terminal)));
                let pid = started.pid.as_raw_nonzero().get().unsigned_abs();
                self.tell(AgentToDriver::Started { worker, pid }).await;
                for (stream, end) in started.outputs {
                    let (news, window) = (self.news.clone(), self.window.clone());
                    self.streams.spawn(pipe::forward(worker, stream, end, news, window));
                }
                if let Some(end) = started.stdin {
                    let (pieces, incoming) = mpsc::channel(1);
                    self.stdin = Some(pieces);
                    // It may wait for a worker that never reads; the end of the pipe ends it.
                    tokio::spawn(pipe::feed(end, incoming, self.news.clone().downgrade()));
                }
            }
            Err(exit) => self.tell(AgentToDriver::Exited { worker, exit }).await,
        }
    }

    /// Somebody tells this process to stop: gives whether it goes on for a while, so that the workers can
    /// leave in order. Not twice, and not without a guardian, whose death is told in the same way.
    async fn lingers(&mut self) -> bool {
        let Some(limit) = self.linger.take().filter(|_| getppid() == self.guardian) else {
            return false;
        };
        self.leaves_at = Some(Instant::now() + limit);
        self.tell(AgentToDriver::Leaving).await;
        true
    }

    fn signal_workers(&self, signal: Signal) {
        self.running.values().for_each(|pid| signal_worker(*pid, signal));
    }

    /// Reports workers that have ended, were stopped or go on, and buries orphans that fell to this
    /// process.
    async fn reap(&mut self) {
        let running: Vec<_> = self.running.iter().map(|(worker, pid)| (*worker, *pid)).collect();
        for (worker, pid) in &running {
            self.notice_stop(*worker, *pid).await;
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            let Ok(Some(status)) = waitid(WaitId::Pid(*pid), look) else { continue };
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
        let look = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
        let Ok(Some(status)) = waitid(WaitId::Pid(pid), look) else { return };
        let message = match status.stopped() {
            true => AgentToDriver::Stopped { worker },
            false => AgentToDriver::Continued { worker },
        };
        self.tell(message).await;
    }

    async fn ended(&mut self, worker: Worker, pid: Pid, exit: Exit) {
        // While it is not buried its number is its own, so the group is surely the worker's. What a
        // failed worker left running only holds the others up; a helper of one that finished well may
        // still be at work until the job ends.
        if !exit.is_success() {
            self.all_well = false;
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        self.terminals.remove(&worker);
        if self.running.remove(&worker).is_some() {
            self.tell(AgentToDriver::Exited { worker, exit }).await;
        }
    }

    fn exit(&self, code: Option<i32>, signal: Option<i32>) -> Exit {
        match (code, signal) {
            (Some(code), _) => Exit::Code(code),
            (None, Some(9)) if out_of_memory_kills() != self.memory_kills => Exit::OutOfMemory,
            (None, Some(signal)) => Exit::Signal(signal),
            (None, None) => Exit::Unknown { reason: "the system did not say how it ended".into() },
        }
    }

    /// Ends what is left, passes the last output on, and reports the last exits.
    async fn clear_up(
        &mut self,
        agent_exit: AgentExit,
        commands: &mut mpsc::Receiver<DriverToAgent>,
    ) {
        self.stdin = None;
        self.examination.shutdown().await;
        if agent_exit != AgentExit::Dismissed {
            self.all_well = false;
            // Nothing may wait any more for a driver that does not read.
            self.news = mpsc::channel(1).0;
            self.streams.abort_all();
            supervise::signal_all(&self.mark, Scope::Family, Signal::TERM);
            self.reap_for(GRACE).await;
        }
        self.signal_workers(Signal::KILL);
        self.reap_for(LEFTOVER_GRACE).await;
        // What workers that finished well left behind is asked first; after a failure time is short.
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
            // With the last writer gone every pipe has an end, however slow the screen is.
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
                    Some(command) => self.obey(command).await,
                    None => return,
                },
            }
        }
    }
}

fn signal_worker(pid: Pid, signal: Signal) {
    // A worker that was only just started may not have its group yet.
    if kill_process_group(pid, signal).is_err() {
        let _ = kill_process(pid, signal);
    }
}
