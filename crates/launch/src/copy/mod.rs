//! `ronde cp`: copies files to hosts through their agents, which are reached as for a job.
//!
//! Every host is served by a task of its own: a slow or broken host delays nobody. A task reads one
//! piece at a time and keeps a limited number of bytes in flight, so memory does not depend on what
//! is copied. What arrives is encrypted on the way as all messages to agents are.

mod walk;

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ronde_control::host_setup::other_version;
use ronde_control::wire::agent::{AgentToDriver, DriverToAgent, MAX_PIECE};
use ronde_control::wire::copy::{COPY_WINDOW, CopyAnswer, CopyCommand, FileEntry, MOST_ENTRIES};
use ronde_control::{VERSION, to_hex};
use tokio::sync::mpsc;
use tokio::time::timeout;
pub use walk::{SourceEntry, walk};

use crate::driver::agent_handle::AgentHandle;
use crate::driver::{DriverInput, entropy, start};
use crate::reach::{HostProblem, ReachMethod};
use crate::supervise::{self, Scope};
use crate::{LaunchError, block_on};

/// How long an agent that is dismissed may take to exit.
const EXIT_LIMIT: Duration = Duration::from_secs(2);

/// How long a host may take to write a piece or to look for its files.
const SILENCE: Duration = Duration::from_secs(120);

/// Messages of an agent that may wait to be read.
const NEWS: usize = 1024;

/// Most bytes of names in one message.
const MOST_NAMES: usize = 256 << 10;

/// What to copy, and where to.
#[derive(Clone, Debug)]
pub struct CopyPlan {
    /// The hosts, and how each is reached.
    pub hosts: Vec<(String, ReachMethod)>,
    /// What to copy.
    pub sources: Arc<[SourceEntry]>,
    /// The folder on the hosts to copy into; a relative one is below the home directory.
    pub folder: Vec<u8>,
    /// This executable, which is also the agent.
    pub program: PathBuf,
    /// How long a host may take to answer.
    pub limit: Duration,
}

/// What was copied to a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopySummary {
    /// Files that were sent.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that were there already.
    pub kept: u64,
}

/// The result of each host, in the order of the plan.
pub type CopyResults = Vec<Result<CopySummary, HostProblem>>;

/// Copies to all hosts at once; blocks. `done` counts the bytes that the hosts have or need not get,
/// for all hosts together.
pub fn copy_run(plan: &CopyPlan, done: &Arc<AtomicU64>) -> Result<CopyResults, LaunchError> {
    block_on(async {
        let id = to_hex(&entropy::<12>()?);
        let tasks: Vec<_> = (0..plan.hosts.len())
            .map(|index| tokio::spawn(serve(index, plan.clone(), id.clone(), done.clone())))
            .collect();
        let mut results = Vec::with_capacity(tasks.len());
        for task in tasks {
            let broken = |error| HostProblem::new(format!("the copy failed: {error}"), RETRY);
            results.push(task.await.unwrap_or_else(|error| Err(broken(error))));
        }
        Ok(results)
    })
}

const RETRY: &str = "run it again: files that have arrived are not sent again";

/// Copies to one host.
async fn serve(
    index: usize,
    plan: CopyPlan,
    id: String,
    done: Arc<AtomicU64>,
) -> Result<CopySummary, HostProblem> {
    let (host, method) = &plan.hosts[index];
    let (sender, news) = mpsc::channel(NEWS);
    let agent = start::agent(index, (host, method), (&plan.program, &id), &sender)
        .map_err(|error| HostProblem::new(format!("cannot start its agent: {error}"), RETRY))?;
    drop(sender);
    let mut copy = HostCopy { agent, news, in_flight: 0, done, summary: CopySummary::default() };
    let result = copy.run(&plan).await;
    copy.leave().await;
    result.map(|()| copy.summary)
}

struct HostCopy {
    agent: AgentHandle,
    news: mpsc::Receiver<DriverInput>,
    in_flight: u64,
    done: Arc<AtomicU64>,
    summary: CopySummary,
}

impl HostCopy {
    async fn run(&mut self, plan: &CopyPlan) -> Result<(), HostProblem> {
        let late = |_| {
            let seconds = plan.limit.as_secs();
            HostProblem::new(
                format!("it did not answer within {seconds} s"),
                "check that it is up, or wait longer with `--start-timeout`",
            )
        };
        timeout(plan.limit, self.hello()).await.map_err(late)??;
        self.tell(CopyCommand::Begin { folder: plan.folder.clone() });
        self.expect(&CopyAnswer::Ready).await?;
        for batch in batches(&plan.sources) {
            let entries: Vec<FileEntry> = batch.iter().map(|it| it.entry.clone()).collect();
            self.tell(CopyCommand::Entries(entries));
            let CopyAnswer::Wanted { files } = self.answer().await? else { return Err(odd()) };
            let wanted: Vec<&SourceEntry> = files
                .iter()
                .map(|file| batch.get(*file as usize))
                .collect::<Option<_>>()
                .ok_or_else(odd)?;
            let kept = batch.iter().enumerate();
            let kept = kept.filter(|(index, _)| !files.contains(&(*index as u32)));
            let kept: Vec<u64> =
                kept.filter(|(_, it)| it.is_file()).map(|(_, it)| it.size()).collect();
            self.summary.kept += kept.len() as u64;
            self.done.fetch_add(kept.iter().sum(), Ordering::Relaxed);
            for source in wanted {
                self.send(source).await?;
            }
        }
        while self.in_flight > 0 {
            self.taken().await?;
        }
        self.tell(CopyCommand::Finish);
        self.expect(&CopyAnswer::Finished).await
    }

