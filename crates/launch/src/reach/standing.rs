//! An agent behind a standing agent: a process that listens on the host all the time and starts an
//! agent for every launcher that holds its key. Its connection becomes the agent's pipe, so it needs
//! neither ssh nor a login.
//!
//! The standing agent may start after the launcher, so the launcher retries until its time limit. It
//! gives up early on an error that a retry cannot fix: a refusal, or a peer without the key.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ronde_control::wire::standing::{StandingAnswer, StandingInfo, StandingRequest};
use ronde_control::wire::{Callee, JobKey};
use tokio::io::DuplexStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::link::AgentOutput;
use super::{AgentLink, AgentTraits, HostProblem};
use crate::stream;
use crate::wire::{SealedConnection, call, connect};

/// The port of standing agents, unless the user names another.
pub const DEFAULT_PORT: u16 = 29508;

/// How long one address may take to answer, and then to authenticate.
const CALL: Duration = Duration::from_secs(3);

/// How long an authenticated standing agent may take to answer a request.
const ANSWER: Duration = Duration::from_secs(10);

/// Pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// After this many consecutive attempts that reach a peer without the key, we give up.
const WRONG_KEY_ATTEMPTS: u32 = 3;

/// Largest answer of a standing agent, in bytes.
const LONGEST_ANSWER: usize = 4096;

/// A standing agent to reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandingAgent {
    /// Name or address of its host.
    pub host: String,
    /// The port that it listens on.
    pub port: u16,
    /// The key that both sides must hold.
    pub key: JobKey,
    /// How long to wait for it.
    pub time_limit: Duration,
    /// Whether its host is this machine, so that a loopback address works.
    pub is_here: bool,
    /// The process that answered last.
    pub last: LastInstance,
}

/// The instance of a standing agent that answered last, shared by all copies of its description.
#[derive(Clone, Debug, Default)]
pub struct LastInstance(Arc<Mutex<Option<u64>>>);

impl LastInstance {
    /// Remembers an instance; returns whether it is another one than before.
    fn replace(&self, instance: u64) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.replace(instance) != Some(instance)
    }
}

/// Which process answers says nothing about which agent is meant.
impl PartialEq for LastInstance {
    fn eq(&self, _: &LastInstance) -> bool {
        true
    }
}

impl Eq for LastInstance {}

impl StandingAgent {
    /// What its agents share with the driver.
    pub(super) fn traits(&self) -> AgentTraits {
        AgentTraits { child: false, network: self.is_here, environment: false }
    }