    async fn send(&mut self, source: &SourceEntry) -> Result<(), HostProblem> {
        let unreadable = |error: io::Error| {
            let reason = format!("`{}` cannot be read: {error}", source.path.display());
            HostProblem::new(reason, "check its permissions, and run this again")
        };
        let mut file = File::open(&source.path).map_err(unreadable)?;
        loop {
            while self.in_flight + MAX_PIECE as u64 > COPY_WINDOW {
                self.taken().await?;
            }
            let mut bytes = Vec::with_capacity(MAX_PIECE);
            (&mut file).take(MAX_PIECE as u64).read_to_end(&mut bytes).map_err(unreadable)?;
            if bytes.is_empty() {
                break;
            }
            self.in_flight += bytes.len() as u64;
            self.tell(CopyCommand::Piece { bytes });
        }
        self.tell(CopyCommand::FileEnd);
        self.summary.files += 1;
        Ok(())
    }

    async fn taken(&mut self) -> Result<(), HostProblem> {
        let CopyAnswer::Taken { bytes } = self.answer().await? else { return Err(odd()) };
        self.in_flight = self.in_flight.saturating_sub(bytes.into());
        self.summary.bytes += u64::from(bytes);
        self.done.fetch_add(bytes.into(), Ordering::Relaxed);
        Ok(())
    }

    fn tell(&self, command: CopyCommand) {
        self.agent.tell(DriverToAgent::Copy(command));
    }

    async fn hello(&mut self) -> Result<(), HostProblem> {
        match self.next().await? {
            DriverInput::Hello(_, version) if version == VERSION => Ok(()),
            DriverInput::Hello(_, version) => Err(other_version(&version, VERSION)),
            _ => Err(odd()),
        }
    }

    async fn expect(&mut self, expected: &CopyAnswer) -> Result<(), HostProblem> {
        match self.answer().await? {
            answer if answer == *expected => Ok(()),
            _ => Err(odd()),
        }
    }

    async fn answer(&mut self) -> Result<CopyAnswer, HostProblem> {
        loop {
            match self.next().await? {
                DriverInput::Agent(_, AgentToDriver::Copy(CopyAnswer::Failed { reason })) => {
                    let hint = "check the free space and the permissions there, then run it again";
                    return Err(HostProblem::new(reason, hint));
                }
                DriverInput::Agent(_, AgentToDriver::Copy(answer)) => return Ok(answer),
                // All other messages are about ranks, and there are none.
                _ => {}
            }
        }
    }

    async fn next(&mut self) -> Result<DriverInput, HostProblem> {
        let silent = |_| {
            let seconds = SILENCE.as_secs();
            HostProblem::new(format!("it has not answered for {seconds} s"), RETRY)
        };
        match timeout(SILENCE, self.news.recv()).await.map_err(silent)? {
            Some(DriverInput::AgentGone(_, problem)) => {
                self.agent.gone = true;
                Err(problem)
            }
            Some(input) => Ok(input),
            None => Err(HostProblem::new("the connection to its agent ended", RETRY)),
        }
    }

    /// Dismisses the agent; does not wait for one that does not exit.
    async fn leave(&mut self) {
        self.agent.tell(DriverToAgent::End);
        let _ =
            timeout(EXIT_LIMIT, async { while !self.agent.gone && self.next().await.is_ok() {} })
                .await;
        if !self.agent.gone {
            self.agent.kill();
        }
        if self.agent.traits.child {
            supervise::sweep(&self.agent.mark, Scope::Marked);
        }
    }
}

/// The sources in groups that fit into a message.
fn batches(sources: &[SourceEntry]) -> Vec<&[SourceEntry]> {
    let (mut batches, mut start, mut names) = (Vec::new(), 0, 0);
    for (index, source) in sources.iter().enumerate() {
        names += source.entry.path.len();
        if index - start + 1 >= MOST_ENTRIES || names >= MOST_NAMES {
            batches.push(&sources[start..=index]);
            (start, names) = (index + 1, 0);
        }
    }
    if start < sources.len() {
        batches.push(&sources[start..]);
    }
    batches
}

fn odd() -> HostProblem {
    HostProblem::new(
        "its agent sent something unexpected",
        "install the same version of Ronde on both sides",
    )
}