    fn address(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

/// Why a standing agent cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StandingFailure {
    /// Nothing answers, now.
    #[error("no standing agent answers at {0} ({1})")]
    Unreachable(String, String),
    /// Whoever listens there does not hold the key.
    #[error("the process listening at {0} does not hold the key of the standing agents")]
    WrongKey(String),
    /// It does not serve us.
    #[error("the standing agent at {0} refused: {1}")]
    Refused(String, String),
}

impl StandingFailure {
    /// What happened, and what to do about it.
    pub fn problem(&self) -> HostProblem {
        let hint = match self {
            StandingFailure::Unreachable(..) => {
                "start `ronde agent --listen` there, check the port (`--agent-port`) and that no \
                 firewall blocks it, or use `--reach ssh`"
            }
            StandingFailure::WrongKey(_) => {
                "use the same key on both sides: `--agent-key-file` here, `--key-file` there"
            }
            StandingFailure::Refused(..) => {
                "wait until it is available again, or leave the host out"
            }
        };
        HostProblem::new(self.to_string(), hint)
    }
}

/// Connects to a standing agent and has it start an agent whose processes carry `mark`.
pub fn start(agent: &StandingAgent, mark: &str) -> AgentLink {
    let (user, own) = stream::pipe();
    let (reader, writer) = tokio::io::split(user);
    let (cut, is_cut) = oneshot::channel();
    let (say_late, late) = oneshot::channel();
    let (traits, agent, mark) = (agent.traits(), agent.clone(), mark.to_owned());
    let serving = tokio::spawn(async move { serve(&agent, mark, own, (is_cut, say_late)).await });
    let ended = async move {
        serving.await.unwrap_or_else(|error| {
            HostProblem::new(format!("its connection failed: {error}"), super::VERBOSE)
        })
    };
    AgentLink {
        reader: Box::new(reader),
        writer: Box::new(writer),
        traits,
        heard: AgentOutput::default(),
        late: Some(late),
        cut,
        ended: Box::pin(ended),
    }
}

/// Waits until another instance of a standing agent answers than the last one, which has gone.
pub(crate) async fn restarted(agent: &StandingAgent) {
    loop {
        sleep(LONGEST_PAUSE).await;
        if let Ok((info, _)) = request(agent, &StandingRequest::Describe).await
            && agent.last.replace(info.instance)
        {
            return;
        }
    }
}

/// What each of these standing agents says about itself, all asked at once; a late one has until its
/// time limit. Blocks.
pub fn survey(agents: Vec<StandingAgent>) -> Vec<Result<StandingInfo, StandingFailure>> {
    let unasked = |agent: &StandingAgent, error: &dyn std::fmt::Display| {
        Err(StandingFailure::Unreachable(agent.address(), error.to_string()))
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return agents.iter().map(|agent| unasked(agent, &error)).collect(),
    };
    runtime.block_on(async {
        let ask = |agent: StandingAgent| {
            let asked = agent.clone();
            (
                agent,
                tokio::spawn(async move { dial(&asked, &StandingRequest::Describe, None).await }),
            )
        };
        let asked: Vec<_> = agents.into_iter().map(ask).collect();
        let mut found = Vec::with_capacity(asked.len());
        for (agent, answer) in asked {
            found.push(match answer.await {
                Ok(answer) => answer.map(|(info, _)| info),
                Err(error) => unasked(&agent, &error),
            });
        }
        found
    })
}

/// Which of these standing agents answer now, and hold the key. Blocks for a short time.
pub fn answering(agents: Vec<StandingAgent>) -> Vec<bool> {
    let at_once = |agent| StandingAgent { time_limit: Duration::ZERO, ..agent };
    survey(agents.into_iter().map(at_once).collect()).iter().map(Result::is_ok).collect()
}

async fn serve(
    agent: &StandingAgent,
    mark: String,
    own: DuplexStream,
    (mut is_cut, say_late): (oneshot::Receiver<()>, oneshot::Sender<String>),
) -> HostProblem {
    let cut = || HostProblem::new("the launcher closed its connection", super::VERBOSE);
    let wanted = StandingRequest::Start { mark };
    let sealed = tokio::select! {
        reached = dial(agent, &wanted, Some(say_late)) => match reached {
            Ok((info, sealed)) => {
                agent.last.replace(info.instance);
                sealed
            }
            Err(failure) => return failure.problem(),
        },
        Ok(()) = &mut is_cut => return cut(),
    };
    let (mut receiving, sending) = match stream::join(sealed, None, own) {
        Ok(tasks) => tasks,
        Err(error) => return broken(&error),
    };
    let result = tokio::select! {
        result = &mut receiving => result.unwrap_or_else(|error| Err(io::Error::other(error))),
        Ok(()) = is_cut => Err(io::ErrorKind::ConnectionAborted.into()),
    };
    receiving.abort();
    sending.abort();
    match result {
        Ok(()) => HostProblem::new(
            "its agent exited",
            "check the output of `ronde agent` there, and whether a scheduler, a time limit or a \
             lack of memory ended it",
        ),
        Err(error) => broken(&error),
    }
}

fn broken(error: &io::Error) -> HostProblem {
    HostProblem::new(
        format!("the connection to its standing agent broke: {error}"),
        "check that the host is up and connected to the network",
    )
}

/// Connects, and retries while a retry may help; says so if that takes a while.
async fn dial(
    agent: &StandingAgent,
    wanted: &StandingRequest,
    mut say_late: Option<oneshot::Sender<String>>,
) -> Result<(StandingInfo, SealedConnection), StandingFailure> {
    let end = Instant::now() + agent.time_limit;
    let (mut pause, mut wrong_keys) = (FIRST_PAUSE, 0);
    loop {
        let failure = match request(agent, wanted).await {
            Ok(reached) => return Ok(reached),
            Err(failure) => failure,
        };
        wrong_keys = match failure {
            StandingFailure::WrongKey(_) => wrong_keys + 1,
            _ => 0,
        };
        let is_final = matches!(failure, StandingFailure::Refused(..))
            || wrong_keys == WRONG_KEY_ATTEMPTS
            || Instant::now() + pause >= end;
        if is_final {
            return Err(failure);
        }
        if pause == LONGEST_PAUSE
            && let Some(say_late) = say_late.take()
        {
            // The driver may be gone.
            let _ = say_late.send(format!("waiting for host `{}`: {failure}", agent.host));
        }
        sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

async fn request(
    agent: &StandingAgent,
    wanted: &StandingRequest,
) -> Result<(StandingInfo, SealedConnection), StandingFailure> {
    let address = agent.address();
    let unreachable = |why: &str| StandingFailure::Unreachable(address.clone(), why.to_owned());
    let stream = connect(&address, CALL).await.map_err(|why| unreachable(&why))?;
    let mut sealed = match timeout(CALL, call(stream, &agent.key, Callee::StandingAgent)).await {
        Ok(Ok(sealed)) => sealed,
        // A peer with another key closes the connection after our first message.
        Ok(Err(_)) => return Err(StandingFailure::WrongKey(address)),
        Err(_) => return Err(unreachable("it sends nothing")),
    };
    let asking = async {
        sealed.say(wanted).await?;
        sealed.hear(LONGEST_ANSWER).await
    };
    match timeout(ANSWER, asking).await {
        Ok(Ok(Some(StandingAnswer::Here(info)))) => Ok((info, sealed)),
        Ok(Ok(Some(StandingAnswer::Refused { reason }))) => {
            Err(StandingFailure::Refused(address, reason))
        }
        _ => Err(unreachable("it hung up")),
    }
}
